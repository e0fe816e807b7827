#include "core/tensor.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>

#include "core/elementwise.h"
#include "core/rng.h"

namespace bg {
namespace {

// Rounds once; a float that becomes an integer must fit it.
template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, BF16>)
    return static_cast<To>(f32_from_bf16(x));
  else if constexpr (!std::is_same_v<To, BF16>)
    return static_cast<To>(x);
  else if constexpr (std::is_same_v<From, float>)
    return bf16_from_f32(x);
  else if constexpr (std::is_same_v<From, int64_t>)
    return bf16_from_i64(x);
  else
    return bf16_from_f64(x);
}

// Whether x, without its fraction, is among an integer type's numbers.
template <class To, class From>
bool fits(From x) {
  if constexpr (std::is_same_v<From, BF16>)
    return fits<To>(f32_from_bf16(x));
  else if constexpr (std::is_integral_v<From>)
    return std::in_range<To>(x);
  else  // not every limit of an integer type has a double of its own, but the power of two above it has
    return std::trunc(x) >= std::numeric_limits<To>::min() &&
           std::trunc(x) < -static_cast<double>(std::numeric_limits<To>::min());
}

// x as a double or int64_t that equals it; nothing when there is none.
template <class To, class From>
std::optional<To> exact(From x) {
  if constexpr (std::is_same_v<From, BF16>) {
    return exact<To>(f32_from_bf16(x));
  } else if constexpr (std::is_integral_v<From> && std::is_same_v<To, double>) {
    const double y = static_cast<double>(x);
    return fits<int64_t>(y) && static_cast<int64_t>(y) == x ? std::optional(y) : std::nullopt;
  } else if constexpr (std::is_integral_v<To> && !std::is_integral_v<From>) {
    return fits<To>(x) && std::trunc(x) == x ? std::optional(static_cast<To>(x)) : std::nullopt;
  } else {
    return static_cast<To>(x);
  }
}

// With as few digits as tell x from its neighbours.
template <class T>
std::string shortest_text(T x) {
  if constexpr (std::is_same_v<T, BF16>) {
    return shortest_text(f32_from_bf16(x));
  } else if constexpr (std::is_integral_v<T>) {
    return std::to_string(x);
  } else {
    if (std::isnan(x)) return "nan";  // without the sign that it may have
    char text[32];
    return std::string(text, std::to_chars(text, text + sizeof(text), x, std::chars_format::general).ptr);
  }
}

// The next value below a finite one.
template <class T>
T just_below(T x) {
  if constexpr (std::is_same_v<T, BF16>) {
    if (f32_from_bf16(x) == 0) return {0x8001};
    return {static_cast<uint16_t>(x.bits >> 15 ? x.bits + 1 : x.bits - 1)};
  } else {
    return std::nextafter(x, -std::numeric_limits<T>::infinity());
  }
}

// Offset of the i-th element in row-major order.
int64_t flat_offset(const Shape& shape, const Shape& strides, int64_t i) {
  int64_t at = 0;
  for (int d = shape.rank() - 1; d >= 0; --d) {
    at += i % shape[d] * strides[d];
    i /= shape[d];
  }
  return at;
}

// f.operator()<T>() for the floating dtypes, bf16 among them.
template <class F>
void dispatch_random(std::string_view op, DType dtype, F&& f) {
  BG_CHECK(!is_index(dtype), op, "not a floating dtype", name_of(dtype), "f32, f64 or bf16", "Rng::below for integers");
  if (dtype == DType::bf16)
    f.template operator()<BF16>();
  else
    dispatch_float(op, dtype, f);
}

}  // namespace

template <class T>
T Scalar::as(std::string_view op) const {
  if constexpr (std::is_integral_v<T>) {
    const std::optional<int64_t> value = whole_ ? integer_ : exact<int64_t>(number_);
    BG_CHECK(value && std::in_range<T>(*value), op, "the dtype does not have this value",
             whole_ ? std::to_string(integer_) : shortest_text(number_),
             str("a whole number that ", dtype_of<T>, " has room for"));
    return static_cast<T>(*value);
  } else {
    return whole_ ? convert<T>(integer_) : convert<T>(number_);
  }
}

