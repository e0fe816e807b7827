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

TEST_CASE("doubles and integers round to the nearest bfloat16 once", "[bf16]") {
  auto of_double = [](double x) { return Tensor::scalar(x, DType::f64).to(DType::bf16).item(); };
  CHECK(of_double(1 + 0x1p-8 + 0x1p-40) == 1.0078125);  // as a float, a tie
  CHECK(of_double(1 + 0x1p-8) == 1);
  CHECK(of_double(1 + 0x1p-8 - 0x1p-40) == 1);
  CHECK(of_double(1 + 3 * 0x1p-8 - 0x1p-40) == 1.0078125);
  CHECK(of_double(-1 - 0x1p-8 - 0x1p-40) == -1.0078125);
  CHECK(of_double(1e300) == std::numeric_limits<double>::infinity());
  CHECK(of_double(-1e300) == -std::numeric_limits<double>::infinity());
  CHECK(of_double(0x1.fep127) == 0x1.fep127);  // the largest
  CHECK(of_double(0x1.ffp127) == std::numeric_limits<double>::infinity());
  CHECK(of_double(0x1.ffp127 - 0x1p76) == 0x1.fep127);
  CHECK(of_double(0x1p-133) == 0x1p-133);  // the smallest
  CHECK(of_double(0x1p-134) == 0);
  CHECK(of_double(0x1p-134 + 0x1p-180) == 0x1p-133);
  CHECK(of_double(1e-300) == 0);
  CHECK(std::isnan(of_double(std::nan(""))));

  auto of_integer = [](int64_t x) { return Tensor::scalar(x, DType::i64).to(DType::bf16).item(); };
  CHECK(of_integer(16842753) == 16908288);
  CHECK(of_integer(-16842753) == -16908288);
  CHECK(Tensor::scalar(16842753, DType::i32).to(DType::bf16).item() == 16908288);
  CHECK(Tensor::full({1}, 16842753, DType::bf16).item() == 16908288);
  const int64_t tie = (int64_t{1} << 62) + (int64_t{1} << 54);
  CHECK(of_integer(tie) == 0x1p62);
  CHECK(of_integer(tie + 1) == 0x1p62 + 0x1p55);  // what a double has no room for
  CHECK(of_integer(-tie - 1) == -0x1p62 - 0x1p55);
  CHECK(of_integer(std::numeric_limits<int64_t>::max()) == 0x1p63);
  CHECK(of_integer(std::numeric_limits<int64_t>::min()) == -0x1p63);

  // Against arithmetic on doubles, near ties above all.
  Rng rng(5);
  int64_t wrong = 0;
  for (int i = 0; i < 200000; ++i) {
    int e;
    const double x = std::ldexp(rng.normal(), static_cast<int>(rng.below(200)) - 100);
    const double near_tie = std::ldexp(std::nearbyint(std::ldexp(std::frexp(x, &e), 9)), e - 9) *
                            (1 + (static_cast<double>(rng.below(5)) - 2) * 0x1p-45);
    for (const double v : {x, near_tie}) {
      const double fraction = std::frexp(v, &e);
      wrong += f32_from_bf16(bf16_from_f64(v)) != std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), e - 8);
    }
  }
  CHECK(wrong == 0);
}
