// Row-wise kernels: each takes a range of rows on one thread, in vector code chosen at run time; the functions of
// rows.h at the end cut the rows into ranges.
#include "core/kernels/rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/kernels/row_chunks.h"
#include "core/kernels/stream.h"
#include "core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/rows.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "core/kernels/math-inl.h"

#ifndef BG_ROWS_TABLE
#define BG_ROWS_TABLE
namespace bg::kernels {

// lse = shift + log_sum; apart, so that lse - x[i] keeps its digits where x is large.
template <class T>
struct LogSumExp {
  T shift, log_sum;
};

// The kernels of one instruction set. Pointers are to the first row of the range.
template <class T>
struct RowKernels {
  void (*softmax_forward)(const T* x, T* y, int64_t rows, int64_t d, bool streamed);
  void (*softmax_backward)(const T* y, const T* dy, T* dx, int64_t rows, int64_t d, bool streamed);
  void (*log_softmax_forward)(const T* x, T* y, int64_t rows, int64_t d, bool streamed);
  void (*log_softmax_backward)(const T* y, const T* dy, T* dx, int64_t rows, int64_t d, bool streamed);
  void (*layer_norm_forward)(const T* x, const T* gamma, const T* beta, T eps, T* y, T* mean, T* rstd, int64_t rows,
                             int64_t d, bool streamed);
  void (*norm_backward)(bool centred, const T* x, const T* gamma, const T* mean, const T* rstd, const T* dy, T* dx,
                        T* dgamma, T* dbeta, int64_t rows, int64_t d, bool streamed);
  void (*rms_norm_forward)(const T* x, const T* gamma, T eps, T* y, T* rstd, int64_t rows, int64_t d, bool streamed);
  LogSumExp<T> (*log_sum_exp)(const T* x, int64_t d);
  void (*cross_entropy_gradient)(const T* x, T lse, T dloss, T* dx, int64_t d, bool streamed);
};

}  // namespace bg::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {

template <class T>
constexpr T kLowest = -std::numeric_limits<T>::infinity();

template <class D>
HWY_INLINE hn::TFromD<D> sum_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

// Sums along a row: in T within a strip, the strips in double, so that no width costs digits.
constexpr int64_t kSumStrip = 4096;

// add(i, lanes, sum) adds the terms at i.
template <class D, class F>
HWY_INLINE hn::TFromD<D> row_sum(D d, int64_t n, F&& add) {
  const auto strip = [&](int64_t begin, int64_t end) BG_LANES {
    auto sum = hn::Zero(d);
    for_vectors(d, end - begin, [&](int64_t i, auto lanes) BG_LANES { add(begin + i, lanes, sum); });
    return sum_lanes(d, sum);
  };
  if (n <= kSumStrip) return strip(0, n);
  double total = 0;
  for (int64_t i = 0; i < n; i += kSumStrip) total += strip(i, std::min(i + kSumStrip, n));
  return static_cast<hn::TFromD<D>>(total);
}

// Two sums in one pass; add(i, lanes, first, second).
template <class T>
struct Sums {
  T first, second;
};

template <class D, class F>
HWY_INLINE Sums<hn::TFromD<D>> row_sums(D d, int64_t n, F&& add) {
  using T = hn::TFromD<D>;
  const auto strip = [&](int64_t begin, int64_t end) BG_LANES {
    auto first = hn::Zero(d), second = hn::Zero(d);
    for_vectors(d, end - begin, [&](int64_t i, auto lanes) BG_LANES { add(begin + i, lanes, first, second); });
    return Sums<T>{sum_lanes(d, first), sum_lanes(d, second)};
  };
  if (n <= kSumStrip) return strip(0, n);
  Sums<double> total{0, 0};
  for (int64_t i = 0; i < n; i += kSumStrip) {
    const Sums<T> part = strip(i, std::min(i + kSumStrip, n));
    total.first += part.first, total.second += part.second;
  }
  return {static_cast<T>(total.first), static_cast<T>(total.second)};
}

