// Layers: modules that hold the parameters of the ops they run. They live in bg::nn because their ops have the names in
// bg. Weights of maps are (in, out): y = x W + b.
#pragma once

#include "nn/init.h"
#include "nn/module.h"

namespace bg::nn {

/// y (..., out) = x (..., in) w + b;  parameters w (in, out), b (out).
class Linear : public Module {
 public:
  Linear(int64_t in, int64_t out, const Init& init, bool bias = true);
  Var forward(const Var& x) const;

 private:
  Var& w_;
  Var* b_;  // null: no bias
};

/// Rows of the parameter w (count, d) by index: (ids' shape, d).
class Embedding : public Module {
 public:
  Embedding(int64_t count, int64_t d, const Init& init);
  Var forward(const Tensor& ids) const;
  const Var& table() const { return w_; }

 private:
  Var& w_;
};

/// Over the last dimension; parameters gamma (ones at first) and beta (zeros).
class LayerNorm : public Module {
 public:
  explicit LayerNorm(int64_t d, double eps = 1e-5);
  Var forward(const Var& x) const;

 private:
  double eps_;
  Var &gamma_, &beta_;
};

/// Over the last dimension; parameter gamma (ones at first).
class RMSNorm : public Module {
 public:
  explicit RMSNorm(int64_t d, double eps = 1e-5);
  Var forward(const Var& x) const;

 private:
  double eps_;
  Var& gamma_;
};

/// Zeroes a fraction p of the elements in training mode, with masks from the context's generator; else the identity.
class Dropout : public Module {
 public:
  explicit Dropout(double p);  ///< throws UsageError unless 0 <= p < 1
  Var forward(const Var& x, const Context& context) const;

 private:
  double p_;
};

/// A mask key from the context, for a module that drops something; throws when there is no generator.
MaskKey next_mask(const Context& context);

enum class Activation { gelu, relu, silu };
Var activate(const Var& x, Activation f);

/// y = dropout(dropout(f(x W1 + b1)) W2 + b2): the feed-forward part of a transformer block. Children up and down.
class Mlp : public Module {
 public:
  Mlp(int64_t d, int64_t hidden, Activation f, double dropout, const Init& init);
  Var forward(const Var& x, const Context& context) const;

 private:
  Activation f_;
  Linear &up_, &down_;
  Dropout& drop_;
};

}  // namespace bg::nn
