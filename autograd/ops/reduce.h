// Sums over dimensions and their transpose, broadcasting; mean, variance, log-sum-exp.
#pragma once

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/shape.h"
#include "autograd/ops/unary.h"
#include "core/indexing.h"
#include "core/tensor_ops.h"

namespace bg {

Var expand(const Var& x, const Shape& shape);
Var sum_to(const Var& x, const Shape& shape);

/// y = x broadcast to a shape (stride 0, no copy);  dx = dy summed back.
struct Expand {
  static constexpr std::string_view name = "expand";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    Shape shape;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {zip(in[0], Arr<S>(a.shape), [](S x, S) { return x; })};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return in[0].expand(a.shape); }
  static Vars backward(const Backward<Var, Args>& b) { return {sum_to(b.dy(), b.input_shape(0))}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"row", {{2, 3}}, {normal(r, {3})}},
            {"column", {{2, 3}}, {normal(r, {2, 1})}},
            {"scalar", {{2, 2}}, {normal(r, {})}},
            {"both", {{4, 2, 5, 3}}, {normal(r, {2, 1, 3})}},
            {"wide row", {{3, 17}}, {normal(r, {17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"mean instead of sum", [](auto& b) {
               const double n = static_cast<double>(b.dy().shape().numel()) / b.input_shape(0).numel();
               return Vars{affine(sum_to(b.dy(), b.input_shape(0)), 1 / n, 0)};
             }}};
  }
};
inline Var expand(const Var& x, const Shape& shape) { return apply<Expand>({shape}, {x})[0]; }

/// y = x summed down to a shape that broadcasts to x's;  dx = dy broadcast.
struct SumTo {
  static constexpr std::string_view name = "sum_to";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    Shape shape;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(a.shape);
    for (int64_t i = 0; i < in[0].numel(); ++i) y[broadcast_index(y.shape, in[0].shape, i)] += in[0][i];
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return num::reduce_to(in[0], a.shape); }
  static Vars backward(const Backward<Var, Args>& b) { return {expand(b.dy(), b.input_shape(0))}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"row", {{3}}, {normal(r, {2, 3})}},
            {"column", {{2, 1}}, {normal(r, {2, 3})}},
            {"scalar", {{}}, {normal(r, {2, 2})}},
            {"both", {{2, 1, 3}}, {normal(r, {4, 2, 5, 3})}},
            {"wide row", {{17}}, {normal(r, {3, 17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"mean's gradient", [](auto& b) {
               const double n = static_cast<double>(b.input_shape(0).numel()) / b.dy().shape().numel();
               return Vars{affine(expand(b.dy(), b.input_shape(0)), 1 / n, 0)};
             }}};
  }
};
inline Var sum_to(const Var& x, const Shape& shape) { return apply<SumTo>({shape}, {x})[0]; }

/// y = x summed over dims (all when empty);  dx = dy broadcast along them.
struct Sum {
  static constexpr std::string_view name = "sum";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    std::vector<int> dims;
    bool keepdim = false;
  };

  /// x's shape with the summed dimensions set to 1.
  static Shape kept_shape(const Shape& x, const Args& a) {
    Shape s = x;
    if (a.dims.empty()) return Shape::filled(x.rank(), 1);
    for (int d : a.dims) s[x.dim(d, name)] = 1;
    return s;
  }
  static Shape out_shape(const Shape& x, const Args& a) {
    const Shape kept = kept_shape(x, a);
    if (a.keepdim) return kept;
    std::vector<bool> summed(static_cast<size_t>(x.rank()), a.dims.empty());
    for (int d : a.dims) summed[static_cast<size_t>(x.dim(d, name))] = true;
    Shape out;
    for (int d = 0; d < x.rank(); ++d)
      if (!summed[static_cast<size_t>(d)]) out.push_back(x[d]);
    return out;
  }

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y = SumTo::reference(in, {kept_shape(in[0].shape, a)})[0];
    y.shape = out_shape(in[0].shape, a);
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return num::sum(in[0], a.dims, a.keepdim); }
  static Var spread(const Backward<Var, Args>& b) {  // dy with the summed dimensions back as 1
    return reshape(b.dy(), kept_shape(b.input_shape(0), b.args));
  }
  static Vars backward(const Backward<Var, Args>& b) { return {expand(spread(b), b.input_shape(0))}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"all", {}, {normal(r, {2, 3})}},
            {"last", {{-1}}, {normal(r, {2, 3, 4})}},
            {"first, kept", {{0}, true}, {normal(r, {3, 2})}},
            {"middle", {{1}}, {normal(r, {2, 3, 4})}},
            {"outer two", {{0, 2}}, {normal(r, {2, 3, 4})}},
            {"scalar", {}, {normal(r, {})}},
            {"wide rows", {{-1}}, {normal(r, {3, 17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"mean's gradient", [](auto& b) {
               const double n = static_cast<double>(b.input_shape(0).numel()) / b.dy().shape().numel();
               return Vars{affine(expand(spread(b), b.input_shape(0)), 1 / n, 0)};
             }}};
  }
};
inline Var sum(const Var& x, std::vector<int> dims = {}, bool keepdim = false) {
  return apply<Sum>({std::move(dims), keepdim}, {x})[0];
}

