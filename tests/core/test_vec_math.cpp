// Elementwise kernels: errors in ulp against long double on every instruction set, special values, threads.
#include <functional>
#include <string>

#include "core/error.h"
#include "core/kernels/vec_math.h"
#include "tests/core/kernel_support.h"

using namespace bg;
using namespace bg::test;
namespace k = bg::kernels;

namespace {

using Real = long double;
constexpr Real kSqrt2 = 1.41421356237309504880168872420969808L;
constexpr Real kInvSqrt2Pi = 0.39894228040143267793994605993438187L;

Real sigmoid_ref(Real x) { return 1 / (1 + std::exp(-x)); }
Real cdf_ref(Real x) { return std::erfc(-x / kSqrt2) / 2; }
Real gelu_ref(Real x) { return x * cdf_ref(x); }
Real gelu_slope(Real x) { return cdf_ref(x) + x * kInvSqrt2Pi * std::exp(-x * x / 2); }
Real silu_slope(Real x) { return sigmoid_ref(x) * (1 + x * sigmoid_ref(-x)); }

// Points of every magnitude in [low, high], both signs where the range has them, and a uniform sweep.
template <class T>
std::vector<T> points(double low, double high) {
  std::vector<T> x;
  Rng rng(17);
  for (int i = 0; i < 20000; ++i) x.push_back(T(low + (high - low) * rng.uniform()));
  for (int i = 0; i < 20000; ++i) {
    const double m = std::exp2(-30 + 42 * rng.uniform()) * (rng.below(2) ? 1 : -1);
    if (m >= low && m <= high) x.push_back(T(m));
  }
  return x;
}

template <class T>
struct Worst {
  Real ulps = 0;
  T at = 0;
};

template <class T>
Worst<T> worst_ulps(void (*f)(const T*, T*, int64_t), Real (*ref)(Real), const std::vector<T>& x) {
  std::vector<T> y(x.size());
  f(x.data(), y.data(), static_cast<int64_t>(x.size()));
  Worst<T> worst;
  for (size_t i = 0; i < x.size(); ++i) {
    const Real want = ref(x[i]);
    const Real e = std::abs(y[i] - want) / ulp<T>(want);
    if (!(e <= worst.ulps)) worst = {e, x[i]};
  }
  return worst;
}

}  // namespace

TEMPLATE_TEST_CASE("elementwise functions are within 4 ulp (gelu 5) on every instruction set", "[vec_math]", float,
                   double) {
  using T = TestType;
  const bool f32 = sizeof(T) == 4;
  struct Case {
    const char* name;
    void (*f)(const T*, T*, int64_t);
    Real (*ref)(Real);
    double low, high;
    Real bound = 4;
  };
  const Case cases[] = {
      {"exp", &k::exp<T>, [](Real x) { return std::exp(x); }, f32 ? -87.3 : -708.3, f32 ? 88.7 : 709.7},
      {"log", &k::log<T>, [](Real x) { return std::log(x); }, 1e-30, 1e30},
      {"log near 1", &k::log<T>, [](Real x) { return std::log(x); }, 0.4, 2.5},
      {"sqrt", &k::sqrt<T>, [](Real x) { return std::sqrt(x); }, 0, 1e30},
      {"relu", &k::relu<T>, [](Real x) { return x > 0 ? x : 0; }, -3, 3, 0},
      {"tanh", &k::tanh<T>, [](Real x) { return std::tanh(x); }, -30, 30},
      {"tanh near 0", &k::tanh<T>, [](Real x) { return std::tanh(x); }, -1, 1},
      {"sigmoid", &k::sigmoid<T>, sigmoid_ref, f32 ? -87 : -708, 60},
      {"silu", &k::silu<T>, [](Real x) { return x * sigmoid_ref(x); }, f32 ? -87 : -700, 60},
      {"gelu", &k::gelu<T>, gelu_ref, f32 ? -12.8 : -37, 40, 5},
      {"gelu near 0", &k::gelu<T>, gelu_ref, -4, 4, 5},
  };
  on_each_simd_target([&](const std::string& target) {
    for (const Case& c : cases) {
      const auto worst = worst_ulps<T>(c.f, c.ref, points<T>(c.low, c.high));
      INFO(c.name << " on " << target << ": " << double(worst.ulps) << " ulp at " << worst.at);
      CHECK(worst.ulps <= c.bound);
    }
  });
}

