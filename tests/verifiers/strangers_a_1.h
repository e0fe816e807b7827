// Ops as outside authors write them, each twice: right, and with a mistake that careful people really make. Here:
// backwards that are not linear in the cotangent, that trust a memory layout, that are wrong in f32 only, and that
// forget a gradient. The rest are in strangers_a_2.h; strangers_a.h lists them all.
//
// A case is a plain base with what both twins share, and `template <bool kWrong> struct Name` with what differs.
// `kind` says what sort of mistake it is, `mistake` what is wrong in the wrong twin and when it shows.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numbers>
#include <string_view>
#include <vector>

#include "autograd/op.h"
#include "autograd/ops/samples.h"
#include "core/bf16.h"
#include "core/parallel.h"
#include "core/tensor_ops.h"
#include "tests/verifiers/parts.h"

namespace strangers_a {

using namespace bg;

using strangers::negated;

/// A copy where the tensor repeats elements in memory (a stride of 0), itself otherwise.
inline Tensor unrepeated(const Tensor& t) {
  for (int d = 0; d < t.rank(); ++d)
    if (t.size(d) > 1 && t.strides()[d] == 0) return t.clone();
  return t;
}

inline Tensor zeros_like(const Tensor& t) { return Tensor::zeros(t.shape(), t.dtype()); }
inline Tensor empty_like(const Tensor& t) { return Tensor::empty(t.shape(), t.dtype()); }
inline Tensor indices(std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); }

template <class T>
T logistic(T x) {
  return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
}

// --- Not linear in the cotangent -------------------------------------------------------------------------------------

/// Swish with a slope: y = x s, s = sigmoid(beta x).  dx = dy (s + beta x s (1 - s)).
struct SwishBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double beta = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return x * sc::sigmoid(S(a.beta) * x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("swish", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), beta = static_cast<T>(a.beta);
      T* py = y.mutable_data<T>("swish");
      for (int64_t i = 0; i < x.numel(); ++i) py[i] = px[i] * logistic(beta * px[i]);
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {1}, {normal(r, {3, 5})}}, {"(2, 4, 6), beta 1.7", {1.7}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct Swish : SwishBase {
  static constexpr std::string_view name = kWrong ? "swish_wrong" : "swish_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake = "the gradient is clamped to [-10, 10]; shows when a cotangent is large";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>(), beta = static_cast<T>(b.args.beta);
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i) {
        const T s = logistic(beta * px[i]);
        T g = pdy[i] * (s + beta * px[i] * s * (1 - s));
        if constexpr (kWrong) g = std::clamp(g, T(-10), T(10));  // keeps half-precision training stable
        pdx[i] = g;
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Swish>(); }
};

/// Weighted squared error of each row: y_r = sum_j w_j (x_rj - t_rj)^2 / d.
/// dx = 2 dy w (x - t) / d,  dt = -dx,  dw_j = sum_r dy_r (x_rj - t_rj)^2 / d.
struct RowErrorBase {
  static inline const std::array inputs{In{"x"}, In{"t"}, In{"w"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&x = in[0], &t = in[1], &w = in[2];
    const int64_t n = x.size(0), d = x.size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < d; ++j) y[r] += w[j] * (x(r, j) - t(r, j)) * (x(r, j) - t(r, j)) / S(d);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous(), t = in[1].contiguous(), w = in[2].contiguous();
    const int64_t n = x.size(0), d = x.size(1);
    Tensor y = Tensor::empty({n}, x.dtype());
    dispatch_float("row_error", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pt = t.data<T>(), *pw = w.data<T>();
      T* py = y.mutable_data<T>("row_error");
      for (int64_t r = 0; r < n; ++r) {
        double total = 0;
        for (int64_t j = 0; j < d; ++j) {
          const double e = static_cast<double>(px[r * d + j]) - static_cast<double>(pt[r * d + j]);
          total += static_cast<double>(pw[j]) * e * e;
        }
        py[r] = static_cast<T>(total / static_cast<double>(d));
      }
    });
    saved.keep_input(0, x);
    saved.keep_input(1, t);
    saved.keep_input(2, w);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), normal(r, {3, 5}), positive(r, {5})}},
            {"(6, 2)", {}, {normal(r, {6, 2}), normal(r, {6, 2}), positive(r, {2})}}};
  }
};
template <bool kWrong>
struct RowError : RowErrorBase {
  static constexpr std::string_view name = kWrong ? "row_error_wrong" : "row_error_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake =
                                        "rows whose cotangent is below 1e-4 count as masked and get no gradient; shows "
                                        "with a mean over many rows or a small loss weight";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &t = b[1], &w = b[2], dy = b.dy().contiguous();
    const int64_t n = x.size(0), d = x.size(1);
    Tensor dx = zeros_like(x), dt = zeros_like(t), dw = zeros_like(w);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pt = t.data<T>(), *pw = w.data<T>(), *pdy = dy.data<T>();
      T *pdx = dx.mutable_data<T>(name), *pdt = dt.mutable_data<T>(name), *pdw = dw.mutable_data<T>(name);
      for (int64_t r = 0; r < n; ++r) {
        if constexpr (kWrong)
          if (std::abs(pdy[r]) < T(1e-4)) continue;  // a masked row
        for (int64_t j = 0; j < d; ++j) {
          const T e = px[r * d + j] - pt[r * d + j], g = pdy[r] / static_cast<T>(d);
          pdx[r * d + j] = 2 * g * pw[j] * e;
          pdt[r * d + j] = -2 * g * pw[j] * e;
          pdw[j] += g * e * e;
        }
      }
    });
    return {dx, dt, dw};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowError>(); }
};

/// Exponential moving average along the last dimension: y_t = a y_(t-1) + (1 - a) x_t, y_(-1) = 0.
/// With g_t = dy_t + a g_(t+1):  dx_t = (1 - a) g_t.
struct MovingAverageBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double a = 0.9;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& args) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t n = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r)
      for (int64_t t = 0; t < n; ++t)
        y[r * n + t] = S(1 - args.a) * x[r * n + t] + (t > 0 ? S(args.a) * y[r * n + t - 1] : S(0));
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& args) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    const int64_t n = x.size(-1);
    dispatch_float("moving_average", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), a = static_cast<T>(args.a);
      T* py = y.mutable_data<T>("moving_average");
      for (int64_t r = 0; r < x.shape().rows(); ++r) {
        T state = 0;
        for (int64_t t = 0; t < n; ++t) py[r * n + t] = state = a * state + (1 - a) * px[r * n + t];
      }
    });
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {0.9}, {normal(r, {3, 5})}}, {"(2, 4, 6), a 0.5", {0.5}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct MovingAverage : MovingAverageBase {
  static constexpr std::string_view name = kWrong ? "moving_average_wrong" : "moving_average_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake =
                                        "steps of cotangent zero are skipped as padding, without decay and without a "
                                        "gradient; shows when the loss looks at the last step alone";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor dy = b.dy().contiguous();
    Tensor dx = zeros_like(dy);
    const int64_t n = dy.size(-1);
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T *pdy = dy.data<T>(), a = static_cast<T>(b.args.a);
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < dy.shape().rows(); ++r) {
        T g = 0;
        for (int64_t t = n - 1; t >= 0; --t) {
          if constexpr (kWrong)
            if (pdy[r * n + t] == 0) continue;  // padding
          g = pdy[r * n + t] + a * g;
          pdx[r * n + t] = (1 - a) * g;
        }
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<MovingAverage>(); }
};

