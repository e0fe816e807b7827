// Large matrix products on the calling thread, with operands repacked for register tiles; behind core/gemm.h.
#pragma once

#include <cstdint>

namespace bg::kernels {

/// Whether the machine multiplies and adds in one instruction; without that the BLAS library is the faster one.
bool packed_gemm_available();

/// C (m, n) = alpha op(A) op(B) + C, or = alpha op(A) op(B) unless `add`; row-major; k > 0. Arguments as bg::gemm.
template <class T>
void packed_gemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, T alpha, const T* a, int64_t lda,
                 const T* b, int64_t ldb, bool add, T* c, int64_t ldc);

}  // namespace bg::kernels
