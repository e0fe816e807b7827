// Dropout in one pass: the mask comes from the counter (core/rng.h: mask_scale, mask_keep) and is never stored.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace bg::kernels {

/// y[i] = x[i] / (1 - p) where mask_keep(key, i, p), else 0 (also where x is not finite). The backward is the same call
/// on the cotangent. y may be x. Throws when p is not in [0, 1].
template <class T>
void dropout(const T* x, MaskKey key, double p, T* y, int64_t n);

}  // namespace bg::kernels