/// Log-softmax of x / T over the last dimension: y = x / T - log sum exp(x / T).  dx = (dy - exp(y) sum dy) / T.
struct TemperedLogSoftmaxBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double temperature = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S largest = x[r * d], total(0);
      for (int64_t j = 1; j < d; ++j)
        if (x[r * d + j] > largest) largest = x[r * d + j];
      for (int64_t j = 0; j < d; ++j) total += sc::exp((x[r * d + j] - largest) / S(a.temperature));
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = (x[r * d + j] - largest) / S(a.temperature) - sc::log(total);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float("tempered_log_softmax", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), scale = static_cast<T>(1 / a.temperature);
      T* py = y.mutable_data<T>("tempered_log_softmax");
      for (int64_t r = 0; r < x.shape().rows(); ++r, px += d, py += d) {
        const T largest = *std::max_element(px, px + d);
        double total = 0;
        for (int64_t j = 0; j < d; ++j) total += std::exp(static_cast<double>((px[j] - largest) * scale));
        for (int64_t j = 0; j < d; ++j) py[j] = (px[j] - largest) * scale - static_cast<T>(std::log(total));
      }
    });
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {1}, {normal(r, {3, 5})}}, {"(2, 3, 4), T 0.7", {0.7}, {normal(r, {2, 3, 4})}}};
  }
};
template <bool kWrong>
struct TemperedLogSoftmax : TemperedLogSoftmaxBase {
  static constexpr std::string_view name = kWrong ? "tempered_log_softmax_wrong" : "tempered_log_softmax_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake =
                                        "a row whose cotangent sums to zero is left out; shows for differences of log "
                                        "probabilities, where dx is dy / T";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &y = b[0], dy = b.dy().contiguous();
    Tensor dx = zeros_like(y);
    const int64_t d = y.size(-1);
    dispatch_float(name, y.dtype(), [&]<class T>() {
      const T *py = y.data<T>(), *pdy = dy.data<T>(), scale = static_cast<T>(1 / b.args.temperature);
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < y.shape().rows(); ++r, py += d, pdy += d, pdx += d) {
        T total = 0;
        for (int64_t j = 0; j < d; ++j) total += pdy[j];
        if constexpr (kWrong)
          if (total == 0) continue;  // nothing flows into this row
        for (int64_t j = 0; j < d; ++j) pdx[j] = scale * (pdy[j] - std::exp(py[j]) * total);
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<TemperedLogSoftmax>(); }
};

/// Scaled rows of a table: y_i = s_i table[ids_i].  dtable[ids_i] += s_i dy_i,  ds_i = <dy_i, table[ids_i]>.
struct ScaledRowsBase {
  static inline const std::array inputs{In{"table"}, In{"ids", false}, In{"s"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[1].numel(), d = in[0].size(1);
    Arr<S> y(Shape{n, d});
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < d; ++j) y(i, j) = in[2][i] * in[0](in[1].index(i), j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor table = in[0].contiguous(), ids = in[1].contiguous(), s = in[2].contiguous();
    const int64_t n = ids.numel(), d = table.size(1);
    Tensor y = Tensor::empty({n, d}, table.dtype());
    dispatch_float("scaled_rows", table.dtype(), [&]<class T>() {
      const T *pt = table.data<T>(), *ps = s.data<T>();
      const int64_t* id = ids.data<int64_t>();
      T* py = y.mutable_data<T>("scaled_rows");
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < d; ++j) py[i * d + j] = ps[i] * pt[id[i] * d + j];
    });
    saved.keep_input(0, table);
    saved.keep_input(1, ids);
    saved.keep_input(2, s);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"4 of (5, 3)", {}, {normal(r, {5, 3}), indices({4, 0, 2, 0}, {4}), normal(r, {4})}},
            {"3 of (3, 6)", {}, {normal(r, {3, 6}), indices({1, 1, 2}, {3}), normal(r, {3})}}};
  }
};
template <bool kWrong>
struct ScaledRows : ScaledRowsBase {
  static constexpr std::string_view name = kWrong ? "scaled_rows_wrong" : "scaled_rows_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake =
                                        "a row whose cotangent starts with zero is skipped as padding; shows when the "
                                        "loss does not use the first column";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &table = b[0], &ids = b[1], &s = b[2], dy = b.dy().contiguous();
    const int64_t n = ids.numel(), d = table.size(1);
    Tensor dtable = zeros_like(table), ds = zeros_like(s);
    dispatch_float(name, table.dtype(), [&]<class T>() {
      const T *pt = table.data<T>(), *ps = s.data<T>(), *pdy = dy.data<T>();
      const int64_t* id = ids.data<int64_t>();
      T *pdt = dtable.mutable_data<T>(name), *pds = ds.mutable_data<T>(name);
      for (int64_t i = 0; i < n; ++i) {
        if constexpr (kWrong)
          if (d > 0 && pdy[i * d] == 0) continue;  // a padded row
        for (int64_t j = 0; j < d; ++j) {
          pdt[id[i] * d + j] += ps[i] * pdy[i * d + j];
          pds[i] += pdy[i * d + j] * pt[id[i] * d + j];
        }
      }
    });
    return {dtable, Tensor(), ds};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ScaledRows>(); }
};

/// Mean and variance of each row, two outputs: m = mean(x), v = mean((x - m)^2).
/// dx = dm / d + 2 dv (x - m) / d.
struct MeanVarianceBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    const int64_t d = x.size(-1);
    Arr<S> m(x.shape.without_last()), v(x.shape.without_last());
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      for (int64_t j = 0; j < d; ++j) m[r] += x[r * d + j] / S(d);
      for (int64_t j = 0; j < d; ++j) v[r] += (x[r * d + j] - m[r]) * (x[r * d + j] - m[r]) / S(d);
    }
    return {m, v};
  }
  static Tensors forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    const int64_t d = x.size(-1);
    Tensor m = Tensor::empty(x.shape().without_last(), x.dtype()), v = empty_like(m);
    dispatch_float("mean_variance", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T *pm = m.mutable_data<T>("mean_variance"), *pv = v.mutable_data<T>("mean_variance");
      for (int64_t r = 0; r < x.shape().rows(); ++r) {
        double mean = 0, variance = 0;
        for (int64_t j = 0; j < d; ++j) mean += static_cast<double>(px[r * d + j]) / static_cast<double>(d);
        for (int64_t j = 0; j < d; ++j) variance += std::pow(static_cast<double>(px[r * d + j]) - mean, 2);
        pm[r] = static_cast<T>(mean);
        pv[r] = static_cast<T>(variance / static_cast<double>(d));
      }
    });
    saved.keep_input(0, x);
    saved.keep_output(0, m);
    return {m, v};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct MeanVariance : MeanVarianceBase {
  static constexpr std::string_view name = kWrong ? "mean_variance_wrong" : "mean_variance_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake =
                                        "rows are skipped when either output has cotangent zero, in place of both; "
                                        "shows when the loss uses only the mean or only the variance";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &m = b[1], dm = b.dy(0).contiguous(), dv = b.dy(1).contiguous();
    const int64_t d = x.size(-1);
    Tensor dx = zeros_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pm = m.data<T>(), *pdm = dm.data<T>(), *pdv = dv.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < x.shape().rows(); ++r) {
        if (kWrong ? pdm[r] == 0 || pdv[r] == 0 : pdm[r] == 0 && pdv[r] == 0) continue;
        for (int64_t j = 0; j < d; ++j)
          pdx[r * d + j] = (pdm[r] + 2 * pdv[r] * (px[r * d + j] - pm[r])) / static_cast<T>(d);
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<MeanVariance>(); }
};

// --- Memory layout ---------------------------------------------------------------------------------------------------

