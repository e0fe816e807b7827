// Packed matrix products. For each kPackedDepth rows of B, blocks of its columns lie in panels as wide as a tile, and
// all rows of A in panels as high as one, copied when a block first needs them. A panel of A stays in the first cache;
// the panels of A and a block of B stay in the second; tiles of C are read and written once per kPackedDepth. While one
// group of rows is multiplied, the next one and the next tile of C are fetched from memory.
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

// Columns of a block of B: 384 KiB of any type.
template <class T>
constexpr int64_t kBlockCols = 1536 / static_cast<int64_t>(sizeof(T));
constexpr int64_t kGroup = 48;  // rows of A that are packed together: whole cache lines also where A is transposed
static_assert(kGroup % kTileRows == 0 && kPackedCols % kTileCols == 0);

// A panel's elements: with rows a power of two apart, its lines would share cache sets; a transposed one is written in
// whole vectors.
constexpr int64_t panel_elements(int64_t rows) { return rows * (kPackedDepth + kTileCols / 2); }

// The scratch of a thread: a block of B, then the panels of A.
template <class T>
constexpr int64_t kScratch = kPackedDepth* kBlockCols<T> + panel_elements(kPackedRows<T> + kGroup);

template <class T>
struct PackedProduct {
  bool transpose_a;
  int64_t m, n, k;
  T alpha;
  const T* a;
  int64_t lda;
  const RightOperand<T>& b;
  const T* start;
  int64_t start_stride;
  T* c;
  int64_t ldc;
};

// The kernels of one instruction set.
template <class T>
struct PackedGemmTable {
  void (*run)(const PackedProduct<T>& x, T* scratch);
  void (*pack_right)(const RightOperand<T>& b, int64_t k, int64_t n, int64_t first, int64_t end, T* to);
  bool fused_multiply_add;
};

}  // namespace bg::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {

// Rows [p, p + depth) of op(B), columns [j, j + width), as panels of tile width, one after the other.
template <class T>
HWY_NOINLINE void pack_block(const RightOperand<T>& b, int64_t p, int64_t depth, int64_t j, int64_t width, T* to) {
  const int64_t panel = 2 * hn::Lanes(TileTag<T>());
  for (int64_t at = 0; at < width; at += panel, to += panel * depth) {
    const int64_t cols = std::min(panel, width - at);
    if (b.transposed) {
      transpose_into(b.data + (j + at) * b.stride + p, b.stride, cols, depth, to, panel);
    } else {
      copy_into(b.data + p * b.stride + j + at, b.stride, depth, cols, to, panel);
    }
  }
}

template <class T>
void pack_right(const RightOperand<T>& b, int64_t k, int64_t n, int64_t first, int64_t end, T* to) {
  const int64_t cols = round_up(n, kPackedCols);
  for (int64_t p = 0; p < k; p += kPackedDepth) {
    const int64_t depth = std::min(kPackedDepth, k - p);
    pack_block(b, p, depth, first, std::min(end, n) - first, to + p * cols + first * depth);
  }
}

// Rows of A of one product, in panels.
template <class T>
class LeftPanels {
 public:
  LeftPanels(const PackedProduct<T>& x, T* memory, bool keep) : x_(x), memory_(memory), keep_(keep) {}

  /// Panels of columns [p, p + depth) come next.
  void go_to(int64_t p, int64_t depth) { p_ = p, depth_ = depth; }

  void pack(int64_t i, int64_t rows) const {
    for (int64_t r = 0; r < rows; r += kRows) {
      const int64_t high = std::min<int64_t>(kRows, rows - r);
      T* to = memory_ + panel_elements(keep_ ? i + r : r);
      if (x_.transpose_a) {
        copy_into(x_.a + p_ * x_.lda + i + r, x_.lda, depth_, high, to, kRows);
      } else {
        copy_into(x_.a + (i + r) * x_.lda + p_, x_.lda, high, depth_, to, row_stride());
        std::fill(to + high * row_stride(), to + kRows * row_stride(), T(0));
      }
    }
  }
  /// Fetches the rows from i on over `steps` steps.
  Prefetcher<T> fetch(int64_t i, int64_t steps) const {
    const int64_t rows = std::min(kGroup, x_.m - i);
    if (rows <= 0) return {};
    if (x_.transpose_a) return {x_.a + p_ * x_.lda + i, x_.lda, depth_, rows, steps};
    return {x_.a + i * x_.lda + p_, x_.lda, rows, depth_, steps};
  }
  /// Row r of the group that begins at row i.
  const T* at(int64_t i, int64_t r) const { return memory_ + panel_elements(keep_ ? i + r : r); }
  int64_t stride() const { return x_.transpose_a ? int64_t{kRows} : row_stride(); }

