// Matrix products against naive loops: all transposes, degenerate sizes, strided and batched operands, and the same
// bits for any number of threads.
#include <array>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/gemm.h"
#include "core/kernels/simd.h"
#include "core/parallel.h"
#include "tests/catch.h"

using bg::Trans;

namespace {

template <class T>
std::vector<T> randoms(int64_t n, unsigned seed) {
  std::mt19937 g(seed);
  std::normal_distribution<double> d;
  std::vector<T> v(n);
  for (T& x : v) x = static_cast<T>(d(g));
  return v;
}

template <class T>
struct Product {
  Trans ta, tb;
  int64_t m, n, k;
  int64_t pad = 0;  // extra columns in each stored row
  int64_t lda() const { return (ta == Trans::yes ? m : k) + pad; }
  int64_t ldb() const { return (tb == Trans::yes ? k : n) + pad; }
  int64_t ldc() const { return n + pad; }
  int64_t a_size() const { return (ta == Trans::yes ? k : m) * lda(); }
  int64_t b_size() const { return (tb == Trans::yes ? n : k) * ldb(); }
  int64_t c_size() const { return m * ldc(); }

  // Worst |difference| to a long double reference, relative to the scale of a sum of k products.
  double error(T alpha, const std::vector<T>& a, const std::vector<T>& b, T beta, const std::vector<T>& before,
               const std::vector<T>& after, int64_t a_off = 0, int64_t b_off = 0, int64_t c_off = 0) const {
    double worst = 0;
    const int64_t step = kThreadSanitizer && m * n * k > 100000 ? 97 : 1;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = i % step; j < n; j += step) {
        long double sum = 0;
        for (int64_t p = 0; p < k; ++p) {
          const T x = a[a_off + (ta == Trans::yes ? p * lda() + i : i * lda() + p)];
          const T y = b[b_off + (tb == Trans::yes ? j * ldb() + p : p * ldb() + j)];
          sum += static_cast<long double>(x) * y;
        }
        long double want = alpha * sum;
        if (beta != 0) want += static_cast<long double>(beta) * before[c_off + i * ldc() + j];
        const double e = std::abs(static_cast<double>(want - after[c_off + i * ldc() + j])) / std::sqrt(k + 1.0);
        if (!(e <= worst)) worst = e;
      }
    }
    return worst;
  }
};