/// Gated unit: x = [a, b] halves of the last dimension, y = a s b with s = sigmoid(a).
/// da = dy b s (1 + a (1 - s)),  db = dy a s.
struct SiluGateBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  static Shape halved(const Shape& s) { return s.with_size(-1, s.back() / 2, "silu_gate"); }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(halved(x.shape));
    const int64_t d = y.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r)
      for (int64_t j = 0; j < d; ++j)
        y[r * d + j] = x[2 * r * d + j] * sc::sigmoid(x[2 * r * d + j]) * x[(2 * r + 1) * d + j];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = Tensor::empty(halved(x.shape()), x.dtype());
    const int64_t d = y.size(-1);
    dispatch_float("silu_gate", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("silu_gate");
      for (int64_t r = 0; r < x.shape().rows(); ++r)
        for (int64_t j = 0; j < d; ++j)
          py[r * d + j] = px[2 * r * d + j] * logistic(px[2 * r * d + j]) * px[(2 * r + 1) * d + j];
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {3, 4})}}, {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct SiluGate : SiluGateBase {
  static constexpr std::string_view name = kWrong ? "silu_gate_wrong" : "silu_gate_right";
  static constexpr std::string_view kind = "layout",
                                    mistake =
                                        "the cotangent is read from the start of its storage; shows when it is a "
                                        "contiguous slice of a larger tensor, as behind a concatenation";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    Tensor dx = zeros_like(x);
    const int64_t d = x.size(-1) / 2;
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>();
      if constexpr (kWrong) pdy = reinterpret_cast<const T*>(dy.storage()->data());
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < x.shape().rows(); ++r)
        for (int64_t j = 0; j < d; ++j) {
          const T u = px[2 * r * d + j], v = px[(2 * r + 1) * d + j], s = logistic(u), g = pdy[r * d + j];
          pdx[2 * r * d + j] = g * v * s * (1 + u * (1 - s));
          pdx[(2 * r + 1) * d + j] = g * u * s;
        }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SiluGate>(); }
};

/// y_r = log sum_j exp(x_rj) of a matrix.  dx_rj = dy_r exp(x_rj - y_r). Keeps x as it is, whatever its strides.
struct RowLogSumExpBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(Shape{x.size(0)});
    for (int64_t r = 0; r < x.size(0); ++r) {
      S largest = x(r, 0), total(0);
      for (int64_t j = 1; j < x.size(1); ++j)
        if (x(r, j) > largest) largest = x(r, j);
      for (int64_t j = 0; j < x.size(1); ++j) total += sc::exp(x(r, j) - largest);
      y[r] = largest + sc::log(total);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor& x = in[0];
    Tensor y = Tensor::empty({x.size(0)}, x.dtype());
    dispatch_float("row_logsumexp", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("row_logsumexp");
      const int64_t down = x.strides()[0], right = x.strides()[1];
      for (int64_t r = 0; r < x.size(0); ++r) {
        T largest = px[r * down];
        for (int64_t j = 1; j < x.size(1); ++j) largest = std::max(largest, px[r * down + j * right]);
        double total = 0;
        for (int64_t j = 0; j < x.size(1); ++j)
          total += std::exp(static_cast<double>(px[r * down + j * right] - largest));
        py[r] = largest + static_cast<T>(std::log(total));
      }
    });
    saved.keep_input(0, x);
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(6, 2)", {}, {normal(r, {6, 2})}}};
  }
};
template <bool kWrong>
struct RowLogSumExp : RowLogSumExpBase {
  static constexpr std::string_view name = kWrong ? "row_logsumexp_wrong" : "row_logsumexp_right";
  static constexpr std::string_view kind = "layout",
                                    mistake =
                                        "backward takes the width for the distance of rows when elements of a row are "
                                        "neighbours; shows when x is a slice of some columns of a wider matrix";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &y = b[1], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    const int64_t d = x.size(1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *py = y.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      int64_t down = x.strides()[0];
      const int64_t right = x.strides()[1];
      if constexpr (kWrong)
        if (right == 1 && down >= d) down = d;  // rows of neighbours: the fast loop
      for (int64_t r = 0; r < x.size(0); ++r)
        for (int64_t j = 0; j < d; ++j) pdx[r * d + j] = pdy[r] * std::exp(px[r * down + j * right] - py[r]);
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowLogSumExp>(); }
};

/// Cosine of the angle between rows: y_r = <a, b> / (|a| |b|).
/// da = dy (b / (|a| |b|) - y a / |a|^2),  db alike with a and b exchanged.
struct CosineRowsBase {
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&a = in[0], &b = in[1];
    Arr<S> y(Shape{a.size(0)});
    for (int64_t r = 0; r < a.size(0); ++r) {
      S ab(0), aa(0), bb(0);
      for (int64_t j = 0; j < a.size(1); ++j) {
        ab += a(r, j) * b(r, j);
        aa += a(r, j) * a(r, j);
        bb += b(r, j) * b(r, j);
      }
      y[r] = ab / (sc::sqrt(aa) * sc::sqrt(bb));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor a = unrepeated(in[0]), b = unrepeated(in[1]);
    const Tensor ca = a.contiguous(), cb = b.contiguous();
    const int64_t n = a.size(0), d = a.size(1);
    Tensor y = Tensor::empty({n}, a.dtype());
    dispatch_float("cosine_rows", a.dtype(), [&]<class T>() {
      const T *pa = ca.data<T>(), *pb = cb.data<T>();
      T* py = y.mutable_data<T>("cosine_rows");
      for (int64_t r = 0; r < n; ++r) {
        double ab = 0, aa = 0, bb = 0;
        for (int64_t j = 0; j < d; ++j) {
          const double u = static_cast<double>(pa[r * d + j]), v = static_cast<double>(pb[r * d + j]);
          ab += u * v, aa += u * u, bb += v * v;
        }
        py[r] = static_cast<T>(ab / std::sqrt(aa * bb));
      }
    });
    saved.keep_input(0, a);
    saved.keep_input(1, b);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), normal(r, {3, 5})}},
            {"(4, 4)", {}, {normal(r, {4, 4}), normal(r, {4, 4})}}};
  }
};
template <bool kWrong>
struct CosineRows : CosineRowsBase {
  static constexpr std::string_view name = kWrong ? "cosine_rows_wrong" : "cosine_rows_right";
  static constexpr std::string_view kind = "layout",
                                    mistake =
                                        "the dense loop is taken when a is contiguous, without a look at b; shows when "
                                        "b is a transpose or a strided slice";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &u = b[0], &v = b[1], dy = b.dy().contiguous();
    const int64_t n = u.size(0), d = u.size(1);
    Tensor du = Tensor::empty(u.shape(), u.dtype()), dv = Tensor::empty(v.shape(), v.dtype());
    Shape at_u = u.strides(), at_v = v.strides();
    if constexpr (kWrong)
      if (u.is_contiguous()) at_u = at_v = contiguous_strides(u.shape());
    dispatch_float(name, u.dtype(), [&]<class T>() {
      const T *pu = u.data<T>(), *pv = v.data<T>(), *pdy = dy.data<T>();
      T *pdu = du.mutable_data<T>(name), *pdv = dv.mutable_data<T>(name);
      for (int64_t r = 0; r < n; ++r) {
        double uv = 0, uu = 0, vv = 0;
        for (int64_t j = 0; j < d; ++j) {
          const double p = static_cast<double>(pu[r * at_u[0] + j * at_u[1]]),
                       q = static_cast<double>(pv[r * at_v[0] + j * at_v[1]]);
          uv += p * q, uu += p * p, vv += q * q;
        }
        const double norms = std::sqrt(uu * vv), y = uv / norms, g = static_cast<double>(pdy[r]);
        for (int64_t j = 0; j < d; ++j) {
          const double p = static_cast<double>(pu[r * at_u[0] + j * at_u[1]]),
                       q = static_cast<double>(pv[r * at_v[0] + j * at_v[1]]);
          pdu[r * d + j] = static_cast<T>(g * (q / norms - y * p / uu));
          pdv[r * d + j] = static_cast<T>(g * (p / norms - y * q / vv));
        }
      }
    });
    return {du, dv};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<CosineRows>(); }
};

