// A bias row added to every row, and its gradient: sums over rows.
#pragma once

#include <cstdint>

namespace bg::kernels {

/// y[r, j] = x[r, j] + bias[j], over (rows, d). y may be x.
template <class T>
void add_bias(const T* x, const T* bias, T* y, int64_t rows, int64_t d);

/// out[j] = sum over r of x[r, j], out is overwritten. Chunks of rows that depend on (rows, d) alone.
template <class T>
void column_sums(const T* x, T* out, int64_t rows, int64_t d);

}  // namespace bg::kernels
