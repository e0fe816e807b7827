// Shapes and strides: up to eight sizes, kept inline so that a Tensor handle allocates nothing.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>

#include "core/error.h"

namespace bg {

class Shape {
 public:
  static constexpr int kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) : Shape(std::span<const int64_t>(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const int64_t> sizes) {
    BG_CHECK(sizes.size() <= kMaxRank, "shape", "too many dimensions", str(sizes.size()), str("at most ", kMaxRank));
    for (int64_t s : sizes) push_back(s);
  }
  /// `rank` times the same value.
  static Shape filled(int rank, int64_t value) {
    Shape s;
    for (int i = 0; i < rank; ++i) s.push_back(value);
    return s;
  }

  int rank() const { return rank_; }
  int64_t operator[](int i) const { return sizes_[i]; }
  int64_t& operator[](int i) { return sizes_[i]; }
  int64_t back() const { return sizes_[rank_ - 1]; }
  const int64_t* begin() const { return sizes_.data(); }
  const int64_t* end() const { return sizes_.data() + rank_; }
  void push_back(int64_t s) {
    BG_CHECK(rank_ < kMaxRank, "shape", "too many dimensions", str(rank_ + 1), str("at most ", kMaxRank));
    sizes_[rank_++] = s;
  }
  void insert(int at, int64_t s) {
    push_back(s);
    std::rotate(sizes_.begin() + at, sizes_.begin() + rank_ - 1, sizes_.begin() + rank_);
  }
  void erase(int at) {
    std::copy(sizes_.begin() + at + 1, sizes_.begin() + rank_, sizes_.begin() + at);
    --rank_;
  }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : *this) n *= s;
    return n;
  }
  /// Rows of the tensor seen as a matrix along its last dimension; 1 for a scalar.
  int64_t rows() const {
    int64_t n = 1;
    for (int i = 0; i < rank_ - 1; ++i) n *= sizes_[i];
    return n;
  }
  /// The shape without its last size.
  Shape without_last() const {
    Shape s = *this;
    s.erase(rank_ - 1);
    return s;
  }
  bool operator==(const Shape& o) const { return rank_ == o.rank_ && std::equal(begin(), end(), o.begin()); }

  /// Maps -rank..rank-1 to 0..rank-1; anything else is an error in the name of `op`.
  int dim(int d, std::string_view op) const {
    BG_CHECK(d >= -rank_ && d < rank_, op, "dimension out of range", str(d, " for shape ", *this),
             rank_ == 0 ? "a tensor with dimensions" : str(-rank_, " to ", rank_ - 1));
    return d < 0 ? d + rank_ : d;
  }

  friend std::ostream& operator<<(std::ostream& out, const Shape& s) {
    out << '(';
    for (int i = 0; i < s.rank_; ++i) out << (i ? ", " : "") << s[i];
    return out << (s.rank_ == 1 ? ",)" : ")");
  }

 private:
  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

/// Strides (in elements) of a contiguous row-major tensor.
inline Shape contiguous_strides(const Shape& shape) {
  Shape strides = Shape::filled(shape.rank(), 1);
  for (int i = shape.rank() - 2; i >= 0; --i) strides[i] = strides[i + 1] * std::max<int64_t>(shape[i + 1], 1);
  return strides;
}

/// The index of the flat-th element in row-major order.
inline Shape position_of(const Shape& shape, int64_t flat) {
  Shape index = shape;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return index;
}

/// NumPy's broadcasting: align at the end, sizes must agree or be 1.
inline Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out = Shape::filled(rank, 1);
  for (int i = 1; i <= rank; ++i) {
    const int64_t x = i <= a.rank() ? a[a.rank() - i] : 1, y = i <= b.rank() ? b[b.rank() - i] : 1;
    BG_CHECK(x == y || x == 1 || y == 1, op, "shapes do not broadcast", str(a, " and ", b),
             str("equal sizes or 1 at dimension -", i), "reshape or unsqueeze one of them");
    out[rank - i] = x == 1 ? y : x;
  }
  return out;
}

}  // namespace bg