template <class T>
void check_products(double tolerance) {
  unsigned seed = 1;
  for (Trans ta : {Trans::no, Trans::yes}) {
    for (Trans tb : {Trans::no, Trans::yes}) {
      for (auto [m, n, k] : {std::array<int64_t, 3>{1, 1, 1},
                             {3, 5, 7},
                             {1, 130, 65},
                             {130, 1, 65},
                             {65, 33, 1},
                             {129, 100, 257},
                             {300, 300, 40},
                             {70, 420, 300}}) {
        for (int64_t pad : {0, 3}) {
          const Product<T> p{ta, tb, m, n, k, pad};
          const auto a = randoms<T>(p.a_size(), seed++), b = randoms<T>(p.b_size(), seed++);
          const auto before = randoms<T>(p.c_size(), seed++);
          for (auto [alpha, beta] : {std::pair<T, T>{1, 0}, {T(-0.5), 1}, {2, T(0.25)}}) {
            auto c = before, s = before;
            bg::gemm<T>(ta, tb, m, n, k, alpha, a.data(), p.lda(), b.data(), p.ldb(), beta, c.data(), p.ldc());
            bg::gemm_serial<T>(ta, tb, m, n, k, alpha, a.data(), p.lda(), b.data(), p.ldb(), beta, s.data(), p.ldc());
            INFO("m " << m << " n " << n << " k " << k << " pad " << pad);
            CHECK(p.error(alpha, a, b, beta, before, c) <= tolerance);
            CHECK(p.error(alpha, a, b, beta, before, s) <= tolerance);
            for (int64_t i = 0; i < m; ++i)  // the padding of C is not touched
              for (int64_t j = n; j < p.ldc(); ++j) REQUIRE(c[i * p.ldc() + j] == before[i * p.ldc() + j]);
          }
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("gemm agrees with naive sums for every transpose, size and stride") {
  check_products<double>(2e-14);
  check_products<float>(1e-5);
}

TEST_CASE("a long inner dimension is cut into parts and still agrees with naive sums") {
  for (auto [ta, tb] : {std::pair{Trans::yes, Trans::no}, {Trans::no, Trans::yes}}) {
    const Product<double> p{ta, tb, 50, 40, 5000, 1};
    const auto a = randoms<double>(p.a_size(), 1), b = randoms<double>(p.b_size(), 2),
               before = randoms<double>(p.c_size(), 3);
    for (double beta : {0.0, 1.0, 0.5}) {
      auto c = before;
      bg::gemm<double>(ta, tb, p.m, p.n, p.k, 2.0, a.data(), p.lda(), b.data(), p.ldb(), beta, c.data(), p.ldc());
      CHECK(p.error(2, a, b, beta, before, c) <= 2e-14);
    }
  }
}

TEMPLATE_TEST_CASE("gemm agrees with naive sums where rows of tiles share a packed operand", "", float, double) {
  using Shape = std::array<int64_t, 3>;
  for (auto [ta, tb, shape] : {std::tuple{Trans::no, Trans::no, Shape{300, 430, 290}},
                               {Trans::no, Trans::yes, Shape{300, 430, 290}},
                               {Trans::yes, Trans::no, Shape{300, 40, 2100}}}) {
    const Product<TestType> p{ta, tb, shape[0], shape[1], shape[2], 1};
    const auto a = randoms<TestType>(p.a_size(), 1), b = randoms<TestType>(p.b_size(), 2),
               before = randoms<TestType>(p.c_size(), 3);
    auto c = before;
    bg::gemm<TestType>(ta, tb, p.m, p.n, p.k, 1, a.data(), p.lda(), b.data(), p.ldb(), 1, c.data(), p.ldc());
    CHECK(p.error(1, a, b, 1, before, c) <= (sizeof(TestType) == 4 ? 1e-5 : 2e-14));
  }
}

TEMPLATE_TEST_CASE("a right operand packed once gives the bits of gemm", "", float, double) {
  using Shape = std::array<int64_t, 3>;
  for (const auto& [m, n, k] : {Shape{24, 256, 768},
                                {26, 93, 552},
                                {31, 168, 1028},
                                {100, 257, 534},
                                {24, 64, 1000},
                                {276, 40, 3000},
                                {300, 430, 290},
                                {600, 33, 700},
                                {5, 7, 9},
                                {1, 300, 4096}})
    for (Trans tb : {Trans::no, Trans::yes}) {
      const Product<TestType> p{Trans::no, tb, m, n, k, 1};
      const auto a = randoms<TestType>(p.a_size(), 1), b = randoms<TestType>(p.b_size(), 2);
      auto plain = randoms<TestType>(p.c_size(), 3), packed = plain;
      INFO("m " << m << " n " << n << " k " << k);
      bg::gemm<TestType>(Trans::no, tb, m, n, k, 2, a.data(), p.lda(), b.data(), p.ldb(), 1, plain.data(), p.ldc());
      const bg::PackedRight<TestType> right(tb, k, n, b.data(), p.ldb());
      bg::gemm<TestType>(Trans::no, m, 2, a.data(), p.lda(), right, 1, packed.data(), p.ldc());
      CHECK(packed == plain);
    }
}

TEST_CASE("gemm agrees with naive sums on every instruction set of this machine") {
  for (const std::string& target : bg::simd_targets()) {
    bg::use_simd_target(target);
    INFO(target);
    for (Trans ta : {Trans::no, Trans::yes}) {
      for (Trans tb : {Trans::no, Trans::yes}) {
        const Product<double> p{ta, tb, 53, 75, 270, 1};
        const Product<float> f{ta, tb, 53, 75, 270, 1};
        const auto a = randoms<double>(p.a_size(), 1), b = randoms<double>(p.b_size(), 2);
        const auto x = randoms<float>(f.a_size(), 1), y = randoms<float>(f.b_size(), 2);
        auto c = randoms<double>(p.c_size(), 3);
        auto z = randoms<float>(f.c_size(), 3);
        const auto c0 = c;
        const auto z0 = z;
        bg::gemm<double>(ta, tb, p.m, p.n, p.k, 2.0, a.data(), p.lda(), b.data(), p.ldb(), 0.5, c.data(), p.ldc());
        bg::gemm<float>(ta, tb, p.m, p.n, p.k, 2.0f, x.data(), p.lda(), y.data(), p.ldb(), 0.5f, z.data(), p.ldc());
        CHECK(p.error(2, a, b, 0.5, c0, c) <= 2e-14);
        CHECK(f.error(2, x, y, 0.5, z0, z) <= 1e-5);
      }
    }
  }
  bg::use_simd_target(bg::simd_targets().front());
}

TEST_CASE("gemm with an empty side: beta is applied when k is 0, nothing happens when m or n is 0") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> c{1, 2, 3, 4, 5, 6};
  bg::gemm<double>(Trans::no, Trans::no, 2, 3, 0, 1.0, nullptr, 0, nullptr, 3, 0.5, c.data(), 3);
  CHECK(c == std::vector<double>{0.5, 1, 1.5, 2, 2.5, 3});
  c[2] = nan;
  bg::gemm<double>(Trans::no, Trans::yes, 2, 3, 0, 1.0, nullptr, 0, nullptr, 0, 0.0, c.data(), 3);
  CHECK(c == std::vector<double>(6, 0.0));
  bg::gemm<double>(Trans::no, Trans::no, 0, 3, 4, 1.0, nullptr, 4, nullptr, 3, 0.0, c.data(), 3);
  bg::gemm<double>(Trans::no, Trans::no, 2, 0, 4, 1.0, nullptr, 4, nullptr, 0, 0.0, c.data(), 0);
  CHECK(c == std::vector<double>(6, 0.0));
}

TEMPLATE_TEST_CASE("gemm with beta 0 overwrites NaN", "", float, double) {
  for (int64_t size : {2, 40, 200}) {
    const auto a = randoms<TestType>(size * size, 1), b = randoms<TestType>(size * size, 2);
    std::vector<TestType> c(size * size, std::numeric_limits<TestType>::quiet_NaN());
    bg::gemm<TestType>(Trans::no, Trans::no, size, size, size, 1, a.data(), size, b.data(), size, 0, c.data(), size);
    for (TestType x : c) REQUIRE(std::isfinite(x));
  }
}

TEMPLATE_TEST_CASE("gemm_bias has the bits of gemm added to a C of bias rows", "", float, double) {
  using T = TestType;
  struct Sizes {
    int64_t m, n, k;
  };
  for (auto [m, n, k] : {Sizes{1, 3, 2}, {7, 5, 0}, {40, 33, 5000}, {600, 700, 20}}) {
    std::vector<T> a(m * k), b(k * n), bias(n);
    for (auto* v : {&a, &b, &bias})
      for (size_t i = 0; i < v->size(); ++i) (*v)[i] = std::sin(static_cast<T>(i + v->size()));
    std::vector<T> want, got(m * n, std::numeric_limits<T>::quiet_NaN());
    for (int64_t i = 0; i < m; ++i) want.insert(want.end(), bias.begin(), bias.end());
    bg::gemm<T>(Trans::yes, Trans::no, m, n, k, T(1), a.data(), m, b.data(), n, T(1), want.data(), n);
    bg::gemm_bias<T>(Trans::yes, Trans::no, m, n, k, a.data(), m, b.data(), n, bias.data(), got.data(), n);
    CHECK(got == want);
  }
}

TEST_CASE("gemm_batched agrees with naive sums, with shared operands too") {
  const Product<double> p{Trans::no, Trans::yes, 33, 20, 17, 2};
  const int64_t batch = 5;
  for (bool share_a : {false, true}) {
    for (bool share_b : {false, true}) {
      const int64_t sa = share_a ? 0 : p.a_size() + 1, sb = share_b ? 0 : p.b_size() + 2, sc = p.c_size() + 3;
      const auto a = randoms<double>(batch * (p.a_size() + 1), 1), b = randoms<double>(batch * (p.b_size() + 2), 2);
      const auto before = randoms<double>(batch * sc, 3);
      auto c = before;
      bg::gemm_batched<double>(p.ta, p.tb, batch, p.m, p.n, p.k, 1.0, a.data(), p.lda(), sa, b.data(), p.ldb(), sb, 1.0,
                               c.data(), p.ldc(), sc);
      for (int64_t i = 0; i < batch; ++i) CHECK(p.error(1, a, b, 1, before, c, i * sa, i * sb, i * sc) <= 2e-14);
    }
  }
}

TEST_CASE("[R28] the BLAS library has one thread, whatever the pool has") {
  for (int threads : {1, 2, 4}) {
    bg::set_num_threads(threads);
    CHECK(bg::blas_threads() == 1);
  }
  CHECK(bg::blas_description().find("OpenBLAS ") == 0);
}

TEMPLATE_TEST_CASE("gemm has the same bits for 1, 2 and 4 threads", "", float, double) {
  using T = TestType;
  for (auto [ta, tb, m, n, k] :
       {std::tuple<Trans, Trans, int64_t, int64_t, int64_t>{Trans::no, Trans::no, 900, 300, 64},
        {Trans::no, Trans::yes, 1000, 130, 100},
        {Trans::yes, Trans::no, 256, 192, 2000}}) {
    const Product<T> p{ta, tb, m, n, k};
    const auto a = randoms<T>(p.a_size(), 1), b = randoms<T>(p.b_size(), 2);
    std::vector<T> first;
    for (int threads : {1, 2, 4}) {
      bg::set_num_threads(threads);
      const bg::GatherWorkers gather;
      bg::reset_distinct_workers();
      std::vector<T> c(p.c_size());
      bg::gemm<T>(ta, tb, m, n, k, 1, a.data(), p.lda(), b.data(), p.ldb(), 0, c.data(), p.ldc());
      CHECK(bg::distinct_workers() == threads);
      if (first.empty()) first = c;
      CHECK(c == first);
    }
  }
}

TEST_CASE("[R29] a small product stays on the calling thread") {
  bg::set_num_threads(2);
  const auto a = randoms<float>(64 * 64, 1);
  std::vector<float> c(64 * 64);
  bg::reset_distinct_workers();
  bg::gemm<float>(Trans::no, Trans::no, 64, 64, 64, 1, a.data(), 64, a.data(), 64, 0, c.data(), 64);
  CHECK(bg::distinct_workers() == 0);  // no chunk was handed to the pool
}

TEST_CASE("gemm says what is wrong with its sizes") {
  float x[4] = {};
  CHECK_THROWS_AS(bg::gemm<float>(Trans::no, Trans::no, -1, 1, 1, 1, x, 1, x, 1, 0, x, 1), bg::Error);
  CHECK_THROWS_AS(bg::gemm<float>(Trans::no, Trans::no, 2, 2, 2, 1, x, 1, x, 2, 0, x, 2), bg::Error);
  CHECK_THROWS_AS(bg::gemm<float>(Trans::no, Trans::no, 1, 1, int64_t{1} << 32, 1, x, int64_t{1} << 32, x, 1, 0, x, 1),
                  bg::Error);
}

TEST_CASE("float products of a very long inner dimension agree with naive sums", "[gemm]") {
  const int64_t k = (int64_t{1} << 17) + 777, m = 3, n = 2;
  const auto a = randoms<float>(m * k, 11), b = randoms<float>(k * n, 12), start = randoms<float>(m * n, 13);
  for (const Trans ta : {Trans::no, Trans::yes})
    for (const Trans tb : {Trans::no, Trans::yes}) {
      std::vector<double> expected(static_cast<size_t>(m * n)), size(expected.size());
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < n; ++j)
          for (int64_t p = 0; p < k; ++p) {
            const double term =
                2.0 * a[ta == Trans::yes ? p * m + i : i * k + p] * b[tb == Trans::yes ? j * k + p : p * n + j];
            expected[i * n + j] += term;
            size[i * n + j] += std::abs(term);
          }
      for (const float beta : {0.0f, -0.5f})
        for (const bool serial : {false, true}) {
          std::vector<float> c = start;
          using Gemm = decltype(&bg::gemm_serial<float>);
          const auto product = serial ? bg::gemm_serial<float> : static_cast<Gemm>(bg::gemm<float>);
          product(ta, tb, m, n, k, 2, a.data(), ta == Trans::yes ? m : k, b.data(), tb == Trans::yes ? k : n, beta,
                  c.data(), n);
          for (size_t i = 0; i < c.size(); ++i)  // blocks of some hundred terms, some hundred blocks a part
            CHECK(std::abs(c[i] - (expected[i] + beta * start[i])) < 1024 * 0x1p-24 * size[i]);
        }
    }
}

TEST_CASE("float products of a very long inner dimension are added in double, part by part", "[gemm]") {
  // Equal terms all round the same way: each of the 2^10 of a part may lose 2^-25 of its sum.
  // Blocks of a few hundred that are added in float lose four times as much.
  const int64_t k = int64_t{1} << 22, m = 2;
  const std::vector<float> a(static_cast<size_t>(m * k), 0.1f), b(static_cast<size_t>(k), 0.3f), bias{7};
  const double expected = static_cast<double>(k) * 0.1f * 0.3f, tolerance = 0x1p-15 * expected;
  for (const Trans ta : {Trans::no, Trans::yes}) {
    const int64_t lda = ta == Trans::yes ? m : k;
    std::vector<float> c(m), with_bias(m), serial(m);
    bg::gemm<float>(ta, Trans::no, m, 1, k, 1, a.data(), lda, b.data(), 1, 0, c.data(), 1);
    bg::gemm_bias<float>(ta, Trans::no, m, 1, k, a.data(), lda, b.data(), 1, bias.data(), with_bias.data(), 1);
    bg::gemm_serial<float>(ta, Trans::no, m, 1, k, 1, a.data(), lda, b.data(), 1, 0, serial.data(), 1);
    for (int64_t i = 0; i < m; ++i) {
      INFO(c[i] - expected);
      CHECK(std::abs(c[i] - expected) < tolerance);
      CHECK(std::abs(serial[i] - expected) < tolerance);
      CHECK(std::abs(with_bias[i] - (expected + 7)) < tolerance);
    }
  }
}
