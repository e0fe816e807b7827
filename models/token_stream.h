// A text as token ids: 16 or 32 bits each, in memory, and in a cache file that spares encoding the text again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "models/on_progress.h"
#include "models/tokenizer.h"

namespace bg {

/// An unchanging sequence of token ids. Copies share the data.
///
/// The cache file is the ids (16 bits each when the vocabulary has at most 65,536 tokens, else 32), then a trailer with
/// a magic word, version, count, vocabulary size, fingerprint of text and tokenizer, and checksums. It is in the byte
/// order of the machine; another one rebuilds it.
class TokenStream {
 public:
  /// Encodes into memory.
  TokenStream(std::string_view text, const Tokenizer& tokenizer);

  /// Uses the cache file `path` if it is whole and was made from this text and tokenizer; otherwise encodes the text
  /// and (re)places the file atomically, with `progress`. Encoding holds a part of the text at a time, so memory stays
  /// bounded for any text. Throws Error when the file cannot be written; its folder must exist.
  static TokenStream cached(const std::filesystem::path& path, std::string_view text, const Tokenizer& tokenizer,
                            const OnProgress& progress = {});

  std::size_t size() const { return size_; }
  int64_t vocab_size() const { return vocab_size_; }
  bool reused() const { return reused_; }  ///< the cache file was good

  int64_t operator[](std::size_t i) const { return narrow_ ? narrow_[i] : wide_[i]; }

  /// Copies the ids [begin, begin + out.size()). Throws Error when they reach past the end.
  void read(std::size_t begin, std::span<int64_t> out) const;

 private:
  TokenStream() = default;
  void point_into(std::string_view bytes, std::size_t size, int64_t vocab_size);
  static bool load(const std::filesystem::path& path, int64_t vocab_size, uint64_t fingerprint, TokenStream& stream);

  std::shared_ptr<const void> owner_;  // what holds the data
  const uint16_t* narrow_ = nullptr;   // one of these two
  const uint32_t* wide_ = nullptr;
  std::size_t size_ = 0;
  int64_t vocab_size_ = 0;
  bool reused_ = false;
};

}  // namespace bg
