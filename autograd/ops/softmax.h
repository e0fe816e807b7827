// Softmax and log-softmax over the last dimension.
#pragma once

#include <cmath>
#include <limits>

#include "autograd/ops/reduce.h"
#include "autograd/ops/select.h"
#include "autograd/ops/unary.h"
#include "core/indexing.h"
#include "core/kernels/rows.h"

namespace bg {
namespace detail {

/// Constants for composing a softmax of x: log sum exp of each row, and 0 for rows of -infinity alone (`dead` is 1
/// there). A softmax does not depend on a shift of its logits, so this one only keeps exponentials in range.
struct RowShift {
  Tensor shift, dead;  // (..., 1)

  explicit RowShift(const Tensor& x) : shift(num::logsumexp(x, -1)) {
    const Tensor nothing = equal(shift, -std::numeric_limits<double>::infinity());
    dead = nothing.to(x.dtype());
    shift = where(nothing, Var(Tensor::scalar(0, x.dtype())), Var(shift)).value();
  }
};

}  // namespace detail

/// y = softmax(x) over the last dimension; a row of -infinity alone gives zeros.  dx = y (dy - <y, dy>).
///
/// With e = exp(x), s = sum e, y = e / s:  dy_i/dx_j = y_i (i == j) - y_i y_j, and contracting with dy over i gives
/// dx_j = y_j dy_j - y_j sum_i y_i dy_i. The row of zeros has gradient zero by the same formula. Saves y.
struct Softmax {
  static constexpr std::string_view name = "softmax";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S largest = x[r * d], total(0);
      for (int64_t j = 1; j < d; ++j)
        if (x[r * d + j] > largest) largest = x[r * d + j];
      if (!(largest > S(-std::numeric_limits<double>::infinity()))) continue;
      for (int64_t j = 0; j < d; ++j) total += y[r * d + j] = sc::exp(x[r * d + j] - largest);
      for (int64_t j = 0; j < d; ++j) y[r * d + j] /= total;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = Tensor::empty(x.shape(), x.dtype());
    const int64_t d = x.size(-1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::softmax_forward(x.data<T>(), y.mutable_data<T>(name), x.shape().rows(), d);
    });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &y = b[0], dy = b.dy().contiguous();
    Tensor dx = Tensor::empty(y.shape(), y.dtype());
    dispatch_float(name, y.dtype(), [&]<class T>() {
      kernels::softmax_backward(y.data<T>(), dy.data<T>(), dx.mutable_data<T>(name), y.shape().rows(), y.size(-1));
    });
    return {dx};
  }
  static Vars compose(const Vars& in, const Args&) {
    const detail::RowShift c(in[0].value());
    const Var e = exp(in[0] - Var(c.shift));
    return {e / (sum(e, {-1}, true) + Var(c.dead))};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {normal(r, {5})}},
            {"(3, 4)", {}, {normal(r, {3, 4})}},
            {"(2, 3, 7)", {}, {normal(r, {2, 3, 7})}},
            {"(2, 67)", {}, {normal(r, {2, 67})}},
            {"single class", {}, {normal(r, {3, 1})}, {0}},
            {"several strips", {}, {normal(r, {2, 4200})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"row product dropped: dx = y dy", [](auto& b) { return Tensors{num::mul(b[0], b.dy())}; }},
            {"plain sum for the row product: dx = y (dy - sum dy)",
             [](auto& b) { return Tensors{num::mul(b[0], num::sub(b.dy(), num::sum(b.dy(), {-1}, true)))}; }},
            {"sign of the row product",
             [](auto& b) {
               const Tensor product = num::sum(num::mul(b[0], b.dy()), {-1}, true);
               return Tensors{num::mul(b[0], num::add(b.dy(), product))};
             }},
            {"multiplied by -7", [](auto& b) { return Tensors{num::scale(backward(b)[0], -7)}; }}};
  }
};

/// y = x - log sum exp(x) over the last dimension; a row of -infinity alone stays so, with gradient zero.
/// dx = dy - exp(y) sum dy.
///
/// The derivative of log sum exp is the softmax, which is exp(y). Saves y.
struct LogSoftmax {
  static constexpr std::string_view name = "log_softmax";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y = x;
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S largest = x[r * d], total(0);
      for (int64_t j = 1; j < d; ++j)
        if (x[r * d + j] > largest) largest = x[r * d + j];
      if (!(largest > S(-std::numeric_limits<double>::infinity()))) continue;
      for (int64_t j = 0; j < d; ++j) total += sc::exp(x[r * d + j] - largest);
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = x[r * d + j] - largest - sc::log(total);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = Tensor::empty(x.shape(), x.dtype());
    const int64_t d = x.size(-1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::log_softmax_forward(x.data<T>(), y.mutable_data<T>(name), x.shape().rows(), d);
    });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &y = b[0], dy = b.dy().contiguous();
    Tensor dx = Tensor::empty(y.shape(), y.dtype());
    dispatch_float(name, y.dtype(), [&]<class T>() {
      kernels::log_softmax_backward(y.data<T>(), dy.data<T>(), dx.mutable_data<T>(name), y.shape().rows(), y.size(-1));
    });
    return {dx};
  }
  static Vars compose(const Vars& in, const Args&) {
    const detail::RowShift c(in[0].value());
    const Var x = in[0] - Var(c.shift);
    return {x - log(sum(exp(x), {-1}, true) + Var(c.dead))};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {normal(r, {5})}},
            {"(3, 4)", {}, {normal(r, {3, 4})}},
            {"(2, 3, 7)", {}, {normal(r, {2, 3, 7})}},
            {"(2, 67)", {}, {normal(r, {2, 67})}},
            {"single class", {}, {normal(r, {3, 1})}, {0}},
            {"several strips", {}, {normal(r, {2, 4200})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"sum dropped: dx = dy", [](auto& b) { return Tensors{b.dy()}; }},
            {"y in place of exp(y)",
             [](auto& b) { return Tensors{num::sub(b.dy(), num::mul(b[0], num::sum(b.dy(), {-1}, true)))}; }},
            {"multiplied by -7", [](auto& b) { return Tensors{num::scale(backward(b)[0], -7)}; }}};
  }
};

/// Softmax over dimension `dim`. Rows of -infinity alone (fully masked) give zeros, and zero gradient.
inline Var softmax(const Var& x, int dim = -1) {
  if (x.shape().dim(dim, Softmax::name) == x.rank() - 1) return apply<Softmax>({}, {x})[0];
  return transpose(apply<Softmax>({}, {transpose(x, dim, -1)})[0], dim, -1);
}

/// Log-softmax over dimension `dim`. Rows of -infinity alone stay so, with zero gradient.
inline Var log_softmax(const Var& x, int dim = -1) {
  if (x.shape().dim(dim, LogSoftmax::name) == x.rank() - 1) return apply<LogSoftmax>({}, {x})[0];
  return transpose(apply<LogSoftmax>({}, {transpose(x, dim, -1)})[0], dim, -1);
}

}  // namespace bg
