// Packing ids, and the cache file.
#include "models/token_stream.h"

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/read_file.h"
#include "models/pretokenizer.h"

namespace bg {
namespace {

constexpr std::size_t kPartBytes = std::size_t{8} << 20;  // text that is encoded at a time, within a second
constexpr int64_t kNarrowVocab = 65536;

// At the end of the file, because count and checksum are known last and the ids are written as they come.
struct Trailer {
  char magic[8] = {'B', 'G', 't', 'o', 'k', 'e', 'n', 's'};
  uint64_t version = 1;
  uint64_t count = 0;
  uint64_t vocab_size = 0;
  uint64_t fingerprint = 0;   // of text and tokenizer
  uint64_t ids_checksum = 0;  // of the ids as they are in the file
  uint64_t checksum = 0;      // of this trailer up to here

  uint64_t expected_checksum() const {
    return hash_bytes({reinterpret_cast<const char*>(this), offsetof(Trailer, checksum)});
  }
};
static_assert(sizeof(Trailer) == 56, "no padding: the bytes are the file format");

std::size_t bytes_per_id(int64_t vocab_size) { return vocab_size <= kNarrowVocab ? 2 : 4; }

template <class T>
std::string pack_as(const std::vector<int32_t>& ids) {
  std::string bytes(ids.size() * sizeof(T), '\0');
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const T id = static_cast<T>(ids[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &id, sizeof(T));
  }
  return bytes;
}

// Encodes part after part and hands on the packed ids.
void encode_in_parts(std::string_view text, const Tokenizer& tokenizer,
                     const std::function<void(std::string_view)>& sink, const OnProgress& progress = {}) {
  for (std::size_t begin = 0, end; begin < text.size(); begin = end) {
    report_progress(progress, "encoding the text", begin, text.size());
    end = piece_end(text, begin, kPartBytes);
    const std::string_view part = text.substr(begin, end - begin);
    const std::vector<int32_t> ids = tokenizer.encode(part);
    sink(bytes_per_id(tokenizer.vocab_size()) == 2 ? pack_as<uint16_t>(ids) : pack_as<uint32_t>(ids));
  }
}

void write_cache(const std::filesystem::path& path, std::string_view text, const Tokenizer& tokenizer,
                 uint64_t fingerprint, const OnProgress& progress) {
  Trailer trailer;
  trailer.vocab_size = static_cast<uint64_t>(tokenizer.vocab_size());
  trailer.fingerprint = fingerprint;
  trailer.ids_checksum = hash_bytes({});
  AtomicFile file(path);
  const auto sink = [&](std::string_view bytes) {
    file.write(bytes);
    trailer.count += bytes.size() / bytes_per_id(tokenizer.vocab_size());
    trailer.ids_checksum = hash_bytes(bytes, trailer.ids_checksum);
  };
  encode_in_parts(text, tokenizer, sink, progress);
  trailer.checksum = trailer.expected_checksum();
  file.write(&trailer, sizeof trailer);
  file.commit();
}

}  // namespace

TokenStream::TokenStream(std::string_view text, const Tokenizer& tokenizer) {
  auto bytes = std::make_shared<std::string>();
  encode_in_parts(text, tokenizer, [&](std::string_view part) { bytes->append(part); });
  point_into(*bytes, bytes->size() / bytes_per_id(tokenizer.vocab_size()), tokenizer.vocab_size());
  owner_ = std::move(bytes);
}

TokenStream TokenStream::cached(const std::filesystem::path& path, std::string_view text, const Tokenizer& tokenizer,
                                const OnProgress& progress) {
  const uint64_t fingerprint = hash_bytes(text, tokenizer.fingerprint());
  TokenStream stream;
  stream.reused_ = load(path, tokenizer.vocab_size(), fingerprint, stream);
  if (stream.reused_) return stream;
  write_cache(path, text, tokenizer, fingerprint, progress);
  const bool whole = load(path, tokenizer.vocab_size(), fingerprint, stream);
  BG_CHECK(whole, "corpus", str("the token cache ", path.string(), " is damaged although it was just written"), "", "",
           "check the disk, or use another folder");
  return stream;
}

// True, with the stream set, when the file exists, is whole and matches.
bool TokenStream::load(const std::filesystem::path& path, int64_t vocab_size, uint64_t fingerprint,
                       TokenStream& stream) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  auto file = std::make_shared<std::string>(read_file(path, FileKind::data));
  const std::string_view bytes = *file;
  Trailer trailer;
  if (bytes.size() < sizeof trailer) return false;
  const std::string_view ids = bytes.substr(0, bytes.size() - sizeof trailer);
  std::memcpy(&trailer, bytes.data() + ids.size(), sizeof trailer);
  const Trailer current;
  if (std::memcmp(trailer.magic, current.magic, sizeof current.magic) != 0) return false;
  if (trailer.checksum != trailer.expected_checksum() || trailer.version != current.version) return false;
  if (trailer.fingerprint != fingerprint || trailer.vocab_size != static_cast<uint64_t>(vocab_size)) return false;
  if (ids.size() / bytes_per_id(vocab_size) != trailer.count || ids.size() % bytes_per_id(vocab_size) != 0)
    return false;
  if (hash_bytes(ids) != trailer.ids_checksum) return false;
  stream.point_into(ids, trailer.count, vocab_size);
  stream.owner_ = std::move(file);
  return true;
}

void TokenStream::point_into(std::string_view bytes, std::size_t size, int64_t vocab_size) {
  size_ = size;
  vocab_size_ = vocab_size;
  if (bytes_per_id(vocab_size) == 2) {
    narrow_ = reinterpret_cast<const uint16_t*>(bytes.data());
  } else {
    wide_ = reinterpret_cast<const uint32_t*>(bytes.data());
  }
}

void TokenStream::read(std::size_t begin, std::span<int64_t> out) const {
  BG_CHECK(begin <= size_ && out.size() <= size_ - begin, "corpus", "tokens past the end asked for",
           str(begin, " to ", begin + out.size()), str("at most ", size_));
  if (narrow_) {
    std::copy_n(narrow_ + begin, out.size(), out.begin());
  } else {
    std::copy_n(wide_ + begin, out.size(), out.begin());
  }
}

}  // namespace bg
