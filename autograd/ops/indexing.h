// Ops that read and add by index, and those that choose one element of a dimension: gather, scatter_add, max, min.
#pragma once

#include "autograd/ops/shape.h"
#include "core/indexing.h"

namespace bg {

Var gather(const Var& x, int dim, const Tensor& index);
Var scatter_add(const Var& x, int dim, const Tensor& index, const Shape& shape);

namespace detail {
/// f(i, k) for every element k of a gather's output and the flat position i in an array of shape `whole` that it is
/// read from. For references.
template <class S, class F>
void for_indexed(const Shape& whole, int dim, const Arr<S>& index, F f) {
  const int d = whole.dim(dim, "gather");
  const bool shared = index.shape.rank() != whole.rank();
  const int64_t count = index.shape[shared ? 0 : d];
  int64_t inner = 1, k = 0;
  for (int j = d + 1; j < whole.rank(); ++j) inner *= whole[j];
  for (int64_t first = 0; first < whole.numel(); first += whole[d] * inner)
    for (int64_t p = 0; p < count; ++p)
      for (int64_t i = 0; i < inner; ++i, ++k) f(first + index.index(shared ? p : k) * inner + i, k);
}
}  // namespace detail

/// y[o, k, i] = x[o, index[o, k, i], i] along a dimension, or x[o, index[k], i] when the index has rank 1 (whole rows).
/// dx = dy scattered back; indices that repeat add up, in a fixed order.
struct Gather {
  static constexpr std::string_view name = "gather";
  static inline const std::array inputs{In{"x"}, In{"index", false}};
  struct Args {
    int dim = 0;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const bool shared = in[1].shape.rank() != in[0].shape.rank();
    const int64_t count = in[1].shape[shared ? 0 : in[1].shape.dim(a.dim, name)];
    Arr<S> y(in[0].shape.with_size(a.dim, count, name));
    detail::for_indexed(in[0].shape, a.dim, in[1], [&](int64_t i, int64_t k) { y[k] = in[0][i]; });
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(1, in[1]);
    return num::gather(in[0], a.dim, in[1]);
  }
  static Vars backward(const Backward<Var, Args>& b) {
    return {scatter_add(b.dy(), b.args.dim, b[0].value(), b.input_shape(0)), Var()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto index = [](std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); };
    return {{"last", {-1}, {normal(r, {2, 3}), index({2, 0, 1, 1}, {2, 2})}},
            {"first, repeated", {0}, {normal(r, {3, 2}), index({1, 1, 1, 2, 1, 0, 1, 2}, {4, 2})}},
            {"middle", {1}, {normal(r, {2, 3, 2}), index({0, 2, 1, 1}, {2, 1, 2})}},
            {"rows", {0}, {normal(r, {4, 3}), index({3, 0, 3}, {3})}},
            {"rows of the middle, i32", {-2}, {normal(r, {2, 4, 3}), index({1, 2, 2, 2, 0}, {5}).to(DType::i32)}},
            {"vector, all equal", {0}, {normal(r, {3}), index({1, 1, 1, 1, 1}, {5})}},
            {"wide rows", {0}, {normal(r, {3, 17}), index({2, 0, 2}, {3})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"repeated indices overwrite", [](auto& b) {  // keeps the last of them
               Tensor dx = Tensor::zeros(b.input_shape(0), b.dy().dtype());
               const Tensor index = b[0].value(), dy = b.dy().value().to(DType::f64);
               Arr<double> ix(index.shape()), g(dx.shape());
               for (int64_t k = 0; k < ix.numel(); ++k) ix[k] = index.flat(k);
               detail::for_indexed(g.shape, b.args.dim, ix, [&](int64_t i, int64_t k) { g[i] = dy.flat(k); });
               return Vars{Var(Tensor::of(g.v, g.shape).to(b.dy().dtype())), Var()};
             }}};
  }
};
inline Var gather(const Var& x, int dim, const Tensor& index) { return apply<Gather>({dim}, {x, Var(index)})[0]; }
/// Whole rows: y[k, ...] = x[index[k], ...].
inline Var index_select(const Var& x, const Tensor& index) {
  BG_CHECK(index.rank() == 1, "index_select", "the index has a wrong shape", str(index.shape()), "(k,)");
  return gather(x, 0, index);
}

/// y = zeros of a shape, with x[o, k, i] added at [o, index, i]: the transpose of gather;  dx = dy gathered.
struct ScatterAdd {
  static constexpr std::string_view name = "scatter_add";
  static inline const std::array inputs{In{"x"}, In{"index", false}};
  struct Args {
    int dim = 0;
    Shape shape;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(a.shape);
    detail::for_indexed(a.shape, a.dim, in[1], [&](int64_t i, int64_t k) { y[i] += in[0][k]; });
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(1, in[1]);
    return num::scatter_add(in[0], a.dim, in[1], a.shape);
  }
  static Vars backward(const Backward<Var, Args>& b) { return {gather(b.dy(), b.args.dim, b[0].value()), Var()}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto index = [](std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); };
    return {{"last", {-1, {2, 3}}, {normal(r, {2, 2}), index({2, 0, 1, 1}, {2, 2})}},
            {"rows, repeated", {0, {4, 3}}, {normal(r, {3, 3}), index({3, 0, 3}, {3})}},
            {"middle", {1, {2, 3, 2}}, {normal(r, {2, 1, 2}), index({0, 2, 1, 1}, {2, 1, 2})}},
            {"wide rows", {0, {4, 17}}, {normal(r, {3, 17}), index({2, 0, 2}, {3})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"mean of everything", [](auto& b) {
               const double n = static_cast<double>(b.dy().shape().numel());
               Tensor mean = num::scale(num::sum(b.dy().value()), 1 / n);
               return Vars{Var(mean.expand(b.input_shape(0)).clone()), Var()};
             }}};
  }
};
inline Var scatter_add(const Var& x, int dim, const Tensor& index, const Shape& shape) {
  return apply<ScatterAdd>({dim, shape}, {x, Var(index)})[0];
}

/// y = the largest (smallest) element along a dimension;  dx = dy at that element, 0 elsewhere. Of equal elements the
/// first takes the gradient; a NaN is the result wherever there is one.
template <bool Largest>
struct Extreme {
  static constexpr std::string_view name = Largest ? "max" : "min";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int dim = 0;
    bool keepdim = false;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int d = in[0].shape.dim(a.dim, name);
    Arr<S> y = Slice::reference(in, {d, 0, 1})[0];
    for (int64_t k = 1; k < in[0].shape[d]; ++k) {
      const Arr<S> next = Slice::reference(in, {d, k, k + 1})[0];
      for (int64_t i = 0; i < y.numel(); ++i)
        if (Largest ? next[i] > y[i] : next[i] < y[i]) y[i] = next[i];
    }
    if (!a.keepdim) y.shape.erase(d);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor index = Largest ? num::argmax(in[0], a.dim) : num::argmin(in[0], a.dim);
    saved.keep(index);
    const Tensor y = num::gather(in[0], a.dim, index);
    return a.keepdim ? y : y.squeeze(a.dim);
  }
  static Vars backward(const Backward<Var, Args>& b) {
    return {scatter_add(reshape(b.dy(), b[0].shape()), b.args.dim, b[0].value(), b.input_shape(0))};
  }
  static std::vector<Sample<Args>> samples(Rng&) {  // neighbours differ by at least 0.5
    const Tensor x = Tensor::of({1, -2, 3, 0.5, 2, -1, 4, -3, 1.5, 2.5, -0.5, 0}, {2, 2, 3});
    std::vector<double> wide;
    for (int i = 0; i < 17; ++i) wide.push_back((i * 5 % 17 - 8) * 0.5);
    return {{"last", {-1}, {x}},
            {"wide", {0}, {Tensor::of(std::move(wide), {17})}},
            {"first, kept", {0, true}, {x}},
            {"middle", {1}, {x}},
            {"vector", {0}, {Tensor::of({0.5, -1, 2, 1, -3}, {5})}},
            {"size 1", {-1}, {Tensor::of({1, 2}, {2, 1})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"gradient to the first element",
             [](auto& b) {
               const Tensor first = Tensor::zeros(b[0].shape(), DType::i64);
               return Vars{scatter_add(reshape(b.dy(), b[0].shape()), b.args.dim, first, b.input_shape(0))};
             }},
            {"gradient to every element", [](auto& b) {
               return Vars{Var(reshape(b.dy(), b[0].shape()).value().expand(b.input_shape(0)).clone())};
             }}};
  }
};
using Max = Extreme<true>;
using Min = Extreme<false>;
inline Var max(const Var& x, int dim, bool keepdim = false) { return apply<Max>({dim, keepdim}, {x})[0]; }
inline Var min(const Var& x, int dim, bool keepdim = false) { return apply<Min>({dim, keepdim}, {x})[0]; }
/// Over all elements: a scalar.
inline Var max(const Var& x) { return max(reshape(x, {x.shape().numel()}), 0); }
inline Var min(const Var& x) { return min(reshape(x, {x.shape().numel()}), 0); }

}  // namespace bg
