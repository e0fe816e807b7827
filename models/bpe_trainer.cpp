// Training works on the distinct words with their counts. All of them lie in one array of slots, one slot a byte, with
// an empty slot around each word. A token of n bytes owns n slots and is written into its first and last one, so both
// neighbours of any token are found without links: the slot before it ends the left one, the slot after it starts the
// right one. Each pair knows its count and where it occurred; a heap finds the best pair, corrected lazily.
#include "models/bpe_trainer.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "core/error.h"
#include "core/parallel.h"
#include "models/pretokenizer.h"

namespace bg {
namespace {

using WordCounts = std::unordered_map<std::string_view, int64_t>;

constexpr std::size_t kPieceBytes = std::size_t{1} << 20;
constexpr int64_t kMinCount = 2;  // a pair that occurs once teaches nothing
constexpr int32_t kGap = -1;      // the slot between words
constexpr int32_t kInside = -2;   // a slot that neither starts nor ends a token

WordCounts count_distinct_words(std::string_view text) {
  const std::vector<std::string_view> pieces = split_at_words(text, kPieceBytes);
  std::vector<WordCounts> by_worker(static_cast<std::size_t>(num_threads()));
  parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    WordCounts& counts = by_worker[static_cast<std::size_t>(worker_index())];
    for (int64_t p = begin; p < end; ++p) {
      const std::string_view piece = pieces[static_cast<std::size_t>(p)];
      for (std::size_t i = 0; i < piece.size();) {
        const std::size_t next = word_end(piece, i);
        ++counts[piece.substr(i, next - i)];
        i = next;
      }
    }
  });
  WordCounts total = std::move(by_worker.front());
  for (std::size_t w = 1; w < by_worker.size(); ++w) {
    for (const auto& [word, count] : by_worker[w]) total[word] += count;
    by_worker[w].clear();
  }
  return total;
}

class Trainer {
 public:
  explicit Trainer(const WordCounts& words) {
    for (const char byte : gpt2_byte_order()) add_token(std::string(1, byte));
    lay_out(words);
    for (const auto& [key, pair] : pairs_) push(key, pair.count);
  }

  BpeModel run(int64_t vocab_size) {
    while (static_cast<int64_t>(model_.tokens.size()) < vocab_size && !heap_.empty()) {
      const Candidate best = heap_.top();
      heap_.pop();
      const auto found = pairs_.find(best.key);
      if (found == pairs_.end()) continue;
      if (found->second.count == best.count) {
        merge(best.key);
      } else if (found->second.count < best.count) {
        push(best.key, found->second.count);  // it lost occurrences since it was pushed
      }                                       // else it gained some and was pushed again with more
    }
    return std::move(model_);
  }

 private:
  struct Pair {
    int64_t count = 0;
    std::vector<uint32_t> slots;  // first slots of its occurrences, with some that are gone by now
  };
  struct Candidate {
    int64_t count;
    uint64_t key;
    bool operator<(const Candidate& o) const { return count != o.count ? count < o.count : key > o.key; }
  };

  static uint64_t key_of(int32_t left, int32_t right) {
    return static_cast<uint64_t>(left) << 32 | static_cast<uint32_t>(right);
  }

  // The id of these bytes. Two different merges may make the same token.
  int32_t add_token(const std::string& bytes) {
    const auto [entry, is_new] = ids_.try_emplace(bytes, static_cast<int32_t>(model_.tokens.size()));
    if (is_new) {
      model_.tokens.push_back(bytes);
      length_.push_back(static_cast<uint32_t>(bytes.size()));
    }
    return entry->second;
  }

  void lay_out(const WordCounts& words) {
    std::size_t slots = 1;
    for (const auto& [word, count] : words) slots += word.size() + 1;
    BG_CHECK(slots < std::numeric_limits<uint32_t>::max(), "tokenizer", "too many distinct words to learn from",
             str(slots, " bytes of them"), "less than 4 GiB", "train on a part of the text");
    slots_.reserve(slots);
    slots_.push_back(kGap);
    for (const auto& [word, count] : words) {
      word_starts_.push_back(static_cast<uint32_t>(slots_.size()));
      word_counts_.push_back(count);
      for (const char byte : word) slots_.push_back(ids_.at(std::string(1, byte)));
      slots_.push_back(kGap);
      for (std::size_t i = slots_.size() - 1 - word.size(); i + 2 < slots_.size(); ++i) {
        add_occurrence(key_of(slots_[i], slots_[i + 1]), count, static_cast<uint32_t>(i));
      }
    }
  }

