// Matrix products: large ones by the packed kernel, others by OpenBLAS held to one thread; tiles of C over the pool.
#include "core/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <limits>
#include <memory>

#include "core/error.h"
#include "core/kernels/packed_gemm.h"
#include "core/parallel.h"

namespace bg {
namespace {

// Below this many multiply-adds a product is small: the cost of waking workers exceeds the gain [R29], and OpenBLAS,
// which multiplies small matrices where they lie, is faster than packing.
constexpr int64_t kSmallProduct = int64_t{1} << 20;

// The least sides of a product that is worth packing. With 8192 rows, inner and outer sizes of 256 to 1024 and AVX-512,
// packed products reach 0.77 to 0.88 of the FMA peak on one thread, OpenBLAS 0.3.21 by the same tiles 0.55 to 0.80. And
// the least part of k that is worth a buffer of its own.
constexpr int64_t kPackedRows = 24, kPackedCols = 32, kPackedDepth = 16, kPartDepth = 1024;
constexpr int64_t kSumGrain = int64_t{1} << 14;  // elements of C per chunk when parts are added

void hold_to_one_thread() {
  static const bool done = [] {
    openblas_set_num_threads(1);
    return true;
  }();
  (void)done;
}

CBLAS_TRANSPOSE cblas(Trans t) { return t == Trans::yes ? CblasTrans : CblasNoTrans; }

void call(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, float alpha, const float* a, int64_t lda, const float* b,
          int64_t ldb, float beta, float* c, int64_t ldc) {
  cblas_sgemm(CblasRowMajor, cblas(ta), cblas(tb), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
void call(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, double alpha, const double* a, int64_t lda,
          const double* b, int64_t ldb, double beta, double* c, int64_t ldc) {
  cblas_dgemm(CblasRowMajor, cblas(ta), cblas(tb), m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

void check(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, int64_t lda, int64_t ldb, int64_t ldc) {
  constexpr int64_t limit = std::numeric_limits<blasint>::max();
  BG_CHECK(m >= 0 && n >= 0 && k >= 0, "gemm", "negative size", str("m ", m, ", n ", n, ", k ", k));
  BG_CHECK(std::max({m, n, k, lda, ldb, ldc}) <= limit, "gemm", "size beyond the BLAS library's integers",
           str("m ", m, ", n ", n, ", k ", k, ", strides ", lda, ", ", ldb, ", ", ldc), str("at most ", limit));
  const int64_t a_row = ta == Trans::yes ? m : k, b_row = tb == Trans::yes ? k : n;
  BG_CHECK(lda >= a_row && ldb >= b_row && ldc >= n, "gemm", "row stride shorter than a row",
           str("lda ", lda, ", ldb ", ldb, ", ldc ", ldc), str("at least ", a_row, ", ", b_row, ", ", n));
}

template <class T>
void scale(int64_t m, int64_t n, T beta, T* c, int64_t ldc) {
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T(0) ? T(0) : beta * c[i * ldc + j];
}

template <class T>
void add_row(int64_t n, const T* from, T* to) {
  for (int64_t j = 0; j < n; ++j) to[j] += from[j];
}

// One product on this thread; sizes have been checked. The cases that BLAS libraries disagree on are settled here.
template <class T>
void product(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
             int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale(m, n, beta, c, ldc);
  if (m * n * k >= kSmallProduct && m >= kPackedRows && n >= kPackedCols && k >= kPackedDepth &&
      kernels::packed_gemm_available()) {
    if (beta != T(0) && beta != T(1)) scale(m, n, beta, c, ldc);
    return kernels::packed_gemm<T>(ta == Trans::yes, tb == Trans::yes, m, n, k, alpha, a, lda, b, ldb, beta != T(0), c,
                                   ldc);
  }
  // BLAS rejects strides below 1, which a matrix with a single short row may have.
  call(ta, tb, m, n, k, alpha, a, std::max<int64_t>(lda, 1), b, std::max<int64_t>(ldb, 1), beta, c, ldc);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a product is cut: into tiles of C and, where C is small and k long, into parts of k whose products are added in
// order. Depends on the shape alone.
struct Plan {
  int64_t rows, cols;  // of a tile
  int64_t depth;       // of a part of k
};

Plan plan_for(int64_t batch, int64_t m, int64_t n, int64_t k) {
  if (m * n * k < kSmallProduct) return {m, n, k};
  // Rows and columns by the sides of register tiles, so that none is cut. Enough tiles to go round among workers:
  // equal ones, since the last to finish sets the time.
  constexpr int64_t kRows = 516, kCols = 384, kEnough = 8, kUnitRows = 12, kUnitCols = 32;
  auto equal = [](int64_t size, int64_t pieces, int64_t unit) {
    return std::min(size, ceil_div(ceil_div(size, pieces), unit) * unit);
  };
  int64_t down = ceil_div(m, kRows), across = ceil_div(n, kCols), parts = 1;
  if (batch * down * across < kEnough && batch == 1)
    parts = std::clamp<int64_t>(k / kPartDepth, 1, ceil_div(kEnough, down * across));
  while (batch * down * across * parts < kEnough && std::max(m / down, n / across) >= 128)
    ++(m / down >= n / across ? down : across);
  return {equal(m, down, kUnitRows), equal(n, across, kUnitCols), equal(k, parts, 1)};
}

// gemm_batched; where there is a bias row, each tile of C starts as it and the product is added.
template <class T>
void run(Trans ta, Trans tb, int64_t batch, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
         int64_t stride_a, const T* b, int64_t ldb, int64_t stride_b, T beta, const T* bias, T* c, int64_t ldc,
         int64_t stride_c) {
  hold_to_one_thread();
  check(ta, tb, m, n, k, lda, ldb, ldc);
  BG_CHECK(batch >= 0, "gemm", "negative batch", str(batch));
  if (batch == 0 || m == 0 || n == 0) return;
  const Plan plan = plan_for(batch, m, n, k);
  const int64_t across = ceil_div(n, plan.cols), down = ceil_div(m, plan.rows);
  const int64_t parts = k == 0 ? 1 : ceil_div(k, plan.depth), per_product = across * down * parts;
  // The first part goes straight to C, the others to (m, n) buffers that are added to it afterwards.
  const std::unique_ptr<T[]> sums(parts > 1 ? new T[(parts - 1) * m * n] : nullptr);
  // Small products of a batch share a chunk.
  const int64_t flops = plan.rows * plan.cols * std::max<int64_t>(plan.depth, 1);
  parallel_for(batch * per_product, std::max<int64_t>(1, kSmallProduct / flops), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t item = t / per_product, part = t % per_product / (across * down), in = t % (across * down);
      const int64_t i = in / across * plan.rows, j = in % across * plan.cols, p = part * plan.depth;
      const T* at = a + item * stride_a + (ta == Trans::yes ? p * lda + i : i * lda + p);
      const T* bt = b + item * stride_b + (tb == Trans::yes ? j * ldb + p : p * ldb + j);
      T* ct = part == 0 ? c + item * stride_c + i * ldc + j : sums.get() + (part - 1) * m * n + i * n + j;
      const int64_t rows = std::min(plan.rows, m - i), cols = std::min(plan.cols, n - j);
      if (bias != nullptr && part == 0)
        for (int64_t r = 0; r < rows; ++r) std::copy_n(bias + j, cols, ct + r * ldc);
      product(ta, tb, rows, cols, std::min(plan.depth, k - p), alpha, at, lda, bt, ldb,
              part > 0          ? T(0)
              : bias != nullptr ? T(1)
                                : beta,
              ct, part == 0 ? ldc : n);
    }
  });
  if (parts == 1) return;
  parallel_for(m, std::max<int64_t>(1, kSumGrain / n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t part = 0; part < parts - 1; ++part) add_row(n, sums.get() + (part * m + i) * n, c + i * ldc);
  });
}

}  // namespace

template <class T>
void gemm_batched(Trans ta, Trans tb, int64_t batch, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                  int64_t stride_a, const T* b, int64_t ldb, int64_t stride_b, T beta, T* c, int64_t ldc,
                  int64_t stride_c) {
  run<T>(ta, tb, batch, m, n, k, alpha, a, lda, stride_a, b, ldb, stride_b, beta, nullptr, c, ldc, stride_c);
}

template <class T>
void gemm(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
          int64_t ldb, T beta, T* c, int64_t ldc) {
  gemm_batched<T>(ta, tb, 1, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0);
}

template <class T>
void gemm_bias(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
               const T* bias, T* c, int64_t ldc) {
  run<T>(ta, tb, 1, m, n, k, T(1), a, lda, 0, b, ldb, 0, T(0), bias, c, ldc, 0);
}

template <class T>
void gemm_serial(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                 int64_t ldb, T beta, T* c, int64_t ldc) {
  hold_to_one_thread();
  check(ta, tb, m, n, k, lda, ldb, ldc);
  product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}

std::string blas_description() {
  hold_to_one_thread();
  // "OpenBLAS 0.3.21 DYNAMIC_ARCH ..." carries the version; the core name is a call of its own.
  const std::string config = openblas_get_config();
  const size_t cut = config.find(' ', config.find(' ') + 1);
  return str(config.substr(0, cut), " (", openblas_get_corename(), ")");
}

int blas_threads() {
  hold_to_one_thread();
  return openblas_get_num_threads();
}

#define BG_GEMM(T)                                                                                                    \
  template void gemm<T>(Trans, Trans, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*,      \
                        int64_t);                                                                                     \
  template void gemm_bias<T>(Trans, Trans, int64_t, int64_t, int64_t, const T*, int64_t, const T*, int64_t, const T*, \
                             T*, int64_t);                                                                            \
  template void gemm_serial<T>(Trans, Trans, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T,   \
                               T*, int64_t);                                                                          \
  template void gemm_batched<T>(Trans, Trans, int64_t, int64_t, int64_t, int64_t, T, const T*, int64_t, int64_t,      \
                                const T*, int64_t, int64_t, T, T*, int64_t, int64_t);
BG_GEMM(float)
BG_GEMM(double)
#undef BG_GEMM

}  // namespace bg
