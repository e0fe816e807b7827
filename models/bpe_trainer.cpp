// Training works on the distinct words with their counts. All of them lie in one array of slots, one slot a byte, with
// an empty slot around each word. A token of n bytes owns n slots and is written into its first and last one, so both
// neighbours of any token are found without links: the slot before it ends the left one, the slot after it starts the
// right one. Each pair knows its count and where it occurred; a heap finds the best pair, corrected lazily.
#include "models/bpe_trainer.h"

#include <algorithm>
#include <array>
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

constexpr std::size_t kPieceBytes = std::size_t{1} << 18;
constexpr int64_t kMinCount = 2;  // a pair that occurs once teaches nothing
constexpr int32_t kGap = -1;      // the slot between words
constexpr int32_t kInside = -2;   // a slot that neither starts nor ends a token

WordCounts count_distinct_words(std::string_view text, const OnProgress& progress) {
  std::vector<WordCounts> by_worker(static_cast<std::size_t>(num_threads()));
  std::vector<std::string_view> pieces;
  for (std::size_t done = 0; done < text.size();) {
    report_progress(progress, "counting words", done, text.size());
    pieces.clear();
    while (pieces.size() < 2 * by_worker.size() && done < text.size()) {
      const std::size_t end = piece_end(text, done, kPieceBytes);
      pieces.push_back(text.substr(done, end - done));
      done = end;
    }
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
  }
  WordCounts total = std::move(by_worker.front());
  for (std::size_t w = 1; w < by_worker.size(); ++w) {
    for (const auto& [word, count] : by_worker[w]) total[word] += count;
    by_worker[w].clear();
  }
  return total;
}

class Trainer {
 public:
  Trainer(const WordCounts& words, const OnProgress& progress) : progress_(progress) {
    for (const char byte : gpt2_byte_order()) add_token(std::string(1, byte));
    lay_out(words);
    find_pairs();
    for (const auto& [key, pair] : pairs_) push(key, pair.count);
  }

