// Points to verify on that many ops share: shapes that broadcast, are odd, are single, are empty of nothing.
#pragma once

#include "autograd/op.h"

namespace bg {

inline Tensor normal(Rng& r, const Shape& shape, double stddev = 1) {
  return Tensor::randn(shape, r, DType::f64, stddev);
}

/// Values in +-[low, high]: away from a kink or singularity at 0.
inline Tensor away_from_zero(Rng& r, const Shape& shape, double low = 0.5, double high = 2) {
  std::vector<double> values(static_cast<size_t>(shape.numel()));
  for (double& v : values) v = (r.uniform() < 0.5 ? -1 : 1) * (low + (high - low) * r.uniform());
  return Tensor::of(std::move(values), shape);
}

inline Tensor positive(Rng& r, const Shape& shape, double low = 0.5, double high = 2) {
  return Tensor::rand(shape, r, low, high, DType::f64);
}

/// Pairs of shapes that broadcast in every way: equal, row, column, scalar, both sides.
inline const std::vector<std::pair<Shape, Shape>>& broadcast_pairs() {
  static const std::vector<std::pair<Shape, Shape>> pairs{{{2, 3}, {2, 3}}, {{2, 3}, {3}},       {{4, 1}, {1, 5}},
                                                          {{}, {2, 2}},     {{2, 1, 3}, {4, 1}}, {{1}, {1}},
                                                          {{3, 17}, {17}}};
  return pairs;
}

/// Samples of an op on two broadcasting inputs; `make_b` draws the second.
template <class A, class F>
std::vector<Sample<A>> binary_samples(Rng& r, const A& args, F make_b) {
  std::vector<Sample<A>> out;
  for (const auto& [a, b] : broadcast_pairs()) out.push_back({str(a, " with ", b), args, {normal(r, a), make_b(r, b)}});
  return out;
}

/// Samples of an element-wise op; `make` draws its input.
template <class A, class F>
std::vector<Sample<A>> unary_samples(Rng& r, const A& args, F make) {
  std::vector<Sample<A>> out;
  for (const Shape& s : {Shape{}, Shape{7}, Shape{2, 3}, Shape{2, 1, 5}, Shape{2, 17}})
    out.push_back({str(s), args, {make(r, s)}});
  return out;
}

}  // namespace bg
