// Encoding and decoding; training is in bpe_trainer.cpp, the file form in tokenizer_json.cpp.
#include "models/tokenizer.h"

#include <algorithm>
#include <charconv>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/io/json.h"
#include "core/parallel.h"
#include "core/read_file.h"
#include "models/pretokenizer.h"
#include "models/tokenizer_json.h"
#include "models/unicode.h"

namespace bg {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{1} << 18;
constexpr int64_t kMinBpeSize = 256 + 1, kMaxBpeSize = kMaxVocabulary;

std::string all_bytes() {
  std::string bytes;
  for (int b = 0; b < 256; ++b) bytes += static_cast<char>(b);
  return bytes;
}

uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

// ---- what all tokenizers share

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  check_utf8(text, "the text to encode");
  return encode_valid(text);
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    BG_CHECK(ids[i] >= 0 && ids[i] < vocab_size(), "tokenizer", "unknown token id", str(ids[i], " at position ", i),
             str("0 to ", vocab_size() - 1));
    text += token_bytes(ids[i]);
  }
  return text;
}

std::string Tokenizer::token_text(int32_t id) const { return printable(decode({&id, 1})); }

void Tokenizer::save(const std::filesystem::path& path) const { write_file_atomically(path, to_json()); }

uint64_t Tokenizer::fingerprint() const { return hash_bytes(to_json()); }

// ---- bytes

std::string ByteTokenizer::describe() const { return "byte, 256 tokens"; }

std::string ByteTokenizer::to_json() const {
  BpeModel model;
  for (const char b : all_bytes()) model.tokens.emplace_back(1, b);
  return tokenizer_json(model, {});
}

std::vector<int32_t> ByteTokenizer::encode_valid(std::string_view text) const {
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  return {bytes, bytes + text.size()};
}

std::string_view ByteTokenizer::token_bytes(int32_t id) const {
  static const std::string bytes = all_bytes();
  return std::string_view(bytes).substr(static_cast<std::size_t>(id), 1);
}

// ---- BPE

BpeTokenizer::BpeTokenizer(BpeModel model, std::vector<AddedToken> added)
    : model_(std::move(model)), added_(std::move(added)) {
  std::unordered_map<std::string_view, int32_t> id_of;
  for (std::size_t i = 0; i < model_.tokens.size(); ++i) {
    if (model_.tokens[i].empty()) continue;
    const bool is_new = id_of.emplace(model_.tokens[i], static_cast<int32_t>(i)).second;
    BG_CHECK(is_new, "tokenizer", "two tokens have the same bytes", printable(model_.tokens[i]), "different tokens");
  }
  for (const char byte : all_bytes()) {
    const auto found = id_of.find(std::string_view(&byte, 1));
    BG_CHECK(found != id_of.end(), "tokenizer",
             str("the vocabulary has no token for the byte ", int{static_cast<unsigned char>(byte)}), "", "",
             "train it with all 256 bytes in its first alphabet");
    byte_id_[static_cast<unsigned char>(byte)] = found->second;
  }
  for (std::size_t i = 0; i < model_.merges.size(); ++i) {
    const auto [left, right] = model_.merges[i];
    const auto known = [&](int32_t id) { return id >= 0 && id < vocab_size(); };
    BG_CHECK(known(left) && known(right), "tokenizer", str("merge ", i, " names an unknown token"),
             str(left, " and ", right), str("ids 0 to ", vocab_size() - 1));
    const std::string bytes = model_.tokens[left] + model_.tokens[right];
    const auto found = id_of.find(bytes);
    BG_CHECK(found != id_of.end(), "tokenizer", str("merge ", i, " makes a token that is not in the vocabulary"),
             printable(bytes));
    merge_of_.insert_or_assign(pair_key(left, right), Merge{static_cast<int32_t>(i), found->second});
  }
  for (const AddedToken& token : added_) {
    const auto found = id_of.find(token.content);
    BG_CHECK(!token.content.empty() && found != id_of.end() && found->second == token.id, "tokenizer",
             "an added token is not in the list of tokens under its id", printable(token.content));
  }
}

BpeTokenizer BpeTokenizer::train(std::string_view text, int64_t vocab_size, const OnProgress& progress) {
  check_utf8(text, "the text to learn from");
  return BpeTokenizer(train_bpe(text, vocab_size, progress));
}

