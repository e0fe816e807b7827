// Per chunk of rows: one product for the logits, a pass over them, one product each for dh and dw.
//
// With e = exp(l - max), s = sum e and t the target, dl = dloss (e / s - onehot(t)) = (dloss / s) (e - s onehot(t)).
// The pass leaves e - s onehot(t) in the place of the logits; the factor a = dloss / s of each row is applied to the
// small sides of the products, dh = diag(a) (E w) and dw += E^T (diag(a) h), so each logit is read for the maximum,
// exponentiated once, and not touched again.
#include "core/kernels/linear_cross_entropy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/gemm.h"
#include "core/kernels/row_chunks.h"
#include "core/kernels/vec_math.h"
#include "core/tensor.h"

namespace bg::kernels {
namespace {

constexpr int64_t kChunkBytes = int64_t{32} << 20;  // of logits: fewer passes over dw; measured, 16 cost 4 % more

constexpr int64_t kChunksPerSum = 64;

int64_t chunk_rows(int64_t rows, int64_t classes, int64_t element_bytes) {
  const int64_t fit = kChunkBytes / std::max<int64_t>(1, classes * element_bytes);
  return std::clamp<int64_t>(fit / 16 * 16, 16, std::max<int64_t>(16, rows));
}

// One row of logits: returns its loss, leaves e - s onehot(t) in it, and the factor that makes this its gradient.
template <class T>
T row_loss(T* l, int64_t target, int64_t classes, T dloss, T& factor) {
  const T largest = max_serial(l, classes), at_target = l[target];
  constexpr int64_t kStrip = int64_t{1} << 14;  // summed in T, the strips in double: no number of classes costs digits
  double sum = 0;
  for (int64_t j = 0; j < classes; j += kStrip)
    sum += exp_sub_serial(l + j, largest, T(1), l + j, std::min(kStrip, classes - j));
  const T s = static_cast<T>(sum);
  factor = s == T(0) ? T(0) : dloss / s;
  l[target] -= s;
  return s == T(0) ? std::numeric_limits<T>::infinity() : std::log(s) + (largest - at_target);
}

template <class T>
void scale_rows(const T* x, const T* factors, T* y, int64_t rows, int64_t d) {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < d; ++j) y[r * d + j] = factors[r] * x[r * d + j];
}

template <class T>
void add_all(const T* x, double* sums, int64_t n) {
  for (int64_t i = 0; i < n; ++i) sums[i] += x[i];
}

}  // namespace

template <class T>
void linear_cross_entropy(const T* h, const T* w, const int64_t* targets, int64_t ignore_index, T dloss, T* loss, T* dh,
                          T* dw, int64_t rows, int64_t d, int64_t classes) {
  const int64_t chunk = chunk_rows(rows, classes, sizeof(T));
  Tensor scratch = Tensor::empty({std::min(chunk, rows), classes}, dtype_of<T>);  // a Tensor: memory is accounted for
  T* logits = scratch.mutable_data<T>("linear_cross_entropy");
  Tensor scaled_rows = dw ? Tensor::empty({std::min(chunk, rows), d}, dtype_of<T>) : Tensor();
  T* const scaled = dw ? scaled_rows.mutable_data<T>("linear_cross_entropy") : nullptr;
  // With very many chunks, sums of some of them are added in double.
  Tensor dw_total = dw && rows > chunk * kChunksPerSum ? Tensor::zeros({classes, d}, DType::f64) : Tensor();
  std::vector<T> factors(static_cast<size_t>(chunk));
  const PackedRight<T> w_t(Trans::yes, d, classes, w, d), w_as_is(Trans::no, dh ? classes : 0, d, w, d);
  if (dw && rows == 0) std::fill_n(dw, classes * d, T(0));
  for (int64_t first = 0; first < rows; first += chunk) {
    const int64_t n = std::min(chunk, rows - first);
    const T* hc = h + first * d;
    gemm<T>(Trans::no, n, T(1), hc, d, w_t, T(0), logits, classes);
    parallel_for(n, row_grain(classes), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* l = logits + r * classes;
        const int64_t target = targets[first + r];
        loss[first + r] = factors[r] = 0;
        if (target != ignore_index)
          loss[first + r] = row_loss(l, target, classes, dloss, factors[r]);
        else if (dh || dw)
          std::fill_n(l, classes, T(0));
      }
    });
    if (dh) {
      T* out = dh + first * d;
      gemm<T>(Trans::no, n, T(1), logits, classes, w_as_is, T(0), out, d);
      scale_rows(out, factors.data(), out, n, d);
    }
    if (dw) {
      scale_rows(hc, factors.data(), scaled, n, d);
      const bool begins = first / chunk % kChunksPerSum == 0;
      gemm<T>(Trans::yes, Trans::no, classes, d, n, T(1), logits, classes, scaled, d, T(!begins), dw, d);
      const bool ends = first / chunk % kChunksPerSum == kChunksPerSum - 1 || first + n == rows;
      if (dw_total.defined() && ends) add_all(dw, dw_total.mutable_data<double>("linear_cross_entropy"), classes * d);
    }
  }
  if (dw_total.defined()) {
    const double* total = dw_total.data<double>();
    for (int64_t i = 0; i < classes * d; ++i) dw[i] = static_cast<T>(total[i]);
  }
}

#define BG_LINEAR_CROSS_ENTROPY(T)                                                                                    \
  template void linear_cross_entropy<T>(const T*, const T*, const int64_t*, int64_t, T, T*, T*, T*, int64_t, int64_t, \
                                        int64_t);
BG_LINEAR_CROSS_ENTROPY(float)
BG_LINEAR_CROSS_ENTROPY(double)
#undef BG_LINEAR_CROSS_ENTROPY

}  // namespace bg::kernels
