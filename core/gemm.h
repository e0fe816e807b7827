// Matrix products: the only door to the BLAS library. Row-major, raw pointers, float and double.
//
// Large products run on the packed kernel of core/kernels, others on OpenBLAS, which is held to one thread for the
// whole process [R28]. Large ones are cut into tiles of C, and a long k into parts, that run over core/parallel.h.
// Which way a product goes and where it is cut depend on the shape alone, so its bits do not depend on the number of
// threads.
#pragma once

#include <cstdint>
#include <string>

#include "core/tensor.h"

namespace bg {

/// Whether an operand is used as stored or transposed.
enum class Trans { no, yes };

/// Of an (m, k) x (k, n) product, as a double: three sizes that BLAS takes may overflow an integer.
inline double multiply_adds(int64_t m, int64_t n, int64_t k) {
  return static_cast<double>(m) * static_cast<double>(n) * static_cast<double>(k);
}

/// C = alpha op(A) op(B) + beta C, with op(A) (m, k), op(B) (k, n), C (m, n), row-major.
///
/// lda is the row stride of A as stored: (m, k) for Trans::no, (k, m) for Trans::yes; likewise ldb, ldc. beta = 0
/// overwrites C whatever it held (NaN too); k = 0 leaves beta C. C must not overlap A or B. Runs on all threads when
/// the product is large enough to pay for it. Throws Error on a negative size, a stride too small for its rows, or a
/// number beyond the BLAS library's integers.
template <class T>
void gemm(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
          int64_t ldb, T beta, T* c, int64_t ldc);

/// C = op(A) op(B) + bias, with the row `bias` (n) added to every row: no pass of its own over C. Otherwise as gemm.
template <class T>
void gemm_bias(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, const T* a, int64_t lda, const T* b, int64_t ldb,
               const T* bias, T* c, int64_t ldc);

/// op(B) (k, n), as the right operand of several products: copied once into the panels that they run on. b must outlive
/// it, unchanged.
template <class T>
class PackedRight {
 public:
  PackedRight(Trans tb, int64_t k, int64_t n, const T* b, int64_t ldb);

  const Trans trans;
  const int64_t k, n;
  const T* const data;
  const int64_t stride;
  const Tensor panels;  ///< undefined where products do not run on panels
};

/// C = alpha op(A) op(B) + beta C, as gemm above; its bits are those of gemm.
template <class T>
void gemm(Trans ta, int64_t m, T alpha, const T* a, int64_t lda, const PackedRight<T>& b, T beta, T* c, int64_t ldc);

/// The same product on the calling thread alone, for kernels that parallelise themselves. Its bits may differ
/// from gemm's (other tiles), but are always the same for the same arguments.
template <class T>
void gemm_serial(Trans ta, Trans tb, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda, const T* b,
                 int64_t ldb, T beta, T* c, int64_t ldc);

/// `batch` products; operand i starts at its pointer + i * stride. A stride of 0 shares A or B between all products;
/// the C of different products must not overlap.
template <class T>
void gemm_batched(Trans ta, Trans tb, int64_t batch, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                  int64_t stride_a, const T* b, int64_t ldb, int64_t stride_b, T beta, T* c, int64_t ldc,
                  int64_t stride_c);

/// The BLAS library, its version and the processor type it runs for, such as "OpenBLAS 0.3.21 (SkylakeX)".
std::string blas_description();

/// Threads the BLAS library itself uses: always 1.
int blas_threads();

}  // namespace bg