/// Running sum along the last dimension: y_t = sum_(s <= t) x_s.  dx_t = sum_(s >= t) dy_s.
struct RunningSumBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y = in[0];
    const int64_t n = y.size(-1);
    for (int64_t i = 0; i < y.numel(); ++i)
      if (i % n) y[i] += y[i - 1];
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    const int64_t n = x.size(-1);
    dispatch_float("running_sum", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("running_sum");
      for (int64_t r = 0; r < x.shape().rows(); ++r) {
        double total = 0;
        for (int64_t t = 0; t < n; ++t) py[r * n + t] = static_cast<T>(total += static_cast<double>(px[r * n + t]));
      }
    });
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(7,)", {}, {normal(r, {7})}}, {"(3, 5)", {}, {normal(r, {3, 5})}}};
  }
};
template <bool kWrong>
struct RunningSum : RunningSumBase {
  static constexpr std::string_view name = kWrong ? "running_sum_wrong" : "running_sum_right";
  static constexpr std::string_view kind = "layout",
                                    mistake =
                                        "a cotangent that is expanded along its first dimension counts as one number "
                                        "everywhere; shows when a row of different numbers is expanded over the batch";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor& given = b.dy();
    Tensor dx = empty_like(given);
    const int64_t n = given.size(-1), rows = given.shape().rows();
    dispatch_float(name, given.dtype(), [&]<class T>() {
      T* pdx = dx.mutable_data<T>(name);
      if constexpr (kWrong)
        if (given.strides()[0] == 0) {  // what sum() hands back: no need to make it dense
          const T constant = *given.data<T>();
          for (int64_t i = 0; i < given.numel(); ++i) pdx[i] = constant * static_cast<T>(n - i % n);
          return;
        }
      const Tensor dy = given.contiguous();
      const T* pdy = dy.data<T>();
      for (int64_t r = 0; r < rows; ++r) {
        double total = 0;
        for (int64_t t = n - 1; t >= 0; --t)
          pdx[r * n + t] = static_cast<T>(total += static_cast<double>(pdy[r * n + t]));
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RunningSum>(); }
};

/// Dynamic tanh with one shared slope: y = tanh(s x), s a single number.
/// dx = dy s (1 - y^2),  ds = sum dy x (1 - y^2).
struct SlopedTanhBase {
  static inline const std::array inputs{In{"x"}, In{"s"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [&](S x) { return sc::tanh(in[1][0] * x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous(), s = in[1].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("sloped_tanh", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), slope = *s.data<T>();
      T* py = y.mutable_data<T>("sloped_tanh");
      for (int64_t i = 0; i < x.numel(); ++i) py[i] = std::tanh(slope * px[i]);
    });
    saved.keep_input(0, x);
    saved.keep_input(1, s);
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), positive(r, {})}},
            {"(2, 4, 6)", {}, {normal(r, {2, 4, 6}), positive(r, {1})}}};
  }
};
template <bool kWrong>
struct SlopedTanh : SlopedTanhBase {
  static constexpr std::string_view name = kWrong ? "sloped_tanh_wrong" : "sloped_tanh_right";
  static constexpr std::string_view kind = "layout",
                                    mistake =
                                        "backward reads the slope from the start of its storage; shows when the slope "
                                        "is one element of a vector of parameters";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &s = b[1], &y = b[2], dy = b.dy().contiguous();
    Tensor dx = empty_like(x), ds = zeros_like(s);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *py = y.data<T>(), *pdy = dy.data<T>();
      const T slope = kWrong ? *reinterpret_cast<const T*>(s.storage()->data()) : *s.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      double total = 0;
      for (int64_t i = 0; i < x.numel(); ++i) {
        const T g = pdy[i] * (1 - py[i] * py[i]);
        pdx[i] = slope * g;
        total += static_cast<double>(px[i]) * static_cast<double>(g);
      }
      *ds.mutable_data<T>(name) = static_cast<T>(total);
    });
    return {dx, ds};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SlopedTanh>(); }
};

/// Products over the edges of a graph: y_e = x[src_e] x[dst_e].  dx[src_e] += dy_e x[dst_e], dx[dst_e] += dy_e
/// x[src_e]. Edges with a node outside of [0, n) are padding: y_e = 0.
struct EdgeProductBase {
  static inline const std::array inputs{In{"x"}, In{"src", false}, In{"dst", false}};
  using Args = NoArgs;
  static bool inside(int64_t node, int64_t n) { return node >= 0 && node < n; }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    const int64_t edges = in[1].numel(), n = x.size(0), d = x.size(1);
    Arr<S> y(Shape{edges, d});
    for (int64_t e = 0; e < edges; ++e)
      if (inside(in[1].index(e), n) && inside(in[2].index(e), n))
        for (int64_t j = 0; j < d; ++j) y(e, j) = x(in[1].index(e), j) * x(in[2].index(e), j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous(), src = in[1].contiguous(), dst = in[2].contiguous();
    const int64_t edges = src.numel(), n = x.size(0), d = x.size(1);
    Tensor y = Tensor::zeros({edges, d}, x.dtype());
    dispatch_float("edge_product", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      const int64_t *from = src.data<int64_t>(), *to = dst.data<int64_t>();
      T* py = y.mutable_data<T>("edge_product");
      for (int64_t e = 0; e < edges; ++e)
        if (inside(from[e], n) && inside(to[e], n))
          for (int64_t j = 0; j < d; ++j) py[e * d + j] = px[from[e] * d + j] * px[to[e] * d + j];
    });
    saved.keep_input(0, x);
    saved.keep_input(1, unrepeated(in[1]));
    saved.keep_input(2, unrepeated(in[2]));
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {
        {"5 edges of (4, 3)", {}, {normal(r, {4, 3}), indices({0, 1, 3, 2, 0}, {5}), indices({1, 2, 0, 3, 3}, {5})}},
        {"3 edges of (3, 2)", {}, {normal(r, {3, 2}), indices({0, 1, 2}, {3}), indices({1, 2, 0}, {3})}}};
  }
};
template <bool kWrong>
struct EdgeProduct : EdgeProductBase {
  static constexpr std::string_view name = kWrong ? "edge_product_wrong" : "edge_product_right";
  static constexpr std::string_view kind = "layout",
                                    mistake =
                                        "backward reads the lists of nodes as dense; shows when they are the columns "
                                        "of one (edges, 2) table";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    const Tensor src = kWrong ? b[1] : b[1].contiguous(), dst = kWrong ? b[2] : b[2].contiguous();
    const int64_t edges = src.numel(), n = x.size(0), d = x.size(1);
    Tensor dx = zeros_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>();
      const int64_t *from = src.data<int64_t>(), *to = dst.data<int64_t>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t e = 0; e < edges; ++e)
        if (inside(from[e], n) && inside(to[e], n))
          for (int64_t j = 0; j < d; ++j) {
            pdx[from[e] * d + j] += pdy[e * d + j] * px[to[e] * d + j];
            pdx[to[e] * d + j] += pdy[e * d + j] * px[from[e] * d + j];
          }
    });
    return {dx, Tensor(), Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<EdgeProduct>(); }
};

// --- Wrong in f32 only -----------------------------------------------------------------------------------------------