template <class D>
HWY_INLINE hn::TFromD<D> largest(D d, const hn::TFromD<D>* x, int64_t n) {
  using T = hn::TFromD<D>;
  auto top = hn::Set(d, kLowest<T>);
  for_vectors(d, n, [&](int64_t i, auto lanes) BG_LANES { top = hn::Max(top, lanes.load(d, x + i, kLowest<T>)); });
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

// The row's maximum as a shift for exp(x - shift). A row of -infinity alone gives 0, so that its exponentials are zeros
// and not NaN; a NaN that the maximum may have missed still shows in the exponentials.
template <class D>
HWY_INLINE hn::TFromD<D> row_shift(D d, const hn::TFromD<D>* x, int64_t n) {
  using T = hn::TFromD<D>;
  const T top = largest(d, x, n);
  return top == kLowest<T> ? T(0) : top;
}

template <class D>
HWY_INLINE hn::TFromD<D> sum_of_exp(D d, const hn::TFromD<D>* x, hn::TFromD<D> shift, int64_t n) {
  using T = hn::TFromD<D>;
  const auto minus = hn::Set(d, shift);
  return row_sum(d, n, [&](int64_t i, auto lanes, auto& sum) BG_LANES {
    sum = hn::Add(sum, exp_nonpositive(d, hn::Sub(lanes.load(d, x + i, kLowest<T>), minus)));
  });
}

template <class T>
void softmax_forward(const T* x, T* y, int64_t rows, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kStrip = 4096;  // exponentials that wait here for their sum, so that y is written once
  HWY_ALIGN T strip[kStrip];
  streamed = streamed && n <= kStrip;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const auto shift = hn::Set(d, row_shift(d, x, n));
    T* const e = streamed ? strip : y;
    const T sum = row_sum(d, n, [&](int64_t i, auto lanes, auto& sums) BG_LANES {
      const auto t = exp_nonpositive(d, hn::Sub(lanes.load(d, x + i, kLowest<T>), shift));
      sums = hn::Add(sums, t);
      lanes.store(d, t, e + i);
    });
    const auto inverse = hn::Set(d, sum == 0 ? T(0) : 1 / sum);
    for_vectors_into(d, y, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
      lanes.store(d, hn::Mul(lanes.load(d, e + i), inverse), y + i);
    });
  }
}

template <class T>
void softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
    const auto dot = hn::Set(d, row_sum(d, n, [&](int64_t i, auto lanes, auto& dots) BG_LANES {
                               dots = hn::MulAdd(lanes.load(d, y + i), lanes.load(d, dy + i), dots);
                             }));
    for_vectors_into(d, dx, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
      lanes.store(d, hn::Mul(lanes.load(d, y + i), hn::Sub(lanes.load(d, dy + i), dot)), dx + i);
    });
  }
}

// Strip by strip, so that a long row is read from memory once and while the exponentials are computed.
template <class T>
LogSumExp<T> log_sum_exp(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  constexpr int64_t kStrip = 1024;
  T shift = kLowest<T>;
  double sum = 0;
  for (int64_t i = 0; i < n; i += kStrip) {
    const int64_t count = std::min(kStrip, n - i);
    const T top = largest(d, x + i, count);
    if (top > shift) {
      sum *= std::exp(shift - top);
      shift = top;
    }
    sum += sum_of_exp(d, x + i, shift == kLowest<T> ? T(0) : shift, count);
  }
  return {shift == kLowest<T> ? T(0) : shift, std::log(static_cast<T>(sum))};
}

template <class T>
void log_softmax_forward(const T* x, T* y, int64_t rows, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    // (x - shift) - log(sum), not x - lse: exact in x - shift however large the values are.
    const T top = row_shift(d, x, n), sum = sum_of_exp(d, x, top, n);
    const auto shift = hn::Set(d, top), rest = hn::Set(d, sum == 0 ? T(0) : std::log(sum));
    for_vectors_into(d, y, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
      lanes.store(d, hn::Sub(hn::Sub(lanes.load(d, x + i), shift), rest), y + i);
    });
  }
}

