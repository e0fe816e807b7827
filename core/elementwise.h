// Element-wise loops over any strides: map (one tensor), zip (two, broadcast), zip3 (three, broadcast).
#pragma once

#include <array>

#include "core/parallel.h"
#include "core/tensor.h"

namespace bg {

inline constexpr int64_t kElementwiseGrain = 1 << 14;  // elements in a chunk: large enough to hide the hand-over

/// Visits `shape` as rows along one dimension, in parallel: row(offsets, n, steps) for N operands with these strides.
/// Dimensions that are contiguous for every operand are merged first, so the usual case is one long row.
template <size_t N, class F>
void walk(Shape shape, std::array<Shape, N> strides, F&& row) {
  if (shape.numel() == 0) return;
  auto drop = [&](int d) {
    shape.erase(d);
    for (auto& s : strides) s.erase(d);
  };
  for (int d = shape.rank() - 1; d >= 0; --d)
    if (shape[d] == 1) drop(d);
  for (int d = shape.rank() - 2; d >= 0; --d) {
    bool merge = true;
    for (auto& s : strides) merge = merge && s[d] == s[d + 1] * shape[d + 1];
    if (!merge) continue;
    shape[d + 1] *= shape[d];
    drop(d);
  }
  if (shape.rank() == 0) {
    shape.push_back(1);
    for (auto& s : strides) s.push_back(0);
  }
  const int last = shape.rank() - 1;
  const int64_t n = shape[last], rows = shape.numel() / n;
  std::array<int64_t, N> steps;
  for (size_t k = 0; k < N; ++k) steps[k] = strides[k][last];
  if (rows == 1) {
    parallel_for(n, kElementwiseGrain, [&](int64_t b, int64_t e) {
      std::array<int64_t, N> at;
      for (size_t k = 0; k < N; ++k) at[k] = b * steps[k];
      row(at, e - b, steps);
    });
    return;
  }
  parallel_for(rows, std::max<int64_t>(1, kElementwiseGrain / n), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::array<int64_t, N> at{};
      int64_t rest = r;
      for (int d = last - 1; d >= 0; --d) {
        const int64_t i = rest % shape[d];
        rest /= shape[d];
        for (size_t k = 0; k < N; ++k) at[k] += i * strides[k][d];
      }
      row(at, n, steps);
    }
  });
}

/// Strides of `t` seen as `shape`: 0 where it is broadcast.
Shape broadcast_strides(const Tensor& t, const Shape& shape);

/// y = f(x), contiguous.
template <class R, class T, class F>
Tensor map(std::string_view op, const Tensor& x, F f) {
  Tensor y = Tensor::empty(x.shape(), dtype_of<R>);
  const T* px = x.data<T>();
  R* py = y.mutable_data<R>(op);
  walk<2>(x.shape(), {y.strides(), x.strides()}, [&](auto at, int64_t n, auto step) {
    const T* a = px + at[1];
    R* o = py + at[0];
    if (step[1] == 1 && step[0] == 1)
      for (int64_t i = 0; i < n; ++i) o[i] = f(a[i]);
    else
      for (int64_t i = 0; i < n; ++i) o[i * step[0]] = f(a[i * step[1]]);
  });
  return y;
}

/// y = f(a, b) with broadcasting, contiguous.
template <class R, class T, class F>
Tensor zip(std::string_view op, const Tensor& a, const Tensor& b, F f) {
  const Shape shape = broadcast_shapes(a.shape(), b.shape(), op);
  Tensor y = Tensor::empty(shape, dtype_of<R>);
  const T *pa = a.data<T>(), *pb = b.data<T>();
  R* py = y.mutable_data<R>(op);
  walk<3>(shape, {y.strides(), broadcast_strides(a, shape), broadcast_strides(b, shape)},
          [&](auto at, int64_t n, auto step) {
            R* o = py + at[0];
            const T *x = pa + at[1], *z = pb + at[2];
            if (step[0] == 1 && step[1] == 1 && step[2] == 1)
              for (int64_t i = 0; i < n; ++i) o[i] = f(x[i], z[i]);
            else if (step[0] == 1 && step[1] == 1 && step[2] == 0)
              for (int64_t i = 0; i < n; ++i) o[i] = f(x[i], *z);
            else
              for (int64_t i = 0; i < n; ++i) o[i * step[0]] = f(x[i * step[1]], z[i * step[2]]);
          });
  return y;
}

/// y = f(c, a, b) with broadcasting, contiguous.
template <class R, class T, class F>
Tensor zip3(std::string_view op, const Tensor& c, const Tensor& a, const Tensor& b, F f) {
  const Shape shape = broadcast_shapes(broadcast_shapes(a.shape(), b.shape(), op), c.shape(), op);
  Tensor y = Tensor::empty(shape, dtype_of<R>);
  const T *pc = c.data<T>(), *pa = a.data<T>(), *pb = b.data<T>();
  R* py = y.mutable_data<R>(op);
  walk<4>(shape, {y.strides(), broadcast_strides(c, shape), broadcast_strides(a, shape), broadcast_strides(b, shape)},
          [&](auto at, int64_t n, auto s) {
            for (int64_t i = 0; i < n; ++i)
              py[at[0] + i * s[0]] = f(pc[at[1] + i * s[1]], pa[at[2] + i * s[2]], pb[at[3] + i * s[3]]);
          });
  return y;
}

}  // namespace bg
