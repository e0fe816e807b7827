// Row-wise kernels: forwards against naive long double loops, backwards against finite differences of those loops, edge
// cases, and bits that do not depend on the number of threads.
#include <cmath>
#include <functional>
#include <limits>

#include "core/error.h"
#include "core/kernels/rows.h"
#include "core/tensor_ops.h"
#include "tests/core/kernel_support.h"
#include "tests/match.h"

using namespace bg;
using namespace bg::test;
namespace k = bg::kernels;

namespace {

using Real = long double;
using Row = std::vector<Real>;
using RowFn = std::function<Row(const Row&)>;

Row softmax_ref(const Row& x) {
  const Real top = *std::max_element(x.begin(), x.end());
  Row y;
  Real sum = 0;
  for (Real v : x) sum += std::exp(v - top);
  for (Real v : x) y.push_back(std::exp(v - top) / sum);
  return y;
}

Row log_softmax_ref(const Row& x) {
  Row y = softmax_ref(x);
  for (Real& v : y) v = std::log(v);
  return y;
}

Row layer_norm_ref(const Row& x, Real eps) {
  Real mean = 0, var = 0;
  for (Real v : x) mean += v / x.size();
  for (Real v : x) var += (v - mean) * (v - mean) / x.size();
  Row y;
  for (Real v : x) y.push_back((v - mean) / std::sqrt(var + eps));
  return y;
}

Row rms_norm_ref(const Row& x, Real eps) {
  Real square = 0;
  for (Real v : x) square += v * v / x.size();
  Row y;
  for (Real v : x) y.push_back(v / std::sqrt(square + eps));
  return y;
}

Row times(Row y, const Row& w) {
  for (size_t i = 0; i < y.size(); ++i) y[i] *= w[i];
  return y;
}

template <class T>
Row row_of(const std::vector<T>& x, int64_t r, int64_t d) {
  return Row(x.begin() + r * d, x.begin() + (r + 1) * d);
}

// f applied to every row.
template <class T>
Row by_rows(const std::vector<T>& x, int64_t d, const RowFn& f) {
  Row all;
  for (int64_t r = 0; r < int64_t(x.size()) / d; ++r)
    for (Real v : f(row_of(x, r, d))) all.push_back(v);
  return all;
}

// The gradient of sum f(x) dy by 4-point differences in long double, row by row.
template <class T>
Row gradient(const std::vector<T>& x, const std::vector<T>& dy, int64_t d, const RowFn& f) {
  Row all;
  for (int64_t r = 0; r < int64_t(x.size()) / d; ++r) {
    for (int64_t j = 0; j < d; ++j) {
      const Real h = 1e-3L;
      auto at = [&](Real step) {
        Row row = row_of(x, r, d);
        row[j] += step;
        const Row y = f(row);
        Real sum = 0;
        for (int64_t i = 0; i < d; ++i) sum += y[i] * dy[r * d + i];
        return sum;
      };
      all.push_back((8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h));
    }
  }
  return all;
}

template <class T>
constexpr double kTol = sizeof(T) == 4 ? 2e-6 : 1e-14;
template <class T>
constexpr double kGradTol = sizeof(T) == 4 ? 1e-5 : 1e-9;  // double: of the differences

const std::pair<int64_t, int64_t> kShapes[] = {{0, 5}, {1, 1}, {3, 3}, {2, 7}, {5, 17}, {3, 65}};

}  // namespace

