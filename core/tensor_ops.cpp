#include "core/tensor_ops.h"

#include <cmath>
#include <limits>

#include "core/elementwise.h"
#include "core/gemm.h"

namespace bg::num {

void check_same_float(std::string_view op, const Tensor& a, const Tensor& b) {
  BG_CHECK(a.defined() && b.defined(), op, "undefined input", "no data", "tensors with values");
  BG_CHECK(is_float(a.dtype()) && a.dtype() == b.dtype(), op, "dtypes differ or are not floating",
           str(a.dtype(), " and ", b.dtype()), "both f32 or both f64", "to(...) on one of them");
}

namespace {
template <class F>
Tensor arithmetic(std::string_view op, const Tensor& a, const Tensor& b, F f) {
  check_same_float(op, a, b);
  return dispatch_float(op, a.dtype(), [&]<class T>() { return zip<T, T>(op, a, b, f); });
}
}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  return arithmetic("add", a, b, [](auto x, auto y) { return x + y; });
}
Tensor sub(const Tensor& a, const Tensor& b) {
  return arithmetic("sub", a, b, [](auto x, auto y) { return x - y; });
}
Tensor mul(const Tensor& a, const Tensor& b) {
  return arithmetic("mul", a, b, [](auto x, auto y) { return x * y; });
}
Tensor div(const Tensor& a, const Tensor& b) {
  return arithmetic("div", a, b, [](auto x, auto y) { return x / y; });
}
Tensor scale(const Tensor& a, double factor) {
  return dispatch_float("scale", a.dtype(), [&]<class T>() {
    const T f = static_cast<T>(factor);
    return map<T, T>("scale", a, [f](T x) { return x * f; });
  });
}

void add_into(Tensor& dst, const Tensor& src) {
  check_same_float("add_into", dst, src);
  BG_CHECK(dst.shape() == src.shape(), "add_into", "shapes differ", str(src.shape(), " into ", dst.shape()),
           "equal shapes");
  if (overlaps(dst, src)) return add_into(dst, src.clone());
  dispatch_float("add_into", dst.dtype(), [&]<class T>() {
    T* to = dst.mutable_data<T>("add_into");
    const T* from = src.data<T>();
    walk<2>(dst.shape(), {dst.strides(), src.strides()}, [&](auto at, int64_t n, auto step) {
      T* d = to + at[0];
      const T* s = from + at[1];
      if (step[0] == 1 && step[1] == 1)
        for (int64_t i = 0; i < n; ++i) d[i] += s[i];
      else
        for (int64_t i = 0; i < n; ++i) d[i * step[0]] += s[i * step[1]];
    });
  });
}

namespace {

// Rows of (rows, n), each summed to one number: long rows in fixed chunks.
template <class T>
void sum_rows(const T* x, int64_t rows, int64_t n, T* y) {
  auto run = [&](const T* p, int64_t count) {
    double s = 0;
    for (int64_t i = 0; i < count; ++i) s += p[i];
    return s;
  };
  if (rows >= 16) {
    parallel_for(rows, std::max<int64_t>(1, kElementwiseGrain / std::max<int64_t>(n, 1)), [&](int64_t b, int64_t e) {
      for (int64_t r = b; r < e; ++r) y[r] = static_cast<T>(run(x + r * n, n));
    });
    return;
  }
  for (int64_t r = 0; r < rows; ++r)
    y[r] = static_cast<T>(
        parallel_sum<double>(n, kElementwiseGrain, [&](int64_t b, int64_t e) { return run(x + r * n + b, e - b); }));
}

// Columns of (rows, n): fixed row blocks give partial sums, added in block order.
template <class T>
void sum_columns(const T* x, int64_t rows, int64_t n, T* y) {
  const int64_t block = chunk_size(256), blocks = (rows + block - 1) / block;
  std::vector<double> partial(blocks * n, 0.0);
  parallel_for(rows, block, [&](int64_t b, int64_t e) {
    double* p = partial.data() + b / block * n;
    for (int64_t r = b; r < e; ++r)
      for (int64_t j = 0; j < n; ++j) p[j] += x[r * n + j];
  });
  for (int64_t j = 0; j < n; ++j) {
    double s = 0;
    for (int64_t k = 0; k < blocks; ++k) s += partial[k * n + j];
    y[j] = static_cast<T>(s);
  }
}

}  // namespace