template <class T>
void log_softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, y += n, dy += n, dx += n) {
    auto tops = hn::Set(d, kLowest<T>);
    const T total = row_sum(d, n, [&](int64_t i, auto lanes, auto& sums) BG_LANES {
      sums = hn::Add(sums, lanes.load(d, dy + i));
      tops = hn::Max(tops, lanes.load(d, y + i, kLowest<T>));
    });
    if (hn::GetLane(hn::MaxOfLanes(d, tops)) == kLowest<T>) {
      std::fill_n(dx, n, T(0));
      continue;
    }
    const auto sum = hn::Set(d, total);
    for_vectors_into(d, dx, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
      lanes.store(d, hn::NegMulAdd(exp_nonpositive(d, lanes.load(d, y + i)), sum, lanes.load(d, dy + i)), dx + i);
    });
  }
}

// A null gamma is 1 and a null beta is 0.
template <class D, class L>
HWY_INLINE hn::Vec<D> affine(D d, L lanes, hn::Vec<D> h, const hn::TFromD<D>* gamma, const hn::TFromD<D>* beta,
                             int64_t i) {
  if (gamma != nullptr) h = hn::Mul(h, lanes.load(d, gamma + i));
  if (beta != nullptr) h = hn::Add(h, lanes.load(d, beta + i));
  return h;
}

template <class T>
struct Moments {
  T mean, rstd;
};

// The mean (0 unless centred) and 1 / sqrt(mean((x - mean)^2) + eps) of a row whose sum or squares overflow T, from the
// row scaled by a power of two. NaN when the row is not finite.
template <class T>
Moments<T> scaled_moments(bool centred, const T* x, T eps, int64_t n) {
  T top = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, std::abs(x[i]));
  if (std::isinf(top)) return {std::numeric_limits<T>::quiet_NaN(), std::numeric_limits<T>::quiet_NaN()};
  int exponent = 0;
  std::frexp(top, &exponent);
  const double scale = std::ldexp(1.0, -exponent);
  double rough = 0, first = 0, square = 0;
  if (centred)
    for (int64_t i = 0; i < n; ++i) rough += x[i] * scale / static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) {
    const double deviation = x[i] * scale - rough;
    first += deviation, square += deviation * deviation;
  }
  const double slip = centred ? first / static_cast<double>(n) : 0;
  const double variance = square / static_cast<double>(n) - slip * slip;
  const double deviation = std::sqrt(std::max(variance, 0.0)) / scale;
  return {static_cast<T>((rough + slip) / scale), static_cast<T>(1 / std::hypot(deviation, std::sqrt(eps)))};
}

template <class T>
void layer_norm_forward(const T* x, const T* gamma, const T* beta, T eps, T* y, T* mean, T* rstd, int64_t rows,
                        int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const auto add = [&](int64_t i, auto lanes, auto& sums) BG_LANES { sums = hn::Add(sums, lanes.load(d, x + i)); };
    const T rough = row_sum(d, n, add) / static_cast<T>(n);
    // The second pass sums deviations from the rounded mean, which also gives what that mean was wrong by.
    const auto centre = hn::Set(d, rough);
    const auto [first, square] = row_sums(d, n, [&](int64_t i, auto lanes, auto& firsts, auto& squares) BG_LANES {
      const auto deviation = hn::Sub(lanes.load(d, x + i, rough), centre);
      firsts = hn::Add(firsts, deviation);
      squares = hn::MulAdd(deviation, deviation, squares);
    });
    const T slip = first / static_cast<T>(n);
    const T variance = std::max(square / static_cast<T>(n) - slip * slip, T(0));  // rounding may leave it below 0
    const Moments<T> moments = std::isfinite(square) ? Moments<T>{rough + slip, 1 / std::sqrt(variance + eps)}
                                                     : scaled_moments(true, x, eps, n);
    mean[r] = moments.mean, rstd[r] = moments.rstd;
    const auto m = hn::Set(d, moments.mean), s = hn::Set(d, moments.rstd);
    for_vectors_into(d, y, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
      const auto h = hn::Mul(hn::Sub(lanes.load(d, x + i), m), s);
      lanes.store(d, affine(d, lanes, h, gamma, beta, i), y + i);
    });
  }
}

