// Matrix products.
#pragma once

#include "autograd/ops/reduce.h"
#include "core/tensor_ops.h"

namespace bg {

Var matmul(const Var& a, const Var& b);

/// y = a b for a (..., m, k), b (..., k, n); leading dimensions broadcast.  da = dy b^T, db = a^T dy.
struct MatMul {
  static constexpr std::string_view name = "matmul";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  static constexpr bool broadcasts = true;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&a = in[0], &b = in[1];
    const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
    auto leading = [](const Shape& s) { return Shape(std::span<const int64_t>(s.begin(), s.end() - 2)); };
    const Shape as = leading(a.shape), bs = leading(b.shape), batch = broadcast_shapes(as, bs, name);
    Shape ys = batch;
    ys.push_back(m);
    ys.push_back(n);
    Arr<S> y(ys);
    for (int64_t t = 0; t < batch.numel(); ++t) {
      const int64_t at = broadcast_index(as, batch, t) * m * k, bt = broadcast_index(bs, batch, t) * k * n;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t l = 0; l < k; ++l) y[(t * m + i) * n + j] += a[at + i * k + l] * b[bt + l * n + j];
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::matmul(in[0], in[1]);
  }
  static Vars backward(const Backward<Var, Args>& b) {
    Vars g(2);
    if (b.need(0)) g[0] = matmul(b.dy(), transpose(b[1], -1, -2));
    if (!b.need(1)) return g;
    if (b[1].rank() == 2) {  // one shared right side: fold the batch into the rows, so that one product sums over it
      const int64_t k = b[1].size(0), n = b[1].size(1), rows = k ? b[0].shape().numel() / k : 0;
      g[1] = matmul(transpose(reshape(b[0], {rows, k}), 0, 1), reshape(b.dy(), {rows, n}));
    } else {
      g[1] = matmul(transpose(b[0], -1, -2), b.dy());
    }
    return g;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 3) (3, 4)", {}, {normal(r, {2, 3}), normal(r, {3, 4}, 0.577)}},
            {"batch, shared right", {}, {normal(r, {2, 3, 4}), normal(r, {4, 2}, 0.5)}},
            {"batch", {}, {normal(r, {2, 2, 3}), normal(r, {2, 3, 2}, 0.577)}},
            {"broadcast batch", {}, {normal(r, {2, 1, 2, 3}), normal(r, {3, 3, 2}, 0.577)}},
            {"row by column", {}, {normal(r, {1, 5}), normal(r, {5, 1}, 0.447)}},
            {"several blocks", {}, {normal(r, {30, 530}), normal(r, {530, 70}, 0.0434)}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"b's gradient dropped",
             [](auto& b) {
               auto g = backward(b);
               g[1] = Var();
               return g;
             }},
            {"a's gradient negated", [](auto& b) {
               auto g = backward(b);
               g[0] = -g[0];
               return g;
             }}};
  }
};
inline Var matmul(const Var& a, const Var& b) { return apply<MatMul>({}, {a, b})[0]; }

}  // namespace bg
