// Text to token ids and back: plain bytes, or byte-level BPE as GPT-2 does it. Both are kept in the `tokenizer.json`
// form of the Hugging Face `tokenizers` library, which loads them and gives the same ids.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "models/bpe_trainer.h"

namespace bg {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  /// Ids of valid UTF-8 text, in parallel; the same for any number of threads. Throws Error with the position of the
  /// first byte that is not UTF-8.
  std::vector<int32_t> encode(std::string_view text) const;

  /// The bytes of the tokens, one after the other: decode(encode(text)) == text. A sequence that ends inside a
  /// character gives the bytes so far. Throws Error for an id outside [0, vocab_size()).
  std::string decode(std::span<const int32_t> ids) const;

  virtual int64_t vocab_size() const = 0;
  virtual std::string describe() const = 0;  ///< one line for people: kind and size

  /// One token as a printable line: " the", "\n" as two characters, "\xe2" for a byte that is only part of a character.
  std::string token_text(int32_t id) const;

  virtual std::string to_json() const = 0;             ///< the content of tokenizer.json
  void save(const std::filesystem::path& path) const;  ///< atomically
  uint64_t fingerprint() const;                        ///< of everything that decides the ids

  /// Reads a tokenizer.json: byte-level BPE with GPT-2's pre-tokenisation, with or without added tokens. Throws Error
  /// saying which part of the file is not supported or damaged.
  static std::unique_ptr<Tokenizer> load(const std::filesystem::path& path);
  static std::unique_ptr<Tokenizer> parse(std::string_view json);  ///< the same of the file's content

 protected:
  virtual std::vector<int32_t> encode_valid(std::string_view text) const = 0;
  virtual std::string_view token_bytes(int32_t id) const = 0;  // id is in range
};

/// 256 tokens: the id is the byte.
class ByteTokenizer : public Tokenizer {
 public:
  int64_t vocab_size() const override { return 256; }
  std::string describe() const override;
  std::string to_json() const override;

 protected:
  std::vector<int32_t> encode_valid(std::string_view text) const override;
  std::string_view token_bytes(int32_t id) const override;
};

/// How many ids a vocabulary may have.
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 20;

/// A token that is found in the text before anything else happens, such as <|endoftext|>.
struct AddedToken {
  int32_t id;
  std::string content;
  bool special = true;      ///< kept for the file; it does not change the ids
  bool normalized = false;  ///< looked for after all that are not, in the text between them
};

class BpeTokenizer : public Tokenizer {
 public:
  /// Tokens may be in any order but must hold the 256 single bytes; merges apply in order, and each makes a token of
  /// the list. Added tokens are tokens of the list, too. An empty token is an id without use: nothing is encoded as it,
  /// and it decodes to nothing. Throws Error otherwise.
  explicit BpeTokenizer(BpeModel model, std::vector<AddedToken> added = {});

  /// Learns up to vocab_size tokens (see train_bpe, also for when there are fewer).
  static BpeTokenizer train(std::string_view text, int64_t vocab_size, const OnProgress& progress = {});

  int64_t vocab_size() const override { return static_cast<int64_t>(model_.tokens.size()); }
  std::string describe() const override;
  std::string to_json() const override;

  const BpeModel& model() const { return model_; }

 protected:
  std::vector<int32_t> encode_valid(std::string_view text) const override;
  std::string_view token_bytes(int32_t id) const override { return model_.tokens[static_cast<std::size_t>(id)]; }

 private:
  friend class WordEncoder;
  struct Merge {
    int32_t rank, result;
  };

  BpeModel model_;
  std::vector<AddedToken> added_;
  std::array<int32_t, 256> byte_id_{};
  std::unordered_map<uint64_t, Merge> merge_of_;  // by (left, right)
};

/// The tokenizer that the option --tokenizer names: `byte`, `bpe:SIZE` (trained on `text`), or the path of a
/// tokenizer.json. Throws UsageError when it is none of these or SIZE is out of range.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec, std::string_view text,
                                          const OnProgress& progress = {});

}  // namespace bg
