// Matrix products: large ones by the packed kernel, others by OpenBLAS held to one thread; tiles of C over the pool.
#include "core/gemm.h"

#include <cblas.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <limits>

#include "core/error.h"
#include "core/kernels/packed_gemm.h"
#include "core/parallel.h"

namespace bg {
namespace {

// Below this many multiply-adds a product is small: the cost of waking workers exceeds the gain [R29], and OpenBLAS,
// which multiplies small matrices where they lie, is faster than packing.
constexpr int64_t kSmallProduct = int64_t{1} << 20;

// The least sides of a product that is worth packing. With 8192 rows, inner and outer sizes of 256 to 1024 and AVX-512,
// packed products reach 0.76 to 0.92 of the FMA peak, OpenBLAS 0.3.21 by the same tiles 0.55 to 0.80. And
// the least part of k that is worth a buffer of its own.
constexpr int64_t kLeastRows = 24, kLeastCols = 32, kLeastDepth = 16, kPartDepth = kernels::kPackedDepth;
constexpr int64_t kSumGrain = int64_t{1} << 14;   // elements of C per chunk when parts are added
constexpr int64_t kPackGrain = int64_t{1} << 16;  // elements of B per chunk when all of it is packed

// OpenBLAS maps a buffer for each thread that multiplies; where a limit on the address space leaves no room for one, it
// tries again without end.
void check_room_for_buffers() {
  constexpr size_t kBuffer = size_t{128} << 20;  // of OpenBLAS on x86-64, elsewhere less
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  const size_t needed = kBuffer * static_cast<size_t>(num_threads());
  void* room = mmap(nullptr, needed, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  BG_CHECK(room != MAP_FAILED, "memory",
           "the memory limit of this shell (ulimit -v) leaves too little for matrix products",
           str(limit.rlim_cur >> 20, " MiB in all"),
           str(needed >> 20, " MiB still free, 128 for each of ", num_threads(),
               num_threads() == 1 ? " thread" : " threads"),
           "ulimit -v unlimited, or fewer --threads");
  munmap(room, needed);
}

void hold_to_one_thread() {
  static const bool done = [] {
    check_room_for_buffers();
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

bool worth_packing(int64_t m, int64_t n, int64_t k) {
  return multiply_adds(m, n, k) >= kSmallProduct && m >= kLeastRows && n >= kLeastCols && k >= kLeastDepth &&
         kernels::packed_gemm_available();
}

// One product on this thread by the BLAS library; sizes have been checked. The cases that BLAS libraries disagree on
// are settled here.
template <class T>
void blas_product(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                  int64_t ldb, T beta, T* c, int64_t ldc) {
  if (m == 0 || n == 0) return;
  if (k == 0) return scale(m, n, beta, c, ldc);
  // BLAS rejects strides below 1, which a matrix with a single short row may have.
  call(ta, tb, m, n, k, alpha, a, std::max<int64_t>(lda, 1), b, std::max<int64_t>(ldb, 1), beta, c, ldc);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a product is cut: into tiles of C and, where C is small and k long, into parts of k whose products are added in
// order. Parts of k and columns begin where panels of B do. Depends on the shape alone.
struct Plan {
  bool packed;
  int64_t rows, cols;  // of a tile
  int64_t depth;       // of a part of k

  int64_t down(int64_t m) const { return ceil_div(m, rows); }
};

template <class T>
Plan plan_for(int64_t batch, int64_t m, int64_t n, int64_t k) {
  const bool packed = worth_packing(m, n, k);
  if (multiply_adds(m, n, k) < kSmallProduct) return {packed, m, n, k};
  // Rows and columns by the sides of register tiles, so that none is cut. Enough tiles to go round among workers:
  // equal ones, since the last to finish sets the time.
  constexpr int64_t kEnough = 8, kUnitRows = 12;
  constexpr int64_t kCols = 3072 / static_cast<int64_t>(sizeof(T));
  auto equal = [](int64_t size, int64_t pieces, int64_t unit) {
    return std::min(size, ceil_div(ceil_div(size, pieces), unit) * unit);
  };
  int64_t down = ceil_div(m, kernels::kPackedRows<T>), across = ceil_div(n, kCols), parts = 1;
  if (batch * down * across < kEnough && batch == 1)
    parts = std::clamp<int64_t>(k / kPartDepth, 1, ceil_div(kEnough, down * across));
  while (batch * down * across * parts < kEnough && std::max(m / down, n / across) >= 128)
    ++(m / down >= n / across ? down : across);
  return {packed, equal(m, down, kUnitRows), equal(n, across, kernels::kPackedCols),
          equal(k, parts, kernels::kPackedDepth)};
}

// All of op(B) in panels; undefined where products do not use them.
template <class T>
Tensor pack_all(const kernels::RightOperand<T>& b, int64_t k, int64_t n) {
  if (!kernels::packed_gemm_available() || n < kLeastCols || k < kLeastDepth) return {};
  Tensor packed = Tensor::empty({kernels::packed_elements(k, n)}, dtype_of<T>);
  T* to = packed.mutable_data<T>("gemm");
  const int64_t panels = ceil_div(n, kernels::kPackedCols);
  parallel_for(panels, std::max<int64_t>(1, kPackGrain / (k * kernels::kPackedCols)), [&](int64_t begin, int64_t end) {
    kernels::pack_right<T>(b, k, n, begin * kernels::kPackedCols, end * kernels::kPackedCols, to);
  });
  return packed;
}

// Is it worth packing all of B beforehand? When several rows of tiles share it and it is no giant.
template <class T>
bool worth_sharing(const Plan& plan, int64_t m, int64_t n, int64_t k) {
  constexpr int64_t kLargest = int64_t{64} << 20;  // bytes
  return plan.packed && plan.down(m) > 1 &&
         kernels::packed_elements(k, n) * static_cast<int64_t>(sizeof(T)) <= kLargest;
}

// A float product adds up at most this many terms; of a longer k, parts of this length are added in double. Usually the
// terms are added up in blocks of some hundreds, but those of few results one by one, by OpenBLAS's kernel for small
// products.
template <class T>
int64_t longest_sum(int64_t m, int64_t n) {
  constexpr int64_t kInBlocks = int64_t{1} << 16, kOneByOne = int64_t{1} << 10;
  if (sizeof(T) == 8) return std::numeric_limits<int64_t>::max();
  return multiply_adds(m, n, kInBlocks) < kSmallProduct ? kOneByOne : kInBlocks;
}

// c = beta c + bias + the sum of product(p, depth, part) over parts [p, p + depth) of k, each an (m, n) array.
template <class T, class F>
void add_in_double(int64_t m, int64_t n, int64_t k, T beta, const T* bias, T* c, int64_t ldc, F&& product) {
  Tensor total = Tensor::zeros({m, n}, DType::f64), part = Tensor::empty({m, n}, dtype_of<T>);
  double* const sums = total.mutable_data<double>("gemm");
  T* const terms = part.mutable_data<T>("gemm");
  const int64_t longest = longest_sum<T>(m, n);
  for (int64_t p = 0; p < k; p += longest) {
    product(p, std::min(longest, k - p), terms);
    for (int64_t i = 0; i < m * n; ++i) sums[i] += terms[i];
  }
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {
      double sum = sums[i * n + j] + (bias ? bias[j] : T(0));
      if (beta != T(0)) sum += static_cast<double>(beta) * c[i * ldc + j];
      c[i * ldc + j] = static_cast<T>(sum);
    }
}

// gemm_batched, plus the row `bias` and with B's panels where there are such.
template <class T>
void run(Trans ta, Trans tb, int64_t batch, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
         int64_t stride_a, const T* b, int64_t ldb, int64_t stride_b, T beta, const T* bias, T* c, int64_t ldc,
         int64_t stride_c, Tensor panels = {}) {
  hold_to_one_thread();
  check(ta, tb, m, n, k, lda, ldb, ldc);
  BG_CHECK(batch >= 0, "gemm", "negative batch", str(batch));
  if (batch == 0 || m == 0 || n == 0) return;
  if (k > longest_sum<T>(m, n)) {
    for (int64_t item = 0; item < batch; ++item) {
      const T *ai = a + item * stride_a, *bi = b + item * stride_b;
      add_in_double<T>(m, n, k, beta, bias, c + item * stride_c, ldc, [&](int64_t p, int64_t depth, T* part) {
        run<T>(ta, tb, 1, m, n, depth, alpha, ai + (ta == Trans::yes ? p * lda : p), lda, 0,
               bi + (tb == Trans::yes ? p : p * ldb), ldb, 0, T(0), nullptr, part, n, 0);
      });
    }
    return;
  }
  const Plan plan = plan_for<T>(batch, m, n, k);
  const int64_t across = ceil_div(n, plan.cols), down = plan.down(m);
  const int64_t parts = k == 0 ? 1 : ceil_div(k, plan.depth), per_product = across * down * parts;
  if (!panels.defined() && batch == 1 && worth_sharing<T>(plan, m, n, k))
    panels = pack_all<T>({b, ldb, tb == Trans::yes}, k, n);
  const T* whole = panels.defined() ? panels.data<T>() : nullptr;
  const int64_t packed_cols = whole ? panels.numel() / k : 0;
  // The first part goes straight to C, the others to (m, n) buffers that are added to it afterwards.
  Tensor sums = parts > 1 ? Tensor::empty({parts - 1, m, n}, dtype_of<T>) : Tensor();
  T* const others = parts > 1 ? sums.mutable_data<T>("gemm") : nullptr;
  // Small products of a batch share a chunk.
  const int64_t flops = plan.rows * plan.cols * std::max<int64_t>(plan.depth, 1);
  parallel_for(batch * per_product, std::max<int64_t>(1, kSmallProduct / flops), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t item = t / per_product, part = t % per_product / (across * down), in = t % (across * down);
      const int64_t i = in / across * plan.rows, j = in % across * plan.cols, p = part * plan.depth;
      const T* at = a + item * stride_a + (ta == Trans::yes ? p * lda + i : i * lda + p);
      const T* bt = b + item * stride_b + (tb == Trans::yes ? j * ldb + p : p * ldb + j);
      const bool first = part == 0;
      T* ct = first ? c + item * stride_c + i * ldc + j : others + (part - 1) * m * n + i * n + j;
      const int64_t rows = std::min(plan.rows, m - i), cols = std::min(plan.cols, n - j), ld = first ? ldc : n;
      const int64_t depth = std::min(plan.depth, k - p);
      if (plan.packed) {
        const kernels::RightOperand<T> of_tile{bt, ldb, tb == Trans::yes, whole, packed_cols, p, j};
        const bool add = first && beta != T(0);
        if (add && beta != T(1)) scale(rows, cols, beta, ct, ld);
        const T* start = add ? ct : first && bias ? bias + j : nullptr;
        kernels::packed_gemm<T>(ta == Trans::yes, rows, cols, depth, alpha, at, lda, of_tile, start, add ? ld : 0, ct,
                                ld);
        continue;
      }
      if (bias != nullptr && first)
        for (int64_t r = 0; r < rows; ++r) std::copy_n(bias + j, cols, ct + r * ld);
      blas_product(ta, tb, rows, cols, depth, alpha, at, lda, bt, ldb,
                   !first            ? T(0)
                   : bias != nullptr ? T(1)
                                     : beta,
                   ct, ld);
    }
  });
  if (parts == 1) return;
  parallel_for(m, std::max<int64_t>(1, kSumGrain / n), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t part = 0; part < parts - 1; ++part) add_row(n, others + (part * m + i) * n, c + i * ldc);
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
PackedRight<T>::PackedRight(Trans tb, int64_t k_, int64_t n_, const T* b, int64_t ldb)
    : trans(tb), k(k_), n(n_), data(b), stride(ldb), panels(pack_all<T>({b, ldb, tb == Trans::yes}, k, n)) {}

template <class T>
void gemm(Trans ta, int64_t m, T alpha, const T* a, int64_t lda, const PackedRight<T>& b, T beta, T* c, int64_t ldc) {
  run<T>(ta, b.trans, 1, m, b.n, b.k, alpha, a, lda, 0, b.data, b.stride, 0, beta, nullptr, c, ldc, 0, b.panels);
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
  if (k > longest_sum<T>(m, n))
    return add_in_double<T>(m, n, k, beta, nullptr, c, ldc, [&](int64_t p, int64_t depth, T* part) {
      gemm_serial<T>(ta, tb, m, n, depth, alpha, a + (ta == Trans::yes ? p * lda : p), lda,
                     b + (tb == Trans::yes ? p : p * ldb), ldb, T(0), part, n);
    });
  if (!worth_packing(m, n, k)) return blas_product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
  if (beta != T(0) && beta != T(1)) scale(m, n, beta, c, ldc);
  kernels::packed_gemm<T>(ta == Trans::yes, m, n, k, alpha, a, lda, {b, ldb, tb == Trans::yes},
                          beta != T(0) ? c : nullptr, ldc, c, ldc);
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
  template class PackedRight<T>;                                                                                      \
  template void gemm<T>(Trans, int64_t, T, const T*, int64_t, const PackedRight<T>&, T, T*, int64_t);                 \
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