TEMPLATE_TEST_CASE("softmax and log-softmax rows, forward and backward", "[rows]", float, double) {
  using T = TestType;
  on_each_simd_target([&](const std::string& target) {
    for (auto [rows, d] : kShapes) {
      INFO(target << " " << rows << " x " << d);
      const int64_t n = rows * d;
      const auto x = normals<T>(n, 1, 2), dy = normals<T>(n, 2);
      std::vector<T> y(n), dx(n);
      k::softmax_forward(x.data(), y.data(), rows, d);
      CHECK(relative_error(y, by_rows(x, d, softmax_ref)) < kTol<T>);
      k::softmax_backward(y.data(), dy.data(), dx.data(), rows, d);
      CHECK(relative_error(dx, gradient(x, dy, d, softmax_ref)) < kGradTol<T>);
      auto in_place = dy;
      k::softmax_backward(y.data(), in_place.data(), in_place.data(), rows, d);
      CHECK(same_bits(dx, in_place));

      k::log_softmax_forward(x.data(), y.data(), rows, d);
      CHECK(relative_error(y, by_rows(x, d, log_softmax_ref)) < kTol<T>);
      k::log_softmax_backward(y.data(), dy.data(), dx.data(), rows, d);
      CHECK(relative_error(dx, gradient(x, dy, d, log_softmax_ref)) < kGradTol<T>);
      in_place = dy;
      k::log_softmax_backward(y.data(), in_place.data(), in_place.data(), rows, d);
      CHECK(same_bits(dx, in_place));
    }
  });
}

TEMPLATE_TEST_CASE("masked rows: -infinity gives 0, a whole row of it zeros and zero gradient [R22]", "[rows]", float,
                   double) {
  using T = TestType;
  const T inf = std::numeric_limits<T>::infinity(), nan = std::numeric_limits<T>::quiet_NaN();
  const int64_t d = 19;
  std::vector<T> x(4 * d, -inf), y(x.size()), dx(x.size(), T(5)), log_y(x.size());
  const auto dy = normals<T>(4 * d, 3);
  for (int j = 0; j < d; j += 2) x[d + j] = T(j);  // row 1 half masked, row 0 wholly
  x[2 * d + 4] = T(1e4);                           // row 2 one-hot, huge
  x[3 * d + 4] = nan;                              // row 3 masked but for a NaN, which must not be lost
  k::softmax_forward(x.data(), y.data(), 4, d);
  k::log_softmax_forward(x.data(), log_y.data(), 4, d);
  for (int j = 0; j < d; ++j) {
    CHECK(y[j] == 0);
    CHECK(log_y[j] == -inf);
    CHECK((y[d + j] > 0) == (j % 2 == 0));
    CHECK(y[2 * d + j] == T(j == 4));
    CHECK(log_y[2 * d + j] == (j == 4 ? T(0) : -inf));
    CHECK(std::isnan(y[3 * d + j]));
  }
  k::softmax_backward(y.data(), dy.data(), dx.data(), 3, d);
  for (int j = 0; j < d; ++j) {
    CHECK(dx[j] == 0);
    CHECK(std::isfinite(dx[d + j]));
    if (j % 2) CHECK(dx[d + j] == 0);
  }
  k::log_softmax_backward(log_y.data(), dy.data(), dx.data(), 3, d);
  for (int j = 0; j < d; ++j) CHECK(dx[j] == 0);
  for (int j = 0; j < 3 * d; ++j) CHECK(std::isfinite(dx[j]));
}