Tensor sum(const Tensor& x, std::vector<int> dims, bool keepdim) {
  std::vector<bool> reduced(x.rank(), dims.empty());
  for (int d : dims) {
    const int at = x.shape().dim(d, "sum");
    BG_CHECK(!reduced[at], "sum", "dimension named twice", str(d), "each dimension once");
    reduced[at] = true;
  }
  Shape kept, out;
  std::vector<int> kept_dims, reduced_dims;
  int64_t n = 1;
  for (int d = 0; d < x.rank(); ++d) {
    (reduced[d] ? reduced_dims : kept_dims).push_back(d);
    if (reduced[d]) n *= x.shape()[d];
    if (!reduced[d]) kept.push_back(x.shape()[d]);
    if (!reduced[d] || keepdim) out.push_back(reduced[d] ? 1 : x.shape()[d]);
  }
  Tensor y = Tensor::empty(out, x.dtype());
  const bool leading = !reduced_dims.empty() && !kept_dims.empty() && reduced_dims.back() < kept_dims.front();
  dispatch_float("sum", x.dtype(), [&]<class T>() {
    T* py = y.mutable_data<T>("sum");
    if (leading) {
      const Tensor c = x.contiguous();
      sum_columns(c.data<T>(), n, kept.numel(), py);
    } else {
      std::vector<int> order = kept_dims;
      order.insert(order.end(), reduced_dims.begin(), reduced_dims.end());
      const Tensor c = x.permute(order).contiguous();
      sum_rows(c.data<T>(), kept.numel(), n, py);
    }
  });
  return y;
}

Tensor reduce_to(const Tensor& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int extra = x.rank() - shape.rank();
  std::vector<int> dims;
  for (int d = 0; d < x.rank(); ++d) {
    if (d < extra || (shape[d - extra] == 1 && x.shape()[d] != 1))
      dims.push_back(d);
    else
      BG_CHECK(shape[d - extra] == x.shape()[d], "reduce_to", "not a broadcast of the shape",
               str(x.shape(), " to ", shape), "sizes that agree or are 1");
  }
  BG_CHECK(extra >= 0, "reduce_to", "rank too small", str(x.shape(), " to ", shape), "at least the target's rank");
  return dims.empty() ? x.reshape(shape) : sum(x, dims, true).reshape(shape);
}

