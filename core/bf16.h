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

/// Exact.
constexpr float f32_from_bf16(BF16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

}  // namespace bg