 private:
  int64_t row_stride() const { return round_up(depth_, kTileCols / 2) + kTileCols / 2; }

  const PackedProduct<T>& x_;
  T* memory_;
  bool keep_;  // all groups stay, for further blocks of columns
  int64_t p_ = 0, depth_ = 0;
};

template <Left kLeft, class T>
void run_as(const PackedProduct<T>& x, T* scratch) {
  const int64_t panel = 2 * hn::Lanes(TileTag<T>());
  LeftPanels<T> left(x, scratch + kPackedDepth * kBlockCols<T>, x.n > kBlockCols<T>);
  for (int64_t p = 0; p < x.k; p += kPackedDepth) {
    const int64_t depth = std::min(kPackedDepth, x.k - p);
    const Start<T> start = p > 0 ? Start<T>{x.c, x.ldc} : Start<T>{x.start, x.start_stride};
    left.go_to(p, depth);
    for (int64_t j = 0; j < x.n; j += kBlockCols<T>) {
      const int64_t width = std::min(kBlockCols<T>, x.n - j);
      const T* right = x.b.packed + (x.b.row + p) * x.b.packed_cols + (x.b.col + j) * depth;
      if (!x.b.packed) pack_block(x.b, p, depth, j, width, scratch), right = scratch;
      for (int64_t i = 0; i < x.m; i += kGroup) {
        const int64_t rows = std::min(kGroup, x.m - i);
        const int64_t tiles = (rows + kRows - 1) / kRows * ((width + panel - 1) / panel);
        if (j == 0) left.pack(i, rows);
        Prefetcher<T> fetch_left = j == 0 ? left.fetch(i + kGroup, tiles) : Prefetcher<T>();
        for (int64_t r = 0; r < rows; r += kRows) {
          const int64_t high = std::min<int64_t>(kRows, rows - r);
          for (int64_t at = 0; at < width; at += panel) {
            T* c = x.c + (i + r) * x.ldc + j + at;
            fetch_left.step();
            for (int64_t e = 0; e < high; ++e) hwy::Prefetch(c + e * x.ldc), hwy::Prefetch(c + e * x.ldc + panel / 2);
            exact_tile<kLeft>(high, std::min(panel, width - at), depth, left.at(i, r), left.stride(),
                              right + at * depth, panel, x.alpha, c, x.ldc, start.from(i + r, j + at));
          }
        }
      }
    }
  }
}

template <class T>
void run(const PackedProduct<T>& x, T* scratch) {
  x.transpose_a ? run_as<Left::kColMajor>(x, scratch) : run_as<Left::kRowMajor>(x, scratch);
}

template <class T>
constexpr PackedGemmTable<T> packed_gemm_table = {&run<T>, &pack_right<T>, HWY_NATIVE_FMA == 1};
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
void pack_right(const RightOperand<T>& b, int64_t k, int64_t n, int64_t first, int64_t end, T* to) {
  kernels<T>().pack_right(b, k, n, first, end, to);
}

template <class T>
void packed_gemm(bool transpose_a, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                 const RightOperand<T>& b, const T* start, int64_t start_stride, T* c, int64_t ldc) {
  // Kept by each thread: of fixed size, and large enough that fresh pages would cost more than a small product.
  thread_local const auto scratch = hwy::AllocateAligned<T>(kScratch<T>);
  BG_CHECK(scratch, "gemm", "no memory for scratch");
  for (int64_t i = 0; i < m; i += kPackedRows<T>) {
    const int64_t rows = std::min(kPackedRows<T>, m - i);
    const T* at = start ? start + i * start_stride : nullptr;
    kernels<T>().run(
        {transpose_a, rows, n, k, alpha, transpose_a ? a + i : a + i * lda, lda, b, at, start_stride, c + i * ldc, ldc},
        scratch.get());
  }
}

#define BG_PACKED_GEMM(T)                                                                                     \
  template void pack_right<T>(const RightOperand<T>&, int64_t, int64_t, int64_t, int64_t, T*);                \
  template void packed_gemm<T>(bool, int64_t, int64_t, int64_t, T, const T*, int64_t, const RightOperand<T>&, \
                               const T*, int64_t, T*, int64_t);
BG_PACKED_GEMM(float)
BG_PACKED_GEMM(double)
#undef BG_PACKED_GEMM

}  // namespace bg::kernels
#endif  // HWY_ONCE
