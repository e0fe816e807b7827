// Tensor: a value handle on numbers - storage, dtype, shape, strides, offset. Copying a Tensor shares its storage;
// views share storage and version counter. It knows nothing of gradients.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/shape.h"
#include "core/storage.h"

namespace bg {

class Rng;

class Tensor {
 public:
  Tensor() = default;  ///< undefined: stands for "no tensor"

  // -- Making ---------------------------------------------------------------------------------------------------------
  static Tensor empty(const Shape& shape, DType dtype = DType::f32);  ///< uninitialised
  static Tensor zeros(const Shape& shape, DType dtype = DType::f32);
  static Tensor full(const Shape& shape, double value, DType dtype = DType::f32);
  static Tensor scalar(double value, DType dtype = DType::f32) { return full({}, value, dtype); }
  static Tensor arange(int64_t n, DType dtype = DType::i64);
  template <class T>
  static Tensor of(std::vector<T> values, const Shape& shape);  ///< row-major values; the count must match
  static Tensor of(std::initializer_list<double> values, const Shape& shape, DType dtype = DType::f64);
  static Tensor randn(const Shape& shape, Rng& rng, DType dtype = DType::f32, double stddev = 1, double mean = 0);
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
  template <class T>
  T* mutable_data(std::string_view writer) {
    check_type(dtype_of<T>);
    storage_->mark_written(writer);
    return reinterpret_cast<T*>(storage_->data()) + offset_;
  }

  double item() const;                                    ///< the single value of a tensor with one element
  double at(std::initializer_list<int64_t> index) const;  ///< bounds-checked element
  double flat(int64_t i) const;                           ///< i-th element in row-major order
  template <class T>
  std::vector<T> to_vector() const;  ///< row-major copy, converted
  std::string to_string() const;     ///< shape, dtype and up to a few elements

  // -- Views: share storage and version -------------------------------------------------------------------------------
  Tensor transpose(int a, int b) const;
  Tensor permute(std::initializer_list<int> dims) const { return permute(std::vector<int>(dims)); }
  Tensor permute(const std::vector<int>& dims) const;
  Tensor slice(int dim, int64_t begin, int64_t end, int64_t step = 1) const;  ///< [begin, end) with step >= 1
  Tensor select(int dim, int64_t index) const;                                ///< drops the dimension
  Tensor unsqueeze(int dim) const;
  Tensor squeeze(int dim) const;
  Tensor expand(const Shape& shape) const;  ///< broadcasts with stride 0; never write through it
  /// A view where strides allow, else a copy. One size may be -1.
  Tensor reshape(const Shape& shape) const;

  // -- Copies ---------------------------------------------------------------------------------------------------------
  Tensor contiguous() const;  ///< itself when already contiguous
  Tensor clone() const;       ///< always new, contiguous
  Tensor to(DType dtype) const;
  void copy_from(const Tensor& src, std::string_view writer = "copy");  ///< same shape; converts dtype
  void fill(double value, std::string_view writer = "fill");

 private:
  void check_type(DType wanted) const {
    BG_CHECK(defined(), "tensor", "undefined tensor used", "no data", "a tensor with values");
    BG_CHECK(dtype_ == wanted, "tensor", "wrong dtype", str(dtype_), str(wanted), str("to(DType::", wanted, ")"));
  }
  Tensor view(const Shape& shape, const Shape& strides, int64_t offset) const;

  std::shared_ptr<Storage> storage_;
  DType dtype_ = DType::f32;
  int64_t offset_ = 0;  // in elements
  Shape shape_, strides_;
};

using Tensors = std::vector<Tensor>;

std::ostream& operator<<(std::ostream& out, const Tensor& t);

}  // namespace bg