TEMPLATE_TEST_CASE("layer norm and RMS norm rows, forward and backward", "[rows]", float, double) {
  using T = TestType;
  const double eps = 1e-3;  // one-element rows have no spread: nothing smaller would keep the differences smooth
  on_each_simd_target([&](const std::string& target) {
    for (auto [rows, d] : kShapes) {
      INFO(target << " " << rows << " x " << d);
      const int64_t n = rows * d;
      const auto x = normals<T>(n, 1, 2, 1), dy = normals<T>(n, 2), gamma = normals<T>(d, 3), beta = normals<T>(d, 4);
      const Row w(gamma.begin(), gamma.end());
      std::vector<T> y(n), dx(n), dgamma(d), dbeta(d), mean(rows), rstd(rows);
      const RowFn layer = [&](const Row& row) { return layer_norm_ref(row, eps); };
      const RowFn rms = [&](const Row& row) { return rms_norm_ref(row, eps); };
      const RowFn layer_w = [&](const Row& row) { return times(layer(row), w); };
      const RowFn rms_w = [&](const Row& row) { return times(rms(row), w); };
      // sum over rows of dy * h
      auto weight_gradient = [&](const RowFn& f) {
        const Row h = by_rows(x, d, f);
        Row sum(d);
        for (int64_t i = 0; i < n; ++i) sum[i % d] += h[i] * dy[i];
        return sum;
      };
      Row want_beta(d), want_y = by_rows(x, d, layer_w);
      for (int64_t i = 0; i < n; ++i) {
        want_beta[i % d] += dy[i];
        want_y[i] += beta[i % d];
      }

      k::layer_norm_forward(x.data(), gamma.data(), beta.data(), eps, y.data(), mean.data(), rstd.data(), rows, d);
      CHECK(relative_error(y, want_y) < kTol<T>);
      k::layer_norm_backward(x.data(), gamma.data(), mean.data(), rstd.data(), dy.data(), dx.data(), dgamma.data(),
                             dbeta.data(), rows, d);
      CHECK(relative_error(dx, gradient(x, dy, d, layer_w)) < kGradTol<T>);
      CHECK(relative_error(dgamma, weight_gradient(layer)) < 2 * kTol<T>);
      CHECK(relative_error(dbeta, want_beta) < kTol<T>);
      auto in_place = dy;
      k::layer_norm_backward<T>(x.data(), gamma.data(), mean.data(), rstd.data(), in_place.data(), in_place.data(),
                                nullptr, nullptr, rows, d);
      CHECK(same_bits(dx, in_place));

      k::layer_norm_forward<T>(x.data(), nullptr, nullptr, eps, y.data(), mean.data(), rstd.data(), rows, d);
      CHECK(relative_error(y, by_rows(x, d, layer)) < kTol<T>);
      k::layer_norm_backward<T>(x.data(), nullptr, mean.data(), rstd.data(), dy.data(), dx.data(), nullptr, nullptr,
                                rows, d);
      CHECK(relative_error(dx, gradient(x, dy, d, layer)) < kGradTol<T>);
      auto only_weights = dgamma;
      k::layer_norm_backward<T>(x.data(), gamma.data(), mean.data(), rstd.data(), dy.data(), nullptr,
                                only_weights.data(), dbeta.data(), rows, d);
      CHECK(same_bits(dgamma, only_weights));

      k::rms_norm_forward(x.data(), gamma.data(), eps, y.data(), rstd.data(), rows, d);
      CHECK(relative_error(y, by_rows(x, d, rms_w)) < kTol<T>);
      k::rms_norm_backward(x.data(), gamma.data(), rstd.data(), dy.data(), dx.data(), dgamma.data(), rows, d);
      CHECK(relative_error(dx, gradient(x, dy, d, rms_w)) < kGradTol<T>);
      CHECK(relative_error(dgamma, weight_gradient(rms)) < 2 * kTol<T>);
    }
  });
}

TEST_CASE("layer norm keeps its digits at mean 1e4 and spread 1e-3 [R26]", "[rows]") {
  on_each_simd_target([&](const std::string& target) {
    for (double eps : {1e-5, 1e-12}) {
      for (int64_t d : {7, 256, 1027}) {
        INFO(target << " d = " << d << " eps = " << eps);
        const auto x = normals<double>(4 * d, 9, 1e-3, 1e4);
        std::vector<double> y(4 * d), mean(4), rstd(4);
        k::layer_norm_forward<double>(x.data(), nullptr, nullptr, eps, y.data(), mean.data(), rstd.data(), 4, d);
        CHECK(relative_error(y, by_rows(x, d, [&](const Row& row) { return layer_norm_ref(row, eps); })) < 1e-8);
      }
    }
  });
  // Constant rows, and one that is far off: rounding must not give a negative variance.
  for (float c : {0.1f, 1e4f, -3e8f}) {
    const std::vector<float> x(37, c);
    std::vector<float> y(37);
    float mean = 0, rstd = 0;
    k::layer_norm_forward<float>(x.data(), nullptr, nullptr, 1e-5, y.data(), &mean, &rstd, 1, 37);
    for (float v : y) CHECK(std::abs(v) < 1e-1f);
    CHECK(std::isfinite(rstd));
  }
}