  BpeModel run(int64_t vocab_size) {
    const std::size_t first = model_.tokens.size();
    while (static_cast<int64_t>(model_.tokens.size()) < vocab_size && !heap_.empty()) {
      report_progress(progress_, "learning merges", model_.tokens.size() - first,
                      static_cast<std::size_t>(vocab_size) - first);
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
  // The tokens on one side of a merge's occurrences: what the pair with each of them loses and the new pair gains.
  struct Neighbours {
    std::vector<int32_t> tokens;
    std::vector<Pair> pairs;  // by token

    Pair& operator[](int32_t token) { return pairs[static_cast<std::size_t>(token)]; }
    void add(int32_t token, int64_t count, uint32_t slot) {
      Pair& pair = (*this)[token];
      if (pair.count == 0) tokens.push_back(token);
      pair.count += count;
      pair.slots.push_back(slot);
    }
    void clear(std::size_t vocab) {
      for (const int32_t token : tokens) (*this)[token] = {};
      tokens.clear();
      pairs.resize(vocab);
    }
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
    std::array<int32_t, 256> id_of_byte{};
    for (int32_t id = 0; id < 256; ++id) id_of_byte[static_cast<unsigned char>(model_.tokens[id][0])] = id;
    for (const auto& [word, count] : words) {
      word_starts_.push_back(static_cast<uint32_t>(slots_.size()));
      word_counts_.push_back(count);
      for (const char byte : word) slots_.push_back(id_of_byte[static_cast<unsigned char>(byte)]);
      slots_.push_back(kGap);
    }
  }

  // Calls f(left, right, slot, count) for every pair of the bytes, from left to right.
  template <class F>
  void for_each_first_pair(std::string_view what, F&& f) const {
    for (std::size_t w = 0; w < word_starts_.size(); ++w) {
      if (w % 1024 == 0) report_progress(progress_, what, w, word_starts_.size());
      for (uint32_t i = word_starts_[w]; slots_[i + 1] != kGap; ++i) f(slots_[i], slots_[i + 1], i, word_counts_[w]);
    }
  }

  // Counts before it stores: of a large text there are too many occurrences for lists that double as they grow.
  void find_pairs() {
    const auto index = [](int32_t left, int32_t right) { return static_cast<std::size_t>(256 * left + right); };
    std::vector<Pair> table(256 * 256);
    std::vector<uint32_t> occurrences(table.size());
    for_each_first_pair("counting pairs", [&](int32_t left, int32_t right, uint32_t, int64_t count) {
      table[index(left, right)].count += count;
      ++occurrences[index(left, right)];
    });
    for (std::size_t i = 0; i < table.size(); ++i) table[i].slots.reserve(occurrences[i]);
    for_each_first_pair("listing pairs", [&](int32_t left, int32_t right, uint32_t slot, int64_t) {
      table[index(left, right)].slots.push_back(slot);
    });
    for (int32_t left = 0; left < 256; ++left)
      for (int32_t right = 0; right < 256; ++right)
        if (Pair& pair = table[index(left, right)]; pair.count > 0) pairs_[key_of(left, right)] = std::move(pair);
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
    if (!std::is_sorted(occurrences.begin(), occurrences.end()))
      std::sort(occurrences.begin(), occurrences.end());  // left to right, as the encoder merges: aaa -> aa a
    const int32_t merged = add_token(model_.tokens[left] + model_.tokens[right]);
    if (applied_.insert(key).second) model_.merges.push_back({left, right});

    before_.clear(model_.tokens.size());
    after_.clear(model_.tokens.size());
    for (const uint32_t slot : occurrences) merge_at(slot, left, right, merged);
    // What is gained comes first: of aaaa, the second merge of a a takes apart what the first has made.
    for (const int32_t id : before_.tokens) gain(key_of(id, merged), before_[id]);
    for (const int32_t id : after_.tokens) gain(key_of(merged, id), after_[id]);
    for (const int32_t id : before_.tokens) lose(key_of(id, left), before_[id].count);
    for (const int32_t id : after_.tokens) lose(key_of(right, id), after_[id].count);
    for (const int32_t id : before_.tokens) push(key_of(id, merged), pairs_.at(key_of(id, merged)).count);
    for (const int32_t id : after_.tokens) push(key_of(merged, id), pairs_.at(key_of(merged, id)).count);
  }

  void merge_at(uint32_t slot, int32_t left, int32_t right, int32_t merged) {
    if (slots_[slot] != left) return;  // merged into something else before
    const uint32_t middle = slot + length_[left];
    if (slots_[middle] != right) return;
    const uint32_t end = middle + length_[right];
    const int64_t count = count_of_word_at(slot);
    if (const int32_t before = slots_[slot - 1]; before != kGap) before_.add(before, count, slot - length_[before]);
    if (const int32_t after = slots_[end]; after != kGap) after_.add(after, count, slot);
    slots_[middle - 1] = slots_[middle] = kInside;
    slots_[slot] = slots_[end - 1] = merged;
  }

  void gain(uint64_t key, Pair& change) {
    Pair& pair = pairs_[key];
    pair.count += change.count;
    if (pair.slots.empty())
      pair.slots = std::move(change.slots);
    else  // one by one: g++ 14 warns, wrongly, of an insert of the range
      for (const uint32_t slot : change.slots) pair.slots.push_back(slot);
  }

  void lose(uint64_t key, int64_t count) {
    const auto found = pairs_.find(key);
    if (found != pairs_.end()) found->second.count -= count;  // the pair being merged is no longer there
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
  Neighbours before_, after_;  // of the current merge
  const OnProgress& progress_;
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

BpeModel train_bpe(std::string_view text, int64_t vocab_size, const OnProgress& progress) {
  BG_CHECK(vocab_size >= 256 && vocab_size <= std::numeric_limits<int32_t>::max(), "tokenizer", "bad vocabulary size",
           str(vocab_size), "at least 256, one for each byte");
  return Trainer(count_distinct_words(text, progress), progress).run(vocab_size);
}

}  // namespace bg
