#include "nn/block.h"

namespace bg::nn {

Block::Block(const BlockOptions& o, const Init& init)
    : place_(o.norm),
      norm1_(add_child<LayerNorm>("norm1", o.attention.d)),
      attn_(add_child<SelfAttention>("attn", o.attention, init)),
      norm2_(add_child<LayerNorm>("norm2", o.attention.d)),
      mlp_(add_child<Mlp>("mlp", o.attention.d, o.mlp_hidden, o.activation, o.dropout, init)) {}

template <class Attend>
Var Block::run(const Var& x, const Context& context, Attend&& attend) const {
  if (place_ == NormPlace::pre) {
    const Var h = x + attend(norm1_.forward(x));
    return h + mlp_.forward(norm2_.forward(h), context);
  }
  const Var h = norm1_.forward(x + attend(x));
  return norm2_.forward(h + mlp_.forward(h, context));
}

Var Block::forward(const Var& x, const Context& context) const {
  const Scope here = enter();
  return run(x, context, [&](const Var& z) { return attn_.forward(z, context); });
}

Var Block::extend(const Var& x, AttentionCache& cache) const {
  const Scope here = enter();
  return run(x, {}, [&](const Var& z) { return Var(attn_.extend(z.value(), cache)); });
}

AttentionTrace Block::trace_attention(const Var& x) const {
  const Scope here = enter();
  const NoGrad off;
  return attn_.trace((place_ == NormPlace::pre ? norm1_.forward(x) : x).value());
}

}  // namespace bg::nn