std::string BpeTokenizer::describe() const {
  const auto unused = std::count(model_.tokens.begin(), model_.tokens.end(), "");
  return str("bpe, ", vocab_size() - unused, " tokens, ", model_.merges.size(), " merges",
             unused == 0 ? "" : str(", ", unused, " unused ids"),
             added_.empty() ? "" : str(", ", added_.size(), " added tokens"));
}

std::string BpeTokenizer::to_json() const { return tokenizer_json(model_, added_); }

// Encodes words of one text on one worker and remembers what it has seen: most words of a text are repetitions.
class WordEncoder {
 public:
  explicit WordEncoder(const BpeTokenizer& tokenizer) : tokenizer_(tokenizer) {}

  // `word` must outlive this object: it is a key of the memory.
  void append(std::string_view word, std::vector<int32_t>& ids) {
    if (word.size() > kLongestRemembered) return merge(word, ids);
    const auto [entry, is_new] = memory_.try_emplace(word);
    if (is_new) {
      if (memory_.size() > kMostRemembered) {
        memory_.clear();
        known_ids_.clear();
        return merge(word, ids);
      }
      entry->second.begin = known_ids_.size();
      merge(word, known_ids_);
      entry->second.count = known_ids_.size() - entry->second.begin;
    }
    const auto from = known_ids_.begin() + static_cast<std::ptrdiff_t>(entry->second.begin);
    ids.insert(ids.end(), from, from + static_cast<std::ptrdiff_t>(entry->second.count));
  }

 private:
  static constexpr std::size_t kLongestRemembered = 64, kMostRemembered = std::size_t{1} << 19;

  struct Range {
    std::size_t begin = 0, count = 0;
  };
  struct Symbol {
    int32_t id;  // -1: merged into its left neighbour
    int32_t previous, next;
  };
  struct Candidate {  // ordered by rank, then from left to right
    int32_t rank, position, left, right, result;
    bool operator<(const Candidate& o) const { return rank != o.rank ? rank > o.rank : position > o.position; }
  };

  // Applies the merge of lowest rank first, the leftmost of equals: O(n log n) in the length of the word.
  void merge(std::string_view word, std::vector<int32_t>& ids) {
    BG_CHECK(word.size() < std::size_t{1} << 31, "tokenizer", "a word is too long", str(word.size(), " bytes"),
             "less than 2 GiB");
    const auto n = static_cast<int32_t>(word.size());
    symbols_.clear();
    heap_.clear();
    for (int32_t i = 0; i < n; ++i) {
      const auto byte = static_cast<unsigned char>(word[static_cast<std::size_t>(i)]);
      symbols_.push_back({tokenizer_.byte_id_[byte], i - 1, i + 1 < n ? i + 1 : -1});
    }
    for (int32_t i = 0; i + 1 < n; ++i) consider(i);
    while (!heap_.empty()) {
      const Candidate best = heap_.front();
      std::pop_heap(heap_.begin(), heap_.end());
      heap_.pop_back();
      apply(best);
    }
    for (int32_t i = 0; i >= 0 && i < n; i = symbols_[static_cast<std::size_t>(i)].next) {
      ids.push_back(symbols_[static_cast<std::size_t>(i)].id);
    }
  }

  Symbol& at(int32_t i) { return symbols_[static_cast<std::size_t>(i)]; }

  void consider(int32_t position) {
    const int32_t left = at(position).id, right = at(at(position).next).id;
    const auto found = tokenizer_.merge_of_.find(pair_key(left, right));
    if (found == tokenizer_.merge_of_.end()) return;
    heap_.push_back({found->second.rank, position, left, right, found->second.result});
    std::push_heap(heap_.begin(), heap_.end());
  }

  void apply(const Candidate& c) {
    Symbol& left = at(c.position);
    if (left.id != c.left || left.next < 0 || at(left.next).id != c.right) return;  // one of the two has changed
    Symbol& right = at(left.next);
    left.id = c.result;
    left.next = right.next;
    right.id = -1;
    if (left.next >= 0) at(left.next).previous = c.position;
    if (left.previous >= 0) consider(left.previous);
    if (left.next >= 0) consider(c.position);
  }

