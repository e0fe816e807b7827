// bfloat16 as storage: the upper 16 bits of a float. Arithmetic is done in float.
#pragma once

#include <bit>
#include <cstdint>

namespace bg {

/// Raw bfloat16 bits.
struct BF16 {
  uint16_t bits;
};

/// Rounds to nearest, ties to even, and beyond the range to infinity. NaN stays NaN (made quiet; sign and upper payload
/// are kept). Free of branches, so that loops over it become vector code.
constexpr BF16 bf16_from_f32(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  // Adding just under half of the last kept bit, and that bit itself on a tie, carries where rounding goes up. A NaN
  // could carry into infinity.
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1), quiet = bits | 0x400000;
  return {static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16)};
}

/// Rounds once, to nearest, ties to even. Rounding to float to nearest and then again would round some values twice, so
/// the float is rounded to odd: where it is not exact, its last bit is set, which no tie between two bfloat16 has.
constexpr BF16 bf16_from_f64(double x) {
  const float nearest = static_cast<float>(x);
  const double back = nearest;
  uint32_t bits = std::bit_cast<uint32_t>(nearest);
  if (back != x && x == x && bits % 2 == 0) {
    const bool away_from_zero = x < 0 ? back < x : back > x;  // then the odd neighbour is the one towards zero
    bits += away_from_zero ? ~uint32_t{0} : 1;
  }
  return bf16_from_f32(std::bit_cast<float>(bits));
}

/// The same. Beyond 53 bits, what a double has no room for becomes a last bit that is set.
constexpr BF16 bf16_from_i64(int64_t x) {
  const uint64_t size = x < 0 ? 0 - static_cast<uint64_t>(x) : static_cast<uint64_t>(x);
  if (size >> 53 == 0) return bf16_from_f64(static_cast<double>(x));
  const double odd = static_cast<double>(size >> 11 | ((size & 0x7ff) != 0)) * 2048;
  return bf16_from_f64(x < 0 ? -odd : odd);
}

/// Exact.
constexpr float f32_from_bf16(BF16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

}  // namespace bg