TEST_CASE("Norms of rows whose squares overflow are those of the same row at another scale") {
  auto check = []<class T>(T big) {
    const std::vector<T> unit{3, -4, 1, 0, 2}, ones(5, 1);
    std::vector<T> x = unit, y(5), want(5);
    for (T& v : x) v *= big;
    T mean = 0, rstd = 0;
    k::rms_norm_forward<T>(unit.data(), ones.data(), 0, want.data(), &rstd, 1, 5);
    k::rms_norm_forward<T>(x.data(), ones.data(), 1e-5, y.data(), &rstd, 1, 5);
    for (size_t i = 0; i < 5; ++i) CHECK(std::abs(y[i] - want[i]) < 1e-6);
    CHECK(std::abs(rstd * big - 1 / std::sqrt(T(6))) < 1e-6);
    k::layer_norm_forward<T>(unit.data(), nullptr, nullptr, 0, want.data(), &mean, &rstd, 1, 5);
    k::layer_norm_forward<T>(x.data(), nullptr, nullptr, 1e-5, y.data(), &mean, &rstd, 1, 5);
    for (size_t i = 0; i < 5; ++i) CHECK(std::abs(y[i] - want[i]) < 1e-6);
    x[2] = std::numeric_limits<T>::infinity();
    k::rms_norm_forward<T>(x.data(), ones.data(), 1e-5, y.data(), &rstd, 1, 5);
    CHECK(std::isnan(y[2]));
  };
  check(1e25f);
  check(1e200);
}

TEMPLATE_TEST_CASE("layer norm of finite rows whose sums overflow", "[rows]", float, double) {
  using T = TestType;
  const T large = sizeof(T) == 4 ? T(1e37) : T(1e307);
  on_each_simd_target([&](const std::string& target) {
    for (const int64_t d : {64, 300, 5000})
      for (const bool constant : {false, true}) {
        INFO(target << " d = " << d << (constant ? ", constant" : ""));
        std::vector<T> x(d, large), y(d), dy(d, T(1)), dx(d), dgamma(d), dbeta(d);
        const std::vector<T> gamma(d, T(1));
        // the sum overflows, and so does that of the deviations: half of them are 4e37 in a row
        if (!constant)
          for (int64_t i = 0; i < d; ++i) x[i] *= i < d / 2 ? T(9) : T(1) + T(i % 3) / 8;
        T mean = 0, rstd = 0;
        k::layer_norm_forward<T>(x.data(), nullptr, nullptr, 1e-5, y.data(), &mean, &rstd, 1, d);
        Real sum = 0;
        for (const T v : x) sum += v;
        const double tolerance = (sizeof(T) == 4 ? 2 : 20) * kTol<T>;
        CHECK(std::abs(mean / (sum / d) - 1) < tolerance);
        const Row want = constant ? Row(d) : layer_norm_ref(row_of(x, 0, d), 1e-5L);
        CHECK(relative_error(y, want) < tolerance);
        k::layer_norm_backward<T>(x.data(), gamma.data(), &mean, &rstd, dy.data(), dx.data(), dgamma.data(),
                                  dbeta.data(), 1, d);
        CHECK(relative_error(dgamma, want) < tolerance);
        for (const T v : dx) CHECK(std::isfinite(v));
        x[d / 2] = std::numeric_limits<T>::infinity();
        k::layer_norm_forward<T>(x.data(), nullptr, nullptr, 1e-5, y.data(), &mean, &rstd, 1, d);
        CHECK(std::isnan(y[0]));
      }
  });
}

