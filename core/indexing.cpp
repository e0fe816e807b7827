#include "core/indexing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/elementwise.h"
#include "core/kernels/vec_math.h"

namespace bg::num {
namespace {

// A contiguous tensor around one dimension: (outer, n, inner).
struct Lines {
  int64_t outer = 1, n = 1, inner = 1;

  Lines(const Shape& shape, int dim) : n(shape[dim]) {
    for (int d = 0; d < dim; ++d) outer *= shape[d];
    for (int d = dim + 1; d < shape.rank(); ++d) inner *= shape[d];
  }
};

// f(o, begin, end) for blocks of neighbouring lines, in parallel; every line belongs to one block.
template <class F>
void for_lines(const Lines& l, F f) {
  if (l.outer == 0 || l.inner == 0) return;
  constexpr int64_t kWidth = 256;  // lines that share cache lines, few enough to make many blocks
  const int64_t width = std::min(l.inner, kWidth), blocks = (l.inner + width - 1) / width;
  const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, l.n * width));
  parallel_for(l.outer * blocks, grain, [&](int64_t b, int64_t e) {
    for (int64_t c = b; c < e; ++c) {
      const int64_t begin = c % blocks * width;
      f(c / blocks, begin, std::min(begin + width, l.inner));
    }
  });
}

// The indices as contiguous i64, checked against the shape that holds them.
Tensor checked_index(std::string_view op, const Tensor& index, const Shape& shape, int dim) {
  const Tensor checked = checked_indices(op, "index", index, shape[dim]);
  const bool shared = index.rank() == 1 && shape.rank() != 1;
  BG_CHECK(shared || (index.rank() == shape.rank() && index.shape().with_size(dim, shape[dim], op) == shape), op,
           "the index has a wrong shape", str(index.shape(), " for ", shape),
           str("(k,) or the same but for dimension ", dim));
  return checked;
}

template <bool Largest>
Tensor arg_extreme(std::string_view op, const Tensor& x, int dim) {
  dim = x.shape().dim(dim, op);
  const Lines l(x.shape(), dim);
  BG_CHECK(l.n > 0, op, "no elements to choose from", str("shape ", x.shape(), ", dimension ", dim), "size 1 or more");
  Tensor best = Tensor::empty(x.shape().with_size(dim, 1, op), DType::i64);
  int64_t* out = best.mutable_data<int64_t>(op);
  dispatch_float(op, x.dtype(), [&]<class T>() {
    const Tensor whole = x.contiguous();
    const T* from = whole.data<T>();
    for_lines(l, [&](int64_t o, int64_t begin, int64_t end) {
      const T* first = from + o * l.n * l.inner;
      int64_t* at = out + o * l.inner;
      for (int64_t i = begin; i < end; ++i) at[i] = 0;
      for (int64_t k = 1; k < l.n; ++k)
        for (int64_t i = begin; i < end; ++i) {
          const T v = first[k * l.inner + i], b = first[at[i] * l.inner + i];
          if ((Largest ? v > b : v < b) || (std::isnan(v) && !std::isnan(b))) at[i] = k;
        }
    });
  });
  return best;
}

// In double, strip by strip.
template <class T>
double log_sum_exp(const T* x, int64_t n) {
  const T largest = kernels::max_serial(x, n);
  if (largest == std::numeric_limits<T>::infinity())
    return std::any_of(x, x + n, [](T v) { return std::isnan(v); }) ? std::nan("") : largest;
  const T shift = std::isfinite(largest) ? largest : T{0};  // all -infinity: the sum is 0
  constexpr int64_t kStrip = 256;
  T strip[kStrip];
  double sum = 0;  // NaN, which the maximum may not see, comes through here
  for (int64_t k = 0; k < n; k += kStrip)
    sum += kernels::exp_sub_serial(x + k, shift, T{1}, strip, std::min(kStrip, n - k));
  return shift + std::log(sum);
}

}  // namespace

Tensor checked_indices(std::string_view op, std::string_view what, const Tensor& index, int64_t limit,
                       std::optional<int64_t> ignored) {
  BG_CHECK(index.defined() && is_index(index.dtype()), op, str("not an index tensor for the ", what),
           index.defined() ? str(index.dtype()) : "no data", "i32 or i64", "to(DType::i64)");
  const Tensor whole = index.to(DType::i64).contiguous();
  const int64_t* v = whole.data<int64_t>();
  for (int64_t i = 0; i < whole.numel(); ++i)
    BG_CHECK((v[i] >= 0 && v[i] < limit) || (ignored && v[i] == *ignored), op, str(what, " out of range"),
             str(v[i], " at position ", position_of(whole.shape(), i), " of ", whole.shape()),
             str(limit > 0 ? str("0 to ", limit - 1) : "none: there is an empty dimension",
                 ignored ? str(", or ", *ignored, " to ignore it") : ""));
  return whole;
}

