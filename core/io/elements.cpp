#include "core/io/elements.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace bg {
namespace {

static_assert(std::endian::native == std::endian::little, "file formats are little-endian; numbers are copied as is");

using Kind = ElementFormat::Kind;

// A binary float of `exponent_bits` and `mantissa_bits`, an IEEE one in all but the largest exponent, as an f32.
float small_float(uint32_t bits, int exponent_bits, int mantissa_bits, bool has_infinity) {
  const uint32_t mantissa = bits & ((1U << mantissa_bits) - 1), top = (1U << exponent_bits) - 1;
  const uint32_t exponent = (bits >> mantissa_bits) & top, sign = bits >> (exponent_bits + mantissa_bits);
  const int bias = static_cast<int>(top >> 1);
  const bool special = exponent == top && (has_infinity || mantissa == (1U << mantissa_bits) - 1);
  uint32_t out = sign << 31;
  if (special) {
    out |= 0xFFU << 23 | mantissa << (23 - mantissa_bits);
  } else if (exponent == 0) {  // 0.mantissa * 2^(1 - bias): exact, and no subnormal f32
    float x = static_cast<float>(mantissa);
    for (int i = 0; i < bias - 1 + mantissa_bits; ++i) x /= 2;
    out |= std::bit_cast<uint32_t>(x);
  } else {
    out |= static_cast<uint32_t>(static_cast<int>(exponent) - bias + 127) << 23 | mantissa << (23 - mantissa_bits);
  }
  return std::bit_cast<float>(out);
}

template <class T>
T number_at(const char* p, bool big_endian) {
  char bytes[sizeof(T)];
  std::memcpy(bytes, p, sizeof(T));
  if (big_endian) std::reverse(bytes, bytes + sizeof(T));
  T x;
  std::memcpy(&x, bytes, sizeof(T));
  return x;
}

// From is what the file holds, To what becomes of it.
template <class From, class To, class F>
Tensor converted(std::string_view bytes, const Shape& shape, const ElementFormat& format, F f) {
  Tensor t = Tensor::empty(shape, format.dtype());
  To* out = t.mutable_data<To>("read");
  for (size_t i = 0; i < bytes.size() / sizeof(From); ++i)
    out[i] = static_cast<To>(f(number_at<From>(bytes.data() + i * sizeof(From), format.big_endian)));
  return t;
}

bool is_native(const ElementFormat& f) {
  const bool int_or_float = f.bytes >= 4 && (f.kind == Kind::ieee || f.kind == Kind::signed_int);
  return !f.big_endian && (int_or_float || f.kind == Kind::bfloat16);
}

}  // namespace

DType ElementFormat::dtype() const {
  switch (kind) {
    case Kind::ieee:
      return bytes == 8 ? DType::f64 : DType::f32;
    case Kind::bfloat16:
      return DType::bf16;
    case Kind::e4m3:
    case Kind::e5m2:
      return DType::f32;
    case Kind::boolean:
      return DType::i32;
    case Kind::signed_int:
      return bytes == 8 ? DType::i64 : DType::i32;
    case Kind::unsigned_int:
      return bytes >= 4 ? DType::i64 : DType::i32;
  }
  return DType::f32;
}

Tensor read_elements(std::string_view bytes, const Shape& shape, const ElementFormat& format, std::string_view op,
                     std::string_view where) {
  if (is_native(format)) {
    Tensor t = Tensor::empty(shape, format.dtype());
    if (!bytes.empty()) std::memcpy(t.storage()->data(), bytes.data(), bytes.size());
    return t;
  }
  const auto same = [](auto x) { return x; };
  const auto from_bits = [](int exponent_bits, int mantissa_bits, bool has_infinity) {
    return [=](auto bits) { return small_float(bits, exponent_bits, mantissa_bits, has_infinity); };
  };
  switch (format.kind) {
    case Kind::ieee:
      if (format.bytes == 2) return converted<uint16_t, float>(bytes, shape, format, from_bits(5, 10, true));
      if (format.bytes == 4) return converted<float, float>(bytes, shape, format, same);
      return converted<double, double>(bytes, shape, format, same);
    case Kind::bfloat16:
      break;  // only little-endian
    case Kind::e4m3:
      return converted<uint8_t, float>(bytes, shape, format, from_bits(4, 3, false));
    case Kind::e5m2:
      return converted<uint8_t, float>(bytes, shape, format, from_bits(5, 2, true));
    case Kind::boolean:
      return converted<uint8_t, int32_t>(bytes, shape, format, [](uint8_t x) { return x != 0; });
    case Kind::signed_int:
      if (format.bytes == 1) return converted<int8_t, int32_t>(bytes, shape, format, same);
      if (format.bytes == 2) return converted<int16_t, int32_t>(bytes, shape, format, same);
      if (format.bytes == 4) return converted<int32_t, int32_t>(bytes, shape, format, same);
      return converted<int64_t, int64_t>(bytes, shape, format, same);
    case Kind::unsigned_int:
      if (format.bytes == 1) return converted<uint8_t, int32_t>(bytes, shape, format, same);
      if (format.bytes == 2) return converted<uint16_t, int32_t>(bytes, shape, format, same);
      if (format.bytes == 4) return converted<uint32_t, int64_t>(bytes, shape, format, same);
      return converted<uint64_t, int64_t>(bytes, shape, format, [&](uint64_t x) {
        BG_CHECK(x <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max()), op,
                 str(where, " holds an unsigned number that no dtype here can"), str(x), "at most 2^63 - 1");
        return static_cast<int64_t>(x);
      });
  }
  fail(op, str(where, " has numbers that cannot be read"));
}

}  // namespace bg
