#include "nn/layers.h"

#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/unary.h"

namespace bg::nn {

Linear::Linear(int64_t in, int64_t out, const Init& init, bool bias)
    : w_(register_parameter("w", init.weight({in, out}, in))),
      b_(bias ? &register_parameter("b", init.bias({out}, in)) : nullptr) {}

Var Linear::forward(const Var& x) const {
  const Scope here = enter();
  return linear(x, w_, b_ ? *b_ : Var());
}

Embedding::Embedding(int64_t count, int64_t d, const Init& init)
    : w_(register_parameter("w", init.weight({count, d}, d))) {}

Var Embedding::forward(const Tensor& ids) const {
  const Scope here = enter();
  return embedding(ids, w_);
}

LayerNorm::LayerNorm(int64_t d, double eps)
    : eps_(eps),
      gamma_(register_parameter("gamma", Tensor::full({d}, 1))),
      beta_(register_parameter("beta", Tensor::zeros({d}))) {}

Var LayerNorm::forward(const Var& x) const {
  const Scope here = enter();
  return layer_norm(x, gamma_, beta_, eps_);
}

RMSNorm::RMSNorm(int64_t d, double eps) : eps_(eps), gamma_(register_parameter("gamma", Tensor::full({d}, 1))) {}

Var RMSNorm::forward(const Var& x) const {
  const Scope here = enter();
  return rms_norm(x, gamma_, eps_);
}

Dropout::Dropout(double p) : p_(p) {
  if (!(p >= 0 && p < 1)) fail<UsageError>("dropout", "bad probability", str(p), "at least 0 and below 1");
}

Var Dropout::forward(const Var& x, const Context& context) const {
  if (!training() || p_ == 0) return x;
  const Scope here = enter();
  return dropout(x, p_, next_mask(context));
}

MaskKey next_mask(const Context& context) {
  BG_CHECK(context.rng, Scope::current(), "dropout in training mode needs random numbers", "a context without them",
           "Context{&rng}", "eval() to switch dropout off");
  return context.rng->next_mask();
}

Var activate(const Var& x, Activation f) {
  switch (f) {
    case Activation::relu:
      return relu(x);
    case Activation::silu:
      return silu(x);
    case Activation::gelu:
      break;
  }
  return gelu(x);
}

Mlp::Mlp(int64_t d, int64_t hidden, Activation f, double dropout, const Init& init)
    : f_(f),
      up_(add_child<Linear>("up", d, hidden, init)),
      down_(add_child<Linear>("down", hidden, d, init)),
      drop_(add_child<Dropout>("drop", dropout)) {}

Var Mlp::forward(const Var& x, const Context& context) const {
  const Scope here = enter();
  const Var h = drop_.forward(activate(up_.forward(x), f_), context);
  return drop_.forward(down_.forward(h), context);
}

}  // namespace bg::nn
