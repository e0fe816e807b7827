// bfloat16 as storage: the upper 16 bits of a float. Arithmetic is done in float.
#pragma once

#include <cstdint>

namespace bg::kernels {

/// Rounds to nearest, ties to even; beyond the range to infinity; NaN stays NaN (made quiet, sign and payload's upper
/// bits kept).
void bf16_from_f32(const float* x, uint16_t* y, int64_t n);

/// Exact.
void f32_from_bf16(const uint16_t* x, float* y, int64_t n);

}  // namespace bg::kernels
