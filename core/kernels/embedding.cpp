// Embedding rows. The backward sorts positions by id, so that each row of the table has one owner: no two threads add
// to the same place, and the order of the sum is fixed.
#include "core/kernels/embedding.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "core/kernels/row_chunks.h"

namespace bg::kernels {
namespace {

void check_ids(const int64_t* ids, int64_t n, int64_t vocab) {
  for (int64_t i = 0; i < n; ++i)
    BG_CHECK(ids[i] >= 0 && ids[i] < vocab, "embedding", str("id ", i, " is out of range"), str(ids[i]),
             str("0 to ", vocab - 1));
}

// Positions of ids in the order of (id, position), and where each run of equal ids begins (ending with n).
struct Segments {
  std::vector<int64_t> positions, starts;
};

Segments sorted_segments(const int64_t* ids, int64_t n) {
  Segments s;
  s.positions.resize(n);
  for (int64_t i = 0; i < n; ++i) s.positions[i] = i;
  std::sort(s.positions.begin(), s.positions.end(),
            [=](int64_t a, int64_t b) { return ids[a] != ids[b] ? ids[a] < ids[b] : a < b; });
  for (int64_t i = 0; i < n; ++i)
    if (i == 0 || ids[s.positions[i]] != ids[s.positions[i - 1]]) s.starts.push_back(i);
  s.starts.push_back(n);
  return s;
}

constexpr int64_t kStrip = 64;  // columns summed at a time

// dst += the sum of dy's rows at the given positions, for `width` columns.
template <class T>
void add_rows(const T* dy, const int64_t* begin, const int64_t* end, int64_t d, int64_t width, T* dst) {
  double sum[kStrip] = {};
  for (const int64_t* p = begin; p < end; ++p)
    for (int64_t j = 0; j < width; ++j) sum[j] += dy[*p * d + j];
  for (int64_t j = 0; j < width; ++j) dst[j] += static_cast<T>(sum[j]);
}

}  // namespace

template <class T>
void embedding_forward(const T* table, const int64_t* ids, T* out, int64_t n, int64_t vocab, int64_t d) {
  check_ids(ids, n, vocab);
  parallel_for(n, row_grain(d), [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) std::copy_n(table + ids[i] * d, d, out + i * d);
  });
}

template <class T>
void embedding_backward(const T* dy, const int64_t* ids, T* dtable, int64_t n, int64_t vocab, int64_t d) {
  check_ids(ids, n, vocab);
  const Segments s = sorted_segments(ids, n);
  const int64_t segments = static_cast<int64_t>(s.starts.size()) - 1, strips = (d + kStrip - 1) / kStrip;
  // Strips of columns are work of their own, so that one id everywhere is spread over threads too.
  parallel_for(segments * strips, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t segment = i / strips, column = i % strips * kStrip;
      const int64_t *first = &s.positions[s.starts[segment]],
                    *last = first + (s.starts[segment + 1] - s.starts[segment]);
      add_rows(dy + column, first, last, d, std::min(kStrip, d - column), dtable + ids[*first] * d + column);
    }
  });
}

template void embedding_forward(const float*, const int64_t*, float*, int64_t, int64_t, int64_t);
template void embedding_forward(const double*, const int64_t*, double*, int64_t, int64_t, int64_t);
template void embedding_backward(const float*, const int64_t*, float*, int64_t, int64_t, int64_t);
template void embedding_backward(const double*, const int64_t*, double*, int64_t, int64_t, int64_t);

}  // namespace bg::kernels
