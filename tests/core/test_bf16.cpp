// bfloat16: every value goes there and back, and rounding is to nearest, ties to even, against arithmetic.
#include "core/bf16.h"
#include "core/tensor.h"
#include "tests/core/kernel_support.h"

using namespace bg;
using namespace bg::test;

TEST_CASE("every bfloat16 survives the way to float and back", "[bf16]") {
  int64_t wrong = 0;
  for (int i = 0; i < 65536; ++i) {
    const float wide = f32_from_bf16({static_cast<uint16_t>(i)});
    const uint16_t back = bf16_from_f32(wide).bits;
    wrong += std::isnan(wide) ? (back & 0x7f80) != 0x7f80 || (back & 0x7f) == 0 : back != i;
  }
  CHECK(wrong == 0);
  CHECK(f32_from_bf16({0x3f80}) == 1.0f);
  CHECK(f32_from_bf16({0xc049}) == -3.140625f);
}

TEST_CASE("floats round to the nearest bfloat16, ties to even, NaN stays NaN", "[bf16]") {
  auto one = [](float x) { return bf16_from_f32(x).bits; };
  CHECK(one(1.0f) == 0x3f80);
  CHECK(one(1.0f + 0x1p-8f) == 0x3f80);             // a tie, down to even
  CHECK(one(1.0f + 0x1p-7f + 0x1p-8f) == 0x3f82);   // a tie, up to even
  CHECK(one(1.0f + 0x1p-8f + 0x1p-23f) == 0x3f81);  // just above a tie
  CHECK(one(-0.0f) == 0x8000);
  CHECK(one(std::numeric_limits<float>::infinity()) == 0x7f80);
  CHECK(one(std::numeric_limits<float>::max()) == 0x7f80);
  for (uint32_t bits : {0x7f800001u, 0x7fffffffu, 0xff800001u, 0xffffffffu}) {
    const float y = f32_from_bf16({one(std::bit_cast<float>(bits))});
    CHECK(std::isnan(y));
    CHECK(std::signbit(y) == (bits >> 31 != 0));
  }
  const int64_t n = 1000003;
  const auto x = normals<float>(n, 1, 1e3);
  const Tensor there = Tensor::of(x, {n}).to(DType::bf16), back = there.to(DType::f32);
  int64_t wrong = 0;
  for (int64_t i = 0; i < n; ++i) {
    int e;
    const float fraction = std::frexp(x[i], &e);  // 8 significant bits, rounded to even by nearbyint
    wrong += back.data<float>()[i] != std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), e - 8);
  }
  CHECK(wrong == 0);
}
