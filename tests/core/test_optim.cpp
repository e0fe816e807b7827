// Optimizer updates against values worked out in 40 digits and against naive long double loops; sums of squares.
#include "core/error.h"
#include "core/kernels/optim.h"
#include "tests/core/kernel_support.h"

using namespace bg;
using namespace bg::test;
namespace k = bg::kernels;

namespace {
const double kGradients[5] = {0.5, -0.25, 1, 0.125, -2};
}

TEST_CASE("five steps of Adam and SGD on one number give the values worked out in 40 digits [R37]", "[optim]") {
  // lr 0.1, beta 0.9 and 0.99, eps 1e-8, decay 0.05, from 1.5; the first: 1.5 (1 - 0.005) - 0.1 = 1.3925.
  const double adamw[5] = {1.392500002, 1.3588675597579335, 1.2864319380867901, 1.2201251017922542, 1.2359104010760987};
  const double adam[5] = {1.4000000017391304, 1.3582203162327158, 1.2869158684423402, 1.2201978245650877,
                          1.2356939142630586};
  for (bool decoupled : {true, false}) {
    double p = 1.5, m = 0, v = 0;
    for (int t = 0; t < 5; ++t) {
      const double half = kGradients[t] / 2;  // and a gradient scale of 2
      k::adam_update({0.1, 0.9, 0.99, 1e-8, 0.05, decoupled, t + 1, 2.0}, &p, &half, &m, &v, 1);
      CHECK(std::abs(p - (decoupled ? adamw : adam)[t]) < 4e-16 * 10);
    }
  }
  const double plain[5] = {1.4425, 1.4085375, 1.2709285625, 1.1282258759375, 1.1941523286515625};
  const double nesterov[5] = {1.39075, 1.378462875, 1.1480674401875, 1.0022579911119687, 1.2579243395092707};
  for (bool ahead : {false, true}) {
    double p = 1.5, b = 0;
    for (int t = 0; t < 5; ++t) {
      const double half = kGradients[t] / 2;
      k::sgd_update({0.1, 0.9, 0.05, ahead, 2.0}, &p, &half, &b, 1);
      CHECK(std::abs(p - (ahead ? nesterov : plain)[t]) < 4e-15);
    }
  }
  double p = 1.5, g = 0.5;
  k::sgd_update({0.1, 0, 0.05, false, 1}, &p, &g, static_cast<double*>(nullptr), 1);
  CHECK(std::abs(p - 1.4425) < 1e-15);
  CHECK_THROWS_AS(k::sgd_update({0.1, 0.9, 0, false, 1}, &p, &g, static_cast<double*>(nullptr), 1), Error);
  k::AdamStep zeroth;
  zeroth.step = 0;
  CHECK_THROWS_AS(k::adam_update(zeroth, &p, &g, &p, &p, 1), Error);
}

TEMPLATE_TEST_CASE("Adam on spans of any length on every instruction set", "[optim]", float, double) {
  using T = TestType;
  const k::AdamStep s{3e-2, 0.9, 0.999, 1e-8, 0.1, true, 7, 0.5};
  on_each_simd_target([&](const std::string& target) {
    for (int64_t n : {0, 1, 3, 7, 17, 40003}) {
      INFO(target << " n = " << n);
      const auto p0 = normals<T>(n, 1), g = normals<T>(n, 2), m0 = normals<T>(n, 3);
      auto v0 = normals<T>(n, 4);
      for (T& v : v0) v = T(0.5) + v * v;
      auto p = p0, m = m0, v = v0;
      k::adam_update(s, p.data(), g.data(), m.data(), v.data(), n);
      std::vector<long double> want(n);
      for (int64_t i = 0; i < n; ++i) {
        const long double b1 = s.beta1, b2 = s.beta2;  // 1 - 0.999 depends on 0.999's rounding to double
        const long double gi = g[i] * 0.5L, mi = b1 * m0[i] + (1 - b1) * gi, vi = b2 * v0[i] + (1 - b2) * gi * gi;
        const long double root = std::sqrt(vi / (1 - std::pow(b2, 7)));
        want[i] = p0[i] * (1 - 3e-3L) - 3e-2L * (mi / (1 - std::pow(b1, 7))) / (root + 1e-8L);
      }
      INFO(relative_error(p, want) / std::numeric_limits<T>::epsilon() << " epsilon");
      CHECK(relative_error(p, want) < 8 * std::numeric_limits<T>::epsilon());
    }
  });
}

TEMPLATE_TEST_CASE("sums of squares are accumulated in double and show what is not finite", "[optim]", float, double) {
  using T = TestType;
  for (int64_t n : kLengths) {
    auto x = normals<T>(n, 1, 100);
    long double want = 0;
    for (T v : x) want += static_cast<long double>(v) * v;
    CHECK(std::abs(k::sum_of_squares(x.data(), n) - want) <= 1e-13L * want);
    if (n == 0) continue;
    for (T bad : {std::numeric_limits<T>::infinity(), std::numeric_limits<T>::quiet_NaN()}) {
      x[n / 2] = bad;
      CHECK_FALSE(std::isfinite(k::sum_of_squares(x.data(), n)));
    }
  }
  const std::vector<float> large(10, 1e30f);  // overflows a float
  CHECK(std::abs(k::sum_of_squares(large.data(), 10) / 1e61 - 1) < 1e-6);
}

TEMPLATE_TEST_CASE("optimizer steps have the same bits for any number of threads", "[optim]", float, double) {
  using T = TestType;
  const int64_t n = 1000003;
  const auto g = normals<T>(n, 2);
  check_same_bits_for_threads([&] {
    std::vector<T> all(4 * n + 1, T(0.5));
    k::adam_update({}, &all[0], g.data(), &all[n], &all[2 * n], n);
    k::sgd_update({0.1, 0.9, 0.01, true, 1}, &all[0], g.data(), &all[3 * n], n);
    all[4 * n] = T(k::sum_of_squares(all.data(), n));
    return all;
  });
}