namespace {

// One matrix as BLAS sees it; a matrix that is neither row- nor column-major is copied first.
struct Operand {
  Tensor t;
  Trans trans;
  int64_t ld;
};

bool rows_contiguous(const Tensor& t) {
  const int r = t.rank();
  return (t.shape()[r - 1] <= 1 || t.strides()[r - 1] == 1) &&
         (t.shape()[r - 2] <= 1 || t.strides()[r - 2] >= std::max<int64_t>(1, t.shape()[r - 1]));
}

int64_t leading_dimension(const Tensor& t) {
  const int r = t.rank();
  return t.shape()[r - 2] <= 1 ? std::max<int64_t>(1, t.shape()[r - 1]) : t.strides()[r - 2];
}

Operand operand(const Tensor& t) {
  if (rows_contiguous(t)) return {t, Trans::no, leading_dimension(t)};
  const Tensor swapped = t.transpose(-1, -2);
  if (rows_contiguous(swapped)) return {t, Trans::yes, leading_dimension(swapped)};
  const Tensor c = t.contiguous();
  return {c, Trans::no, leading_dimension(c)};
}

Shape leading(const Shape& s) { return Shape(std::span<const int64_t>(s.begin(), static_cast<size_t>(s.rank() - 2))); }

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_same_float("matmul", a, b);
  BG_CHECK(a.rank() >= 2 && b.rank() >= 2, "matmul", "not matrices", str(a.shape(), " and ", b.shape()),
           "at least two dimensions each", "unsqueeze");
  const int64_t m = a.size(-2), k = a.size(-1), n = b.size(-1);
  BG_CHECK(b.size(-2) == k, "matmul", "inner sizes differ", str("a is ", a.shape(), ", b is ", b.shape()),
           "a's last equal to b's second to last", "transpose(b)");
  if (b.rank() == 2 && a.rank() > 2) {  // one shared right side: one tall product
    Shape out = leading(a.shape());
    out.push_back(m);
    out.push_back(n);
    return matmul(a.reshape({leading(a.shape()).numel() * m, k}), b).reshape(out);
  }
  const Shape batch = broadcast_shapes(leading(a.shape()), leading(b.shape()), "matmul");
  Shape out = batch, a_full = batch, b_full = batch;
  out.push_back(m), out.push_back(n);
  a_full.push_back(m), a_full.push_back(k);
  b_full.push_back(k), b_full.push_back(n);
  Tensor y = Tensor::empty(out, a.dtype());
  if (y.numel() == 0) return y;
  if (k == 0) return Tensor::zeros(out, a.dtype());
  const Operand oa = operand(a.expand(a_full)), ob = operand(b.expand(b_full));
  dispatch_float("matmul", a.dtype(), [&]<class T>() {
    T* py = y.mutable_data<T>("matmul");
    const int64_t count = batch.numel();
    if (count == 1) {
      gemm<T>(oa.trans, ob.trans, m, n, k, T{1}, oa.t.data<T>(), oa.ld, ob.t.data<T>(), ob.ld, T{0}, py, n);
      return;
    }
    const int64_t grain = static_cast<int64_t>((1 << 18) / multiply_adds(m, n, k));
    parallel_for(count, std::max<int64_t>(1, grain), [&](int64_t b0, int64_t e) {
      for (int64_t i = b0; i < e; ++i) {
        int64_t at_a = 0, at_b = 0, rest = i;
        for (int d = batch.rank() - 1; d >= 0; --d) {
          at_a += rest % batch[d] * oa.t.strides()[d];
          at_b += rest % batch[d] * ob.t.strides()[d];
          rest /= batch[d];
        }
        gemm_serial<T>(oa.trans, ob.trans, m, n, k, T{1}, oa.t.data<T>() + at_a, oa.ld, ob.t.data<T>() + at_b, ob.ld,
                       T{0}, py + i * m * n, n);
      }
    });
  });
  return y;
}

Tensor matmul_bias(const Tensor& a, const Tensor& b, const Tensor& bias) {
  check_same_float("matmul_bias", a, b);
  check_same_float("matmul_bias", a, bias);
  BG_CHECK(a.rank() == 2 && b.rank() == 2 && a.size(1) == b.size(0) && bias.shape() == Shape{b.size(1)}, "matmul_bias",
           "shapes do not fit", str(a.shape(), ", ", b.shape(), " and ", bias.shape()), "(m, k), (k, n) and (n,)");
  Tensor y = Tensor::empty({a.size(0), b.size(1)}, a.dtype());
  const Operand oa = operand(a), ob = operand(b);
  const Tensor row = bias.contiguous();
  dispatch_float("matmul_bias", a.dtype(), [&]<class T>() {
    gemm_bias<T>(oa.trans, ob.trans, y.size(0), y.size(1), a.size(1), oa.t.data<T>(), oa.ld, ob.t.data<T>(), ob.ld,
                 row.data<T>(), y.mutable_data<T>("matmul_bias"), y.size(1));
  });
  return y;
}

double dot(const Tensor& a, const Tensor& b) {
  BG_CHECK(a.shape() == b.shape(), "dot", "shapes differ", str(a.shape(), " and ", b.shape()), "equal shapes");
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  double s = 0;
  for (size_t i = 0; i < x.size(); ++i) s += x[i] * y[i];
  return s;
}

double max_abs(const Tensor& x) {
  double m = 0;
  for (double v : x.to_vector<double>()) {
    if (std::isnan(v)) return v;
    m = std::max(m, std::abs(v));
  }
  return m;
}

int64_t first_non_finite(const Tensor& x) {
  if (!is_float(x.dtype())) return -1;
  const Tensor c = x.contiguous();
  return dispatch_float("finite", c.dtype(), [&]<class T>() -> int64_t {
    const T* p = c.data<T>();
    const int64_t n = c.numel();
    for (int64_t i = 0; i < n; ++i)
      if (!std::isfinite(p[i])) return i;
    return -1;
  });
}

}  // namespace bg::num