/// Rows of mean 0 and variance 1: y = (x - m) r, r = 1 / sqrt(mean((x - m)^2) + eps).
/// dx = r (dy - mean(dy) - y mean(dy y)).
struct StandardiseBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double eps = 1e-5;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S m(0), v(0);
      for (int64_t j = 0; j < d; ++j) m += x[r * d + j] / S(d);
      for (int64_t j = 0; j < d; ++j) v += (x[r * d + j] - m) * (x[r * d + j] - m) / S(d);
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = (x[r * d + j] - m) / sc::sqrt(v + S(a.eps));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float("standardise", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("standardise");
      for (int64_t r = 0; r < x.shape().rows(); ++r, px += d, py += d) {
        double m = 0, v = 0;
        for (int64_t j = 0; j < d; ++j) m += static_cast<double>(px[j]) / static_cast<double>(d);
        for (int64_t j = 0; j < d; ++j) v += std::pow(static_cast<double>(px[j]) - m, 2) / static_cast<double>(d);
        for (int64_t j = 0; j < d; ++j) py[j] = static_cast<T>((static_cast<double>(px[j]) - m) / std::sqrt(v + a.eps));
      }
    });
    saved.keep_input(0, x);
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct Standardise : StandardiseBase {
  static constexpr std::string_view name = kWrong ? "standardise_wrong" : "standardise_right";
  static constexpr std::string_view kind = "f32",
                                    mistake =
                                        "backward gets the variance again as mean(x^2) - mean(x)^2 in the element "
                                        "type; shows in f32 when the mean is far larger than the deviation";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &y = b[1], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      using A = std::conditional_t<kWrong, T, double>;
      const T *px = x.data<T>(), *py = y.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      const A count = static_cast<A>(d);
      for (int64_t r = 0; r < x.shape().rows(); ++r, px += d, py += d, pdy += d, pdx += d) {
        A m = 0, v = 0, g = 0, gy = 0;
        for (int64_t j = 0; j < d; ++j) {
          m += static_cast<A>(px[j]) / count;
          g += static_cast<A>(pdy[j]) / count;
          gy += static_cast<A>(pdy[j]) * static_cast<A>(py[j]) / count;
        }
        if constexpr (kWrong) {
          A square = 0;
          for (int64_t j = 0; j < d; ++j) square += px[j] * px[j] / count;
          v = std::max(A(0), square - m * m);
        } else {
          for (int64_t j = 0; j < d; ++j) v += (static_cast<A>(px[j]) - m) * (static_cast<A>(px[j]) - m) / count;
        }
        const A rstd = 1 / std::sqrt(v + static_cast<A>(b.args.eps));
        for (int64_t j = 0; j < d; ++j)
          pdx[j] = static_cast<T>(rstd * (static_cast<A>(pdy[j]) - g - static_cast<A>(py[j]) * gy));
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Standardise>(); }
};

/// Rows of length 1: y = x / |x|.  dx = (dy - y <y, dy>) / |x|.
struct UnitRowsBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S square(0);
      for (int64_t j = 0; j < d; ++j) square += x[r * d + j] * x[r * d + j];
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = x[r * d + j] / sc::sqrt(square);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float("unit_rows", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("unit_rows");
      for (int64_t r = 0; r < x.shape().rows(); ++r, px += d, py += d) {
        double square = 0;
        for (int64_t j = 0; j < d; ++j) square += static_cast<double>(px[j]) * static_cast<double>(px[j]);
        for (int64_t j = 0; j < d; ++j) py[j] = static_cast<T>(static_cast<double>(px[j]) / std::sqrt(square));
      }
    });
    saved.keep_input(0, x);
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct UnitRows : UnitRowsBase {
  static constexpr std::string_view name = kWrong ? "unit_rows_wrong" : "unit_rows_right";
  static constexpr std::string_view kind = "f32",
                                    mistake =
                                        "backward in f32 takes 1 / |x| from a fast inverse root with one Newton step, "
                                        "good to three digits; shows in f32 everywhere, by 0.1 percent";
  /// 1 / sqrt(x): a guess from the exponent's bits, made better by one step of Newton's method.
  static float fast_inverse_root(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, sizeof bits);
    bits = 0x5f3759dfu - (bits >> 1);
    float guess;
    std::memcpy(&guess, &bits, sizeof guess);
    return guess * (1.5f - 0.5f * x * guess * guess);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &y = b[1], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *py = y.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < x.shape().rows(); ++r, px += d, py += d, pdy += d, pdx += d) {
        double square = 0;
        T product = 0, inverse = 0;
        for (int64_t j = 0; j < d; ++j) {
          square += static_cast<double>(px[j]) * static_cast<double>(px[j]);
          product += py[j] * pdy[j];
        }
        if constexpr (kWrong && std::is_same_v<T, float>)
          inverse = fast_inverse_root(static_cast<float>(square));
        else
          inverse = static_cast<T>(1 / std::sqrt(square));
        for (int64_t j = 0; j < d; ++j) pdx[j] = inverse * (pdy[j] - py[j] * product);
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<UnitRows>(); }
};

/// Attention of queries q (m, d) on keys k (n, d) and values v (n, e): p = softmax(q k^T / sqrt(d)), y = p v.
/// dv = p^T dy;  dp = dy v^T,  ds = p (dp - sum_t p dp) / sqrt(d),  dq = ds k,  dk = ds^T q.
struct SmallAttentionBase {
  static inline const std::array inputs{In{"q"}, In{"k"}, In{"v"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&q = in[0], &k = in[1], &v = in[2];
    const int64_t m = q.size(0), n = k.size(0), d = q.size(1), e = v.size(1);
    Arr<S> y(Shape{m, e});
    for (int64_t i = 0; i < m; ++i) {
      std::vector<S> s(static_cast<size_t>(n), S(0));
      for (int64_t t = 0; t < n; ++t)
        for (int64_t j = 0; j < d; ++j) s[static_cast<size_t>(t)] += q(i, j) * k(t, j) / sc::sqrt(S(d));
      S largest = s[0], total(0);
      for (const S& each : s)
        if (each > largest) largest = each;
      for (S& each : s) total += each = sc::exp(each - largest);
      for (int64_t t = 0; t < n; ++t)
        for (int64_t j = 0; j < e; ++j) y(i, j) += s[static_cast<size_t>(t)] / total * v(t, j);
    }
    return {y};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 on 5", {}, {normal(r, {3, 4}), normal(r, {5, 4}), normal(r, {5, 2})}},
            {"1 on 6", {}, {normal(r, {1, 8}), normal(r, {6, 8}), normal(r, {6, 8})}}};
  }
};
template <bool kWrong>
struct SmallAttention : SmallAttentionBase {
  static constexpr std::string_view name = kWrong ? "small_attention_wrong" : "small_attention_right";
  static constexpr std::string_view kind = "f32",
                                    mistake =
                                        "the weights of an f32 attention are kept in bf16 to save memory; shows in f32 "
                                        "everywhere, by up to half a percent";
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor q = in[0].contiguous(), k = in[1].contiguous(), v = in[2].contiguous();
    const int64_t m = q.size(0), n = k.size(0), d = q.size(1), e = v.size(1);
    Tensor y = Tensor::zeros({m, e}, q.dtype()), p = Tensor::empty({m, n}, q.dtype());
    dispatch_float(name, q.dtype(), [&]<class T>() {
      const T *pq = q.data<T>(), *pk = k.data<T>(), *pv = v.data<T>();
      T *py = y.mutable_data<T>(name), *pp = p.mutable_data<T>(name);
      const T scale = 1 / std::sqrt(static_cast<T>(d));
      for (int64_t i = 0; i < m; ++i) {
        T* row = pp + i * n;
        for (int64_t t = 0; t < n; ++t) {
          T s = 0;
          for (int64_t j = 0; j < d; ++j) s += pq[i * d + j] * pk[t * d + j];
          row[t] = s * scale;
        }
        const T largest = *std::max_element(row, row + n);
        T total = 0;
        for (int64_t t = 0; t < n; ++t) total += row[t] = std::exp(row[t] - largest);
        for (int64_t t = 0; t < n; ++t) {
          row[t] /= total;
          for (int64_t j = 0; j < e; ++j) py[i * e + j] += row[t] * pv[t * e + j];
        }
      }
    });
    saved.keep_input(0, q);
    saved.keep_input(1, k);
    saved.keep_input(2, v);
    saved.keep(kWrong && p.dtype() == DType::f32 ? p.to(DType::bf16) : p);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &q = b[0], &k = b[1], &v = b[2], p = b[3].to(q.dtype()), dy = b.dy().contiguous();
    const int64_t m = q.size(0), n = k.size(0), d = q.size(1), e = v.size(1);
    Tensor dq = zeros_like(q), dk = zeros_like(k), dv = zeros_like(v);
    dispatch_float(name, q.dtype(), [&]<class T>() {
      const T *pq = q.data<T>(), *pk = k.data<T>(), *pv = v.data<T>(), *pp = p.data<T>(), *pdy = dy.data<T>();
      T *pdq = dq.mutable_data<T>(name), *pdk = dk.mutable_data<T>(name), *pdv = dv.mutable_data<T>(name);
      const T scale = 1 / std::sqrt(static_cast<T>(d));
      std::vector<T> dp(static_cast<size_t>(n));
      for (int64_t i = 0; i < m; ++i) {
        T mean = 0;
        for (int64_t t = 0; t < n; ++t) {
          T& g = dp[static_cast<size_t>(t)] = 0;
          for (int64_t j = 0; j < e; ++j) {
            g += pdy[i * e + j] * pv[t * e + j];
            pdv[t * e + j] += pp[i * n + t] * pdy[i * e + j];
          }
          mean += pp[i * n + t] * g;
        }
        for (int64_t t = 0; t < n; ++t) {
          const T ds = scale * pp[i * n + t] * (dp[static_cast<size_t>(t)] - mean);
          for (int64_t j = 0; j < d; ++j) {
            pdq[i * d + j] += ds * pk[t * d + j];
            pdk[t * d + j] += ds * pq[i * d + j];
          }
        }
      }
    });
    return {dq, dk, dv};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SmallAttention>(); }
};