Shape broadcast_strides(const Tensor& t, const Shape& shape) {
  Shape out = Shape::filled(shape.rank(), 0);
  for (int i = 1; i <= t.rank(); ++i)
    out[shape.rank() - i] = t.shape()[t.rank() - i] == 1 ? 0 : t.strides()[t.rank() - i];
  return out;
}

Tensor Tensor::empty(const Shape& shape, DType dtype) {
  const int64_t n = shape.numel();
  Tensor t;
  t.shape_ = shape;
  t.strides_ = contiguous_strides(shape);
  t.dtype_ = dtype;
  t.storage_ = Storage::make(static_cast<size_t>(n * size_of(dtype)));
  return t;
}

Tensor Tensor::zeros(const Shape& shape, DType dtype) {
  Tensor t = empty(shape, dtype);
  std::memset(t.storage_->data(), 0, t.storage_->bytes());
  return t;
}

Tensor Tensor::full(const Shape& shape, Scalar value, DType dtype) {
  Tensor t = empty(shape, dtype);
  t.fill(value, "full");
  return t;
}

Tensor Tensor::arange(int64_t n, DType dtype) {
  BG_CHECK(n >= 0, "arange", "negative count", str(n), "0 or more");
  return dispatch_any(dtype, [&]<class T>() {
    int64_t last = std::numeric_limits<int64_t>::max();  // all whole numbers up to here are exact
    if constexpr (std::is_integral_v<T>) last = std::numeric_limits<T>::max();
    if constexpr (std::is_floating_point_v<T>) last = int64_t{1} << std::numeric_limits<T>::digits;
    if constexpr (std::is_same_v<T, BF16>) last = 1 << 8;
    BG_CHECK(n - 1 <= last, "arange", str(dtype, " does not have every whole number below n"), str(n),
             str("at most ", last, " + 1"), "i64 or f64");
    Tensor t = empty({n}, dtype);
    T* to = t.mutable_data<T>("arange");
    for (int64_t i = 0; i < n; ++i) to[i] = convert<T>(i);
    return t;
  });
}

template <class T>
Tensor Tensor::of(std::vector<T> values, const Shape& shape) {
  Tensor t = empty(shape, dtype_of<T>);
  BG_CHECK(static_cast<int64_t>(values.size()) == shape.numel(), "tensor", "number of values does not fit the shape",
           str(values.size(), " for ", shape), str(shape.numel()));
  std::copy(values.begin(), values.end(), t.mutable_data<T>("of"));
  return t;
}
template Tensor Tensor::of(std::vector<float>, const Shape&);
template Tensor Tensor::of(std::vector<double>, const Shape&);
template Tensor Tensor::of(std::vector<int32_t>, const Shape&);
template Tensor Tensor::of(std::vector<int64_t>, const Shape&);

Tensor Tensor::of(std::initializer_list<double> values, const Shape& shape, DType dtype) {
  return of(std::vector<double>(values), shape).to(dtype);
}

Tensor Tensor::randn(const Shape& shape, Rng& rng, DType dtype, double stddev, double mean) {
  Tensor t;
  dispatch_random("randn", dtype, [&]<class T>() {
    t = empty(shape, dtype);
    T* to = t.mutable_data<T>("randn");
    for (int64_t i = 0, n = t.numel(); i < n; ++i) to[i] = convert<T>(mean + stddev * rng.normal());
  });
  return t;
}

Tensor Tensor::rand(const Shape& shape, Rng& rng, double low, double high, DType dtype) {
  Tensor t;
  dispatch_random("rand", dtype, [&]<class T>() {
    const T last = just_below(convert<T>(high));
    const double width = high - low, bound = convert<double>(convert<T>(high));
    BG_CHECK(std::isfinite(bound) && std::isfinite(convert<double>(convert<T>(width))) &&
                 convert<double>(convert<T>(low)) < bound,
             "rand", "no numbers to choose from", str("[", shortest_text(low), ", ", shortest_text(high), ") as ", dtype),
             "low < high, both and their difference finite");
    t = empty(shape, dtype);
    T* to = t.mutable_data<T>("rand");
    for (int64_t i = 0, n = t.numel(); i < n; ++i) {
      const T value = convert<T>(low + width * rng.uniform());
      to[i] = convert<double>(value) < bound ? value : last;  // rounding may reach the bound
    }
  });
  return t;
}

