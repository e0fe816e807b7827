// Matrix products in register tiles, compiled once per instruction set: included only by kernels, inside Highway's
// foreach_target scheme (hence the toggling guard).
//
// A tile of C, kRows x kVecs vectors, stays in registers over the whole inner dimension. Each step loads kVecs vectors
// of a row of B and multiplies them with one number of each row of A. Operands are read where they lie; what must be
// turned to fit is turned once by the caller (transpose_into, copy_into) and used many times.
#if defined(BG_CORE_KERNELS_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BG_CORE_KERNELS_TILE_INL_H_
#undef BG_CORE_KERNELS_TILE_INL_H_
#else
#define BG_CORE_KERNELS_TILE_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cstdint>

#ifndef BG_CORE_KERNELS_TILE_COMMON
#define BG_CORE_KERNELS_TILE_COMMON
namespace bg::kernels {

// Bounds over all instruction sets, for buffers that tiles read or write beyond their edge: tile rows divide kTileRows,
// tile columns divide kTileCols, and so do vectors.
constexpr int64_t kTileRows = 12, kTileCols = 32;

inline int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

}  // namespace bg::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class T>
using TileTag = hn::CappedTag<T, 64 / sizeof(T)>;

// With 32 registers: 24 sums, two vectors of B, one number of A. With 16: 12, two and one.
#if HWY_ARCH_ARM || (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
constexpr int kRows = 12;
#else
constexpr int kRows = 6;
#endif

// The left operand, (m, k). kRowMajor: a(i, p) = data[i * stride + p]; kColMajor: data[p * stride + i].
enum class Left { kRowMajor, kColMajor };

// The right operand, (k, n): b(p, j) = data[p * row + j]. Rows must be readable up to a multiple of kTileCols.

// What a product is added to: nothing, or rows at a stride - those of C itself, or one bias row at stride 0.
template <class T>
struct Start {
  const T* row = nullptr;
  int64_t stride = 0;

  Start from(int64_t i, int64_t j) const { return row ? Start{row + i * stride + j, stride} : *this; }
};

// c (R x V vectors) = alpha a b + start. a: R rows.
template <int R, int V, Left kLeft, class T>
HWY_NOINLINE void tile(int64_t k, const T* HWY_RESTRICT a, int64_t lda, const T* HWY_RESTRICT b, int64_t ldb, T alpha,
                       T* c, int64_t ldc, Start<T> start) {
  const TileTag<T> d;
  const int64_t lanes = hn::Lanes(d);
  using Vec = hn::Vec<decltype(d)>;
  Vec sum[R][V];
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) sum[r][v] = hn::Zero(d);
  }
  // Rows are reached from every third by one or two strides, which x86 can address without a register for each row.
  const T* group[(R + 2) / 3];
#pragma GCC unroll 8
  for (int g = 0; g < (R + 2) / 3; ++g) group[g] = a + (kLeft == Left::kRowMajor ? 3 * g * lda : 3 * g);
  for (int64_t p = 0; p < k; ++p) {
    Vec right[V];
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) right[v] = hn::LoadU(d, b + v * lanes);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Vec left = hn::Set(d, group[r / 3][kLeft == Left::kRowMajor ? r % 3 * lda : r % 3]);
#pragma GCC unroll 4
      for (int v = 0; v < V; ++v) sum[r][v] = hn::MulAdd(left, right[v], sum[r][v]);
    }
    b += ldb;
#pragma GCC unroll 8
    for (int g = 0; g < (R + 2) / 3; ++g) group[g] += kLeft == Left::kRowMajor ? 1 : lda;
  }
  const Vec factor = hn::Set(d, alpha);
#pragma GCC unroll 16
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int v = 0; v < V; ++v) {
      T* to = c + r * ldc + v * lanes;
      const T* from = start.row + r * start.stride + v * lanes;
      hn::StoreU(start.row ? hn::MulAdd(factor, sum[r][v], hn::LoadU(d, from)) : hn::Mul(factor, sum[r][v]), d, to);
    }
  }
}

