// Dropout.
#pragma once

#include "autograd/ops/arithmetic.h"
#include "core/kernels/dropout.h"

namespace bg {

Var dropout(const Var& x, double p, MaskKey key);

/// y_i = x_i m_i / (1 - p), where m_i is 1 with probability 1 - p, else 0: element i (row-major) of the mask that `key`
/// names (core/rng.h).  dx = dropout(dy) with the same key: the map is linear and diagonal, so it is its own transpose.
/// Saves nothing: the mask is drawn again from its key.
struct Dropout {
  static constexpr std::string_view name = "dropout";
  static constexpr bool cheap = true;
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double p = 0.5;
    MaskKey key;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(in[0].shape);
    for (int64_t i = 0; i < y.numel(); ++i)
      if (mask_keep(a.key, static_cast<uint64_t>(i), a.p)) y[i] = in[0][i] / S(1 - a.p);
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    BG_CHECK(a.p >= 0 && a.p < 1, name, "bad drop probability", str(a.p), "0 or more and below 1");
    const Tensor x = in[0].contiguous();
    Tensor y = Tensor::empty(x.shape(), x.dtype());
    dispatch_float(name, x.dtype(),
                   [&]<class T>() { kernels::dropout(x.data<T>(), a.key, a.p, y.mutable_data<T>(name), x.numel()); });
    return y;
  }
  static Vars backward(const Backward<Var, Args>& b) { return {dropout(b.dy(), b.args.p, b.args.key)}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4, 7), p 0.3", {0.3, {1, 2}}, {normal(r, {4, 7})}},
            {"(2, 3, 5), p 0.5", {0.5, {3, 4}}, {normal(r, {2, 3, 5})}},
            {"(64,), p 0.9", {0.9, {5, 6}}, {normal(r, {64})}},
            {"(5,), p 0", {0, {7, 8}}, {normal(r, {5})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"mask of another key",
             [](auto& b) {
               return Vars{dropout(b.dy(), b.args.p, {b.args.key.seed + 1, b.args.key.stream})};
             }},
            {"mask omitted", [](auto& b) { return Vars{b.dy()}; }},
            {"scale 1 / (1 - p) omitted",
             [](auto& b) { return Vars{affine(dropout(b.dy(), b.args.p, b.args.key), 1 - b.args.p, 0)}; }}};
  }
};

/// Zeroes each element with probability p and scales the others by 1 / (1 - p). The same key always gives the same
/// mask. p = 0 returns x itself; throws when p is not in [0, 1).
inline Var dropout(const Var& x, double p, MaskKey key) { return p == 0 ? x : apply<Dropout>({p, key}, {x})[0]; }

}  // namespace bg