bool Tensor::is_contiguous() const {
  if (numel() == 0) return true;
  int64_t expected = 1;
  for (int d = rank() - 1; d >= 0; --d) {
    if (shape_[d] != 1 && strides_[d] != expected) return false;
    expected *= shape_[d];
  }
  return true;
}

namespace {

// f(the i-th element in row-major order).
template <class F>
auto with_element(const Tensor& t, int64_t i, F f) {
  BG_CHECK(t.defined(), "tensor", "undefined tensor used", "no data", "a tensor with values");
  BG_CHECK(i >= 0 && i < t.numel(), "tensor", "index out of range", str(i, " of shape ", t.shape()),
           str("below ", t.numel()));
  const int64_t at = flat_offset(t.shape(), t.strides(), i);
  return dispatch_any(t.dtype(), [&]<class T>() { return f(t.data<T>()[at]); });
}

}  // namespace

template <class T>
T Tensor::flat(int64_t i) const {
  return with_element(*this, i, [&](auto x) {
    const std::optional<T> value = exact<T>(x);
    BG_CHECK(value, "tensor", str("a value has no exact ", dtype_of<T>), str(shortest_text(x), " in ", dtype_),
             str("one that ", dtype_of<T>, " has"), dtype_ == DType::i64 ? "item<int64_t>()" : "item()");
    return *value;
  });
}

template <class T>
T Tensor::item() const {
  BG_CHECK(numel() == 1, "item", "not a single value", str("shape ", shape_), "one element", "sum() or mean() first");
  return flat<T>(0);
}

template <class T>
T Tensor::at(std::initializer_list<int64_t> index) const {
  BG_CHECK(static_cast<int>(index.size()) == rank(), "at", "wrong number of indices", str(index.size()),
           str(rank(), " for shape ", shape_));
  int64_t flat_index = 0;
  int d = 0;
  for (int64_t i : index) {
    BG_CHECK(i >= 0 && i < shape_[d], "at", "index out of range", str(i, " at dimension ", d),
             str("below ", shape_[d]));
    flat_index = flat_index * shape_[d++] + i;
  }
  return flat<T>(flat_index);
}

template double Tensor::flat(int64_t) const;
template int64_t Tensor::flat(int64_t) const;
template double Tensor::item() const;
template int64_t Tensor::item() const;
template double Tensor::at(std::initializer_list<int64_t>) const;
template int64_t Tensor::at(std::initializer_list<int64_t>) const;

template <class T>
std::vector<T> Tensor::to_vector() const {
  const Tensor t = to(dtype_of<T>).contiguous();
  return std::vector<T>(t.data<T>(), t.data<T>() + t.numel());
}
template std::vector<float> Tensor::to_vector() const;
template std::vector<double> Tensor::to_vector() const;
template std::vector<int32_t> Tensor::to_vector() const;
template std::vector<int64_t> Tensor::to_vector() const;

std::string Tensor::element_text(int64_t i) const {
  return with_element(*this, i, [](auto x) { return shortest_text(x); });
}

std::string Tensor::to_string() const {
  if (!defined()) return "undefined";
  constexpr int64_t kShown = 8;
  std::string out = str(dtype_, " ", shape_, " [");
  for (int64_t i = 0; i < std::min(numel(), kShown); ++i) out += (i ? ", " : "") + element_text(i);
  return out + (numel() > kShown ? ", ...]" : "]");
}

std::ostream& operator<<(std::ostream& out, const Tensor& t) { return out << t.to_string(); }

// -- Views ------------------------------------------------------------------------------------------------------------

Tensor Tensor::view(const Shape& shape, const Shape& strides, int64_t offset) const {
  Tensor t = *this;
  t.shape_ = shape;
  t.strides_ = strides;
  t.offset_ = offset;
  return t;
}

Tensor Tensor::transpose(int a, int b) const {
  a = shape_.dim(a, "transpose");
  b = shape_.dim(b, "transpose");
  Shape shape = shape_, strides = strides_;
  std::swap(shape[a], shape[b]);
  std::swap(strides[a], strides[b]);
  return view(shape, strides, offset_);
}

