// Matrix products over OpenBLAS: one BLAS thread, tiles of C over the pool.
#include "core/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/parallel.h"

namespace bg {
namespace {

// Below this many multiply-adds the cost of waking workers exceeds the gain [R29].
constexpr int64_t kSerialFlops = int64_t{1} << 20;

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

// One product on this thread; sizes have been checked. The cases that BLAS libraries disagree on are settled here.
template <class T>
void product(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
             int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c[i * ldc + j] = beta == T{0} ? T{0} : beta * c[i * ldc + j];
    return;
  }
  // BLAS rejects strides below 1, which a matrix with a single short row may have.
  call(ta, tb, m, n, k, alpha, a, std::max<int64_t>(lda, 1), b, std::max<int64_t>(ldb, 1), beta, c, ldc);
}

struct Tiles {
  int64_t rows, cols;  // of one tile of C
};

Tiles tiles_for(int64_t m, int64_t n, int64_t k) {
  if (m * n < kSerialFlops / std::max<int64_t>(k, 1)) return {m, n};
  Tiles t{std::min<int64_t>(m, 512), std::min<int64_t>(n, 512)};
  // Few tiles leave workers idle at the end: halve the longer side until there are at least eight.
  auto count = [&] { return ((m + t.rows - 1) / t.rows) * ((n + t.cols - 1) / t.cols); };
  while (count() < 8 && std::max(t.rows, t.cols) > 64) {
    int64_t& side = t.rows >= t.cols ? t.rows : t.cols;
    side = (side / 2 + 15) / 16 * 16;
  }
  return t;
}

}  // namespace

template <class T>
void gemm_batched(Trans ta, Trans tb, int64_t batch, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                  int64_t stride_a, const T* b, int64_t ldb, int64_t stride_b, T beta, T* c, int64_t ldc,
                  int64_t stride_c) {
  hold_to_one_thread();
  check(ta, tb, m, n, k, lda, ldb, ldc);
  BG_CHECK(batch >= 0, "gemm", "negative batch", str(batch));
  if (batch == 0 || m == 0 || n == 0) return;
  const Tiles tile = tiles_for(m, n, k);
  const int64_t across = (n + tile.cols - 1) / tile.cols, down = (m + tile.rows - 1) / tile.rows;
  const int64_t per_product = across * down;
  // Small products of a batch share a chunk.
  const int64_t tile_flops = tile.rows * tile.cols * std::max<int64_t>(k, 1);
  const int64_t grain = std::max<int64_t>(1, kSerialFlops / tile_flops);
  parallel_for(batch * per_product, grain, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t item = t / per_product, in = t % per_product;
      const int64_t i = in / across * tile.rows, j = in % across * tile.cols;
      const T* at = a + item * stride_a + (ta == Trans::yes ? i : i * lda);
      const T* bt = b + item * stride_b + (tb == Trans::yes ? j * ldb : j);
      product(ta, tb, std::min(tile.rows, m - i), std::min(tile.cols, n - j), k, alpha, at, lda, bt, ldb, beta,
              c + item * stride_c + i * ldc + j, ldc);
    }
  });
}

template <class T>
void gemm(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
          int64_t ldb, T beta, T* c, int64_t ldc) {
  gemm_batched<T>(ta, tb, 1, m, n, k, alpha, a, lda, 0, b, ldb, 0, beta, c, ldc, 0);
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

#define BG_GEMM(T)                                                                                                  \
  template void gemm<T>(Trans, Trans, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, T*,    \
                        int64_t);                                                                                   \
  template void gemm_serial<T>(Trans, Trans, int64_t, int64_t, int64_t, T, const T*, int64_t, const T*, int64_t, T, \
                               T*, int64_t);                                                                        \
  template void gemm_batched<T>(Trans, Trans, int64_t, int64_t, int64_t, int64_t, T, const T*, int64_t, int64_t,    \
                                const T*, int64_t, int64_t, T, T*, int64_t, int64_t);
BG_GEMM(float)
BG_GEMM(double)
#undef BG_GEMM

}  // namespace bg
