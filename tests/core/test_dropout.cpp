// The dropout kernel against mask_keep, on every instruction set.
#include "core/error.h"
#include "core/kernels/dropout.h"
#include "tests/core/kernel_support.h"

using namespace bg;
using namespace bg::test;
namespace k = bg::kernels;

TEMPLATE_TEST_CASE("dropout is x times the mask of mask_keep, and in place [R33]", "[dropout]", float, double) {
  using T = TestType;
  const MaskKey key = Rng(4).next_mask();
  on_each_simd_target([&](const std::string& target) {
    INFO(target);
    for (double p : {0.0, 0.1, 0.75, 1.0}) {
      for (int64_t n : {0, 1, 3, 7, 17, 1027, 40001}) {
        const auto x = normals<T>(n, 2);
        std::vector<T> y(n + 1, T(9)), in_place = x;
        k::dropout(x.data(), key, p, y.data(), n);
        CHECK(y[n] == T(9));
        y.pop_back();
        int64_t wrong = 0;
        for (int64_t i = 0; i < n; ++i) wrong += y[i] != (mask_keep(key, i, p) ? x[i] * T(1 / (1 - p)) : T(0));
        CHECK(wrong == 0);
        k::dropout(in_place.data(), key, p, in_place.data(), n);
        CHECK(same_bits(y, in_place));
      }
    }
  });
}

TEST_CASE("dropout drops what is not finite, and refuses a bad probability", "[dropout]") {
  const std::vector<double> x(64, std::numeric_limits<double>::infinity());
  std::vector<double> y(64);
  k::dropout(x.data(), MaskKey{1, 2}, 0.5, y.data(), 64);
  int64_t wrong = 0;
  for (int i = 0; i < 64; ++i) wrong += y[i] != (mask_keep({1, 2}, i, 0.5) ? x[i] : 0.0);
  CHECK(wrong == 0);
  CHECK_THROWS_AS(k::dropout(x.data(), MaskKey{}, -0.5, y.data(), 64), Error);
  CHECK_THROWS_AS(k::dropout(x.data(), MaskKey{}, std::nan(""), y.data(), 64), Error);
}

TEMPLATE_TEST_CASE("dropout has the same bits for any number of threads", "[dropout]", float, double) {
  const auto x = normals<TestType>(1000003, 1);
  check_same_bits_for_threads([&] {
    std::vector<TestType> y(x.size());
    k::dropout(x.data(), MaskKey{5, 6}, 0.1, y.data(), x.size());
    return y;
  });
}
