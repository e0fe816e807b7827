// Tensor: a value handle on numbers - storage, dtype, shape, strides, offset. Copying a Tensor shares its storage;
// views share storage and version counter. It knows nothing of gradients.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/storage.h"

namespace bg {

class Rng;

/// A number that is written into a tensor of any dtype: whole ones keep all their digits on the way.
class Scalar {
 public:
  template <class V>
  requires std::is_arithmetic_v<V> Scalar(V value)
      : whole_(std::is_integral_v<V>),
        integer_(whole_ ? static_cast<int64_t>(value) : 0),
        number_(whole_ ? 0 : static_cast<double>(value)) {
    if constexpr (std::is_unsigned_v<V> && sizeof(V) == sizeof(int64_t))
      BG_CHECK(std::in_range<int64_t>(value), "tensor", "number too large", str(value), "at most 2^63 - 1");
  }

  /// As an element; throws in the name of `op` when T is an integer type without this value. Others round once.
  template <class T>
  T as(std::string_view op) const;

 private:
  bool whole_;
  int64_t integer_;
  double number_;
};

class Tensor {
 public:
  Tensor() = default;  ///< undefined: stands for "no tensor"

  // -- Making ---------------------------------------------------------------------------------------------------------
  // All throw on a negative size, on 2^59 elements or more, and when memory runs out.
  static Tensor empty(const Shape& shape, DType dtype = DType::f32);  ///< uninitialised
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32);
  static Tensor full(const Shape& shape, Scalar value, DType dtype = DType::f32);  ///< as fill
  static Tensor scalar(Scalar value, DType dtype = DType::f32) { return full({}, value, dtype); }
  static Tensor arange(int64_t n, DType dtype = DType::i64);  ///< 0, ..., n - 1; throws where dtype lacks one of them
  template <class T>
  static Tensor of(std::vector<T> values, const Shape& shape);  ///< row-major values; the count must match
  static Tensor of(std::initializer_list<double> values, const Shape& shape, DType dtype = DType::f64);
  static Tensor randn(const Shape& shape, Rng& rng, DType dtype = DType::f32, double stddev = 1, double mean = 0);
  /// Uniform in [low, high), both as dtype has them: low may be drawn, high is not. Throws unless low < high, both
  /// and their difference being finite in dtype.
  static Tensor rand(const Shape& shape, Rng& rng, double low, double high, DType dtype = DType::f32);

  // -- Asking ---------------------------------------------------------------------------------------------------------
  bool defined() const { return storage_ != nullptr; }
  explicit operator bool() const { return defined(); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  int rank() const { return shape_.rank(); }
  int64_t size(int dim) const { return shape_[shape_.dim(dim, "size")]; }
  int64_t numel() const { return shape_.numel(); }
  int64_t offset() const { return offset_; }
  bool is_contiguous() const;
  const std::shared_ptr<Storage>& storage() const { return storage_; }
  bool same_storage(const Tensor& o) const { return storage_ == o.storage_; }

  /// First element; the dtype must be T's.
  template <class T>
  const T* data() const {
    check_type(dtype_of<T>);
    return reinterpret_cast<const T*>(storage_->data()) + offset_;
  }
  /// The same for writing: moves the version counter. `writer` is a string literal, named when a saved tensor changed.
  /// Throws in its name on an expanded tensor, where a write to one element is one to others.
  template <class T>
  T* mutable_data(std::string_view writer) {
    check_type(dtype_of<T>);
    check_writable(writer);
    storage_->mark_written(writer);
    return reinterpret_cast<T*>(storage_->data()) + offset_;
  }

  // Single values, as double or as int64_t. One that has no exact such form throws: an i64 beyond 2^53 as double, a
  // fraction as int64_t.
  template <class T = double>
  T item() const;  ///< the single value of a tensor with one element
  template <class T = double>
  T at(std::initializer_list<int64_t> index) const;  ///< bounds-checked element
  template <class T = double>
  T flat(int64_t i) const;  ///< i-th element in row-major order
  template <class T>
  std::vector<T> to_vector() const;  ///< row-major copy, converted as to() does
  /// Shape, dtype and up to a few elements: integers whole, others with enough digits to tell neighbours apart.
  std::string to_string() const;
  std::string element_text(int64_t i) const;  ///< i-th element in row-major order, written so

  // -- Views: share storage and version -------------------------------------------------------------------------------
  Tensor transpose(int a, int b) const;
  Tensor permute(std::initializer_list<int> dims) const { return permute(std::vector<int>(dims)); }
  Tensor permute(const std::vector<int>& dims) const;
  /// Positions begin, begin + step, ... below end; 0 <= begin <= end <= size and step >= 1, however large.
  Tensor slice(int dim, int64_t begin, int64_t end, int64_t step = 1) const;
  Tensor select(int dim, int64_t index) const;  ///< drops the dimension
  Tensor unsqueeze(int dim) const;
  Tensor squeeze(int dim) const;
  Tensor expand(const Shape& shape) const;  ///< broadcasts with stride 0; writing through it throws
  /// A view where strides allow, else a copy. One size may be -1.
  Tensor reshape(const Shape& shape) const;

  // -- Copies ---------------------------------------------------------------------------------------------------------
  Tensor contiguous() const;  ///< itself when already contiguous
  Tensor clone() const;       ///< always new, contiguous
  /// Itself when of that dtype already. Floating values round once, to nearest; integer dtypes drop fractions. Throws,
  /// before anything is written, on a value that an integer dtype has no room for (NaN and infinities among them).
  Tensor to(DType dtype) const;
  /// Same shape; converts as to() does. The source may share memory with this in any way: it is read as it was before.
  void copy_from(const Tensor& src, std::string_view writer = "copy");
  /// Throws on a value that an integer dtype does not have.
  void fill(Scalar value, std::string_view writer = "fill");

 private:
  void check_type(DType wanted) const {
    BG_CHECK(defined(), "tensor", "undefined tensor used", "no data", "a tensor with values");
    BG_CHECK(dtype_ == wanted, "tensor", "wrong dtype", str(dtype_), str(wanted), str("to(DType::", wanted, ")"));
  }
  void check_writable(std::string_view writer) const {
    for (int d = 0; d < rank(); ++d)
      BG_CHECK(shape_[d] <= 1 || strides_[d] != 0, writer, "cannot write into an expanded tensor",
               str("shape ", shape_, ", strides ", strides_), "a place in memory for each element", "clone()");
  }
  Tensor view(const Shape& shape, const Shape& strides, int64_t offset) const;

  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::f32;
  int64_t offset_ = 0;  // in elements
  Shape shape_, strides_;
};

using Tensors = std::vector<Tensor>;

/// Whether a loop that writes dst's elements one by one, reading src's at the same index for each, may read what
/// it has written: the two share bytes and are not one and the same view.
bool overlaps(const Tensor& dst, const Tensor& src);

std::ostream& operator<<(std::ostream& out, const Tensor& t);

}  // namespace bg