/// A smooth step: y = sigmoid((x - c) / T).  dx = dy y (1 - y) / T.
struct SmoothStepBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double c = 0, temperature = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return sc::sigmoid((x - S(a.c)) / S(a.temperature)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("smooth_step", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("smooth_step");
      for (int64_t i = 0; i < x.numel(); ++i)
        py[i] = logistic((px[i] - static_cast<T>(a.c)) / static_cast<T>(a.temperature));
    });
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {0, 1}, {normal(r, {3, 5})}}, {"(2, 4, 6), T 0.5", {0.3, 0.5}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct SmoothStep : SmoothStepBase {
  static constexpr std::string_view name = kWrong ? "smooth_step_wrong" : "smooth_step_right";
  static constexpr std::string_view kind = "f32",
                                    mistake =
                                        "the f32 loop of backward, written before there was a temperature, does not "
                                        "divide by it; shows in f32 when T is not 1";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &y = b[0], dy = b.dy().contiguous();
    Tensor dx = empty_like(y);
    dispatch_float(name, y.dtype(), [&]<class T>() {
      const T *py = y.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      int64_t i = 0;
      if constexpr (std::is_same_v<T, float>) {
        const T scale = kWrong ? T(1) : static_cast<T>(1 / b.args.temperature);
        for (; i + 8 <= y.numel(); i += 8)
          for (int64_t j = i; j < i + 8; ++j) pdx[j] = pdy[j] * py[j] * (1 - py[j]) * scale;
      }
      for (; i < y.numel(); ++i) pdx[i] = pdy[i] * py[i] * (1 - py[i]) / static_cast<T>(b.args.temperature);
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SmoothStep>(); }
};

/// Pairs of columns turned by an angle that grows with the position: with w_i = base^(-2i / d) and a = position w_i,
/// y_2i = x_2i cos a - x_2i+1 sin a,  y_2i+1 = x_2i sin a + x_2i+1 cos a. Backward turns dy by -a.
struct TurnPairsBase {
  static inline const std::array inputs{In{"x"}, In{"positions", false}};
  struct Args {
    double base = 10000;
  };
  static double frequency(int64_t pair, int64_t d, double base) {
    return std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(d));
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& args) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r)
      for (int64_t i = 0; i < d / 2; ++i) {
        const double a = static_cast<double>(in[1].index(r)) * frequency(i, d, args.base);
        y(r, 2 * i) = x(r, 2 * i) * S(std::cos(a)) - x(r, 2 * i + 1) * S(std::sin(a));
        y(r, 2 * i + 1) = x(r, 2 * i) * S(std::sin(a)) + x(r, 2 * i + 1) * S(std::cos(a));
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& args) {
    const Tensor x = in[0].contiguous(), positions = in[1].contiguous();
    Tensor y = zeros_like(x);
    const int64_t d = x.size(1);
    dispatch_float("turn_pairs", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      const int64_t* at = positions.data<int64_t>();
      T* py = y.mutable_data<T>("turn_pairs");
      for (int64_t r = 0; r < x.size(0); ++r, px += d, py += d)
        for (int64_t i = 0; i < d / 2; ++i) {
          const double a = static_cast<double>(at[r]) * frequency(i, d, args.base);
          const T c = static_cast<T>(std::cos(a)), s = static_cast<T>(std::sin(a));
          py[2 * i] = px[2 * i] * c - px[2 * i + 1] * s;
          py[2 * i + 1] = px[2 * i] * s + px[2 * i + 1] * c;
        }
    });
    saved.keep_input(1, positions);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4, 6)", {}, {normal(r, {4, 6}), indices({0, 1, 2, 3}, {4})}},
            {"far along", {}, {normal(r, {3, 8}), indices({17, 4095, 131071}, {3})}}};
  }
};
template <bool kWrong>
struct TurnPairs : TurnPairsBase {
  static constexpr std::string_view name = kWrong ? "turn_pairs_wrong" : "turn_pairs_right";
  static constexpr std::string_view kind = "f32",
                                    mistake =
                                        "backward in f32 computes the angle in f32 while forward does in f64; shows in "
                                        "f32 at positions of 10^5 and more";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &positions = b[0], dy = b.dy().contiguous();
    Tensor dx = zeros_like(dy);
    const int64_t d = dy.size(1);
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      using A = std::conditional_t<kWrong, T, double>;
      const T* pdy = dy.data<T>();
      const int64_t* at = positions.data<int64_t>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < dy.size(0); ++r, pdy += d, pdx += d)
        for (int64_t i = 0; i < d / 2; ++i) {
          const A a = static_cast<A>(at[r]) * static_cast<A>(frequency(i, d, b.args.base));
          const T c = static_cast<T>(std::cos(a)), s = static_cast<T>(std::sin(a));
          pdx[2 * i] = pdy[2 * i] * c + pdy[2 * i + 1] * s;
          pdx[2 * i + 1] = pdy[2 * i + 1] * c - pdy[2 * i] * s;
        }
    });
    return {dx, Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<TurnPairs>(); }
};

/// Softplus with a slope: y = log(1 + exp(beta x)) / beta.  dx = dy sigmoid(beta x).
struct SlopedSoftplusBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double beta = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) {
      const S z = S(a.beta) * x;
      return (z > S(0) ? z + sc::log1p(sc::exp(-z)) : sc::log1p(sc::exp(z))) / S(a.beta);
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("sloped_softplus", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), beta = static_cast<T>(a.beta);
      T* py = y.mutable_data<T>("sloped_softplus");
      for (int64_t i = 0; i < x.numel(); ++i) {
        const T z = beta * px[i];
        py[i] = (std::max(z, T(0)) + std::log1p(std::exp(-std::abs(z)))) / beta;
      }
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {1}, {normal(r, {3, 5})}}, {"(2, 4, 6), beta 2", {2}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct SlopedSoftplus : SlopedSoftplusBase {
  static constexpr std::string_view name = kWrong ? "sloped_softplus_wrong" : "sloped_softplus_right";
  static constexpr std::string_view kind = "f32",
                                    mistake =
                                        "the f32 loop of backward computes e / (1 + e) with e = exp(beta x), which is "
                                        "not a number once e overflows; shows in f32 when beta x is above 88";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>(), beta = static_cast<T>(b.args.beta);
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i)
        if constexpr (kWrong && std::is_same_v<T, float>) {
          const float e = std::exp(beta * px[i]);
          pdx[i] = pdy[i] * e / (1 + e);
        } else {
          pdx[i] = pdy[i] * logistic(beta * px[i]);
        }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SlopedSoftplus>(); }
};

// --- A forgotten gradient --------------------------------------------------------------------------------------------