  void add_occurrence(uint64_t key, int64_t count, uint32_t slot) {
    Pair& pair = pairs_[key];
    pair.count += count;
    pair.slots.push_back(slot);
  }

  void push(uint64_t key, int64_t count) {
    if (count >= kMinCount) heap_.push({count, key});
  }

  int64_t count_of_word_at(uint32_t slot) const {
    const auto after = std::upper_bound(word_starts_.begin(), word_starts_.end(), slot);
    return word_counts_[static_cast<std::size_t>(after - word_starts_.begin()) - 1];
  }

  void merge(uint64_t key) {
    const auto left = static_cast<int32_t>(key >> 32), right = static_cast<int32_t>(key);
    auto node = pairs_.extract(key);
    std::vector<uint32_t>& occurrences = node.mapped().slots;
    std::sort(occurrences.begin(), occurrences.end());  // left to right, as the encoder merges: aaa -> aa a
    const int32_t merged = add_token(model_.tokens[left] + model_.tokens[right]);
    if (applied_.insert(key).second) model_.merges.push_back({left, right});

    grown_.clear();
    for (const uint32_t slot : occurrences) merge_at(slot, left, right, merged);
    std::sort(grown_.begin(), grown_.end());
    grown_.erase(std::unique(grown_.begin(), grown_.end()), grown_.end());
    for (const uint64_t grown : grown_) push(grown, pairs_.at(grown).count);
  }

  void merge_at(uint32_t slot, int32_t left, int32_t right, int32_t merged) {
    if (slots_[slot] != left) return;  // merged into something else before
    const uint32_t middle = slot + length_[left];
    if (slots_[middle] != right) return;
    const uint32_t end = middle + length_[right];
    const int64_t count = count_of_word_at(slot);
    if (const int32_t before = slots_[slot - 1]; before != kGap) {
      lose(key_of(before, left), count);
      gain(key_of(before, merged), count, slot - length_[before]);
    }
    if (const int32_t after = slots_[end]; after != kGap) {
      lose(key_of(right, after), count);
      gain(key_of(merged, after), count, slot);
    }
    slots_[middle - 1] = slots_[middle] = kInside;
    slots_[slot] = slots_[end - 1] = merged;
  }

  void lose(uint64_t key, int64_t count) {
    const auto found = pairs_.find(key);
    if (found != pairs_.end()) found->second.count -= count;  // the pair being merged is no longer there
  }

  void gain(uint64_t key, int64_t count, uint32_t slot) {
    add_occurrence(key, count, slot);
    grown_.push_back(key);
  }

  BpeModel model_;
  std::unordered_map<std::string, int32_t> ids_;
  std::vector<uint32_t> length_;  // bytes by token id
  std::vector<int32_t> slots_;
  std::vector<uint32_t> word_starts_;  // ascending
  std::vector<int64_t> word_counts_;
  std::unordered_map<uint64_t, Pair> pairs_;
  std::unordered_set<uint64_t> applied_;
  std::priority_queue<Candidate> heap_;
  std::vector<uint64_t> grown_;  // pairs that gained occurrences in the current merge
};

}  // namespace

const std::string& gpt2_byte_order() {
  static const std::string order = [] {
    const auto printable = [](int b) { return (b >= 0x21 && b <= 0x7e) || (b >= 0xa1 && b <= 0xac) || b >= 0xae; };
    std::string bytes;
    for (int b = 0; b < 256; ++b) {
      if (printable(b)) bytes += static_cast<char>(b);
    }
    for (int b = 0; b < 256; ++b) {
      if (!printable(b)) bytes += static_cast<char>(b);
    }
    return bytes;
  }();
  return order;
}

BpeModel train_bpe(std::string_view text, int64_t vocab_size) {
  BG_CHECK(vocab_size >= 256 && vocab_size <= std::numeric_limits<int32_t>::max(), "tokenizer", "bad vocabulary size",
           str(vocab_size), "at least 256, one for each byte");
  return Trainer(count_distinct_words(text)).run(vocab_size);
}

}  // namespace bg
