// Sums over the rows of a (rows, d) array by many threads, with bits that do not depend on how many: rows are cut into
// chunks by (rows, d) alone, each chunk has its own partial sums, and these are added in order.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/parallel.h"

namespace bg::kernels {

/// Rows per task where rows are independent: some 16,000 elements.
inline int64_t row_grain(int64_t d) { return std::max<int64_t>(1, 16384 / std::max<int64_t>(1, d)); }

/// Calls f(begin, end, part) for chunks of rows, part being `width` zeroed sums, then out[j] = the sum of the parts'
/// j-th. At most 64 chunks, so that the partial sums stay small beside the array.
template <class T, class F>
void sum_over_rows(int64_t rows, int64_t d, int64_t width, T* out, F&& f) {
  const int64_t grain = chunk_size(std::max(row_grain(d), (rows + 63) / 64)), chunks = (rows + grain - 1) / grain;
  std::vector<T> parts(static_cast<size_t>(chunks * width));
  parallel_for(rows, grain, [&](int64_t begin, int64_t end) { f(begin, end, &parts[begin / grain * width]); });
  parallel_for(width, 1024, [&](int64_t begin, int64_t end) {
    std::fill(out + begin, out + end, T(0));
    for (int64_t c = 0; c < chunks; ++c)
      for (int64_t j = begin; j < end; ++j) out[j] += parts[c * width + j];
  });
}

}  // namespace bg::kernels