Tensor gather(const Tensor& x, int dim, const Tensor& index) {
  constexpr std::string_view op = "gather";
  dim = x.shape().dim(dim, op);
  const Tensor ix = checked_index(op, index, x.shape(), dim), from = x.contiguous();
  const bool shared = ix.rank() != x.rank();
  const int64_t count = ix.size(shared ? 0 : dim);
  const Lines l(x.shape(), dim);
  Tensor y = Tensor::empty(x.shape().with_size(dim, count, op), x.dtype());
  const int64_t* at = ix.data<int64_t>();
  dispatch_float(op, x.dtype(), [&]<class T>() {
    const T* px = from.data<T>();
    T* py = y.mutable_data<T>(op);
    const int64_t grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, l.inner));
    parallel_for(l.outer * count, grain, [&](int64_t b, int64_t e) {
      for (int64_t row = b; row < e; ++row) {  // row = (o, k)
        const T* line = px + row / count * l.n * l.inner;
        T* out = py + row * l.inner;
        if (shared)
          std::copy_n(line + at[row % count] * l.inner, l.inner, out);
        else
          for (int64_t i = 0; i < l.inner; ++i) out[i] = line[at[row * l.inner + i] * l.inner + i];
      }
    });
  });
  return y;
}

namespace {

// How often the commonest of `count` indices below n occurs.
int64_t most_repeats(const int64_t* at, int64_t count, int64_t n) {
  std::vector<int64_t> times(static_cast<size_t>(n));
  int64_t most = 0;
  for (int64_t k = 0; k < count; ++k) most = std::max(most, ++times[static_cast<size_t>(at[k])]);
  return most;
}

// to[o, index, i] += from[o, k, i] in the order of k; A is the type that sums.
template <class A, class T>
void add_lines(const Lines& l, const T* from, const int64_t* at, int64_t count, bool shared, A* to) {
  for_lines(l, [=, n = l.n, inner = l.inner](int64_t o, int64_t begin, int64_t end) {
    A* line = to + o * n * inner;
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = o * count + k;
      const T* in = from + row * inner;
      if (shared) {
        A* sums = line + at[k] * inner;
        for (int64_t i = begin; i < end; ++i) sums[i] += in[i];
      } else {
        for (int64_t i = begin; i < end; ++i) line[at[row * inner + i] * inner + i] += in[i];
      }
    }
  });
}

}  // namespace

Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Shape& shape) {
  constexpr std::string_view op = "scatter_add";
  constexpr int64_t kFew = 64;  // numbers that a float may add up
  dim = shape.dim(dim, op);
  const Tensor ix = checked_index(op, index, shape, dim), from = x.contiguous();
  const bool shared = ix.rank() != shape.rank();
  const int64_t count = ix.size(shared ? 0 : dim);
  BG_CHECK(x.shape() == shape.with_size(dim, count, op), op, "values do not fit the index", str(x.shape()),
           str(shape.with_size(dim, count, op)));
  const Lines l(shape, dim);
  const int64_t* at = ix.data<int64_t>();
  return dispatch_float(op, x.dtype(), [&]<class T>() {
    const bool many = count > kFew && (!shared || most_repeats(at, count, l.n) > kFew);
    Tensor y = Tensor::zeros(shape, many ? DType::f64 : x.dtype());
    if (many)
      add_lines(l, from.data<T>(), at, count, shared, y.mutable_data<double>(op));
    else
      add_lines(l, from.data<T>(), at, count, shared, y.mutable_data<T>(op));
    return y.to(x.dtype());
  });
}

Tensor argmax(const Tensor& x, int dim) { return arg_extreme<true>("argmax", x, dim); }
Tensor argmin(const Tensor& x, int dim) { return arg_extreme<false>("argmin", x, dim); }

Tensor logsumexp(const Tensor& x, int dim) {
  constexpr std::string_view op = "logsumexp";
  dim = x.shape().dim(dim, op);
  const Tensor rows = x.transpose(dim, -1).contiguous();
  Tensor y = Tensor::empty(rows.shape().with_size(x.rank() - 1, 1, op), x.dtype());
  dispatch_float(op, x.dtype(), [&]<class T>() {
    const T* from = rows.data<T>();
    T* out = y.mutable_data<T>(op);
    const int64_t n = x.size(dim), grain = std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(1, n));
    parallel_for(y.numel(), grain, [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) out[r] = static_cast<T>(log_sum_exp(from + r * n, n));
    });
  });
  return y.transpose(dim, -1).contiguous();
}

}  // namespace bg::num
