// Self- and cross-attention as a module: standard, twicing or gradient-boosted (Sargolzaei, arXiv 2604.03190), each one
// node of autograd/ops/boosted_attention.h; and the same token by token, from a cache of keys and values.
#pragma once

#include "autograd/ops/boosted_attention.h"
#include "core/enum_names.h"
#include "nn/init.h"
#include "nn/module.h"

namespace bg::nn {

enum class AttentionKind { standard, twicing, boosted };
inline constexpr EnumNames<AttentionKind, 3> kAttentionNames{"model", {"standard", "twicing", "boosted"}};
inline constexpr EnumNames<Kv, 2> kKvNames{"kv", {"input", "residual"}};
inline constexpr EnumNames<Gate, 4> kGateNames{"gate", {"none", "scalar", "linear", "mlp"}};

struct SelfAttentionOptions {
  AttentionKind kind = AttentionKind::standard;
  int64_t d = 0;  ///< width of input and output; heads must divide it
  int heads = 1;
  bool causal = true;
  double dropout = 0;  ///< of attention weights, in training mode
  int64_t memory = 0;  ///< width of the memory that keys and values come from (cross-attention); 0: they come from x
  /// Logits are exp(log_scale) q.k, with one parameter log_scale a round, which starts at -log(d_key) / 2: as without.
  bool learned_scale = false;
  // boosted only
  int rounds = 2;
  Kv kv = Kv::input;
  Gate gate = Gate::linear;
  int64_t gate_hidden = 32;  ///< of Gate::mlp
};

/// What a layer attends to, besides x.
struct AttentionInputs {
  Var memory = {};      ///< (B or 1, S, options.memory), where the options have one: keys and values of all rounds
  Tensor lengths = {};  ///< (B), whole numbers in 0 .. keys: how many keys of each row are valid; undefined: all
};

/// What SelfAttention::extend keeps of the tokens it has seen: per round keys and values, (1, capacity, d) each; for
/// twicing the values and, in place of a second round's, the residual values V - A V.
struct AttentionCache {
  struct Slot {
    Tensor keys, values;  // keys are undefined for twicing's residual values, which share the first slot's
  };
  std::vector<Slot> slots;
  int64_t length = 0;
};

/// What a layer computes on the way from x to y, for those who want to look inside (models/analysis.h). Twicing counts
/// as two rounds: the second one's weights are the first's, and it attends to the values' residual.
struct AttentionTrace {
  struct Round {
    Tensor weights;     ///< (B, H, T, keys): attention, each row sums to 1; to 0 where it sees no key
    Tensor entropy;     ///< (B, H, T) of its rows, in nats
    Tensor values;      ///< (B, keys, d): what the weights average, the heads side by side
    Tensor correction;  ///< (B, T, d): F_0, then c_m
    Tensor gate;        ///< (B, T, d): g_m; undefined where there is none (round 0, Gate::none, twicing)
    Tensor output;      ///< (B, T, d): F_m
  };
  Tensor input;  ///< x
  std::vector<Round> rounds;
  Tensor output;  ///< y
};

/// y (B, T, d) of x (B, T, d). Parameters, by the names of AttentionLayout: rounds.0.w_q, ..., w_out, b_out.
class SelfAttention : public Module {
 public:
  /// Throws UsageError unless heads divides d, rounds >= 1 and 0 <= dropout < 1, and when there is a memory and
  /// attention is causal, twicing, or takes keys and values from the residual.
  SelfAttention(const SelfAttentionOptions& options, const Init& init);

  const SelfAttentionOptions& options() const { return options_; }
  Var forward(const Var& x, const Context& context, const AttentionInputs& more = {}) const;

  /// The forward of evaluation mode in plain steps, with all that it computes on the way; y up to rounding. Keeps
  /// B H T T numbers a round. Outside any graph.
  AttentionTrace trace(const Tensor& x, const AttentionInputs& more = {}) const;

  /// Room for `capacity` tokens in the dtype of the parameters.
  AttentionCache make_cache(int64_t capacity) const;
  /// Outputs (1, n, d) of n further tokens x (1, n, d), which see all cached ones and become cached themselves; equal
  /// to the last n rows of forward on the whole sequence in evaluation mode. Causal attention only; outside any graph.
  /// Throws when the cache has no room.
  Tensor extend(const Tensor& x, AttentionCache& cache) const;

 private:
  const Var& parameter(int layout_index) const { return *inputs_[static_cast<size_t>(layout_index - first_)]; }
  void check(const AttentionInputs& more) const;
  Var affine(const Var& x, int w, int b) const;
  Var log_weights(const Var& q, const Var& k, const AttentionLayout::Round& round, const Tensor& valid) const;
  Var gate(const Var& f, const Var& c, const Var& entropy, const AttentionLayout::Round& round) const;

  SelfAttentionOptions options_;
  AttentionLayerArgs args_;  // without masks and lengths
  AttentionLayout layout_;
  int first_ = 1;                   // the layout's first parameter
  std::vector<const Var*> inputs_;  // the parameters in the layout's order
};

}  // namespace bg::nn
