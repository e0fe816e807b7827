// From a stream of tokens to batches. A batch is a function of (options, number) alone, so a resumed run needs nothing
// but the step it has reached.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/token_stream.h"

namespace bg {

/// How many tokens a sequence of length T takes from the text.
enum class Window {
  t_plus_1,  ///< T + 1 tokens, T predictions. Neighbouring windows share one token: each token but the text's first is
             ///< predicted exactly once an epoch.
  t,  ///< T tokens, T - 1 predictions, as in the boosted-attention paper. Windows share nothing; the first token of
      ///< each is never predicted.
};

enum class Order {
  random,    ///< windows at uniformly drawn places, independent from batch to batch
  shuffled,  ///< each window of the text once an epoch, in an order drawn anew each epoch; the last windows that do not
             ///< fill a batch are left out, and so is the text that does not fill a window
  in_order,  ///< for evaluation: each window once, from the start; the last batch has fewer rows. With Window::t_plus_1
             ///< a last batch of one shorter row holds the rest of the text, so that nothing stays unpredicted.
};

struct BatchOptions {
  int64_t batch_size = 1;  // rows
  int64_t seq_len = 1;     // T
  Window window = Window::t_plus_1;
  Order order = Order::shuffled;
  uint64_t seed = 0;
};

/// Inputs and, one token later, targets; both (rows, cols), row after row.
struct Batch {
  int64_t rows = 0, cols = 0;
  std::vector<int64_t> inputs, targets;
};

/// Throws Error when a text has fewer tokens than `least`. `which` text it is: "validation", or nothing.
void check_text_length(int64_t tokens, int64_t least, std::string_view which = {});

/// The batches of a stream. One object must not be used by two threads at a time.
class Batches {
 public:
  /// Throws Error when the text is shorter than one sequence (in order: than two tokens), or too short for one batch of
  /// shuffled windows, or when an option is out of range.
  Batches(TokenStream tokens, BatchOptions options);

  int64_t sequences() const { return sequences_; }  ///< whole windows in the text
  int64_t per_epoch() const;  ///< batches an epoch; in random order, those that would cover the text

  /// Batch `number` of the whole training, from 0: epoch number / per_epoch(). In order, of one pass: throws Error when
  /// number >= per_epoch().
  Batch get(int64_t number) const;

  /// Whether an in-order pass predicts this token of the stream. None of it is predicted twice.
  bool predicts(int64_t token) const;

 private:
  std::vector<int64_t> starts_of(int64_t number) const;
  const std::vector<int64_t>& order_of_epoch(int64_t epoch) const;

  TokenStream tokens_;
  BatchOptions options_;
  int64_t predictions_ = 0;  // of a whole window
  int64_t sequences_ = 0;
  int64_t rest_ = 0;                       // predictions after the last whole window, where they are used
  mutable std::vector<int64_t> shuffled_;  // the order of the epoch below: made once an epoch, not once a batch
  mutable int64_t shuffled_epoch_ = -1;
};

}  // namespace bg