/// Negative log likelihood of a normal distribution, element by element, without its constant:
/// y = (l + e^2 exp(-l)) / 2 with e = target - mean, l the log variance.
/// dmean = -dy e exp(-l),  dtarget = dy e exp(-l),  dl = dy (1 - e^2 exp(-l)) / 2.
struct NormalLossBase {
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    for (int64_t i = 0; i < y.numel(); ++i) {
      const S e = in[1][i] - in[0][i], l = in[2][i];
      y[i] = S(0.5) * (l + e * e * sc::exp(-l));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor mean = in[0].contiguous(), target = in[1].contiguous(), l = in[2].contiguous();
    Tensor y = empty_like(mean);
    dispatch_float("normal_loss", mean.dtype(), [&]<class T>() {
      const T *pm = mean.data<T>(), *pt = target.data<T>(), *pl = l.data<T>();
      T* py = y.mutable_data<T>("normal_loss");
      for (int64_t i = 0; i < y.numel(); ++i)
        py[i] = T(0.5) * (pl[i] + (pt[i] - pm[i]) * (pt[i] - pm[i]) * std::exp(-pl[i]));
    });
    saved.keep_input(0, mean);
    saved.keep_input(1, target);
    saved.keep_input(2, l);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), normal(r, {3, 5}), normal(r, {3, 5})}},
            {"(2, 4, 6)", {}, {normal(r, {2, 4, 6}), normal(r, {2, 4, 6}), normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct NormalLoss : NormalLossBase {
  static constexpr std::string_view name = kWrong ? "normal_loss_wrong" : "normal_loss_right";
  static constexpr std::string_view kind = "forgotten",
                                    mistake =
                                        "the target is declared as without gradient; shows when the target is computed "
                                        "from parameters, as in distillation or an autoencoder";
  static inline const std::array inputs{In{"mean"}, In{"target", !kWrong}, In{"log_variance"}};
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &mean = b[0], &target = b[1], &l = b[2], dy = b.dy().contiguous();
    Tensor dm = empty_like(mean), dt = empty_like(mean), dl = empty_like(mean);
    dispatch_float(name, mean.dtype(), [&]<class T>() {
      const T *pm = mean.data<T>(), *pt = target.data<T>(), *pl = l.data<T>(), *pdy = dy.data<T>();
      T *pdm = dm.mutable_data<T>(name), *pdt = dt.mutable_data<T>(name), *pdl = dl.mutable_data<T>(name);
      for (int64_t i = 0; i < mean.numel(); ++i) {
        const T e = pt[i] - pm[i], inverse = std::exp(-pl[i]);
        pdm[i] = -pdy[i] * e * inverse;
        pdt[i] = pdy[i] * e * inverse;
        pdl[i] = pdy[i] * T(0.5) * (1 - e * e * inverse);
      }
    });
    return {dm, kWrong ? Tensor() : dt, dl};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<NormalLoss>(); }
};

/// Weighted sums of rows of a table: y_b = sum_l weights_bl table[ids_bl].
/// dtable[ids_bl] += weights_bl dy_b,  dweights_bl = <dy_b, table[ids_bl]>.
struct RowBagBase {
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[1].size(0), l = in[1].size(1), d = in[0].size(1);
    Arr<S> y(Shape{n, d});
    for (int64_t i = 0; i < n * l; ++i)
      for (int64_t j = 0; j < d; ++j) y(i / l, j) += in[2][i] * in[0](in[1].index(i), j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor table = in[0].contiguous(), ids = in[1].contiguous(), weights = in[2].contiguous();
    const int64_t n = ids.size(0), l = ids.size(1), d = table.size(1);
    Tensor y = Tensor::zeros({n, d}, table.dtype());
    dispatch_float("row_bag", table.dtype(), [&]<class T>() {
      const T *pt = table.data<T>(), *pw = weights.data<T>();
      const int64_t* id = ids.data<int64_t>();
      T* py = y.mutable_data<T>("row_bag");
      for (int64_t i = 0; i < n * l; ++i)
        for (int64_t j = 0; j < d; ++j) py[i / l * d + j] += pw[i] * pt[id[i] * d + j];
    });
    saved.keep_input(0, table);
    saved.keep_input(1, ids);
    saved.keep_input(2, weights);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"2 bags of 3", {}, {normal(r, {5, 4}), indices({4, 0, 2, 0, 1, 1}, {2, 3}), positive(r, {2, 3})}},
            {"3 bags of 2", {}, {normal(r, {3, 2}), indices({0, 1, 2, 1, 0, 2}, {3, 2}), normal(r, {3, 2})}}};
  }
};
template <bool kWrong>
struct RowBag : RowBagBase {
  static constexpr std::string_view name = kWrong ? "row_bag_wrong" : "row_bag_right";
  static constexpr std::string_view kind = "forgotten",
                                    mistake =
                                        "the weights of the rows are declared as without gradient; shows when they are "
                                        "learned, as the gates of a mixture are";
  static inline const std::array inputs{In{"table"}, In{"ids", false}, In{"weights", !kWrong}};
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &table = b[0], &ids = b[1], &weights = b[2], dy = b.dy().contiguous();
    const int64_t n = ids.size(0), l = ids.size(1), d = table.size(1);
    Tensor dtable = zeros_like(table), dweights = zeros_like(weights);
    dispatch_float(name, table.dtype(), [&]<class T>() {
      const T *pt = table.data<T>(), *pw = weights.data<T>(), *pdy = dy.data<T>();
      const int64_t* id = ids.data<int64_t>();
      T *pdt = dtable.mutable_data<T>(name), *pdw = dweights.mutable_data<T>(name);
      for (int64_t i = 0; i < n * l; ++i)
        for (int64_t j = 0; j < d; ++j) {
          pdt[id[i] * d + j] += pw[i] * pdy[i / l * d + j];
          pdw[i] += pdy[i / l * d + j] * pt[id[i] * d + j];
        }
    });
    return {dtable, Tensor(), kWrong ? Tensor() : dweights};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowBag>(); }
};

/// The element-wise part of an LSTM step: gates (n, 4w) = [i, f, g, o], c the state, two outputs:
/// c' = sigmoid(f) c + sigmoid(i) tanh(g),  h = sigmoid(o) tanh(c').
/// With e = dc' + dh so (1 - tanh(c')^2):  df = e c sf (1 - sf),  di = e tg si (1 - si),  dg = e si (1 - tg^2),
/// do = dh tanh(c') so (1 - so),  dc = e sf.
struct LstmCellBase {
  static inline const std::array inputs{In{"gates"}, In{"c"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&gates = in[0], &c = in[1];
    const int64_t n = c.size(0), w = c.size(1);
    Arr<S> h(c.shape), next(c.shape);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < w; ++j) {
        next(r, j) = sc::sigmoid(gates(r, w + j)) * c(r, j) + sc::sigmoid(gates(r, j)) * sc::tanh(gates(r, 2 * w + j));
        h(r, j) = sc::sigmoid(gates(r, 3 * w + j)) * sc::tanh(next(r, j));
      }
    return {h, next};
  }
  static Tensors forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor gates = in[0].contiguous(), c = in[1].contiguous();
    const int64_t n = c.size(0), w = c.size(1);
    Tensor h = empty_like(c), next = empty_like(c);
    dispatch_float("lstm_cell", c.dtype(), [&]<class T>() {
      const T *g = gates.data<T>(), *pc = c.data<T>();
      T *ph = h.mutable_data<T>("lstm_cell"), *pn = next.mutable_data<T>("lstm_cell");
      for (int64_t r = 0; r < n; ++r, g += 4 * w)
        for (int64_t j = 0; j < w; ++j) {
          const int64_t at = r * w + j;
          pn[at] = logistic(g[w + j]) * pc[at] + logistic(g[j]) * std::tanh(g[2 * w + j]);
          ph[at] = logistic(g[3 * w + j]) * std::tanh(pn[at]);
        }
    });
    saved.keep_input(0, gates);
    saved.keep_input(1, c);
    saved.keep_output(1, next);
    return {h, next};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 3)", {}, {normal(r, {2, 12}), normal(r, {2, 3})}},
            {"(4, 1)", {}, {normal(r, {4, 4}), normal(r, {4, 1})}}};
  }
};
template <bool kWrong>
struct LstmCell : LstmCellBase {
  static constexpr std::string_view name = kWrong ? "lstm_cell_wrong" : "lstm_cell_right";
  static constexpr std::string_view kind = "forgotten",
                                    mistake =
                                        "the cotangent of the second output, the state, is not used; shows whenever "
                                        "the state goes on to a further step";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &gates = b[0], &c = b[1], &next = b[2], dh = b.dy(0).contiguous(), dn = b.dy(1).contiguous();
    const int64_t n = c.size(0), w = c.size(1);
    Tensor dgates = empty_like(gates), dc = empty_like(c);
    dispatch_float(name, c.dtype(), [&]<class T>() {
      const T *g = gates.data<T>(), *pc = c.data<T>(), *pn = next.data<T>(), *pdh = dh.data<T>(), *pdn = dn.data<T>();
      T *pdg = dgates.mutable_data<T>(name), *pdc = dc.mutable_data<T>(name);
      for (int64_t r = 0; r < n; ++r, g += 4 * w, pdg += 4 * w)
        for (int64_t j = 0; j < w; ++j) {
          const int64_t at = r * w + j;
          const T si = logistic(g[j]), sf = logistic(g[w + j]), tg = std::tanh(g[2 * w + j]),
                  so = logistic(g[3 * w + j]), tn = std::tanh(pn[at]);
          T e = pdh[at] * so * (1 - tn * tn);
          if constexpr (!kWrong) e += pdn[at];
          pdg[j] = e * tg * si * (1 - si);
          pdg[w + j] = e * pc[at] * sf * (1 - sf);
          pdg[2 * w + j] = e * si * (1 - tg * tg);
          pdg[3 * w + j] = pdh[at] * tn * so * (1 - so);
          pdc[at] = e * sf;
        }
    });
    return {dgates, dc};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<LstmCell>(); }
};