template <class T>
void rms_norm_forward(const T* x, const T* gamma, T eps, T* y, T* rstd, int64_t rows, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, y += n) {
    const T square = row_sum(d, n, [&](int64_t i, auto lanes, auto& squares) BG_LANES {
      const auto v = lanes.load(d, x + i);
      squares = hn::MulAdd(v, v, squares);
    });
    const T mean_square = square / static_cast<T>(n);
    rstd[r] = std::isfinite(mean_square) ? 1 / std::sqrt(mean_square + eps) : scaled_moments(false, x, eps, n).rstd;
    const auto s = hn::Set(d, rstd[r]);
    for_vectors_into(d, y, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
      lanes.store(d, affine(d, lanes, hn::Mul(lanes.load(d, x + i), s), gamma, static_cast<const T*>(nullptr), i),
                  y + i);
    });
  }
}

// Both normalisations: h = (x - mean) rstd (mean is 0 unless centred), g = dy gamma,
// dx = rstd (g - [centred] mean(g) - h mean(g h)), dgamma += dy h, dbeta += dy.
template <class T>
void norm_backward(bool centred, const T* x, const T* gamma, const T* mean, const T* rstd, const T* dy, T* dx,
                   T* dgamma, T* dbeta, int64_t rows, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for (int64_t r = 0; r < rows; ++r, x += n, dy += n) {
    const T centre = centred ? mean[r] : T(0);
    const auto m = hn::Set(d, centre), s = hn::Set(d, rstd[r]);
    const auto [g_sum, gh_sum] = row_sums(d, n, [&](int64_t i, auto lanes, auto& g_sums, auto& gh_sums) BG_LANES {
      // beyond the row h is 0: that of an x of 0 may be infinite
      const auto h = hn::Mul(hn::Sub(lanes.load(d, x + i, centre), m), s), t = lanes.load(d, dy + i);
      const auto g = gamma != nullptr ? hn::Mul(t, lanes.load(d, gamma + i)) : t;
      g_sums = hn::Add(g_sums, g);
      gh_sums = hn::MulAdd(g, h, gh_sums);
      if (dgamma != nullptr) lanes.store(d, hn::MulAdd(t, h, lanes.load(d, dgamma + i)), dgamma + i);
      if (dbeta != nullptr) lanes.store(d, hn::Add(t, lanes.load(d, dbeta + i)), dbeta + i);
    });
    if (dx == nullptr) continue;
    const auto g_mean = hn::Set(d, centred ? g_sum / static_cast<T>(n) : T(0));
    const auto gh_mean = hn::Set(d, gh_sum / static_cast<T>(n));
    for_vectors_into(d, dx, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
      const auto h = hn::Mul(hn::Sub(lanes.load(d, x + i), m), s), t = lanes.load(d, dy + i);
      const auto g = gamma != nullptr ? hn::Mul(t, lanes.load(d, gamma + i)) : t;
      lanes.store(d, hn::Mul(s, hn::NegMulAdd(h, gh_mean, hn::Sub(g, g_mean))), dx + i);
    });
    dx += n;
  }
}

template <class T>
void cross_entropy_gradient(const T* x, T lse, T dloss, T* dx, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  const auto shift = hn::Set(d, lse), by = hn::Set(d, dloss);
  for_vectors_into(d, dx, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
    lanes.store(d, hn::Mul(exp_nonpositive(d, hn::Sub(lanes.load(d, x + i), shift)), by), dx + i);
  });
}

template <class T>
constexpr RowKernels<T> table = {&softmax_forward<T>,      &softmax_backward<T>,   &log_softmax_forward<T>,
                                 &log_softmax_backward<T>, &layer_norm_forward<T>, &norm_backward<T>,
                                 &rms_norm_forward<T>,     &log_sum_exp<T>,        &cross_entropy_gradient<T>};