Tensor Tensor::permute(const std::vector<int>& dims) const {
  BG_CHECK(static_cast<int>(dims.size()) == rank(), "permute", "wrong number of dimensions", str(dims.size()),
           str(rank(), " for shape ", shape_));
  Shape shape = shape_, strides = strides_;
  unsigned seen = 0;
  for (int i = 0; i < rank(); ++i) {
    const int d = shape_.dim(dims[i], "permute");
    BG_CHECK(!(seen >> d & 1), "permute", "dimension named twice", str(d), "each dimension once");
    seen |= 1u << d;
    shape[i] = shape_[d];
    strides[i] = strides_[d];
  }
  return view(shape, strides, offset_);
}

Tensor Tensor::slice(int dim, int64_t begin, int64_t end, int64_t step) const {
  dim = shape_.dim(dim, "slice");
  BG_CHECK(step >= 1, "slice", "bad step", str(step), "1 or more");
  BG_CHECK(begin >= 0 && begin <= end && end <= shape_[dim], "slice", "range out of bounds",
           str("[", begin, ", ", end, ") at dimension ", dim, " of shape ", shape_), str("0 to ", shape_[dim]));
  Shape shape = shape_, strides = strides_;
  shape[dim] = slice_count(begin, end, step);
  if (shape[dim] > 1) strides[dim] *= step;  // then step is below the size, and the product within the tensor
  return view(shape, strides, offset_ + begin * strides_[dim]);
}

Tensor Tensor::select(int dim, int64_t index) const {
  dim = shape_.dim(dim, "select");
  BG_CHECK(index >= 0 && index < shape_[dim], "select", "index out of range",
           str(index, " at dimension ", dim, " of shape ", shape_), str("below ", shape_[dim]));
  return slice(dim, index, index + 1).squeeze(dim);
}

Tensor Tensor::unsqueeze(int dim) const {
  BG_CHECK(dim >= -rank() - 1 && dim <= rank(), "unsqueeze", "dimension out of range", str(dim, " for shape ", shape_),
           str(-rank() - 1, " to ", rank()));
  if (dim < 0) dim += rank() + 1;
  Shape shape = shape_, strides = strides_;
  shape.insert(dim, 1);
  strides.insert(dim, dim < rank() ? shape_[dim] * strides_[dim] : 1);
  return view(shape, strides, offset_);
}

Tensor Tensor::squeeze(int dim) const {
  dim = shape_.dim(dim, "squeeze");
  BG_CHECK(shape_[dim] == 1, "squeeze", "size is not 1", str(shape_[dim], " at dimension ", dim, " of ", shape_), "1");
  Shape shape = shape_, strides = strides_;
  shape.erase(dim);
  strides.erase(dim);
  return view(shape, strides, offset_);
}

Tensor Tensor::expand(const Shape& shape) const {
  BG_CHECK(broadcast_shapes(shape_, shape, "expand") == shape, "expand", "shape does not expand", str(shape_),
           str("sizes equal to those of ", shape, " or 1"));
  return view(shape, broadcast_strides(*this, shape), offset_);
}

Tensor Tensor::reshape(const Shape& wanted) const {
  const Shape shape = reshaped(shape_, wanted);
  if (is_contiguous()) return view(shape, contiguous_strides(shape), offset_);
  return contiguous().reshape(shape);
}

// -- Copies -----------------------------------------------------------------------------------------------------------

namespace {

// The last two dimensions swapped: a pass along rows would touch a new cache line with every element read, so it goes
// by blocks that stay in the cache. `from` has unit steps along the last dimension but one, `to` along the last.
template <class T>
void copy_transposed(T* to, const Shape& to_strides, const T* from, const Shape& from_strides, const Shape& shape) {
  constexpr int64_t kBlock = 32;
  const int last = shape.rank() - 1;
  const int64_t rows = shape[last - 1], columns = shape[last];
  const int64_t row_step = to_strides[last - 1], column_step = from_strides[last];
  const Shape outer(std::span<const int64_t>(shape.begin(), shape.end() - 2));
  const int64_t blocks = (rows + kBlock - 1) / kBlock;  // of one matrix
  const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / (kBlock * columns));
  parallel_for(outer.numel() * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      T* y = to + flat_offset(outer, to_strides, b / blocks);
      const T* x = from + flat_offset(outer, from_strides, b / blocks);
      const int64_t i_begin = b % blocks * kBlock, i_end = std::min(i_begin + kBlock, rows);
      for (int64_t j_begin = 0; j_begin < columns; j_begin += kBlock) {
        const int64_t j_end = std::min(j_begin + kBlock, columns);
        T block[kBlock][kBlock + 1];  // rows of a power of two would fall on one another in the cache
        for (int64_t j = j_begin; j < j_end; ++j)
          for (int64_t i = i_begin; i < i_end; ++i) block[j - j_begin][i - i_begin] = x[j * column_step + i];
        for (int64_t i = i_begin; i < i_end; ++i)
          for (int64_t j = j_begin; j < j_end; ++j) y[i * row_step + j] = block[j - j_begin][i - i_begin];
      }
    }
  });
}

