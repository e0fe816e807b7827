// Arr: the plain arrays of reference implementations. Row-major, any scalar, naive on purpose: a reference is there to
// be read and believed, and to run on dual numbers and wider floats.
#pragma once

#include <vector>

#include "autograd/dual.h"
#include "core/error.h"
#include "core/shape.h"

namespace bg {

template <class S>
struct Arr {
  Shape shape;
  std::vector<S> v;

  Arr() = default;
  explicit Arr(const Shape& s) : shape(s), v(static_cast<size_t>(s.numel()), S(0)) {}

  int64_t numel() const { return static_cast<int64_t>(v.size()); }
  int64_t size(int d) const { return shape[d < 0 ? d + shape.rank() : d]; }
  S& operator[](int64_t i) { return v[checked(i)]; }
  const S& operator[](int64_t i) const { return v[checked(i)]; }

  /// a(i, j, k): one index per dimension.
  template <class... I>
  S& operator()(I... i) {
    return v[checked(flat(i...))];
  }
  template <class... I>
  const S& operator()(I... i) const {
    return v[checked(flat(i...))];
  }

  /// An element used as an index.
  int64_t index(int64_t i) const { return static_cast<int64_t>(sc::value(v[checked(i)])); }

 private:
  // The verifier tries a reference where its author did not: at other sizes, arguments, indices.
  size_t checked(int64_t i) const {
    BG_CHECK(i >= 0 && i < numel(), "reference", "an element outside of an array", str(i), str("0 to ", numel() - 1));
    return static_cast<size_t>(i);
  }
  template <class... I>
  int64_t flat(I... i) const {
    int64_t at = 0;
    int d = 0;
    ((at = at * shape[d++] + static_cast<int64_t>(i)), ...);
    return at;
  }
};

template <class S>
using Arrs = std::vector<Arr<S>>;

/// f of every element.
template <class S, class F>
Arr<S> map(const Arr<S>& x, F f) {
  Arr<S> y(x.shape);
  for (int64_t i = 0; i < x.numel(); ++i) y[i] = f(x[i]);
  return y;
}

/// Position in an array of shape `a` that broadcasting pairs with row-major position `i` of `shape`.
inline int64_t broadcast_index(const Shape& a, const Shape& shape, int64_t i) {
  int64_t at = 0, stride = 1;
  for (int d = 1; d <= shape.rank(); ++d) {
    const int64_t index = i % shape[shape.rank() - d];
    i /= shape[shape.rank() - d];
    if (d > a.rank()) continue;
    const int64_t size = a[a.rank() - d];
    if (size != 1) at += index * stride;
    stride *= size;
  }
  return at;
}

/// f(a, b) with broadcasting.
template <class S, class F>
Arr<S> zip(const Arr<S>& a, const Arr<S>& b, F f) {
  Arr<S> y(broadcast_shapes(a.shape, b.shape, "reference"));
  for (int64_t i = 0; i < y.numel(); ++i)
    y[i] = f(a[broadcast_index(a.shape, y.shape, i)], b[broadcast_index(b.shape, y.shape, i)]);
  return y;
}

}  // namespace bg
