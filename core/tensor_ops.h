// Arithmetic on whole tensors, without gradients: what ops and optimizers are made of. Inputs may have any strides;
// results are new and contiguous.
#pragma once

#include <vector>

#include "core/tensor.h"

namespace bg::num {

/// Element-wise with broadcasting; both of one floating dtype.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor scale(const Tensor& a, double factor);

/// dst += src, same shape and dtype, in place. The source may share memory with dst: it is read as it was before.
void add_into(Tensor& dst, const Tensor& src);

/// Sum over dimensions (all when empty), accumulated in double over fixed chunks: the same bits for any thread count.
Tensor sum(const Tensor& x, std::vector<int> dims = {}, bool keepdim = false);

/// Sums a broadcast tensor back to `shape`: the gradient of broadcasting.
Tensor reduce_to(const Tensor& x, const Shape& shape);

/// (..., m, k) x (..., k, n) -> (..., m, n); leading dimensions broadcast. Transposed views are multiplied in place.
Tensor matmul(const Tensor& a, const Tensor& b);

/// Matrices a (m, k), b (k, n) and a row `bias` (n): a b + bias in one pass.
Tensor matmul_bias(const Tensor& a, const Tensor& b, const Tensor& bias);

/// Sum of a * b over all elements, in double (tests, clipping).
double dot(const Tensor& a, const Tensor& b);
double max_abs(const Tensor& x);

/// Row-major index of the first NaN or infinity, or -1.
int64_t first_non_finite(const Tensor& x);

/// Throws in the name of `op` unless a and b have the same floating dtype.
void check_same_float(std::string_view op, const Tensor& a, const Tensor& b);

}  // namespace bg::num
