// Which windows make up which batch.
#include "models/batches.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/format.h"
#include "core/rng.h"

namespace bg {
namespace {

constexpr int64_t kMost = int64_t{1} << 31;  // keeps products of sizes far from overflow
constexpr uint64_t kStream = 0xba7c;         // keeps these draws apart from others of the same seed

int64_t window_tokens(const BatchOptions& options) {
  return options.window == Window::t_plus_1 ? options.seq_len + 1 : options.seq_len;
}

void check_options(const BatchOptions& options) {
  const int64_t shortest = options.window == Window::t_plus_1 ? 1 : 2;
  BG_CHECK(options.batch_size >= 1 && options.batch_size <= kMost, "corpus", "bad batch size", str(options.batch_size),
           str("1 to ", kMost));
  BG_CHECK(options.seq_len >= shortest && options.seq_len <= kMost, "corpus", "bad sequence length",
           str(options.seq_len), str(shortest, " to ", kMost));
}

}  // namespace

void check_text_length(int64_t tokens, int64_t least, std::string_view which) {
  BG_CHECK(tokens >= least, "corpus", str("the ", which, which.empty() ? "" : " ", "text is too short"),
           counted(tokens, "token"), str("at least ", least), "a longer text or a shorter --seq-len");
}

Batches::Batches(TokenStream tokens, BatchOptions options) : tokens_(std::move(tokens)), options_(options) {
  check_options(options_);
  const auto size = static_cast<int64_t>(tokens_.size());
  const int64_t needed = window_tokens(options_);
  predictions_ = needed - 1;
  sequences_ = size < needed ? 0 : (size - needed) / options_.seq_len + 1;
  const bool uses_rest = options_.order == Order::in_order && options_.window == Window::t_plus_1;
  if (uses_rest) rest_ = std::max<int64_t>(size - 1 - sequences_ * options_.seq_len, 0);
  check_text_length(size, uses_rest ? 2 : needed);
  BG_CHECK(per_epoch() > 0, "corpus", "the text has fewer sequences than one batch", str(sequences_),
           str("at least ", options_.batch_size), "a longer text, a smaller --batch-size or a shorter --seq-len");
}

int64_t Batches::per_epoch() const {
  const int64_t whole = sequences_ / options_.batch_size;
  const int64_t begun = (sequences_ + options_.batch_size - 1) / options_.batch_size;
  switch (options_.order) {
    case Order::random:
      return begun;
    case Order::shuffled:
      return whole;
    case Order::in_order:
      break;
  }
  return begun + (rest_ > 0 ? 1 : 0);
}

Batch Batches::get(int64_t number) const {
  BG_CHECK(number >= 0, "corpus", "bad batch number", str(number), "at least 0");
  const std::vector<int64_t> starts = starts_of(number);
  Batch batch;
  batch.rows = static_cast<int64_t>(starts.size());
  const bool is_rest = rest_ > 0 && starts.front() == sequences_ * options_.seq_len;
  batch.cols = is_rest ? rest_ : predictions_;
  batch.inputs.resize(static_cast<std::size_t>(batch.rows * batch.cols));
  batch.targets.resize(batch.inputs.size());
  const auto cols = static_cast<std::size_t>(batch.cols);
  for (std::size_t row = 0; row < starts.size(); ++row) {
    const auto start = static_cast<std::size_t>(starts[row]);
    tokens_.read(start, std::span(batch.inputs).subspan(row * cols, cols));
    tokens_.read(start + 1, std::span(batch.targets).subspan(row * cols, cols));
  }
  return batch;
}

bool Batches::predicts(int64_t token) const {
  const int64_t place = token - 1, windows_end = sequences_ * options_.seq_len;  // window k predicts from k seq_len on
  if (place < 0) return false;
  return place < windows_end ? place % options_.seq_len < predictions_ : place < windows_end + rest_;
}

// First token of each row.
std::vector<int64_t> Batches::starts_of(int64_t number) const {
  std::vector<int64_t> starts(static_cast<std::size_t>(options_.batch_size));
  if (options_.order == Order::random) {
    Rng rng = Rng(options_.seed, kStream).fork(static_cast<uint64_t>(number));
    const uint64_t places = tokens_.size() - static_cast<uint64_t>(predictions_);
    for (int64_t& start : starts) start = static_cast<int64_t>(rng.below(places));
    return starts;
  }
  if (options_.order == Order::shuffled) {
    const std::vector<int64_t>& order = order_of_epoch(number / per_epoch());
    const int64_t first = number % per_epoch() * options_.batch_size;
    for (std::size_t row = 0; row < starts.size(); ++row) {
      starts[row] = order[static_cast<std::size_t>(first) + row] * options_.seq_len;
    }
    return starts;
  }
  BG_CHECK(number < per_epoch(), "corpus", "bad batch number", str(number), str("0 to ", per_epoch() - 1));
  const int64_t first = std::min(number * options_.batch_size, sequences_);  // the rest starts after the last window
  const int64_t rows = first == sequences_ ? 1 : std::min(options_.batch_size, sequences_ - first);
  starts.resize(static_cast<std::size_t>(rows));
  for (std::size_t row = 0; row < starts.size(); ++row) {
    starts[row] = (first + static_cast<int64_t>(row)) * options_.seq_len;
  }
  return starts;
}

// Fisher-Yates shuffle of the windows, drawn from (seed, epoch).
const std::vector<int64_t>& Batches::order_of_epoch(int64_t epoch) const {
  if (epoch == shuffled_epoch_) return shuffled_;
  shuffled_.resize(static_cast<std::size_t>(sequences_));
  std::iota(shuffled_.begin(), shuffled_.end(), int64_t{0});
  Rng rng = Rng(options_.seed, kStream).fork(static_cast<uint64_t>(epoch));
  for (std::size_t i = shuffled_.size(); i > 1; --i) std::swap(shuffled_[i - 1], shuffled_[rng.below(i)]);
  shuffled_epoch_ = epoch;
  return shuffled_;
}

}  // namespace bg