TEMPLATE_TEST_CASE("cross-entropy rows, forward and backward [R25]", "[rows]", float, double) {
  using T = TestType;
  const T inf = std::numeric_limits<T>::infinity();
  on_each_simd_target([&](const std::string& target) {
    for (auto [rows, d] : kShapes) {
      INFO(target << " " << rows << " x " << d);
      const int64_t n = rows * d;
      const auto x = normals<T>(n, 1, 2), dloss = normals<T>(rows, 2);
      std::vector<int64_t> targets(rows);
      for (int64_t r = 0; r < rows; ++r) targets[r] = r == 1 ? -100 : (r * 7 + 3) % d;
      std::vector<T> loss(rows), lse(rows), dx(n, T(9)), dy(n);
      k::cross_entropy_forward(x.data(), targets.data(), -100, loss.data(), lse.data(), rows, d);
      k::cross_entropy_backward(x.data(), targets.data(), -100, lse.data(), dloss.data(), dx.data(), rows, d);
      const Row log_p = by_rows(x, d, log_softmax_ref);
      Row want;
      for (int64_t r = 0; r < rows; ++r) {
        want.push_back(targets[r] < 0 ? 0 : -log_p[r * d + targets[r]]);
        if (targets[r] >= 0) dy[r * d + targets[r]] = -dloss[r];
      }
      CHECK(relative_error(loss, want) < kTol<T>);
      CHECK(relative_error(dx, gradient(x, dy, d, log_softmax_ref)) < kGradTol<T>);
      auto in_place = x;
      k::cross_entropy_backward(in_place.data(), targets.data(), -100, lse.data(), dloss.data(), in_place.data(), rows,
                                d);
      CHECK(same_bits(dx, in_place));
    }
  });
  // Large logits keep the digits of their differences; a fully masked row has zero gradient.
  std::vector<T> x = {T(100000), T(100001), T(100000.5), -inf, -inf, -inf};
  const int64_t targets[] = {1, 0};
  std::vector<T> loss(2), lse(2), dloss(2, T(1)), dx(6);
  k::cross_entropy_forward(x.data(), targets, -1, loss.data(), lse.data(), 2, 3);
  CHECK(std::abs(loss[0] - std::log(1 + std::exp(-1.0) + std::exp(-0.5))) < 1e-6);
  CHECK(loss[1] == inf);
  k::cross_entropy_backward(x.data(), targets, -1, lse.data(), dloss.data(), dx.data(), 2, 3);
  for (int j = 3; j < 6; ++j) CHECK(dx[j] == 0);
  // A long row is taken in strips: the largest may come in any of them, and some may be masked.
  for (int64_t at : {0, 1500, 4999}) {
    std::vector<T> far(5000, T(-1000));
    std::fill(far.begin() + 1024, far.begin() + 2048, -inf);
    far[at] = T(-900);
    const int64_t second = at == 2500 ? 0 : 2500;
    k::cross_entropy_forward(far.data(), &second, -1, loss.data(), lse.data(), 1, 5000);
    CHECK(std::abs(loss[0] - 100) < 1e-4);
    CHECK(std::abs(lse[0] + 900) < 1e-4);
  }
  for (int64_t bad : {int64_t{3}, int64_t{-2}}) {
    const int64_t wrong[] = {0, bad};
    std::string text;
    try {
      k::cross_entropy_forward(x.data(), wrong, -1, loss.data(), lse.data(), 2, 3);
    } catch (const Error& e) {
      text = e.what();
    }
    CHECK(text ==
          str("[cross_entropy] target 1 is out of range: got ", bad, ", expected 0 to 2, or -1 to ignore the row."));
  }
}

