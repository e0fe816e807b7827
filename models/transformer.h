// The transformer language model of the boosted-attention paper (Sargolzaei, arXiv 2604.03190) with any of the three
// kinds of attention: token + learned position embeddings, dropout, blocks, final LayerNorm (pre-norm only: a post-norm
// block ends in one), output through the transposed token embedding or a table of its own. Feed-forward parts use exact
// GELU. Weights start from N(0, 0.02), biases from 0.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "autograd/ops/cross_entropy.h"
#include "nn/block.h"

namespace bg {

struct TransformerConfig {
  nn::AttentionKind model = nn::AttentionKind::standard;
  int64_t rounds = 2;  ///< boosted only, as kv and gate
  Kv kv = Kv::input;
  Gate gate = Gate::linear;
  nn::NormPlace norm = nn::NormPlace::pre;
  int64_t vocab = 256;
  int64_t d_model = 256;
  int64_t layers = 4;
  int64_t heads = 4;
  int64_t seq_len = 256;  ///< positions the model knows: the longest input
  int64_t mlp_ratio = 4;  ///< width of the feed-forward part in d_model
  double dropout = 0;     ///< of embeddings, attention weights and the feed-forward part
  bool tied = true;       ///< output weights are the token embedding

  /// Throws UsageError, naming the option, when a size is not in 1 .. 2^24, heads does not divide d_model or dropout is
  /// not in [0, 1).
  void validate() const;
  /// All fields by name; from_json throws Error when one is missing, unknown or of a wrong type, or on what validate
  /// finds.
  nlohmann::json to_json() const;
  static TransformerConfig from_json(const nlohmann::json& json);
  bool operator==(const TransformerConfig&) const = default;
};

/// The parameters' paths and shapes are listed in nn/README.md.
class Transformer : public Module {
 public:
  /// Draws the first values from `rng`. Throws what validate throws.
  Transformer(const TransformerConfig& config, Rng& rng);

  const TransformerConfig& config() const { return config_; }

  /// Activations after the last norm, (B, T, d_model), of token ids (B, T), i32 or i64, T <= seq_len. Throws, with
  /// position and value, on an id outside the vocabulary.
  Var hidden(const Tensor& ids, const Context& context = {}) const;
  /// Mean cross-entropy in nats of predicting targets (B, T) from ids (B, T), with no logits in memory. A target of
  /// kIgnoreIndex does not count.
  Var loss(const Tensor& ids, const Tensor& targets, const Context& context = {}) const;
  /// The same as a differentiable sum and how many targets it is over. Micro-batches of unequal size add up to the
  /// gradient of one batch of all of them:
  ///   for (const auto& [ids, targets] : parts)
  ///     (model.loss_and_count(ids, targets).sum * (1.0 / targets_of_all_parts)).backward();
  struct CountedLoss {
    Var sum;
    int64_t count = 0;
  };
  CountedLoss loss_and_count(const Tensor& ids, const Tensor& targets, const Context& context = {}) const;
  /// The same as numbers, summed in double, outside any graph: what an evaluation adds up. In evaluation mode.
  LossSum loss_sum(const Tensor& ids, const Tensor& targets) const;
  /// All logits, (B, T, vocab), recorded. For training prefer loss, which holds no logits.
  Var logits(const Tensor& ids, const Context& context) const;
  /// The same outside any graph. In evaluation mode.
  Tensor logits(const Tensor& ids) const;

  /// The inside of every block's attention, first block first, for token ids (B, T). In evaluation mode.
  std::vector<nn::AttentionTrace> trace_attention(const Tensor& ids) const;

  /// Keep only each block's input for the backward pass and run the block again there: less memory, one more forward.
  /// Bits stay the same, with dropout too. The mode (train/eval) must not change between forward and backward.
  void set_checkpointing(bool on) { checkpointing_ = on; }

  /// Keys and values of the tokens that one sequence has so far.
  struct Cache {
    std::vector<nn::AttentionCache> blocks;
    int64_t length() const { return blocks[0].length; }
  };
  Cache make_cache() const;  ///< with room for seq_len tokens
  /// hidden() of n further tokens, (1, n, d_model), given the cached ones; caches them too. In evaluation mode. Throws
  /// when more than seq_len tokens would be cached.
  Tensor extend(const std::vector<int64_t>& ids, Cache& cache) const;
  /// Logits (..., vocab) of activations (..., d_model).
  Tensor project(const Tensor& hidden) const;

  /// The output table (vocab, d_model).
  const Var& output_table() const { return head_ ? *head_ : tokens_.table(); }

 private:
  Var embed(const Tensor& ids, int64_t first_position, const Context& context) const;
  Var run_block(const nn::Block& block, const Var& x, const Context& context) const;

  TransformerConfig config_;
  bool checkpointing_ = false;
  nn::Embedding &tokens_, &positions_;
  nn::Dropout& drop_;
  std::vector<nn::Block*> blocks_;
  nn::LayerNorm* norm_ = nullptr;  // null: post-norm
  Var* head_ = nullptr;            // null: tied
};

}  // namespace bg
