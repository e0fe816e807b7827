// Ops that move numbers without computing: reshape, permute.
#pragma once

#include "autograd/ops/samples.h"

namespace bg {

/// y = x with another shape of the same size (a view where strides allow);  dx = dy reshaped back.
struct Reshape {
  static constexpr std::string_view name = "reshape";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    Shape shape;  // one size may be -1
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y = in[0];
    y.shape = a.shape;
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return in[0].reshape(a.shape); }
  static Vars backward(const Backward<Var, Args>& b);
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 6) to (3, 4)", {{3, 4}}, {normal(r, {2, 6})}},
            {"(4,) to (2, 2)", {{2, 2}}, {normal(r, {4})}},
            {"() to (1, 1)", {{1, 1}}, {normal(r, {})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants();
};
inline Var reshape(const Var& x, const Shape& shape) { return apply<Reshape>({shape}, {x})[0]; }

inline Vars Reshape::backward(const Backward<Var, Args>& b) { return {reshape(b.dy(), b.input_shape(0))}; }

/// y[i_p0, i_p1, ...] = x[i0, i1, ...]: dimension k of y is dimension dims[k] of x (a view);  dx = dy permuted back.
struct Permute {
  static constexpr std::string_view name = "permute";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    std::vector<int> dims;
  };

  static std::vector<int> inverse(const std::vector<int>& dims) {
    std::vector<int> inv(dims.size());
    for (size_t k = 0; k < dims.size(); ++k) inv[static_cast<size_t>(dims[k])] = static_cast<int>(k);
    return inv;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Shape& xs = in[0].shape;
    Shape ys = xs;
    for (int k = 0; k < xs.rank(); ++k) ys[k] = xs[a.dims[static_cast<size_t>(k)]];
    const Shape x_strides = contiguous_strides(xs);
    Arr<S> y(ys);
    for (int64_t i = 0; i < y.numel(); ++i) {
      int64_t rest = i, at = 0;
      for (int k = ys.rank() - 1; k >= 0; --k) {
        at += rest % ys[k] * x_strides[a.dims[static_cast<size_t>(k)]];
        rest /= ys[k];
      }
      y[i] = in[0][at];
    }
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) { return in[0].permute(a.dims); }
  static Vars backward(const Backward<Var, Args>& b);
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"transpose", {{1, 0}}, {normal(r, {2, 3})}},
            {"cycle", {{2, 0, 1}}, {normal(r, {2, 3, 4})}},
            {"middle", {{0, 2, 1, 3}}, {normal(r, {2, 2, 3, 2})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants();
};
inline Var permute(const Var& x, std::vector<int> dims) {
  for (int& d : dims) d = x.shape().dim(d, Permute::name);
  return apply<Permute>({std::move(dims)}, {x})[0];
}
inline Var transpose(const Var& x, int a, int b) {
  std::vector<int> dims(static_cast<size_t>(x.rank()));
  for (int d = 0; d < x.rank(); ++d) dims[static_cast<size_t>(d)] = d;
  std::swap(dims[static_cast<size_t>(x.shape().dim(a, "transpose"))],
            dims[static_cast<size_t>(x.shape().dim(b, "transpose"))]);
  return permute(x, std::move(dims));
}

inline Vars Permute::backward(const Backward<Var, Args>& b) { return {permute(b.dy(), inverse(b.args.dims))}; }

inline std::vector<Mutant<Var, Permute::Args>> Permute::mutants() {
  return {{"permuted again instead of back, or copied flat", [](auto& b) {
             const Var twice = permute(b.dy(), b.args.dims);
             return Vars{twice.shape() == b.input_shape(0) && b.args.dims != inverse(b.args.dims)
                             ? twice
                             : reshape(b.dy(), b.input_shape(0))};
           }}};
}
inline std::vector<Mutant<Var, Reshape::Args>> Reshape::mutants() {
  return {{"gradient reversed", [](auto& b) {
             const std::vector<double> v = b.dy().value().template to_vector<double>();
             return Vars{
                 Var(Tensor::of(std::vector<double>(v.rbegin(), v.rend()), b.input_shape(0)).to(b.dy().dtype()))};
           }}};
}

}  // namespace bg
