// Text from a language model, one token at a time, with keys and values cached.
#pragma once

#include <functional>

#include "models/transformer.h"

namespace bg {

/// One sequence that grows: logits for its next token. While it fits the model's seq_len, a token costs one position;
/// beyond, the window slides and each token recomputes the last seq_len ones, so the logits are always those of a full
/// forward on the last seq_len tokens, up to rounding.
class Decoder {
 public:
  /// The model must be in evaluation mode (or have no dropout) and outlive the decoder.
  explicit Decoder(const Transformer& model) : model_(model), cache_(model.make_cache()) {}

  /// Appends tokens, at least one, and returns the logits (vocab) that follow the last. Throws, with position and
  /// value, on a token outside the vocabulary; the decoder must then be dropped.
  Tensor feed(const std::vector<int64_t>& tokens);
  const std::vector<int64_t>& tokens() const { return tokens_; }

 private:
  const Transformer& model_;
  Transformer::Cache cache_;
  std::vector<int64_t> tokens_;
};

struct SampleOptions {
  double temperature = 1;  ///< divides the logits; 0 takes the likeliest token, the lowest id among equals
  int64_t top_k = 0;       ///< sample among the top_k likeliest tokens, lower ids first among equals; 0: among all

  /// Throws UsageError on a temperature that is negative or not finite, or a negative top_k.
  void validate() const;
};

/// A token drawn from softmax(logits / temperature) over the top_k; logits (vocab). Throws when a logit is NaN.
int64_t sample_token(const Tensor& logits, const SampleOptions& options, Rng& rng);

/// `count` tokens that follow the prompt; `seen` is called with each at once. The same arguments and the same state of
/// rng give the same tokens. Throws UsageError on an empty prompt or a negative count.
std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt, int64_t count,
                              const SampleOptions& options, Rng& rng,
                              const std::function<void(int64_t token)>& seen = {});

}  // namespace bg
