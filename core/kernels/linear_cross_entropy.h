// The output projection of a language model and its cross-entropy in one: logits are made, used and forgotten in chunks
// of rows, so that (rows, classes) numbers are never in memory together.
#pragma once

#include <cstdint>

namespace bg::kernels {

/// loss[r] = log sum_c exp(l[r, c]) - l[r, targets[r]] with logits l = h w^T, for h (rows, d) and w (classes, d); 0
/// where the target is ignore_index. Every other target must be in [0, classes): the caller has checked.
///
/// With dloss as the gradient of every loss[r]: dh (rows, d) and dw (classes, d), overwritten; either may be null. A
/// row whose logits are all -infinity has loss infinity and gradient 0.
template <class T>
void linear_cross_entropy(const T* h, const T* w, const int64_t* targets, int64_t ignore_index, T dloss, T* loss, T* dh,
                          T* dw, int64_t rows, int64_t d, int64_t classes);

}  // namespace bg::kernels