bool is_transposed(const Shape& shape, const Shape& to, const Shape& from) {
  constexpr int64_t kWorthwhile = 8;
  const int last = shape.rank() - 1;
  return last >= 1 && shape.numel() > 0 && to[last] == 1 && from[last - 1] == 1 && from[last] != 1 &&
         std::min(shape[last - 1], shape[last]) >= kWorthwhile;
}

template <class To, class From>
void check_fits(const Tensor& src, std::string_view writer) {
  const From* from = src.data<From>();
  walk<1>(src.shape(), {src.strides()}, [&](auto at, int64_t n, auto step) {
    for (int64_t i = 0; i < n; ++i) {
      const From x = from[at[0] + i * step[0]];
      BG_CHECK(fits<To>(x), writer, str("a value does not fit ", dtype_of<To>), shortest_text(x),
               str(std::numeric_limits<To>::min(), " to ", std::numeric_limits<To>::max()));
    }
  });
}

}  // namespace

bool overlaps(const Tensor& dst, const Tensor& src) {
  if (!dst.defined() || !dst.same_storage(src) || dst.numel() == 0 || src.numel() == 0) return false;
  if (dst.offset() == src.offset() && dst.shape() == src.shape() && dst.strides() == src.strides()) return false;
  const auto last = [](const Tensor& t) { return t.offset() + flat_offset(t.shape(), t.strides(), t.numel() - 1); };
  return dst.offset() <= last(src) && src.offset() <= last(dst);
}

void Tensor::copy_from(const Tensor& src, std::string_view writer) {
  BG_CHECK(shape_ == src.shape_, "copy", "shapes differ", str(src.shape_, " into ", shape_), "equal shapes");
  if (overlaps(*this, src)) return copy_from(src.clone(), writer);
  dispatch_any(dtype_, [&]<class To>() {
    dispatch_any(src.dtype_, [&]<class From>() {
      if constexpr (std::is_integral_v<To> && !std::is_same_v<To, From>) check_fits<To, From>(src, writer);
      To* to = mutable_data<To>(writer);
      const From* from = src.data<From>();
      if constexpr (std::is_same_v<To, From>)
        if (is_transposed(shape_, strides_, src.strides_))
          return copy_transposed(to, strides_, from, src.strides_, shape_);
      walk<2>(shape_, {strides_, src.strides_}, [&](auto at, int64_t n, auto step) {
        To* t = to + at[0];
        const From* f = from + at[1];
        if (step[0] == 1 && step[1] == 1)
          for (int64_t i = 0; i < n; ++i) t[i] = convert<To>(f[i]);
        else
          for (int64_t i = 0; i < n; ++i) t[i * step[0]] = convert<To>(f[i * step[1]]);
      });
    });
  });
}

void Tensor::fill(Scalar value, std::string_view writer) {
  dispatch_any(dtype_, [&]<class T>() {
    const T v = value.as<T>(writer);
    T* to = mutable_data<T>(writer);
    walk<1>(shape_, {strides_}, [&](auto at, int64_t n, auto step) {
      for (int64_t i = 0; i < n; ++i) to[at[0] + i * step[0]] = v;
    });
  });
}

Tensor Tensor::clone() const {
  if (!defined()) return {};
  Tensor t = empty(shape_, dtype_);
  t.copy_from(*this, "clone");
  return t;
}

Tensor Tensor::contiguous() const { return !defined() || is_contiguous() ? *this : clone(); }

Tensor Tensor::to(DType dtype) const {
  if (!defined() || dtype == dtype_) return *this;
  Tensor t = empty(shape_, dtype);
  t.copy_from(*this, "to");
  return t;
}

}  // namespace bg
