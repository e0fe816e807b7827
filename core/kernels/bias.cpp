// Bias rows; plain loops, which the compiler vectorises.
#include "core/kernels/bias.h"

#include "core/kernels/row_chunks.h"

namespace bg::kernels {

template <class T>
void add_bias(const T* x, const T* bias, T* y, int64_t rows, int64_t d) {
  parallel_for(rows, row_grain(d), [=](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = x[r * d + j] + bias[j];
  });
}

template <class T>
void column_sums(const T* x, T* out, int64_t rows, int64_t d) {
  sum_over_rows(rows, d, d, out, [=](int64_t begin, int64_t end, T* part) {
    for (int64_t r = begin; r < end; ++r)
      for (int64_t j = 0; j < d; ++j) part[j] += x[r * d + j];
  });
}

template void add_bias(const float*, const float*, float*, int64_t, int64_t);
template void add_bias(const double*, const double*, double*, int64_t, int64_t);
template void column_sums(const float*, float*, int64_t, int64_t);
template void column_sums(const double*, double*, int64_t, int64_t);

}  // namespace bg::kernels
