// The generator against published vectors, its distributions, and masks that are the same however they are read.
#include <cmath>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "tests/catch.h"

using namespace bg;

TEST_CASE("philox4x32-10 gives the vectors published with Random123", "[rng]") {
  using C = std::array<uint32_t, 4>;
  constexpr uint32_t f = 0xffffffff;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == C{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({f, f, f, f}, {f, f}) == C{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        C{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a sequence continues from (seed, stream, offset) alone", "[rng]") {
  Rng a(7, 3);
  for (int i = 0; i < 5; ++i) a.next_u32();
  Rng b(a.seed(), a.stream(), a.offset());
  CHECK(a == b);
  for (int i = 0; i < 9; ++i) CHECK(a.next_u32() == b.next_u32());
  CHECK(a.normal() == b.normal());
  CHECK(a.next_mask() == b.next_mask());
  CHECK(a.below(1000) == b.below(1000));
  CHECK(a.offset() == b.offset());
  CHECK(Rng(7, 4).next_u64() != Rng(7, 3).next_u64());
  CHECK(Rng(8, 3).next_u64() != Rng(7, 3).next_u64());
}

TEST_CASE("forks differ from their parent, each other and nested ones, whatever was drawn", "[rng]") {
  Rng r(42);
  const Rng before = r.fork(1);
  r.next_u32();
  CHECK(r.fork(1) == before);
  CHECK(before.offset() == 0);
  std::vector<uint64_t> first = {Rng(42).next_u64(),           r.fork(0).next_u64(),
                                 r.fork(1).next_u64(),         r.fork(2).next_u64(),
                                 r.fork(1).fork(2).next_u64(), r.fork(2).fork(1).next_u64(),
                                 r.fork(1).fork(1).next_u64(), Rng(43).fork(1).next_u64()};
  for (size_t i = 0; i < first.size(); ++i)
    for (size_t j = 0; j < i; ++j) CHECK(first[i] != first[j]);
}

TEST_CASE("uniform, normal and below have the right moments", "[rng]") {
  // 200,000 draws: the bounds are five standard errors.
  Rng r(1);
  constexpr int n = 200000;
  double u1 = 0, u2 = 0, z1 = 0, z2 = 0, z3 = 0, z4 = 0;
  int beyond2 = 0;
  std::vector<int> count(7);
  bool in_range = true;
  for (int i = 0; i < n; ++i) {
    const double u = r.uniform(), z = r.normal();
    in_range = in_range && u >= 0 && u < 1 && std::isfinite(z);
    u1 += u;
    u2 += u * u;
    z1 += z;
    z2 += z * z;
    z3 += z * z * z;
    z4 += z * z * z * z;
    beyond2 += std::abs(z) > 2;
    ++count.at(r.below(7));
  }
  const double se = 5 / std::sqrt(n);
  CHECK(in_range);
  CHECK(std::abs(u1 / n - 0.5) < se * std::sqrt(1 / 12.0));
  CHECK(std::abs(u2 / n - 1 / 3.0) < se * std::sqrt(4 / 45.0));
  CHECK(std::abs(z1 / n) < se);
  CHECK(std::abs(z2 / n - 1) < se * std::sqrt(2.0));
  CHECK(std::abs(z3 / n) < se * std::sqrt(15.0));
  CHECK(std::abs(z4 / n - 3) < se * std::sqrt(96.0));
  CHECK(std::abs(double(beyond2) / n - 0.0455003) < se * std::sqrt(0.0455 * 0.9545));
  for (int c : count) CHECK(std::abs(double(c) / n - 1 / 7.0) < se * std::sqrt(6 / 49.0));
}

TEST_CASE("below is in range for every size and refuses zero", "[rng]") {
  Rng r(5);
  for (uint64_t n : {uint64_t{1}, uint64_t{2}, uint64_t{1} << 33, ~uint64_t{0}})
    for (int i = 0; i < 50; ++i) CHECK(r.below(n) < n);
  CHECK_THROWS_AS(r.below(0), Error);
}

TEMPLATE_TEST_CASE("mask_scale has the bits of mask_keep at any start", "[rng][R33]", float, double) {
  const MaskKey key = Rng(11).next_mask();
  const uint64_t starts[] = {0, 1, 2, 3, 4, 63, 1001, (uint64_t{1} << 34) - 5, (uint64_t{1} << 62) + 7};
  for (double p : {0.0, 0.1, 0.5, 0.9375, 1.0}) {
    for (uint64_t start : starts) {
      for (int64_t n : {0, 1, 3, 4, 7, 17, 64, 133}) {
        std::vector<TestType> out(n + 1, TestType(-1));
        mask_scale(key, start, n, p, out.data());
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i)
          wrong += out[i] != (mask_keep(key, start + i, p) ? TestType(1 / (1 - p)) : TestType(0));
        CHECK(wrong == 0);
        CHECK(out[n] == TestType(-1));
      }
    }
  }
}

TEST_CASE("masks keep the right share, differ between sites, and refuse a bad probability", "[rng]") {
  constexpr int n = 100000;
  Rng r(3);
  const MaskKey a = r.next_mask(), b = r.next_mask();
  std::vector<float> x(n), y(n);
  for (double p : {0.1, 0.5}) {
    mask_scale(a, 0, n, p, x.data());
    mask_scale(b, 0, n, p, y.data());
    double kept = 0, both = 0;
    for (int i = 0; i < n; ++i) {
      kept += x[i] != 0;
      both += x[i] != 0 && y[i] != 0;
    }
    CHECK(std::abs(kept / n - (1 - p)) < 5 * std::sqrt(p * (1 - p) / n));
    CHECK(std::abs(both / n - (1 - p) * (1 - p)) < 5 * 0.5 / std::sqrt(n));
  }
  for (double p : {-0.1, 1.1, std::nan("")}) {
    CHECK_THROWS_AS(mask_keep(a, 0, p), Error);
    CHECK_THROWS_AS(mask_scale(a, 0, 0, p, x.data()), Error);
  }
}
