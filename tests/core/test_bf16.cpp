// bfloat16: every value goes there and back, and rounding is to nearest, ties to even, against arithmetic.
#include <bit>

#include "core/kernels/bf16.h"
#include "tests/core/kernel_support.h"

using namespace bg;
using namespace bg::test;
namespace k = bg::kernels;

TEST_CASE("every bfloat16 survives the way to float and back", "[bf16]") {
  std::vector<uint16_t> all(65536), back(65536);
  std::vector<float> wide(65536);
  for (int i = 0; i < 65536; ++i) all[i] = static_cast<uint16_t>(i);
  k::f32_from_bf16(all.data(), wide.data(), 65536);
  k::bf16_from_f32(wide.data(), back.data(), 65536);
  int64_t wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    if (std::isnan(wide[i])) {
      wrong += (back[i] & 0x7f80) != 0x7f80 || (back[i] & 0x7f) == 0;
    } else {
      wrong += back[i] != all[i];
    }
  }
  CHECK(wrong == 0);
  CHECK(wide[0x3f80] == 1.0f);
  CHECK(wide[0xc049] == -3.140625f);
}

TEST_CASE("floats round to the nearest bfloat16, ties to even, NaN stays NaN", "[bf16]") {
  auto one = [](float x) {
    uint16_t y = 0;
    k::bf16_from_f32(&x, &y, 1);
    return y;
  };
  CHECK(one(1.0f) == 0x3f80);
  CHECK(one(1.0f + 0x1p-8f) == 0x3f80);             // a tie, down to even
  CHECK(one(1.0f + 0x1p-7f + 0x1p-8f) == 0x3f82);   // a tie, up to even
  CHECK(one(1.0f + 0x1p-8f + 0x1p-23f) == 0x3f81);  // just above a tie
  CHECK(one(-0.0f) == 0x8000);
  CHECK(one(std::numeric_limits<float>::infinity()) == 0x7f80);
  CHECK(one(std::numeric_limits<float>::max()) == 0x7f80);
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    float y;
    const uint16_t narrow = one(std::bit_cast<float>(bits));
    k::f32_from_bf16(&narrow, &y, 1);
    CHECK(std::isnan(y));
    CHECK(std::signbit(y) == (bits >> 31 != 0));
  }
  for (int64_t n : kLengths) {
    const auto x = normals<float>(n, 1, 1e3);
    std::vector<uint16_t> y(n);
    std::vector<float> back(n);
    k::bf16_from_f32(x.data(), y.data(), n);
    k::f32_from_bf16(y.data(), back.data(), n);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) {
      int e;
      const float fraction = std::frexp(x[i], &e);  // 8 significant bits, rounded to even by nearbyint
      wrong += back[i] != std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), e - 8);
    }
    CHECK(wrong == 0);
  }
}
