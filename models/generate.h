// Text from a language model, one token at a time, with keys and values cached.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/transformer.h"

namespace bg {

/// One sequence that grows: logits for its next token. A token costs one position of the model while the cache has
/// room. When it is full, at seq_len tokens, half of them are dropped: the cache is made anew from the others, and
/// fills again. So a token beyond seq_len costs two positions on average, and its logits are those of a full forward on
/// the tokens that visible() counts, up to rounding, however the tokens were divided over calls.
class Decoder {
 public:
  /// The model must be in evaluation mode (or have no dropout) and outlive the decoder.
  explicit Decoder(const Transformer& model) : model_(model), cache_(model.make_cache()) {}

  /// Appends tokens, at least one, and returns the logits (vocab) that follow the last. Throws, with position and
  /// value, on a token outside the vocabulary; the decoder must then be dropped.
  Tensor feed(const std::vector<int64_t>& tokens);
  const std::vector<int64_t>& tokens() const { return tokens_; }

  /// How many of the last tokens a model of seq_len sees at the end of `length` tokens: all of them up to seq_len;
  /// beyond, those from the first multiple of seq_len - seq_len / 2 on that leaves no more than seq_len.
  static int64_t visible(int64_t length, int64_t seq_len);

 private:
  const Transformer& model_;
  Transformer::Cache cache_;
  std::vector<int64_t> tokens_;
  int64_t first_ = 0;  // of the tokens in the cache
};

/// How a token is chosen. The steps follow each other in the order of the fields.
struct SampleOptions {
  /// Above 1, tokens that the text holds, prompt included, become less likely: their logits are divided by it where
  /// positive (Keskar et al., "CTRL", arXiv 1909.05858, section 4.1) and multiplied where negative, because dividing
  /// would make those likelier. 1: nothing.
  double repetition_penalty = 1;
  double temperature = 1;  ///< divides the logits; 0 takes the likeliest token, the lowest id among equals
  int64_t top_k = 0;       ///< sample among the top_k likeliest tokens, lower ids first among equals; 0: among all
  /// Sample among the fewest likeliest tokens whose probabilities, of those that top_k leaves, sum to top_p at least
  /// (Holtzman et al., "The curious case of neural text degeneration", ICLR 2020). 1: among all.
  double top_p = 1;

  /// Throws UsageError on a temperature that is negative or not finite, a negative top_k, a top_p outside (0, 1] or a
  /// penalty that is not a positive number.
  void validate() const;
};

/// A token that may be drawn.
struct Candidate {
  int64_t token = 0;
  double probability = 0;
};
/// The tokens that sample_token draws from and their probabilities, which sum to 1: likeliest first where top_k or
/// top_p choose, else by id; one token at temperature 0. `seen` is the text so far, for the penalty. Throws Error when
/// a logit is NaN or none is finite, or a seen token outside the vocabulary.
std::vector<Candidate> candidates(const Tensor& logits, const SampleOptions& options,
                                  std::span<const int64_t> seen = {});

/// A token drawn from candidates(), with one number of rng; with none at temperature 0. logits (vocab).
int64_t sample_token(const Tensor& logits, const SampleOptions& options, Rng& rng, std::span<const int64_t> seen = {});

/// `count` tokens that follow the prompt. `go_on` is called with each at once; when it returns false, that was the
/// last. When one of stop_tokens is drawn, the text ends before it. The same arguments and the same state of rng give
/// the same tokens. Throws UsageError on an empty prompt, a negative count or a stop token outside the vocabulary.
std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt, int64_t count,
                              const SampleOptions& options, Rng& rng,
                              const std::function<bool(int64_t token)>& go_on = {},
                              const std::vector<int64_t>& stop_tokens = {});

/// Text that comes in pieces, up to the first stop text that is complete (of two at once: the longer one), in one piece
/// or over several. What may yet turn out to be the beginning of one is held back.
class StopText {
 public:
  /// Throws UsageError when one is empty.
  explicit StopText(std::vector<std::string> stops);

  std::string feed(std::string_view piece);  ///< what is known not to belong to a stop text; nothing after one
  std::string finish();                      ///< what was held back, when no more comes
  bool found() const { return found_; }

 private:
  std::size_t begin_of_stop() const;

  std::vector<std::string> stops_;
  std::string held_;
  bool found_ = false;
};

}  // namespace bg