TEMPLATE_TEST_CASE("backwards are within 8 ulp of |dy| on every instruction set", "[vec_math]", float, double) {
  using T = TestType;
  struct Case {
    const char* name;
    void (*f)(const T*, const T*, T*, int64_t);
    Real (*slope)(Real);
    double low, high;
  };
  const Case cases[] = {
      {"tanh_backward(y)", &k::tanh_backward<T>, [](Real y) { return (1 - y) * (1 + y); }, -1, 1},
      {"sigmoid_backward(y)", &k::sigmoid_backward<T>, [](Real y) { return y * (1 - y); }, 0, 1},
      {"relu_backward", &k::relu_backward<T>, [](Real x) { return Real(x > 0); }, -2, 2},
      {"silu_backward", &k::silu_backward<T>, silu_slope, -100, 100},
      {"gelu_backward", &k::gelu_backward<T>, gelu_slope, -40, 40},
      {"gelu_backward near 0", &k::gelu_backward<T>, gelu_slope, -4, 4},
  };
  on_each_simd_target([&](const std::string& target) {
    for (const Case& c : cases) {
      const auto x = points<T>(c.low, c.high);
      const auto dy = normals<T>(x.size(), 5, 3);
      std::vector<T> dx(x.size());
      c.f(x.data(), dy.data(), dx.data(), x.size());
      Worst<T> worst;
      for (size_t i = 0; i < x.size(); ++i) {
        const Real e = std::abs(dx[i] - c.slope(x[i]) * dy[i]) / ulp<T>(dy[i]);
        if (!(e <= worst.ulps)) worst = {e, x[i]};
      }
      INFO(c.name << " on " << target << ": " << double(worst.ulps) << " ulp at " << worst.at);
      CHECK(worst.ulps <= 8);
    }
  });
}

TEMPLATE_TEST_CASE("special values: NaN goes through, infinities give limits [R27]", "[vec_math]", float, double) {
  using T = TestType;
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  auto one = [](void (*f)(const T*, T*, int64_t), T x) {
    // In the middle of a full vector as well as alone: both code paths.
    std::vector<T> many(33, x), y(33);
    f(many.data(), y.data(), 33);
    for (T v : y) CHECK((v == y[0] || (std::isnan(v) && std::isnan(y[0]))));
    return y[0];
  };
  on_each_simd_target([&](const std::string& target) {
    INFO(target);
    for (auto f :
         {&k::exp<T>, &k::log<T>, &k::sqrt<T>, &k::tanh<T>, &k::sigmoid<T>, &k::relu<T>, &k::silu<T>, &k::gelu<T>})
      CHECK(std::isnan(one(f, nan)));
    CHECK(one(&k::exp<T>, inf) == inf);
    CHECK(one(&k::exp<T>, -inf) == 0);
    CHECK(one(&k::exp<T>, T(0)) == 1);
    CHECK(one(&k::exp<T>, T(sizeof(T) == 4 ? 88.73 : 709.79)) == inf);
    CHECK(one(&k::exp<T>, T(sizeof(T) == 4 ? -104 : -746)) == 0);
    CHECK(one(&k::exp<T>, T(sizeof(T) == 4 ? -100 : -740)) > 0);  // subnormal
    CHECK(one(&k::log<T>, inf) == inf);
    CHECK(one(&k::log<T>, T(0)) == -inf);
    CHECK(one(&k::log<T>, T(1)) == 0);
    CHECK(std::isnan(one(&k::log<T>, T(-1))));
    CHECK(std::isnan(one(&k::log<T>, -inf)));
    const T tiny = std::numeric_limits<T>::denorm_min();
    CHECK(std::abs(one(&k::log<T>, tiny) - std::log(tiny)) < 1e-4);
    CHECK(one(&k::tanh<T>, inf) == 1);
    CHECK(one(&k::tanh<T>, -inf) == -1);
    CHECK(one(&k::sigmoid<T>, inf) == 1);
    CHECK(one(&k::sigmoid<T>, -inf) == 0);
    CHECK(one(&k::sigmoid<T>, T(0)) == T(0.5));
    CHECK(one(&k::relu<T>, inf) == inf);
    CHECK(one(&k::relu<T>, -inf) == 0);
    CHECK(one(&k::silu<T>, inf) == inf);
    CHECK(one(&k::silu<T>, -inf) == 0);
    CHECK(one(&k::gelu<T>, inf) == inf);
    CHECK(one(&k::gelu<T>, -inf) == 0);
    CHECK(one(&k::gelu<T>, T(0)) == 0);

    std::vector<T> x = {T(1e4), T(-1e4), std::numeric_limits<T>::max(), std::numeric_limits<T>::lowest()};
    for (int i = -1000; i <= 1000; ++i) x.push_back(T(i) / 10);
    std::vector<T> y(x.size()), dy(x.size(), T(1)), dx(x.size());
    k::gelu(x.data(), y.data(), x.size());
    k::gelu_backward(x.data(), dy.data(), dx.data(), x.size());
    int wrong = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const Real want = gelu_ref(x[i]);  // gelu may give 0 in place of a subnormal number
      const bool tiny_enough = std::abs(want) < std::numeric_limits<T>::min() && y[i] == 0;
      wrong += !(tiny_enough || std::abs(y[i] - want) <= 5 * ulp<T>(want));
      wrong += !(std::abs(dx[i] - gelu_slope(x[i])) <= 8 * ulp<T>(1));
    }
    CHECK(wrong == 0);

    for (auto f : {&k::tanh_backward<T>, &k::sigmoid_backward<T>, &k::silu_backward<T>, &k::gelu_backward<T>}) {
      const T dy1 = 1;
      T d = 0;
      f(&nan, &dy1, &d, 1);
      CHECK(std::isnan(d));
    }
    for (auto f : {&k::silu_backward<T>, &k::gelu_backward<T>, &k::relu_backward<T>}) {
      const T dy3 = 3;
      T up = -1, down = -1;
      f(&inf, &dy3, &up, 1);
      const T minus = -inf;
      f(&minus, &dy3, &down, 1);
      CHECK(up == 3);
      CHECK(down == 0);
    }
  });
}