// The smallest tile that covers the given rows and columns; it may write beyond them.
template <Left kLeft, class T>
HWY_INLINE void covering_tile(int64_t rows, int64_t cols, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
                              T alpha, T* c, int64_t ldc, Start<T> start) {
  constexpr int kFew = kRows / 3;
  const bool narrow = cols <= static_cast<int64_t>(hn::Lanes(TileTag<T>()));
  if (rows > kFew) {
    narrow ? tile<kRows, 1, kLeft>(k, a, lda, b, ldb, alpha, c, ldc, start)
           : tile<kRows, 2, kLeft>(k, a, lda, b, ldb, alpha, c, ldc, start);
  } else if (rows > 1) {
    narrow ? tile<kFew, 1, kLeft>(k, a, lda, b, ldb, alpha, c, ldc, start)
           : tile<kFew, 2, kLeft>(k, a, lda, b, ldb, alpha, c, ldc, start);
  } else {
    narrow ? tile<1, 1, kLeft>(k, a, lda, b, ldb, alpha, c, ldc, start)
           : tile<1, 2, kLeft>(k, a, lda, b, ldb, alpha, c, ldc, start);
  }
}

// The tile at an edge: writes the given rows and columns only.
template <Left kLeft, class T>
HWY_INLINE void exact_tile(int64_t rows, int64_t cols, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
                           T alpha, T* c, int64_t ldc, Start<T> start) {
  const int64_t width = 2 * hn::Lanes(TileTag<T>());
  if (rows == kRows && cols == width) return tile<kRows, 2, kLeft>(k, a, lda, b, ldb, alpha, c, ldc, start);
  HWY_ALIGN T whole[kTileRows * kTileCols];
  covering_tile<kLeft>(rows, cols, k, a, lda, b, ldb, alpha, whole, width, {});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t x = 0; x < cols; ++x)
      c[r * ldc + x] = (start.row ? start.row[r * start.stride + x] : T(0)) + whole[r * width + x];
}

// The part [begin, end) of the inner dimension that a tile needs; empty: none.
struct Range {
  int64_t begin, end;
};

// What may be overwritten around C: nothing, or its rows and columns up to multiples of kTileRows and kTileCols.
enum class Edge { kExact, kPadded };

// C (m, n) = alpha A B, or += when `add`. range(i, j, rows) says which part of the inner dimension the tile at (i, j)
// with `rows` rows needs; in a padded C, tiles that need none are left alone. A's rows must be readable up to a
// multiple of kTileRows.
template <Left kLeft, Edge kEdge, class T, class F>
HWY_INLINE void product(int64_t m, int64_t n, const T* a, int64_t lda, const T* b, int64_t ldb, T alpha, T* c,
                        int64_t ldc, bool add, F&& range) {
  const TileTag<T> d;
  const int64_t cols_per_tile = 2 * hn::Lanes(d);
  for (int64_t j = 0; j < n; j += cols_per_tile) {
    for (int64_t i = 0; i < m; i += kRows) {
      const int64_t rows = std::min<int64_t>(kRows, m - i), cols = std::min(cols_per_tile, n - j);
      const Range p = range(i, j, rows);
      const int64_t k = p.end - p.begin;
      if (k <= 0 && (add || kEdge == Edge::kPadded)) continue;
      const T* left = kLeft == Left::kRowMajor ? a + i * lda + p.begin : a + p.begin * lda + i;
      const T* right = b + p.begin * ldb + j;
      T* to = c + i * ldc + j;
      const Start<T> start = add ? Start<T>{to, ldc} : Start<T>{};
      if constexpr (kEdge == Edge::kPadded) {
        covering_tile<kLeft>(rows, cols, k, left, lda, right, ldb, alpha, to, ldc, start);
      } else {
        exact_tile<kLeft>(rows, cols, k, left, lda, right, ldb, alpha, to, ldc, start);
      }
    }
  }
}