  const BpeTokenizer& tokenizer_;
  std::unordered_map<std::string_view, Range> memory_;
  std::vector<int32_t> known_ids_;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
};

namespace {

struct Occurrence {
  std::size_t position;
  const AddedToken* token;
};

// The added tokens in the text from left to right, of those that are `normalized` or not: at each place the longest,
// and none inside another.
std::vector<Occurrence> find_added(const std::vector<AddedToken>& added, bool normalized, std::string_view text) {
  std::vector<Occurrence> all;
  for (const AddedToken& token : added) {
    if (token.normalized != normalized) continue;
    for (std::size_t i = text.find(token.content); i != text.npos; i = text.find(token.content, i + 1)) {
      all.push_back({i, &token});
    }
  }
  std::sort(all.begin(), all.end(), [](const Occurrence& a, const Occurrence& b) {
    if (a.position != b.position) return a.position < b.position;
    return a.token->content.size() > b.token->content.size();
  });
  std::size_t free_from = 0;
  std::erase_if(all, [&](const Occurrence& o) {
    if (o.position < free_from) return true;
    free_from = o.position + o.token->content.size();
    return false;
  });
  return all;
}

// Calls on_token(token) for each that is found in the text and on_rest(text) for what lies between, in order.
template <class OnToken, class OnRest>
void split_at_added(const std::vector<AddedToken>& added, bool normalized, std::string_view text, OnToken on_token,
                    OnRest on_rest) {
  std::size_t done = 0;
  for (const auto& [position, token] : find_added(added, normalized, text)) {
    on_rest(text.substr(done, position - done));
    on_token(*token);
    done = position + token->content.size();
  }
  on_rest(text.substr(done));
}

void append_words(std::string_view text, WordEncoder& encoder, std::vector<int32_t>& ids) {
  for (std::size_t i = 0, end; i < text.size(); i = end) {
    end = word_end(text, i);
    encoder.append(text.substr(i, end - i), ids);
  }
}

}  // namespace

std::vector<int32_t> BpeTokenizer::encode_valid(std::string_view text) const {
  const std::vector<std::string_view> pieces = split_at_words(text, kPieceBytes);
  std::vector<std::vector<int32_t>> ids(pieces.size());
  std::vector<WordEncoder> encoders(static_cast<std::size_t>(num_threads()), WordEncoder(*this));
  parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    WordEncoder& encoder = encoders[static_cast<std::size_t>(worker_index())];
    for (auto p = static_cast<std::size_t>(begin); p < static_cast<std::size_t>(end); ++p) {
      const auto token = [&](const AddedToken& t) { ids[p].push_back(t.id); };
      const auto words = [&](std::string_view text) { append_words(text, encoder, ids[p]); };
      split_at_added(added_, false, pieces[p], token,
                     [&](std::string_view text) { split_at_added(added_, true, text, token, words); });
    }
  });
  if (ids.size() == 1) return std::move(ids.front());
  std::vector<int32_t> all;
  std::size_t count = 0;
  for (const auto& part : ids) count += part.size();
  all.reserve(count);
  for (const auto& part : ids) all.insert(all.end(), part.begin(), part.end());
  return all;
}

// ---- the option

std::unique_ptr<Tokenizer> make_tokenizer(std::string_view spec, std::string_view text, const OnProgress& progress) {
  if (spec == "byte") return std::make_unique<ByteTokenizer>();
  if (spec.starts_with("bpe:")) {
    const std::string_view digits = spec.substr(4);
    int64_t size = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
    if (error != std::errc() || end != digits.data() + digits.size() || size < kMinBpeSize || size > kMaxBpeSize) {
      fail<UsageError>("tokenizer", "bad vocabulary size", spec,
                       str("bpe:SIZE with SIZE from ", kMinBpeSize, " to ", kMaxBpeSize), "bpe:4096");
    }
    return std::make_unique<BpeTokenizer>(BpeTokenizer::train(text, size, progress));
  }
  if (!is_there(spec)) {
    fail<UsageError>("tokenizer", "no such kind and no such file", in_quotes(spec),
                     "byte, bpe:SIZE or the path of a tokenizer.json");
  }
  try {
    return Tokenizer::load(spec);
  } catch (const NoFile& e) {
    throw UsageError(e.what());
  }
}

}  // namespace bg