TEMPLATE_TEST_CASE("results that are written past the caches have the bits of small ones", "[rows]", float, double) {
  using T = TestType;
  constexpr int64_t d = 1024, part = 64, rows = (int64_t{16} << 20) / d / sizeof(T) + part;
  const auto x = normals<T>(rows * d, 1), dy = normals<T>(rows * d, 2), gamma = normals<T>(d, 3);
  std::vector<T> lse(rows), mean(rows), rstd(rows);
  std::vector<int64_t> targets(rows, 5);
  auto run = [&](int64_t first, int64_t n) {  // rows first .. first + n of every kernel's result
    const T *px = x.data() + first * d, *pdy = dy.data() + first * d;
    std::vector<std::vector<T>> all(8, std::vector<T>(n * d + 16));
    auto aligned = [&](size_t i) {
      return all[i].data() + (64 - reinterpret_cast<uintptr_t>(all[i].data()) % 64) % 64 / sizeof(T);
    };
    T* y[8];
    for (size_t i = 0; i < 8; ++i) y[i] = aligned(i);
    k::softmax_forward(px, y[0], n, d);
    k::softmax_backward(y[0], pdy, y[1], n, d);
    k::log_softmax_forward(px, y[2], n, d);
    k::log_softmax_backward(y[2], pdy, y[3], n, d);
    k::layer_norm_forward(px, gamma.data(), gamma.data(), 1e-5, y[4], mean.data(), rstd.data(), n, d);
    k::layer_norm_backward<T>(px, gamma.data(), mean.data(), rstd.data(), pdy, y[5], nullptr, nullptr, n, d);
    k::rms_norm_forward(px, gamma.data(), 1e-5, y[6], rstd.data(), n, d);
    std::vector<T> loss(n), dloss(n, T(1));
    k::cross_entropy_forward(px, targets.data(), -1, loss.data(), lse.data(), n, d);
    k::cross_entropy_backward(px, targets.data(), -1, lse.data(), dloss.data(), y[7], n, d);
    std::vector<std::vector<T>> results;
    for (T* p : y) results.emplace_back(p, p + n * d);
    return results;
  };
  const auto whole = run(0, rows), piece = run(rows - part, part);
  for (size_t i = 0; i < whole.size(); ++i) {
    INFO(i);
    CHECK(std::equal(piece[i].begin(), piece[i].end(), whole[i].end() - part * d));
  }
}

TEMPLATE_TEST_CASE("rows of no elements are refused where their mean is asked for", "[rows]", float, double) {
  const TestType x = 1;
  TestType y = 0, rstd = 0;
  CHECK_THROWS_AS(k::rms_norm_forward(&x, &x, 1e-5, &y, &rstd, 1, 0), Error);
  CHECK_THROWS_AS(k::layer_norm_forward(&x, &x, &x, 1e-5, &y, &rstd, &rstd, 1, 0), Error);
}

TEMPLATE_TEST_CASE("sums of columns", "[rows]", float, double) {
  using T = TestType;
  for (auto [rows, d] : kShapes) {
    const auto a = normals<T>(rows * d, 1);
    const auto sums = num::sum(Tensor::of(a, {rows, d}), {0}).template to_vector<T>();
    Row want(d);
    for (int64_t i = 0; i < rows * d; ++i) want[i % d] += a[i];
    CHECK(relative_error(sums, want) < kTol<T>);
  }
  const auto tall = normals<T>(1000003, 5);
  const T sum = num::sum(Tensor::of(tall, {1000003, 1}), {0}).template to_vector<T>()[0];
  Real want = 0;
  for (T v : tall) want += v;
  CHECK(std::abs(sum - want) < 1e5 * std::numeric_limits<T>::epsilon());
}

TEMPLATE_TEST_CASE("row kernels have the same bits for any number of threads", "[rows]", float, double) {
  using T = TestType;
  for (auto [rows, d] : {std::pair<int64_t, int64_t>{517, 1031}, {100003, 7}}) {
    const int64_t n = rows * d;
    const auto x = normals<T>(n, 1), dy = normals<T>(n, 2), gamma = normals<T>(d, 3);
    std::vector<int64_t> targets(rows);
    for (int64_t r = 0; r < rows; ++r) targets[r] = r % d;
    check_same_bits_for_threads([&] {
      std::vector<T> all(2 * n + 4 * rows + 3 * d);  // every result, in one piece
      T *y = all.data(), *dx = y + n, *mean = dx + n, *rstd = mean + rows, *loss = rstd + rows, *lse = loss + rows,
        *dgamma = lse + rows, *dbeta = dgamma + d, *sums = dbeta + d;
      k::softmax_forward(x.data(), y, rows, d);
      k::softmax_backward(y, dy.data(), dx, rows, d);
      k::cross_entropy_forward(dx, targets.data(), -1, loss, lse, rows, d);
      k::layer_norm_forward(x.data(), gamma.data(), gamma.data(), 1e-5, y, mean, rstd, rows, d);
      k::layer_norm_backward(x.data(), gamma.data(), mean, rstd, dy.data(), dx, dgamma, dbeta, rows, d);
      const auto column_sums = num::sum(Tensor::of(std::vector<T>(dx, dx + n), {rows, d}), {0}).template to_vector<T>();
      std::copy(column_sums.begin(), column_sums.end(), sums);
      return all;
    });
  }
}