// to (rows, width) = from (rows, cols) and zeros; `to` has rows of `width` elements.
template <class T>
void copy_into(const T* from, int64_t stride, int64_t rows, int64_t cols, T* to, int64_t width) {
  const TileTag<T> d;
  const hn::CappedTag<T, 32 / sizeof(T)> half;
  const hn::CappedTag<T, 16 / sizeof(T)> small;
  const int64_t lanes = hn::Lanes(d), half_lanes = hn::Lanes(half), small_lanes = hn::Lanes(small);
  for (int64_t r = 0; r < rows; ++r, from += stride, to += width) {
    int64_t x = 0;
    for (; x + lanes <= cols; x += lanes) hn::StoreU(hn::LoadU(d, from + x), d, to + x);
    for (; x + half_lanes <= cols; x += half_lanes) hn::StoreU(hn::LoadU(half, from + x), half, to + x);
    for (; x + small_lanes <= cols; x += small_lanes) hn::StoreU(hn::LoadU(small, from + x), small, to + x);
    for (; x < cols; ++x) to[x] = from[x];
    for (; x < width; ++x) to[x] = T(0);
  }
}

// to (cols, width) = from (rows, cols) transposed, then zeros; `to` has rows of `width` elements.
template <class T>
void transpose_into(const T* from, int64_t stride, int64_t rows, int64_t cols, T* to, int64_t width) {
  int64_t r = 0;
#if HWY_TARGET != HWY_SCALAR
  // Blocks of one 128-bit vector squared.
  const hn::FixedTag<T, 16 / sizeof(T)> d;
  constexpr int64_t kSide = 16 / sizeof(T);
  for (; r + kSide <= rows; r += kSide) {
    const T* row = from + r * stride;
    int64_t x = 0;
    for (; x + kSide <= cols; x += kSide) {
      T* out = to + x * width + r;
      if constexpr (kSide == 4) {
        const auto r0 = hn::LoadU(d, row + x), r1 = hn::LoadU(d, row + stride + x);
        const auto r2 = hn::LoadU(d, row + 2 * stride + x), r3 = hn::LoadU(d, row + 3 * stride + x);
        const auto low02 = hn::InterleaveLower(d, r0, r2), high02 = hn::InterleaveUpper(d, r0, r2);
        const auto low13 = hn::InterleaveLower(d, r1, r3), high13 = hn::InterleaveUpper(d, r1, r3);
        hn::StoreU(hn::InterleaveLower(d, low02, low13), d, out);
        hn::StoreU(hn::InterleaveUpper(d, low02, low13), d, out + width);
        hn::StoreU(hn::InterleaveLower(d, high02, high13), d, out + 2 * width);
        hn::StoreU(hn::InterleaveUpper(d, high02, high13), d, out + 3 * width);
      } else {
        const auto r0 = hn::LoadU(d, row + x), r1 = hn::LoadU(d, row + stride + x);
        hn::StoreU(hn::InterleaveLower(d, r0, r1), d, out);
        hn::StoreU(hn::InterleaveUpper(d, r0, r1), d, out + width);
      }
    }
    for (; x < cols; ++x)
      for (int64_t s = 0; s < kSide; ++s) to[x * width + r + s] = row[s * stride + x];
  }
#endif
  for (; r < rows; ++r)
    for (int64_t x = 0; x < cols; ++x) to[x * width + r] = from[r * stride + x];
  for (int64_t x = 0; x < cols && rows < width; ++x) std::fill(to + x * width + rows, to + (x + 1) * width, T(0));
}

// Fetches a (rows, cols) block of memory into the caches, a few lines at each step of other work that takes `steps`.
template <class T>
class Prefetcher {
 public:
  Prefetcher() = default;
  Prefetcher(const T* from, int64_t stride, int64_t rows, int64_t cols, int64_t steps)
      : row_(from), stride_(stride), rows_(rows), cols_(cols) {
    per_step_ = steps > 0 ? (rows * ((cols + kLine - 1) / kLine) + steps - 1) / steps : 0;
  }
  void step() {
    for (int64_t i = 0; i < per_step_ && rows_ > 0; ++i) {
      hwy::Prefetch(row_ + col_);
      col_ += kLine;
      if (col_ >= cols_) col_ = 0, row_ += stride_, --rows_;
    }
  }

 private:
  static constexpr int64_t kLine = 64 / sizeof(T);
  const T* row_ = nullptr;
  int64_t stride_ = 0, rows_ = 0, cols_ = 0, col_ = 0, per_step_ = 0;
};

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#endif  // BG_CORE_KERNELS_TILE_INL_H_
