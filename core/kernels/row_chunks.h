// Sums over the rows of a (rows, d) array by many threads, with bits that do not depend on how many: rows are cut into
// chunks by (rows, d) alone, each chunk has its own partial sums, and these are added in order. Only a few rows are
// added up in the array's own type, the rest in double, so that no number of rows costs digits.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/parallel.h"

namespace bg::kernels {

/// Rows per task where rows are independent: some 16,000 elements.
inline int64_t row_grain(int64_t d) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, d)); }

/// Calls f(begin, end, part) for runs of a few rows, part being `width` zeroed sums, then out[j] = the sum of the j-th
/// of all parts. At most 64 chunks, so that the partial sums stay small beside the array.
template <class T, class F>
void sum_over_rows(int64_t rows, int64_t d, int64_t width, T* out, F&& f) {
  constexpr int64_t kRun = 256;
  const int64_t grain = chunk_size(std::max(row_grain(d), (rows + 63) / 64)), chunks = (rows + grain - 1) / grain;
  std::vector<T> parts(static_cast<size_t>(chunks * width));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
    T* part = &parts[begin / grain * width];
    if (end - begin <= kRun) return f(begin, end, part);
    std::vector<double> sums(static_cast<size_t>(width));
    for (int64_t r = begin; r < end; r += kRun) {
      std::fill_n(part, width, T(0));
      f(r, std::min(r + kRun, end), part);
      for (int64_t j = 0; j < width; ++j) sums[j] += part[j];
    }
    for (int64_t j = 0; j < width; ++j) part[j] = static_cast<T>(sums[j]);
  });
  constexpr int64_t kColumns = 1024;
  parallel_for(width, kColumns, [&](int64_t begin, int64_t end) {
    double sums[kColumns] = {};
    for (int64_t c = 0; c < chunks; ++c)
      for (int64_t j = begin; j < end; ++j) sums[j - begin] += parts[c * width + j];
    for (int64_t j = begin; j < end; ++j) out[j] = static_cast<T>(sums[j - begin]);
  });
}

}  // namespace bg::kernels