const RowKernels<float>* row_kernels_f32() { return &table<float>; }
const RowKernels<double>* row_kernels_f64() { return &table<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bg::kernels {
namespace {

HWY_EXPORT(row_kernels_f32);
HWY_EXPORT(row_kernels_f64);

template <class T>
const RowKernels<T>& row_kernels() {
  if constexpr (sizeof(T) == 4) {
    return *HWY_DYNAMIC_DISPATCH(row_kernels_f32)();
  } else {
    return *HWY_DYNAMIC_DISPATCH(row_kernels_f64)();
  }
}

template <class T>
constexpr T kInf = std::numeric_limits<T>::infinity();

void check_width(const char* op, int64_t d) {
  BG_CHECK(d >= 1, op, "a row has no elements", str("width ", d), "at least 1");
}

// f(first row, number of rows) in parallel.
template <class F>
void for_rows(int64_t rows, int64_t d, F&& f) {
  parallel_for(rows, row_grain(d), [&](int64_t begin, int64_t end) { f(begin, end - begin); });
}

// f(first row, number of rows, streamed) in parallel, for kernels that write (rows, d) to y from x.
template <class T, class F>
void for_rows_into(const T* y, const T* x, int64_t rows, int64_t d, F&& f) {
  const bool streamed = beyond_caches(rows * d * sizeof(T), y == x);
  for_rows(rows, d, [&](int64_t first, int64_t n) {
    f(first, n, streamed);
    end_stream(streamed);
  });
}

// norm_backward over all rows, with dgamma and dbeta from partial sums [dgamma | dbeta] for each chunk of rows.
template <class T>
void norm_backward(bool centred, const T* x, const T* gamma, const T* mean, const T* rstd, const T* dy, T* dx,
                   T* dgamma, T* dbeta, int64_t rows, int64_t d) {
  const auto f = row_kernels<T>().norm_backward;
  const bool streamed = dx && beyond_caches(rows * d * sizeof(T), dx == dy || dx == x);
  const auto part_rows = [&](int64_t r, int64_t n, T* part_gamma, T* part_beta) {
    f(centred, x + r * d, gamma, centred ? mean + r : nullptr, rstd + r, dy + r * d, dx ? dx + r * d : nullptr,
      part_gamma, part_beta, n, d, streamed);
    end_stream(streamed);
  };
  if (dgamma == nullptr) {
    for_rows(rows, d, [&](int64_t r, int64_t n) { part_rows(r, n, nullptr, nullptr); });
    return;
  }
  const int64_t width = dbeta ? 2 * d : d;
  std::vector<T> sums(width);
  sum_over_rows(rows, d, width, sums.data(), [&](int64_t begin, int64_t end, T* part) {
    part_rows(begin, end - begin, part, dbeta ? part + d : nullptr);
  });
  std::copy_n(sums.data(), d, dgamma);
  if (dbeta) std::copy_n(sums.data() + d, d, dbeta);
}

}  // namespace

template <class T>
void softmax_forward(const T* x, T* y, int64_t rows, int64_t d) {
  const auto f = row_kernels<T>().softmax_forward;
  for_rows_into(y, x, rows, d, [&](int64_t r, int64_t n, bool streamed) { f(x + r * d, y + r * d, n, d, streamed); });
}

template <class T>
void softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t d) {
  const auto f = row_kernels<T>().softmax_backward;
  for_rows_into(dx, dx == y ? y : dy, rows, d,
                [&](int64_t r, int64_t n, bool streamed) { f(y + r * d, dy + r * d, dx + r * d, n, d, streamed); });
}

template <class T>
void log_softmax_forward(const T* x, T* y, int64_t rows, int64_t d) {
  const auto f = row_kernels<T>().log_softmax_forward;
  for_rows_into(y, x, rows, d, [&](int64_t r, int64_t n, bool streamed) { f(x + r * d, y + r * d, n, d, streamed); });
}

template <class T>
void log_softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t d) {
  const auto f = row_kernels<T>().log_softmax_backward;
  for_rows_into(dx, dx == y ? y : dy, rows, d,
                [&](int64_t r, int64_t n, bool streamed) { f(y + r * d, dy + r * d, dx + r * d, n, d, streamed); });
}

template <class T>
void layer_norm_forward(const T* x, const T* gamma, const T* beta, double eps, T* y, T* mean, T* rstd, int64_t rows,
                        int64_t d) {
  check_width("layer_norm", d);
  const auto f = row_kernels<T>().layer_norm_forward;
  for_rows_into(y, x, rows, d, [&](int64_t r, int64_t n, bool streamed) {
    f(x + r * d, gamma, beta, static_cast<T>(eps), y + r * d, mean + r, rstd + r, n, d, streamed);
  });
}

