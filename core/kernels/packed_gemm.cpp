// Packed matrix products. For each kDepth rows of B, a block of them is copied into panels as wide as a tile; then each
// kGroup rows of A are copied into panels as high as a tile and multiplied with all of the block. A panel of A stays in
// the first cache, the block of B in the second, and tiles of C are read and written once per kDepth. While one group
// is multiplied, the next is fetched from memory.
#include "core/kernels/packed_gemm.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/packed_gemm.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "core/kernels/tile-inl.h"

#ifndef BG_CORE_KERNELS_PACKED_GEMM_COMMON
#define BG_CORE_KERNELS_PACKED_GEMM_COMMON
namespace bg::kernels {

constexpr int64_t kDepth = 256, kWidth = 384;  // the block of B: 384 KiB of floats
constexpr int64_t kGroup = 48;                 // rows of A: whole cache lines also where A is transposed
static_assert(kGroup % kTileRows == 0);
static_assert(kWidth % kTileCols == 0);

template <class T>
struct PackedOperands {
  const T *a, *b;
  int64_t lda, ldb;
  bool transpose_a, transpose_b;
};

// The kernels of one instruction set. scratch: kDepth * (kWidth + kGroup) elements.
template <class T>
using PackedGemm = void(const PackedOperands<T>&, int64_t m, int64_t n, int64_t k, T alpha, bool add, T* c, int64_t ldc,
                        T* scratch);
template <class T>
struct PackedGemmTable {
  PackedGemm<T>* run;
  bool fused_multiply_add;
};

}  // namespace bg::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {

// Rows [p, p + depth) of op(B), columns [j, j + width), as panels of tile width, one after the other.
template <class T>
HWY_NOINLINE void pack_b(const PackedOperands<T>& x, int64_t p, int64_t depth, int64_t j, int64_t width, int64_t panel,
                         T* to) {
  for (int64_t at = 0; at < width; at += panel, to += panel * depth) {
    const int64_t cols = std::min(panel, width - at);
    if (x.transpose_b) {
      transpose_into(x.b + (j + at) * x.ldb + p, x.ldb, cols, depth, to, panel);
    } else {
      copy_into(x.b + p * x.ldb + j + at, x.ldb, depth, cols, to, panel);
    }
  }
}

// Columns [p, p + depth) of op(A), rows [i, i + rows), as panels of (depth, kRows), one after the other.
template <class T>
void pack_a(const PackedOperands<T>& x, int64_t i, int64_t rows, int64_t p, int64_t depth, T* to) {
  for (int64_t at = 0; at < rows; at += kRows, to += kRows * depth) {
    const int64_t high = std::min<int64_t>(kRows, rows - at);
    if (x.transpose_a) {
      copy_into(x.a + p * x.lda + i + at, x.lda, depth, high, to, kRows);
    } else {
      transpose_into(x.a + (i + at) * x.lda + p, x.lda, high, depth, to, kRows);
    }
  }
}

template <class T>
void packed_gemm(const PackedOperands<T>& x, int64_t m, int64_t n, int64_t k, T alpha, bool add, T* c, int64_t ldc,
                 T* scratch) {
  const int64_t panel = 2 * hn::Lanes(TileTag<T>());
  T *right = scratch, *left = scratch + kDepth * kWidth;
  for (int64_t j = 0; j < n; j += kWidth) {
    const int64_t width = std::min(kWidth, n - j);
    for (int64_t p = 0; p < k; p += kDepth) {
      const int64_t depth = std::min(kDepth, k - p);
      pack_b(x, p, depth, j, width, panel, right);
      for (int64_t i = 0; i < m; i += kGroup) {
        const int64_t rows = std::min(kGroup, m - i), next = std::min(kGroup, m - i - rows);
        pack_a(x, i, rows, p, depth, left);
        const int64_t tiles = (rows + kRows - 1) / kRows * ((width + panel - 1) / panel);
        const T* after = x.transpose_a ? x.a + p * x.lda + i + rows : x.a + (i + rows) * x.lda + p;
        Prefetcher<T> fetch(after, x.lda, x.transpose_a ? depth : next, x.transpose_a ? next : depth,
                            next > 0 ? tiles : 0);
        for (int64_t r = 0; r < rows; r += kRows) {
          for (int64_t at = 0; at < width; at += panel) {
            fetch.step();
            exact_tile<Left::kColMajor>(std::min<int64_t>(kRows, rows - r), std::min(panel, width - at), depth,
                                        left + r * depth, int64_t{kRows}, right + at * depth, panel, alpha,
                                        c + (i + r) * ldc + j + at, ldc, add || p > 0);
          }
        }
      }
    }
  }
}

template <class T>
constexpr PackedGemmTable<T> packed_gemm_table = {&packed_gemm<T>, HWY_NATIVE_FMA == 1};
const PackedGemmTable<float>* packed_gemm_f32() { return &packed_gemm_table<float>; }
const PackedGemmTable<double>* packed_gemm_f64() { return &packed_gemm_table<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <hwy/aligned_allocator.h>

#include "core/error.h"

namespace bg::kernels {
namespace {

HWY_EXPORT(packed_gemm_f32);
HWY_EXPORT(packed_gemm_f64);

template <class T>
const PackedGemmTable<T>& kernels() {
  if constexpr (sizeof(T) == 4) {
    return *HWY_DYNAMIC_DISPATCH(packed_gemm_f32)();
  } else {
    return *HWY_DYNAMIC_DISPATCH(packed_gemm_f64)();
  }
}

}  // namespace

bool packed_gemm_available() { return kernels<float>().fused_multiply_add; }

template <class T>
void packed_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                 const T* b, int64_t ldb, bool add, T* c, int64_t ldc) {
  // Kept by each thread: of fixed size, and large enough that fresh pages would cost more than a small product.
  thread_local const auto scratch = hwy::AllocateAligned<T>(kDepth * (kWidth + kGroup));
  BG_CHECK(scratch, "gemm", "no memory for scratch");
  kernels<T>().run({a, b, lda, ldb, transpose_a, transpose_b}, m, n, k, alpha, add, c, ldc, scratch.get());
}

template void packed_gemm<float>(bool, bool, int64_t, int64_t, int64_t, float, const float*, int64_t, const float*,
                                 int64_t, bool, float*, int64_t);
template void packed_gemm<double>(bool, bool, int64_t, int64_t, int64_t, double, const double*, int64_t, const double*,
                                  int64_t, bool, double*, int64_t);

}  // namespace bg::kernels
#endif  // HWY_ONCE