TEMPLATE_TEST_CASE("elementwise kernels: any length, in place, any number of threads: the same bits", "[vec_math]",
                   float, double) {
  using T = TestType;
  for (int64_t n : kLengths) {
    const auto x = normals<T>(n, 1, 2), dy = normals<T>(n, 2);
    std::vector<T> y(n + 1, T(-7)), in_place = x;
    k::gelu(x.data(), y.data(), n);
    CHECK(y[n] == T(-7));                          // nothing written past the end
    for (int64_t i = 0; i < n; i += 1 + n / 50) {  // an element's bits do not depend on where it stands
      T alone;
      k::gelu(&x[i], &alone, 1);
      CHECK(alone == y[i]);
    }
    y.pop_back();
    k::gelu(in_place.data(), in_place.data(), n);
    CHECK(same_bits(y, in_place));
    in_place = dy;
    k::silu_backward(x.data(), dy.data(), y.data(), n);
    k::silu_backward(x.data(), in_place.data(), in_place.data(), n);
    CHECK(same_bits(y, in_place));
  }
  const int64_t n = kLengths.back();
  const auto x = normals<T>(n, 1, 2), dy = normals<T>(n, 2);
  check_same_bits_for_threads([&] {
    std::vector<T> y(n);
    k::gelu(x.data(), y.data(), n);
    k::gelu_backward(y.data(), dy.data(), y.data(), n);
    return y;
  });
}

TEMPLATE_TEST_CASE("strips: max, exp with shift and sum", "[vec_math]", float, double) {
  using T = TestType;
  const T inf = std::numeric_limits<T>::infinity();
  const double eps = std::numeric_limits<T>::epsilon();
  on_each_simd_target([&](const std::string& target) {
    INFO(target);
    for (int64_t n : {1, 3, 7, 16, 17, 257, 1000}) {
      auto x = normals<T>(n, 3, 3);
      if (n > 3) x[2] = -inf;
      const T top = k::max_serial(x.data(), n);
      CHECK(top == *std::max_element(x.begin(), x.end()));
      const T factor = T(0.3), shift = factor * top;
      std::vector<T> y(n);
      const T sum = k::exp_sub_serial(x.data(), shift, factor, y.data(), n);
      Real want = 0;
      for (int64_t i = 0; i < n; ++i) {
        const Real e = std::exp(Real(factor) * x[i] - shift);
        CHECK(std::abs(y[i] - e) <= 16 * eps * e);  // the argument, up to 6, is rounded once or twice
        want += e;
      }
      CHECK(std::abs(sum - want) <= 20 * eps * want);
      CHECK(sum == k::exp_sub_serial(x.data(), shift, factor, y.data(), n));
      if (n > 3) CHECK(y[2] == 0);
    }
    std::vector<T> masked(19, -inf), y(19, T(1));
    CHECK(k::exp_sub_serial(masked.data(), k::max_serial(masked.data(), 19), T(0.5), y.data(), 19) == 0);
    CHECK(y == std::vector<T>(19, T(0)));
    CHECK(k::max_serial(masked.data(), 0) == -inf);
    CHECK(k::exp_sub_serial(masked.data(), T(0), T(1), y.data(), 0) == 0);
    masked[5] = std::numeric_limits<T>::quiet_NaN();
    CHECK(std::isnan(k::exp_sub_serial(masked.data(), k::max_serial(masked.data(), 19), T(1), y.data(), 19)));
  });
}

TEST_CASE("instruction sets are named, and an unknown one is refused", "[simd]") {
  const auto targets = simd_targets();
  REQUIRE(!targets.empty());
  CHECK(simd_target() == targets.front());
  use_simd_target(targets.back());
  CHECK(simd_target() == targets.back());
  use_simd_target(targets.front());
  CHECK_THROWS_AS(use_simd_target("MMX"), UsageError);
  CHECK(simd_target() == targets.front());
}