/// Interpolation: y = a + w (b - a), w of a's shape or a single number.
/// da = dy (1 - w),  db = dy w,  dw = dy (b - a), summed when w is a single number.
struct LerpBase {
  static inline const std::array inputs{In{"a"}, In{"b"}, In{"w"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = in[0][i] + in[2][in[2].numel() == 1 ? 0 : i] * (in[1][i] - in[0][i]);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor a = in[0].contiguous(), b = in[1].contiguous(), w = in[2].contiguous();
    Tensor y = empty_like(a);
    const int64_t step = w.numel() == 1 ? 0 : 1;
    dispatch_float("lerp", a.dtype(), [&]<class T>() {
      const T *pa = a.data<T>(), *pb = b.data<T>(), *pw = w.data<T>();
      T* py = y.mutable_data<T>("lerp");
      for (int64_t i = 0; i < y.numel(); ++i) py[i] = pa[i] + pw[i * step] * (pb[i] - pa[i]);
    });
    saved.keep_input(0, a);
    saved.keep_input(1, b);
    saved.keep_input(2, w);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), normal(r, {3, 5}), Tensor::rand({3, 5}, r, 0.1, 0.9, DType::f64)}},
            {"one weight", {}, {normal(r, {2, 3}), normal(r, {2, 3}), Tensor::rand({}, r, 0.1, 0.9, DType::f64)}}};
  }
};
template <bool kWrong>
struct Lerp : LerpBase {
  static constexpr std::string_view name = kWrong ? "lerp_wrong" : "lerp_right";
  static constexpr std::string_view kind = "forgotten",
                                    mistake =
                                        "a weight that is a single number counts as a constant and gets no gradient; "
                                        "shows when one learned number blends two tensors";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &u = b[0], &v = b[1], &w = b[2], dy = b.dy().contiguous();
    Tensor du = empty_like(u), dv = empty_like(u), dw = zeros_like(w);
    const int64_t step = w.numel() == 1 ? 0 : 1;
    dispatch_float(name, u.dtype(), [&]<class T>() {
      const T *pu = u.data<T>(), *pv = v.data<T>(), *pw = w.data<T>(), *pdy = dy.data<T>();
      T *pdu = du.mutable_data<T>(name), *pdv = dv.mutable_data<T>(name), *pdw = dw.mutable_data<T>(name);
      for (int64_t i = 0; i < u.numel(); ++i) {
        pdu[i] = pdy[i] * (1 - pw[i * step]);
        pdv[i] = pdy[i] * pw[i * step];
        pdw[i * step] += pdy[i] * (pv[i] - pu[i]);
      }
    });
    return {du, dv, kWrong && step == 0 ? Tensor() : dw};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Lerp>(); }
};

/// A gated linear recurrence of each row, from either end: h_t = a_t h_(t-1) + x_t, h_(-1) = start; with `reverse`
/// the steps are taken from the last to the first.
/// With g_t = dy_t + a_(t+1) g_(t+1):  dx_t = g_t,  da_t = g_t h_(t-1),  dstart = a_0 g_0, in the order of steps.
struct GatedScanBase {
  static inline const std::array inputs{In{"a"}, In{"x"}, In{"start"}};
  struct Args {
    bool reverse = false;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& args) {
    const Arr<S>&a = in[0], &x = in[1];
    Arr<S> h(x.shape);
    const int64_t n = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r) {
      S state = in[2][r];
      for (int64_t s = 0; s < n; ++s) {
        const int64_t t = args.reverse ? n - 1 - s : s;
        h(r, t) = state = a(r, t) * state + x(r, t);
      }
    }
    return {h};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& args) {
    const Tensor a = in[0].contiguous(), x = in[1].contiguous(), start = in[2].contiguous();
    Tensor h = empty_like(x);
    const int64_t n = x.size(1);
    dispatch_float("gated_scan", x.dtype(), [&]<class T>() {
      const T *pa = a.data<T>(), *px = x.data<T>(), *ps = start.data<T>();
      T* ph = h.mutable_data<T>("gated_scan");
      for (int64_t r = 0; r < x.size(0); ++r) {
        T state = ps[r];
        for (int64_t s = 0; s < n; ++s) {
          const int64_t t = r * n + (args.reverse ? n - 1 - s : s);
          ph[t] = state = pa[t] * state + px[t];
        }
      }
    });
    saved.keep_input(0, a);
    saved.keep_input(2, start);
    saved.keep_output(0, h);
    return h;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 5)", {false}, {normal(r, {2, 5}), normal(r, {2, 5}), normal(r, {2})}},
            {"(3, 4) in reverse", {true}, {normal(r, {3, 4}), normal(r, {3, 4}), normal(r, {3})}}};
  }
};
template <bool kWrong>
struct GatedScan : GatedScanBase {
  static constexpr std::string_view name = kWrong ? "gated_scan_wrong" : "gated_scan_right";
  static constexpr std::string_view kind = "forgotten",
                                    mistake =
                                        "the gradient of the start is left at zero in the reverse direction; shows "
                                        "when reverse is set and the start is learned";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &a = b[0], &start = b[1], &h = b[2], dy = b.dy().contiguous();
    Tensor da = empty_like(a), dx = empty_like(a), dstart = zeros_like(start);
    const int64_t n = a.size(1);
    dispatch_float(name, a.dtype(), [&]<class T>() {
      const T *pa = a.data<T>(), *ps = start.data<T>(), *ph = h.data<T>(), *pdy = dy.data<T>();
      T *pda = da.mutable_data<T>(name), *pdx = dx.mutable_data<T>(name), *pds = dstart.mutable_data<T>(name);
      for (int64_t r = 0; r < a.size(0); ++r) {
        T carried = 0;
        for (int64_t s = n - 1; s >= 0; --s) {
          const int64_t t = r * n + (b.args.reverse ? n - 1 - s : s), before = b.args.reverse ? t + 1 : t - 1;
          const T g = pdy[t] + carried;
          pdx[t] = g;
          pda[t] = g * (s > 0 ? ph[before] : ps[r]);
          carried = pa[t] * g;
        }
        if (!kWrong || !b.args.reverse) pds[r] = carried;
      }
    });
    return {da, dx, dstart};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GatedScan>(); }
};

}  // namespace strangers_a
