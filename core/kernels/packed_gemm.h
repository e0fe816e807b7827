// Large matrix products on the calling thread, with operands repacked for register tiles; behind core/gemm.h.
#pragma once

#include <cstdint>

namespace bg::kernels {

/// Whether the machine multiplies and adds in one instruction; without that the BLAS library is the faster one.
bool packed_gemm_available();

/// The right operand op(B) (k, n), row-major as stored; or a part of one that has been packed as a whole.
template <class T>
struct RightOperand {
  const T* data;
  int64_t stride;
  bool transposed;
  const T* packed = nullptr;  ///< from pack_right
  int64_t packed_cols = 0;    ///< columns of the whole packed matrix, rounded up to kPackedCols
  int64_t row = 0, col = 0;   ///< where this part begins in it: multiples of kPackedDepth and kPackedCols
};

constexpr int64_t kPackedCols = 32;    ///< panels' columns divide this
constexpr int64_t kPackedDepth = 256;  ///< rows of B that are packed together

/// Elements of a packed (k, n).
inline int64_t packed_elements(int64_t k, int64_t n) { return k * ((n + kPackedCols - 1) / kPackedCols * kPackedCols); }

/// Packs columns [first, end) of op(B), `first` a multiple of kPackedCols, into their place in `to`, which holds
/// packed_elements(k, n).
template <class T>
void pack_right(const RightOperand<T>& b, int64_t k, int64_t n, int64_t first, int64_t end, T* to);

/// C (m, n) = alpha op(A) op(B) + start; row-major; k > 0. `start`: null, or rows at start_stride (0: the same row for
/// all); it may be C itself. A is (m, k) as stored, or (k, m) when transposed.
template <class T>
void packed_gemm(bool transpose_a, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                 const RightOperand<T>& b, const T* start, int64_t start_stride, T* c, int64_t ldc);

/// Rows of A that one call holds in the cache: calls of more rows, or of a multiple of it less than a few, lose speed.
template <class T>
constexpr int64_t kPackedRows = 1104 / static_cast<int64_t>(sizeof(T));

}  // namespace bg::kernels
