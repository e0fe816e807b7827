// A transformer block: self-attention and a feed-forward part, each around a residual connection, with LayerNorm before
// or after.
//
//   pre    h = x + attn(norm1(x));    y = h + mlp(norm2(h))
//   post   h = norm1(x + attn(x));    y = norm2(h + mlp(h))
#pragma once

#include "nn/attention.h"
#include "nn/layers.h"

namespace bg::nn {

enum class NormPlace { pre, post };
inline constexpr EnumNames<NormPlace, 2> kNormNames{"norm", {"pre", "post"}};

struct BlockOptions {
  SelfAttentionOptions attention;
  NormPlace norm = NormPlace::pre;
  int64_t mlp_hidden = 0;
  Activation activation = Activation::gelu;
  double dropout = 0;  ///< after the activation and after the feed-forward part
};

/// y (B, T, d) of x (B, T, d). Children norm1, attn, norm2, mlp.
class Block : public Module {
 public:
  Block(const BlockOptions& options, const Init& init);
  Var forward(const Var& x, const Context& context) const;

  /// Outputs for further tokens: see SelfAttention::extend. In evaluation mode.
  Var extend(const Var& x, AttentionCache& cache) const;
  /// The inside of the attention on the way from x to y. In evaluation mode.
  AttentionTrace trace_attention(const Var& x) const;
  const SelfAttention& attention() const { return attn_; }

 private:
  template <class Attend>
  Var run(const Var& x, const Context& context, Attend&& attend) const;

  NormPlace place_;
  LayerNorm& norm1_;
  SelfAttention& attn_;
  LayerNorm& norm2_;
  Mlp& mlp_;
};

}  // namespace bg::nn
