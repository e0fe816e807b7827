// The affine map of a layer as one node.
#pragma once

#include "autograd/ops/matmul.h"

namespace bg {

/// y = x W + b for x (..., k), W (k, n) and, optionally, b (n); y is (..., n).
/// dx = dy W^T,  dW = x^T dy,  db = sum of dy over all rows.
///
/// With the leading dimensions folded into rows, y_ij = sum_l x_il W_lj + b_j; so x_il collects sum_j dy_ij W_lj, W_lj
/// collects sum_i x_il dy_ij, and b_j, added to every row, collects sum_i dy_ij. Saves x and W.
struct Linear {
  static constexpr std::string_view name = "linear";
  static std::vector<In> inputs_for(const NoArgs&, size_t count) {
    BG_CHECK(count == 2 || count == 3, name, "wrong number of inputs", str(count), "2 or 3: x, W and perhaps b");
    std::vector<In> in{In{"x"}, In{"W"}};
    if (count == 3) in.emplace_back("b");
    return in;
  }
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&x = in[0], &w = in[1];
    const int64_t rows = x.shape.rows(), k = w.size(0), n = w.size(1);
    Arr<S> y(out_shape(x.shape, w.shape));
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t j = 0; j < n; ++j) {
        if (in.size() == 3) y[i * n + j] = in[2][j];
        for (int64_t l = 0; l < k; ++l) y[i * n + j] += x[i * k + l] * w[l * n + j];
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check(in);
    const Tensor &x = in[0], &w = in[1];
    saved.keep_input(0, x);
    saved.keep_input(1, w);
    const Tensor y = in.size() == 3 ? num::matmul_bias(as_rows(x), w, in[2]) : num::matmul(as_rows(x), w);
    return y.reshape(out_shape(x.shape(), w.shape()));
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &w = b[1], dy = as_rows(b.dy());
    Tensors g(b.input_count());
    if (b.need(0)) g[0] = num::matmul(dy, w.transpose(0, 1)).reshape(x.shape());
    if (b.need(1)) g[1] = num::matmul(as_rows(x).transpose(0, 1), dy);
    if (g.size() == 3 && b.need(2)) g[2] = num::sum(dy, {0});
    return g;
  }
  static Vars compose(const Vars& in, const Args&) {
    const Var y = reshape(matmul(reshape(in[0], {in[0].shape().rows(), in[1].size(0)}), in[1]),
                          out_shape(in[0].shape(), in[1].shape()));
    return {in.size() == 3 ? y + in[2] : y};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4) (4, 5), bias", {}, {normal(r, {3, 4}), normal(r, {4, 5}, 0.5), normal(r, {5})}},
            {"no bias", {}, {normal(r, {3, 4}), normal(r, {4, 5}, 0.5)}},
            {"(2, 3, 5) (5, 2), bias", {}, {normal(r, {2, 3, 5}), normal(r, {5, 2}, 0.447), normal(r, {2})}},
            {"one row", {}, {normal(r, {3}), normal(r, {3, 2}, 0.577), normal(r, {2})}},
            {"one output", {}, {normal(r, {4, 9}), normal(r, {9, 1}, 0.333), normal(r, {1})}},
            {"several blocks", {}, {normal(r, {30, 530}), normal(r, {530, 70}, 0.0434), normal(r, {70})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    auto change = [](size_t input, auto f) {
      return [=](const Backward<Tensor, Args>& b) {
        Tensors g = backward(b);
        if (input < g.size() && g[input].defined()) g[input] = f(g[input], b);
        return g;
      };
    };
    return {{"bias gradient a mean over rows",
             change(2, [](const Tensor& g, auto& b) { return num::scale(g, 1.0 / b.dy().shape().rows()); })},
            {"bias gradient dropped", change(2, [](const Tensor&, auto&) { return Tensor(); })},
            {"x's gradient negated", change(0, [](const Tensor& g, auto&) { return num::scale(g, -1); })},
            {"W's gradient from the first row only", change(1, [](const Tensor&, auto& b) {
               return num::matmul(as_rows(b[0]).slice(0, 0, 1).transpose(0, 1), as_rows(b.dy()).slice(0, 0, 1));
             })}};
  }

 private:
  static Shape out_shape(const Shape& x, const Shape& w) {
    Shape s = x;
    s[s.rank() - 1] = w[1];
    return s;
  }
  static Tensor as_rows(const Tensor& t) {  // (..., k) to (rows, k); a matrix keeps its strides
    return t.rank() == 2 ? t : t.reshape({t.shape().rows(), t.size(-1)});
  }
  static void check(const Tensors& in) {
    const Shape &x = in[0].shape(), &w = in[1].shape();
    num::check_same_float(name, in[0], in[1]);
    BG_CHECK(w.rank() == 2, name, "W is not a matrix", str(w), "(inputs, outputs)");
    BG_CHECK(x.rank() >= 1 && x.back() == w[0], name, "inner sizes differ", str("x is ", x, ", W is ", w),
             "x's last equal to W's first", "transpose(W)");
    if (in.size() < 3) return;
    num::check_same_float(name, in[0], in[2]);
    BG_CHECK(in[2].shape() == Shape{w[1]}, name, "bias of a wrong shape", str(in[2].shape()),
             str(Shape{w[1]}, " for W ", w));
  }
};

/// x W for x (..., k), W (k, n); with b (n), x W + b. One dtype, f32 or f64.
inline Var linear(const Var& x, const Var& w, const Var& b = {}) {
  return bg::apply<Linear>({}, b.defined() ? Vars{x, w, b} : Vars{x, w})[0];
}

}  // namespace bg
