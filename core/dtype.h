// Element types: a run-time property of Tensor, a template parameter inside kernels only.
#pragma once

#include <cstdint>
#include <ostream>
#include <string_view>

#include "core/bf16.h"
#include "core/error.h"

namespace bg {

enum class DType : uint8_t { f32, f64, i32, i64, bf16 };  // bf16 is storage only: convert before computing

constexpr int64_t size_of(DType t) {
  switch (t) {
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::bf16:
      return 2;
  }
  return 0;
}

constexpr std::string_view name_of(DType t) {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::bf16:
      return "bf16";
  }
  return "?";
}

inline std::ostream& operator<<(std::ostream& out, DType t) { return out << name_of(t); }

constexpr bool is_float(DType t) { return t == DType::f32 || t == DType::f64; }
constexpr bool is_index(DType t) { return t == DType::i32 || t == DType::i64; }

template <class T>
inline constexpr DType dtype_of = [] {
  static_assert(sizeof(T) == 0, "not an element type");
  return DType::f32;
}();
template <>
inline constexpr DType dtype_of<float> = DType::f32;
template <>
inline constexpr DType dtype_of<double> = DType::f64;
template <>
inline constexpr DType dtype_of<int32_t> = DType::i32;
template <>
inline constexpr DType dtype_of<int64_t> = DType::i64;
template <>
inline constexpr DType dtype_of<BF16> = DType::bf16;

/// Calls f.operator()<float>() or <double>(); any other dtype is an error in the name of `op`.
template <class F>
decltype(auto) dispatch_float(std::string_view op, DType t, F&& f) {
  if (t == DType::f32) return f.template operator()<float>();
  if (t == DType::f64) return f.template operator()<double>();
  fail(op, "not a floating dtype", name_of(t), "f32 or f64", "to(DType::f32)");
}

/// Calls f with the C++ type of any dtype.
template <class F>
decltype(auto) dispatch_any(DType t, F&& f) {
  switch (t) {
    case DType::f32:
      return f.template operator()<float>();
    case DType::f64:
      return f.template operator()<double>();
    case DType::i32:
      return f.template operator()<int32_t>();
    case DType::i64:
      return f.template operator()<int64_t>();
    case DType::bf16:
      break;
  }
  return f.template operator()<BF16>();
}

}  // namespace bg
