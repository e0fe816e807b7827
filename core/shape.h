// Shapes and strides: up to eight sizes, kept inline so that a Tensor handle allocates nothing. All arithmetic on sizes
// is here, with its limits: sizes are 0 or more, and a tensor has fewer than 2^59 elements, so that element counts,
// strides and byte counts of every dtype stay far from overflow.
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
  static constexpr int64_t kMaxElements = (int64_t{1} << 59) - 1;

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
  /// Number of elements. Throws in the name of `op` on a negative size, and where there would be more than kMaxElements
  /// were every size of 0 a 1 (so that strides have the same bound).
  int64_t numel(std::string_view op = "tensor") const { return product(rank_, op); }
  /// Rows of the tensor seen as a matrix along its last dimension; 1 for a scalar.
  int64_t rows() const { return product(std::max(rank_ - 1, 0), "tensor"); }
  /// The same with one size replaced.
  Shape with_size(int dim, int64_t size, std::string_view op) const {
    Shape s = *this;
    s[this->dim(dim, op)] = size;
    return s;
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
  int64_t product(int dims, std::string_view op) const {
    int64_t n = 1, without_zeros = 1;
    for (int i = 0; i < dims; ++i) {
      if (sizes_[i] < 0 || __builtin_mul_overflow(without_zeros, std::max<int64_t>(sizes_[i], 1), &without_zeros) ||
          without_zeros > kMaxElements)
        refuse(op);
      n *= sizes_[i];
    }
    return n;
  }
  [[noreturn]] void refuse(std::string_view op) const;

  std::array<int64_t, kMaxRank> sizes_{};
  int rank_ = 0;
};

/// The sum of sizes that are 0 or more; throws in the name of `op` when one is negative or the sum beyond any tensor.
int64_t added_sizes(std::string_view op, std::initializer_list<int64_t> sizes);

/// How many of begin, begin + step, ... lie below end; for begin <= end and step >= 1, however large.
inline int64_t slice_count(int64_t begin, int64_t end, int64_t step) {
  return (end - begin) / step + ((end - begin) % step != 0);
}

/// Strides (in elements) of a contiguous row-major tensor.
Shape contiguous_strides(const Shape& shape);

/// The index of the flat-th element in row-major order.
Shape position_of(const Shape& shape, int64_t flat);

/// NumPy's broadcasting: align at the end, sizes must agree or be 1. The result's elements are counted, too.
Shape broadcast_shapes(const Shape& a, const Shape& b, std::string_view op);

/// `wanted` with its one size of -1, if any, filled in so that it has x's number of elements.
Shape reshaped(const Shape& x, const Shape& wanted);

}  // namespace bg