/// Mean over dimensions (all when empty). Of no elements: an error, not NaN.
inline Var mean(const Var& x, std::vector<int> dims = {}, bool keepdim = false) {
  const Var total = sum(x, std::move(dims), keepdim);
  BG_CHECK(x.shape().numel() > 0, "mean", "no elements", str("shape ", x.shape()), "sizes of 1 or more");
  return total / (static_cast<double>(x.shape().numel()) / static_cast<double>(total.shape().numel()));
}

/// Variance over dimensions (all when empty), in two passes: sum (x - mean)^2 / n, or / (n - 1) when unbiased.
inline Var variance(const Var& x, std::vector<int> dims = {}, bool unbiased = false, bool keepdim = false) {
  const Var deviation = x - mean(x, dims, true);
  const Var squares = sum(deviation * deviation, std::move(dims), keepdim);
  const double n = static_cast<double>(x.shape().numel()) / static_cast<double>(squares.shape().numel());
  BG_CHECK(!unbiased || n > 1, "variance", "too few elements for the unbiased variance", str(n), "2 or more",
           "unbiased = false");
  return squares / (unbiased ? n - 1 : n);
}

/// y = log(sum(exp(x))) along a dimension, without overflow;  dx = dy exp(x - y), the softmax of x. Where every x is
/// -infinity, y is too and dx = 0.
struct LogSumExp {
  static constexpr std::string_view name = "logsumexp";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int dim = -1;
    bool keepdim = false;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S> e = map(in[0], [](S x) { return sc::exp(x); });
    return {map(Sum::reference(Arrs<S>{e}, {{a.dim}, a.keepdim})[0], [](S s) { return sc::log(s); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    const Tensor y = num::logsumexp(in[0], a.dim);
    const Tensor shaped = a.keepdim ? y : y.squeeze(a.dim);
    saved.keep_output(0, shaped);
    return shaped;
  }
  static Var softmax(const Backward<Var, Args>& b) {
    const Var y = reshape(b[1], kept(b));
    return exp(b[0] - where(equal(y.value(), -INFINITY), Tensor::scalar(0, y.dtype()), y));
  }
  static Vars backward(const Backward<Var, Args>& b) { return {reshape(b.dy(), kept(b)) * softmax(b)}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"last", {-1}, {normal(r, {2, 3})}},
            {"first, kept", {0, true}, {normal(r, {3, 2})}},
            {"middle", {1}, {normal(r, {2, 5, 3})}},
            {"size 1", {-1}, {normal(r, {2, 1})}},
            {"wide rows", {-1}, {normal(r, {3, 17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"softmax omitted", [](auto& b) { return Vars{expand(reshape(b.dy(), kept(b)), b.input_shape(0))}; }},
            {"y's shift omitted", [](auto& b) { return Vars{reshape(b.dy(), kept(b)) * exp(b[0])}; }}};
  }

 private:
  static Shape kept(const Backward<Var, Args>& b) {  // y's shape with the dimension as 1
    return b.input_shape(0).with_size(b.args.dim, 1, name);
  }
};
inline Var logsumexp(const Var& x, int dim, bool keepdim = false) { return apply<LogSumExp>({dim, keepdim}, {x})[0]; }

}  // namespace bg