TEST_CASE("sums over very many rows keep the digits of their terms", "[rows]") {
  // 0.1 added 2^15 times (a chunk) in float is off by some 1e-4; here, only runs of 256 rows are added so.
  const int64_t rows = int64_t{1} << 21;
  const std::vector<float> x(static_cast<size_t>(rows), 3.0f), mean(x.size(), 1.0f), rstd(x.size(), 0.5f),
      dy(x.size(), 0.1f);
  float dgamma = 0, dbeta = 0;
  kernels::layer_norm_backward<float>(x.data(), nullptr, mean.data(), rstd.data(), dy.data(), nullptr, &dgamma, &dbeta,
                                      rows, 1);
  const double expected = static_cast<double>(rows) * 0.1f, tolerance = 256 * 0x1p-24;  // h = (3 - 1) / 2 = 1
  CHECK(close(dbeta, expected, tolerance));
  CHECK(close(dgamma, expected, tolerance));
  kernels::rms_norm_backward<float>(x.data(), nullptr, rstd.data(), dy.data(), nullptr, &dgamma, rows, 1);
  CHECK(close(dgamma, 1.5 * expected, tolerance));
}

TEST_CASE("sums along very long rows keep the digits of their terms", "[rows]") {
  const int64_t n = int64_t{1} << 22;  // 0.1 added 2^19 times in each of eight lanes is off by more than 1e-3
  const std::vector<float> tenth(static_cast<size_t>(n), 0.1f);
  std::vector<float> y(tenth.size());
  const double tolerance = 1024 * 0x1p-24;  // of a strip, in four lanes or more
  float mean = 0, rstd = 0;
  kernels::layer_norm_forward<float>(tenth.data(), nullptr, nullptr, 1, y.data(), &mean, &rstd, 1, n);
  CHECK(close(mean, 0.1f, tolerance));
  CHECK(close(rstd, 1, tolerance));
  kernels::rms_norm_forward<float>(tenth.data(), nullptr, 0, y.data(), &rstd, 1, n);
  CHECK(close(rstd, 10, tolerance));

  std::vector<float> x(tenth.size(), -1.0f);  // exponentials of 1 and n - 1 times e^-1
  x[0] = 0;
  const double sum = 1 + static_cast<double>(n - 1) * std::exp(-1.0);
  kernels::softmax_forward<float>(x.data(), y.data(), 1, n);
  CHECK(close(y[0], 1 / sum, tolerance));
  kernels::softmax_backward<float>(tenth.data(), tenth.data(), y.data(), 1, n);
  CHECK(close(y[7], 0.1f * (0.1f - 0.01 * static_cast<double>(n)), tolerance));
  kernels::log_softmax_forward<float>(x.data(), y.data(), 1, n);
  CHECK(close(y[0], -std::log(sum), tolerance));
  kernels::log_softmax_backward<float>(x.data(), tenth.data(), y.data(), 1, n);
  CHECK(close(y[0], 0.1 * (1 - static_cast<double>(n)), tolerance));
  const int64_t target = 0;
  float loss = 0, lse = 0;
  kernels::cross_entropy_forward<float>(x.data(), &target, -1, &loss, &lse, 1, n);
  CHECK(close(loss, std::log(sum), tolerance));
  const float one = 1;
  kernels::rms_norm_backward<float>(tenth.data(), nullptr, &one, tenth.data(), y.data(), nullptr, 1, n);
  CHECK(close(y[3], 0.1 - 0.001, tolerance));  // h = 0.1, mean(g h) = 0.01
}
