// Reading and adding by index along one dimension, and the index of the largest or smallest element. Indices are i32 or
// i64, count from 0, and are checked: one that is out of range is an error that names its position and value.
#pragma once

#include <optional>

#include "core/tensor.h"

namespace bg::num {

/// The indices as contiguous i64. Throws in the name of `op`, with position and value, when one is outside [0, limit)
/// and is not `ignored`; `what` says what one of them is, such as "target".
Tensor checked_indices(std::string_view op, std::string_view what, const Tensor& index, int64_t limit,
                       std::optional<int64_t> ignored = {});

/// y[o, k, i] = x[o, index, i], where o and i stand for the dimensions before and after `dim`. The index is
/// index[o, k, i] when it has x's rank (and x's sizes but for dim), or index[k] for all o and i when it has rank 1.
/// x is f32 or f64.
Tensor gather(const Tensor& x, int dim, const Tensor& index);

/// The transpose of gather: zeros of `shape`, with every x[o, k, i] added at [o, index, i], in the order of k: the same
/// bits on every run and for any number of threads, however often an index repeats. Sums of many are taken in double.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Shape& shape);

/// Index (i64, dim kept with size 1) of the largest (smallest) element along a dimension; of equal ones the first. A
/// NaN counts as larger (smaller) than everything. The dimension must not be empty.
Tensor argmax(const Tensor& x, int dim);
Tensor argmin(const Tensor& x, int dim);

/// log(sum(exp(x))) along a dimension (kept with size 1), finite whenever the largest x is; -infinity where every x is.
/// The sum is taken in double, in order.
Tensor logsumexp(const Tensor& x, int dim);

}  // namespace bg::num