template <class T>
void layer_norm_backward(const T* x, const T* gamma, const T* mean, const T* rstd, const T* dy, T* dx, T* dgamma,
                         T* dbeta, int64_t rows, int64_t d) {
  check_width("layer_norm", d);
  BG_CHECK((dgamma == nullptr) == (dbeta == nullptr), "layer_norm", "only one of dgamma and dbeta is asked for", "", "",
           "both or neither");
  norm_backward(true, x, gamma, mean, rstd, dy, dx, dgamma, dbeta, rows, d);
}

template <class T>
void rms_norm_forward(const T* x, const T* gamma, double eps, T* y, T* rstd, int64_t rows, int64_t d) {
  check_width("rms_norm", d);
  const auto f = row_kernels<T>().rms_norm_forward;
  for_rows_into(y, x, rows, d, [&](int64_t r, int64_t n, bool streamed) {
    f(x + r * d, gamma, static_cast<T>(eps), y + r * d, rstd + r, n, d, streamed);
  });
}

template <class T>
void rms_norm_backward(const T* x, const T* gamma, const T* rstd, const T* dy, T* dx, T* dgamma, int64_t rows,
                       int64_t d) {
  check_width("rms_norm", d);
  norm_backward<T>(false, x, gamma, nullptr, rstd, dy, dx, dgamma, nullptr, rows, d);
}

template <class T>
void cross_entropy_forward(const T* logits, const int64_t* targets, int64_t ignore_index, T* loss, T* lse, int64_t rows,
                           int64_t classes) {
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t t = targets[r];
    BG_CHECK(t == ignore_index || (t >= 0 && t < classes), "cross_entropy", str("target ", r, " is out of range"),
             str(t), str("0 to ", classes - 1, ", or ", ignore_index, " to ignore the row"));
  }
  const auto f = row_kernels<T>().log_sum_exp;
  for_rows(rows, classes, [&](int64_t first, int64_t n) {
    for (int64_t r = first; r < first + n; ++r) {
      loss[r] = lse[r] = 0;
      if (targets[r] == ignore_index) continue;
      const auto [shift, log_sum] = f(logits + r * classes, classes);
      lse[r] = shift + log_sum;
      // A row of -infinity alone gives its target probability 0.
      loss[r] = lse[r] == -kInf<T> ? kInf<T> : log_sum + (shift - logits[r * classes + targets[r]]);
    }
  });
}

template <class T>
void cross_entropy_backward(const T* logits, const int64_t* targets, int64_t ignore_index, const T* lse, const T* dloss,
                            T* dlogits, int64_t rows, int64_t classes) {
  const auto f = row_kernels<T>().cross_entropy_gradient;
  for_rows_into(dlogits, logits, rows, classes, [&](int64_t first, int64_t n, bool streamed) {
    for (int64_t r = first; r < first + n; ++r) {
      T* dx = dlogits + r * classes;
      if (targets[r] == ignore_index || lse[r] == -kInf<T>) {
        std::fill_n(dx, classes, T(0));
        continue;
      }
      f(logits + r * classes, lse[r], dloss[r], dx, classes, streamed);
      dx[targets[r]] -= dloss[r];
    }
  });
}

#define BG_INSTANTIATE(T)                                                                                            \
  template void softmax_forward(const T*, T*, int64_t, int64_t);                                                     \
  template void softmax_backward(const T*, const T*, T*, int64_t, int64_t);                                          \
  template void log_softmax_forward(const T*, T*, int64_t, int64_t);                                                 \
  template void log_softmax_backward(const T*, const T*, T*, int64_t, int64_t);                                      \
  template void layer_norm_forward(const T*, const T*, const T*, double, T*, T*, T*, int64_t, int64_t);              \
  template void layer_norm_backward(const T*, const T*, const T*, const T*, const T*, T*, T*, T*, int64_t, int64_t); \
  template void rms_norm_forward(const T*, const T*, double, T*, T*, int64_t, int64_t);                              \
  template void rms_norm_backward(const T*, const T*, const T*, const T*, T*, T*, int64_t, int64_t);                 \
  template void cross_entropy_forward(const T*, const int64_t*, int64_t, T*, T*, int64_t, int64_t);                  \
  template void cross_entropy_backward(const T*, const int64_t*, int64_t, const T*, const T*, T*, int64_t, int64_t);
BG_INSTANTIATE(float)
BG_INSTANTIATE(double)

}  // namespace bg::kernels
#endif  // HWY_ONCE
