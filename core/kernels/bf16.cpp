// bfloat16 conversions; plain loops, which the compiler vectorises.
#include "core/kernels/bf16.h"

#include <bit>

#include "core/parallel.h"

namespace bg::kernels {
namespace {
constexpr int64_t kGrain = 32768;
}

void bf16_from_f32(const float* x, uint16_t* y, int64_t n) {
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t bits = std::bit_cast<uint32_t>(x[i]);
      // Adding just under half of the last kept bit, and that bit itself on a tie, carries where rounding goes up. A
      // NaN could carry into infinity.
      const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
      const uint32_t quiet = bits | 0x400000;
      y[i] = static_cast<uint16_t>(((bits & 0x7fffffff) > 0x7f800000 ? quiet : rounded) >> 16);
    }
  });
}

void f32_from_bf16(const uint16_t* x, float* y, int64_t n) {
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) y[i] = std::bit_cast<float>(uint32_t{x[i]} << 16);
  });
}

}  // namespace bg::kernels
