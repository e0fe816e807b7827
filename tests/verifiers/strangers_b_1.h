// Ops with a subtle mistake in them, each beside its right twin, for measuring verifiers; first part: backwards that
// are not linear in the cotangent, that depend on memory layout, and that are wrong in f32 alone.
//
// A case is a base that both twins share (what the function is) and a template over kWrong with the backward.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <numbers>
#include <string_view>
#include <vector>

#include "autograd/op.h"
#include "autograd/ops/samples.h"
#include "core/parallel.h"
#include "core/tensor_ops.h"

namespace strangers_b {

using namespace bg;  // NOLINT: these headers are read by one test each

using Vec = std::vector<double>;
using Ints = std::vector<int64_t>;

/// A tensor's numbers in row-major order, whatever its layout and floating type.
inline Vec values(const Tensor& t) { return t.to_vector<double>(); }
inline Ints whole(const Tensor& t) { return t.to_vector<int64_t>(); }
inline Tensor pack(const Vec& v, const Shape& shape, DType dtype) { return Tensor::of(v, shape).to(dtype); }
/// Numbers in double as the gradient of input i.
template <class A>
Tensor grad(const Backward<Tensor, A>& b, size_t input, const Vec& v) {
  return pack(v, b.input_shape(input), b.input_dtype(input));
}

template <class S>
Arr<S> array_of(const Tensor& t) {
  Arr<S> a(t.shape());
  const Vec v = values(t);
  for (size_t i = 0; i < v.size(); ++i) a.v[i] = S(v[i]);
  return a;
}

/// The forward of most cases: the plain loops of the reference in double, rounded once. Keeps all inputs.
template <class Base, class A>
Tensors run_loops(Saved& saved, const Tensors& in, const A& args) {
  Arrs<double> arrays;
  for (size_t i = 0; i < in.size(); ++i) {
    arrays.push_back(array_of<double>(in[i]));
    saved.keep_input(static_cast<int>(i), in[i]);
  }
  Tensors out;
  for (const Arr<double>& y : Base::template reference<double>(arrays, args))
    out.push_back(pack(y.v, y.shape, in[0].dtype()));
  return out;
}

/// The obvious wrong backward: all signs flipped.
template <class O>
std::vector<Mutant<Tensor, typename O::Args>> negated() {
  return {{"signs flipped", [](const Backward<Tensor, typename O::Args>& b) {
             Tensors g = O::backward(b);
             for (Tensor& t : g)
               if (t.defined()) t = num::scale(t, -1);
             return g;
           }}};
}

inline double sigmoid(double x) { return sc::sigmoid(x); }
template <class S>
S larger(S a, S b) {
  return a < b ? b : a;
}

// -- Not linear in the cotangent --------------------------------------------------------------------------------------

/// Running log-sum-exp: y_j = log sum_{i <= j} exp(x_i) along the last dimension.
/// dx_i = sum_{j >= i} dy_j exp(x_i - y_j).
struct RunningLseBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t n = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r)
      for (int64_t j = 0; j < n; ++j) {
        S top = x[r * n], total(0);
        for (int64_t i = 1; i <= j; ++i) top = larger(top, x[r * n + i]);
        for (int64_t i = 0; i <= j; ++i) total += sc::exp(x[r * n + i] - top);
        y[r * n + j] = top + sc::log(total);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor y = run_loops<RunningLseBase>(saved, in, a)[0];
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"one row", {}, {normal(r, {6})}}, {"rows", {}, {normal(r, {3, 5})}}, {"3-D", {}, {normal(r, {2, 2, 4})}}};
  }
};
template <bool kWrong>
struct RunningLse : RunningLseBase {
  static constexpr std::string_view name = kWrong ? "running_lse_wrong" : "running_lse_right";
  static constexpr std::string_view kind = "linearity";
  static constexpr std::string_view mistake =
      "positive and negative cotangents are carried as logarithms with a floor of 1e-8; cotangents smaller than that "
      "(a mean over very many elements) come out as zero";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    const Vec y = reference<double>({array_of<double>(b[0])}, b.args)[0].v;
    Vec dx(x.size(), 0.0);
    const int64_t n = b[0].size(-1), rows = b[0].shape().rows();
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = r * n; i < (r + 1) * n; ++i)
        for (int64_t j = i; j < (r + 1) * n; ++j) {
          if constexpr (kWrong) {
            const double up = std::log(std::max(dy[j], 1e-8)), down = std::log(std::max(-dy[j], 1e-8));
            dx[i] += std::exp(up + x[i] - y[j]) - std::exp(down + x[i] - y[j]);
          } else {
            dx[i] += dy[j] * std::exp(x[i] - y[j]);
          }
        }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<RunningLse>(); }
};

/// Contrastive loss, one number per anchor: y_i = log sum_j exp(s_ij) - s_ii with s = a c^T / tau.
/// ds_ij = dy_i (softmax(s_i)_j - (i == j));  da = ds c / tau,  dc = ds^T a / tau.
struct AnchorLossBase {
  static inline const std::array inputs{In{"anchors"}, In{"candidates"}};
  struct Args {
    double tau = 0.5;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& args) {
    const Arr<S>&a = in[0], &c = in[1];
    const int64_t n = a.size(0), d = a.size(1);
    Arr<S> y(Shape{n});
    for (int64_t i = 0; i < n; ++i) {
      std::vector<S> s(static_cast<size_t>(n), S(0));
      for (int64_t j = 0; j < n; ++j)
        for (int64_t k = 0; k < d; ++k) s[j] += a(i, k) * c(j, k) / S(args.tau);
      S top = s[0], total(0);
      for (const S& v : s) top = larger(top, v);
      for (const S& v : s) total += sc::exp(v - top);
      y[i] = top + sc::log(total) - s[i];
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<AnchorLossBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"4 pairs", {}, {normal(r, {4, 3}), normal(r, {4, 3})}},
            {"warm", {2.0}, {normal(r, {5, 4}), normal(r, {5, 4})}}};
  }
};
template <bool kWrong>
struct AnchorLoss : AnchorLossBase {
  static constexpr std::string_view name = kWrong ? "anchor_loss_wrong" : "anchor_loss_right";
  static constexpr std::string_view kind = "linearity";
  static constexpr std::string_view mistake =
      "the loop over anchors stops at the first cotangent of zero, as if only padding at the end had none; a masked "
      "anchor in the middle loses all that follow";
  static Tensors backward(const B& b) {
    const Vec a = values(b[0]), c = values(b[1]), dy = values(b.dy());
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const double tau = b.args.tau;
    Vec da(a.size(), 0.0), dc(c.size(), 0.0), s(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) {
      if (dy[i] == 0) {
        if constexpr (kWrong)
          break;
        else
          continue;
      }
      double top = -std::numeric_limits<double>::infinity(), total = 0;
      for (int64_t j = 0; j < n; ++j) {
        s[j] = 0;
        for (int64_t k = 0; k < d; ++k) s[j] += a[i * d + k] * c[j * d + k] / tau;
        top = std::max(top, s[j]);
      }
      for (int64_t j = 0; j < n; ++j) total += s[j] = std::exp(s[j] - top);
      for (int64_t j = 0; j < n; ++j) {
        const double ds = dy[i] * (s[j] / total - (i == j)) / tau;
        for (int64_t k = 0; k < d; ++k) {
          da[i * d + k] += ds * c[j * d + k];
          dc[j * d + k] += ds * a[i * d + k];
        }
      }
    }
    return {grad(b, 0, da), grad(b, 1, dc)};
  }
  static auto mutants() { return negated<AnchorLoss>(); }
};

/// Causal depthwise convolution with dilation: y_ct = sum_k w_ck x_c,t-k*dilation (nothing before the start).
/// dx_c,t-k*dilation += w_ck dy_ct,  dw_ck += x_c,t-k*dilation dy_ct.
struct CausalConvBase {
  static inline const std::array inputs{In{"x"}, In{"w"}};
  struct Args {
    int64_t dilation = 1;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>&x = in[0], &w = in[1];
    Arr<S> y(x.shape);
    for (int64_t c = 0; c < x.size(0); ++c)
      for (int64_t t = 0; t < x.size(1); ++t)
        for (int64_t k = 0; k < w.size(1) && k * a.dilation <= t; ++k) y(c, t) += w(c, k) * x(c, t - k * a.dilation);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<CausalConvBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"2 channels", {}, {normal(r, {2, 7}), normal(r, {2, 3})}},
            {"dilation 2", {2}, {normal(r, {3, 6}), normal(r, {3, 2})}}};
  }
};
template <bool kWrong>
struct CausalConv : CausalConvBase {
  static constexpr std::string_view name = kWrong ? "causal_conv_wrong" : "causal_conv_right";
  static constexpr std::string_view kind = "linearity";
  static constexpr std::string_view mistake =
      "steps whose cotangent is below a thousandth of the largest are skipped; a loss that weights steps very "
      "differently "
      "loses the light ones";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), w = values(b[1]), dy = values(b.dy());
    const int64_t channels = b[0].size(0), steps = b[0].size(1), width = b[1].size(1);
    Vec dx(x.size(), 0.0), dw(w.size(), 0.0);
    double least = 0;
    if constexpr (kWrong)
      for (double g : dy) least = std::max(least, 1e-3 * std::abs(g));
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t t = 0; t < steps; ++t) {
        const double g = dy[c * steps + t];
        if (std::abs(g) < least) continue;
        for (int64_t k = 0; k < width && k * b.args.dilation <= t; ++k) {
          const int64_t from = c * steps + t - k * b.args.dilation;
          dx[from] += w[c * width + k] * g;
          dw[c * width + k] += x[from] * g;
        }
      }
    return {grad(b, 0, dx), grad(b, 1, dw)};
  }
  static auto mutants() { return negated<CausalConv>(); }
};

/// Solves L y = b for a lower triangular L (what is above the diagonal is not read).
/// db = L^-T dy,  dL = -(lower triangle of db y^T).
struct LowerSolveBase {
  static inline const std::array inputs{In{"L"}, In{"b"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&l = in[0], &b = in[1];
    Arr<S> y(b.shape);
    for (int64_t i = 0; i < b.size(0); ++i)
      for (int64_t c = 0; c < b.size(1); ++c) {
        S rest = b(i, c);
        for (int64_t j = 0; j < i; ++j) rest -= l(i, j) * y(j, c);
        y(i, c) = rest / l(i, i);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<LowerSolveBase>(saved, in, a)[0];
  }
  static Tensor triangle(Rng& r, int64_t n) {
    Vec l = values(normal(r, {n, n}, 0.5));
    for (int64_t i = 0; i < n; ++i) l[i * n + i] = 1 + r.uniform();
    return Tensor::of(l, Shape{n, n});
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"4 x 4", {}, {triangle(r, 4), normal(r, {4, 3})}}, {"5 x 5", {}, {triangle(r, 5), normal(r, {5, 2})}}};
  }
};
template <bool kWrong>
struct LowerSolve : LowerSolveBase {
  static constexpr std::string_view name = kWrong ? "lower_solve_wrong" : "lower_solve_right";
  static constexpr std::string_view kind = "linearity";
  static constexpr std::string_view mistake =
      "the cotangent is divided by max(1, its largest entry) before the substitution but multiplied back by the "
      "largest "
      "entry; when all entries are below 1 (a loss that is a mean) the gradient is too small";
  static Tensors backward(const B& b) {
    const Vec l = values(b[0]), y = reference<double>({array_of<double>(b[0]), array_of<double>(b[1])}, b.args)[0].v;
    Vec g = values(b.dy()), dl(l.size(), 0.0);
    const int64_t n = b[0].size(0), m = b[1].size(1);
    double largest = 0;
    for (double v : g) largest = std::max(largest, std::abs(v));
    const double down = kWrong ? std::max(1.0, largest) : 1, up = kWrong ? largest : 1;
    for (double& v : g) v /= down;
    for (int64_t i = n - 1; i >= 0; --i)
      for (int64_t c = 0; c < m; ++c) {
        g[i * m + c] /= l[i * n + i];
        for (int64_t j = 0; j < i; ++j) g[j * m + c] -= l[i * n + j] * g[i * m + c];
      }
    for (double& v : g) v *= up;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j)
        for (int64_t c = 0; c < m; ++c) dl[i * n + j] -= g[i * m + c] * y[j * m + c];
    return {grad(b, 0, dl), grad(b, 1, g)};
  }
  static auto mutants() { return negated<LowerSolve>(); }
};

/// A gated scan: h_t = (1 - z_t) h_{t-1} + z_t c_t with z = sigmoid(k); y is all h_t.
/// With g_t = dy_t + (1 - z_{t+1}) g_{t+1}:  dk_t = g_t (c_t - h_{t-1}) z_t (1 - z_t),  dc_t = g_t z_t,
/// dh0 = (1 - z_0) g_0.
struct GatedScanBase {
  static inline const std::array inputs{In{"k"}, In{"c"}, In{"h0"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&k = in[0], &c = in[1];
    Arr<S> y(k.shape);
    for (int64_t j = 0; j < k.size(1); ++j) {
      S h = in[2][j];
      for (int64_t t = 0; t < k.size(0); ++t) {
        const S z = sc::sigmoid(k(t, j));
        y(t, j) = h = (S(1) - z) * h + z * c(t, j);
      }
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<GatedScanBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"5 steps", {}, {normal(r, {5, 3}), normal(r, {5, 3}), normal(r, {3})}},
            {"8 steps", {}, {normal(r, {8, 2}), normal(r, {8, 2}), normal(r, {2})}}};
  }
};
template <bool kWrong>
struct GatedScan : GatedScanBase {
  static constexpr std::string_view name = kWrong ? "gated_scan_wrong" : "gated_scan_right";
  static constexpr std::string_view kind = "linearity";
  static constexpr std::string_view mistake =
      "the state's gradient is clamped to +-8 on its way back through time; long sequences or a scaled loss exceed "
      "that";
  static Tensors backward(const B& b) {
    const Vec k = values(b[0]), c = values(b[1]), h0 = values(b[2]), dy = values(b.dy());
    const Vec h = reference<double>({array_of<double>(b[0]), array_of<double>(b[1]), array_of<double>(b[2])}, {})[0].v;
    const int64_t steps = b[0].size(0), d = b[0].size(1);
    Vec dk(k.size()), dc(k.size()), dh(static_cast<size_t>(d), 0.0);
    for (int64_t t = steps - 1; t >= 0; --t)
      for (int64_t j = 0; j < d; ++j) {
        const int64_t at = t * d + j;
        const double z = sigmoid(k[at]), before = t > 0 ? h[at - d] : h0[j];
        double g = dy[at] + dh[j];
        if constexpr (kWrong) g = std::clamp(g, -8.0, 8.0);
        dk[at] = g * (c[at] - before) * z * (1 - z);
        dc[at] = g * z;
        dh[j] = g * (1 - z);
      }
    return {grad(b, 0, dk), grad(b, 1, dc), grad(b, 2, dh)};
  }
  static auto mutants() { return negated<GatedScan>(); }
};

/// Log-probabilities of a categorical with temperature: y = x / tau - log sum exp(x / tau) along the last dimension.
/// dx = (dy - exp(y) sum dy) / tau.
struct TemperedLogProbsBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double tau = 1;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t n = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S top = x[r * n], total(0);
      for (int64_t j = 1; j < n; ++j) top = larger(top, x[r * n + j]);
      for (int64_t j = 0; j < n; ++j) total += sc::exp((x[r * n + j] - top) / S(a.tau));
      for (int64_t j = 0; j < n; ++j) y[r * n + j] = (x[r * n + j] - top) / S(a.tau) - sc::log(total);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<TemperedLogProbsBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"rows", {}, {normal(r, {3, 5})}}, {"cold", {0.7}, {normal(r, {2, 2, 4})}}};
  }
};
template <bool kWrong>
struct TemperedLogProbs : TemperedLogProbsBase {
  static constexpr std::string_view name = kWrong ? "tempered_log_probs_wrong" : "tempered_log_probs_right";
  static constexpr std::string_view kind = "linearity";
  static constexpr std::string_view mistake =
      "rows whose cotangents sum to exactly zero are taken for rows without a gradient; the difference of two "
      "log-probabilities (a preference loss) is such a row";
  static Tensors backward(const B& b) {
    const Vec dy = values(b.dy()), y = reference<double>({array_of<double>(b[0])}, b.args)[0].v;
    const int64_t n = b[0].size(-1), rows = b[0].shape().rows();
    Vec dx(dy.size(), 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      double total = 0;
      for (int64_t j = 0; j < n; ++j) total += dy[r * n + j];
      if constexpr (kWrong)
        if (total == 0) continue;
      for (int64_t j = 0; j < n; ++j) dx[r * n + j] = (dy[r * n + j] - std::exp(y[r * n + j]) * total) / b.args.tau;
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<TemperedLogProbs>(); }
};

// -- Memory layout ----------------------------------------------------------------------------------------------------

/// Pseudo-Huber penalty of each element: y = delta^2 (sqrt(1 + (x / delta)^2) - 1).
/// dx = dy x / sqrt(1 + (x / delta)^2).
struct PseudoHuberBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double delta = 1;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const S delta(a.delta);
    return {map(in[0], [&](S x) { return delta * delta * (sc::sqrt(S(1) + x / delta * (x / delta)) - S(1)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<PseudoHuberBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6), delta 0.5", {0.5}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct PseudoHuber : PseudoHuberBase {
  static constexpr std::string_view name = kWrong ? "pseudo_huber_wrong" : "pseudo_huber_right";
  static constexpr std::string_view kind = "layout";
  static constexpr std::string_view mistake =
      "a cotangent whose last stride is 0 is taken for one number spread over everything; the cotangent of a weighted "
      "row sum is expanded along the last dimension only";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]);
    Vec dx(x.size());
    const double delta = b.args.delta;
    if constexpr (kWrong) {
      const Tensor& dy = b.dy();
      if (dy.rank() > 0 && dy.numel() > 0 && dy.strides().back() == 0) {
        const double g = dy.flat(0);
        for (size_t i = 0; i < x.size(); ++i) dx[i] = g * x[i] / std::hypot(1.0, x[i] / delta);
        return {grad(b, 0, dx)};
      }
    }
    const Vec dy = values(b.dy());
    for (size_t i = 0; i < x.size(); ++i) dx[i] = dy[i] * x[i] / std::hypot(1.0, x[i] / delta);
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<PseudoHuber>(); }
};

/// Cosine of each pair of rows: y_r = <u_r, v_r> / (|u_r| |v_r|).
/// du = dy (v / (|u| |v|) - y u / |u|^2), and the same for v with the two exchanged.
struct PairCosineBase {
  static inline const std::array inputs{In{"u"}, In{"v"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&u = in[0], &v = in[1];
    Arr<S> y(Shape{u.size(0)});
    for (int64_t r = 0; r < u.size(0); ++r) {
      S uv(0), uu(0), vv(0);
      for (int64_t j = 0; j < u.size(1); ++j) uv += u(r, j) * v(r, j), uu += u(r, j) * u(r, j), vv += v(r, j) * v(r, j);
      y[r] = uv / (sc::sqrt(uu) * sc::sqrt(vv));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<PairCosineBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 pairs", {}, {normal(r, {3, 5}), normal(r, {3, 5})}},
            {"4 pairs", {}, {normal(r, {4, 6}), normal(r, {4, 6})}}};
  }
};
template <bool kWrong>
struct PairCosine : PairCosineBase {
  static constexpr std::string_view name = kWrong ? "pair_cosine_wrong" : "pair_cosine_right";
  static constexpr std::string_view kind = "layout";
  static constexpr std::string_view mistake =
      "inputs whose last stride is 1 are read with the width as row stride; columns sliced out of a wider matrix have "
      "a "
      "larger one";
  /// Rows one after another, without a copy where the elements of a row are neighbours.
  static Tensor packed(const Tensor& t) {
    if constexpr (kWrong)
      if (t.strides()[1] == 1 && t.strides()[0] >= t.size(1)) return t;
    return t.contiguous();
  }
  static Tensors backward(const B& b) {
    const Tensor tu = packed(b[0]), tv = packed(b[1]), tdy = b.dy().contiguous();
    const int64_t rows = b[0].size(0), d = b[0].size(1);
    Tensor tdu = Tensor::empty(b[0].shape(), b[0].dtype()), tdv = Tensor::empty(b[0].shape(), b[0].dtype());
    dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const T *dy = tdy.data<T>(), *pu = tu.data<T>(), *pv = tv.data<T>();
      T *pdu = tdu.mutable_data<T>(name), *pdv = tdv.mutable_data<T>(name);
      for (int64_t r = 0; r < rows; ++r) {
        const T *u = pu + r * d, *v = pv + r * d;
        double uv = 0, uu = 0, vv = 0;
        for (int64_t j = 0; j < d; ++j) uv += double(u[j]) * v[j], uu += double(u[j]) * u[j], vv += double(v[j]) * v[j];
        const double norms = std::sqrt(uu) * std::sqrt(vv), y = uv / norms;
        for (int64_t j = 0; j < d; ++j) {
          pdu[r * d + j] = static_cast<T>(dy[r] * (v[j] / norms - y * u[j] / uu));
          pdv[r * d + j] = static_cast<T>(dy[r] * (u[j] / norms - y * v[j] / vv));
        }
      }
    });
    return {tdu, tdv};
  }
  static auto mutants() { return negated<PairCosine>(); }
};

/// Softplus with a sharpness per channel: y_rc = log(1 + exp(beta_c x_rc)) / beta_c.
/// With s = sigmoid(beta x):  dx = dy s,  dbeta_c = sum over r of dy (x s - y) / beta_c.
struct SharpSoftplusBase {
  static inline const std::array inputs{In{"x"}, In{"beta", Domain::positive}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static S softplus(S x) {
    return x > S(0) ? x + sc::log1p(sc::exp(-x)) : sc::log1p(sc::exp(x));
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&x = in[0], &beta = in[1];
    Arr<S> y(x.shape);
    for (int64_t r = 0; r < x.size(0); ++r)
      for (int64_t c = 0; c < x.size(1); ++c) y(r, c) = softplus(beta[c] * x(r, c)) / beta[c];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<SharpSoftplusBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), positive(r, {5})}},
            {"(4, 2)", {}, {normal(r, {4, 2}), positive(r, {2})}}};
  }
};
template <bool kWrong>
struct SharpSoftplus : SharpSoftplusBase {
  static constexpr std::string_view name = kWrong ? "sharp_softplus_wrong" : "sharp_softplus_right";
  static constexpr std::string_view kind = "layout";
  static constexpr std::string_view mistake =
      "the channels' parameters are read from the start of their storage; parameters packed into one buffer start "
      "further on";
  static Tensors backward(const B& b) {
    const Tensor tx = b[0].contiguous(), tbeta = b[1].contiguous(), tdy = b.dy().contiguous();
    const int64_t rows = tx.size(0), channels = tx.size(1);
    Tensor tdx = Tensor::empty(tx.shape(), tx.dtype());
    Vec dbeta(static_cast<size_t>(channels), 0.0);
    dispatch_float(name, tx.dtype(), [&]<class T>() {
      const T *x = tx.data<T>(), *dy = tdy.data<T>(), *beta = tbeta.data<T>();
      if constexpr (kWrong) beta = reinterpret_cast<const T*>(tbeta.storage()->data());
      T* dx = tdx.mutable_data<T>(name);
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t c = 0; c < channels; ++c) {
          const double v = x[r * channels + c], g = dy[r * channels + c], k = beta[c], s = sigmoid(k * v);
          dx[r * channels + c] = static_cast<T>(g * s);
          dbeta[c] += g * (v * s - softplus(k * v) / k) / k;
        }
    });
    return {tdx, grad(b, 1, dbeta)};
  }
  static auto mutants() { return negated<SharpSoftplus>(); }
};

/// Soft rounding: y = x - strength sin(2 pi x) / (2 pi).  dx = dy (1 - strength cos(2 pi x)).
struct SoftRoundBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double strength = 0.9;
  };
  using B = Backward<Tensor, Args>;
  static constexpr double kTurn = 2 * std::numbers::pi;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return x - S(a.strength / kTurn) * sc::sin(S(kTurn) * x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<SoftRoundBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 3), weak", {0.4}, {normal(r, {2, 4, 3})}}};
  }
};
template <bool kWrong>
struct SoftRound : SoftRoundBase {
  static constexpr std::string_view name = kWrong ? "soft_round_wrong" : "soft_round_right";
  static constexpr std::string_view kind = "layout";
  static constexpr std::string_view mistake =
      "an element-wise loop runs in memory order over tensors without gaps; a transposed input (or cotangent) has none "
      "either, but another order";
  /// Every place of a block of memory used once: no gaps, nothing expanded.
  static bool gapless(const Tensor& t) {
    int64_t last = 0;
    for (int d = 0; d < t.rank(); ++d) last += (t.shape()[d] - 1) * t.strides()[d];
    return t.numel() > 0 && last + 1 == t.numel();
  }
  static Tensors backward(const B& b) {
    const bool as_is = kWrong && gapless(b[0]) && gapless(b.dy());
    const Tensor tx = as_is ? b[0] : b[0].contiguous(), tdy = as_is ? b.dy() : b.dy().contiguous();
    Tensor tdx = Tensor::empty(tx.shape(), tx.dtype());
    dispatch_float(name, tx.dtype(), [&]<class T>() {
      const T *x = tx.data<T>(), *dy = tdy.data<T>();
      T* dx = tdx.mutable_data<T>(name);
      for (int64_t i = 0; i < tdx.numel(); ++i)
        dx[i] = static_cast<T>(dy[i] * (1 - b.args.strength * std::cos(kTurn * double(x[i]))));
    });
    return {tdx};
  }
  static auto mutants() { return negated<SoftRound>(); }
};

/// Causal attention without softmax: y_t = sum_{s <= t} <q_t, k_s> v_s, for each sequence of a batch.
/// dq_t = sum_{s <= t} <dy_t, v_s> k_s,  dk_s = sum_{t >= s} <dy_t, v_s> q_t,  dv_s = sum_{t >= s} <q_t, k_s> dy_t.
struct CausalLinearBase {
  static inline const std::array inputs{In{"q"}, In{"k"}, In{"v"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&q = in[0], &k = in[1], &v = in[2];
    Arr<S> y(q.shape);
    for (int64_t n = 0; n < q.size(0); ++n)
      for (int64_t t = 0; t < q.size(1); ++t)
        for (int64_t s = 0; s <= t; ++s) {
          S w(0);
          for (int64_t j = 0; j < q.size(2); ++j) w += q(n, t, j) * k(n, s, j);
          for (int64_t j = 0; j < q.size(2); ++j) y(n, t, j) += w * v(n, s, j);
        }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<CausalLinearBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"one sequence", {}, {normal(r, {1, 5, 3}), normal(r, {1, 5, 3}), normal(r, {1, 5, 3})}},
            {"batch", {}, {normal(r, {2, 4, 3}), normal(r, {2, 4, 3}), normal(r, {2, 4, 3})}}};
  }
};
template <bool kWrong>
struct CausalLinear : CausalLinearBase {
  static constexpr std::string_view name = kWrong ? "causal_linear_wrong" : "causal_linear_right";
  static constexpr std::string_view kind = "layout";
  static constexpr std::string_view mistake =
      "only the last two strides are looked at before a tensor is read without a copy; a batch taken out of a larger "
      "tensor (every second one, or a window of time) has another batch stride";
  static Tensor packed(const Tensor& t) {
    if constexpr (kWrong)
      if (t.strides()[2] == 1 && t.strides()[1] == t.size(2) && t.strides()[0] >= t.size(1) * t.size(2)) return t;
    return t.contiguous();
  }
  static Tensors backward(const B& b) {
    const Tensor tq = packed(b[0]), tk = packed(b[1]), tv = packed(b[2]), tdy = packed(b.dy());
    const int64_t batch = tq.size(0), steps = tq.size(1), d = tq.size(2);
    Vec dq(static_cast<size_t>(tq.numel()), 0.0), dk = dq, dv = dq;
    dispatch_float(name, tq.dtype(), [&]<class T>() {
      const T *q = tq.data<T>(), *k = tk.data<T>(), *v = tv.data<T>(), *dy = tdy.data<T>();
      for (int64_t n = 0; n < batch; ++n)
        for (int64_t t = 0; t < steps; ++t)
          for (int64_t s = 0; s <= t; ++s) {
            const int64_t at = (n * steps + t) * d, from = (n * steps + s) * d;
            double w = 0, dw = 0;
            for (int64_t j = 0; j < d; ++j) {
              w += double(q[at + j]) * k[from + j];
              dw += double(dy[at + j]) * v[from + j];
            }
            for (int64_t j = 0; j < d; ++j) {
              dq[at + j] += dw * k[from + j];
              dk[from + j] += dw * q[at + j];
              dv[from + j] += w * dy[at + j];
            }
          }
    });
    return {grad(b, 0, dq), grad(b, 1, dk), grad(b, 2, dv)};
  }
  static auto mutants() { return negated<CausalLinear>(); }
};

// -- Wrong in f32 alone -----------------------------------------------------------------------------------------------

/// y = log(1 - exp(-x)) for x > 0, the log-probability of "not yet decayed".  dx = dy / (exp(x) - 1).
struct LogOneMinusExpBase {
  static inline const std::array inputs{In{"x", Domain::positive}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::log(S(1) - sc::exp(-x)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    Vec y = values(in[0]);
    for (double& v : y) v = std::log(-std::expm1(-v));
    return pack(y, in[0].shape(), in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {positive(r, {3, 5})}}, {"(2, 4, 3)", {}, {positive(r, {2, 4, 3}, 0.3, 3)}}};
  }
};
template <bool kWrong>
struct LogOneMinusExp : LogOneMinusExpBase {
  static constexpr std::string_view name = kWrong ? "log_one_minus_exp_wrong" : "log_one_minus_exp_right";
  static constexpr std::string_view kind = "f32";
  static constexpr std::string_view mistake =
      "exp(x) - 1 is a difference of floats; for x around 1e-4 and below, in f32, most digits are gone";
  static Tensors backward(const B& b) {
    const Tensor tx = b[0].contiguous(), tdy = b.dy().contiguous();
    Tensor tdx = Tensor::empty(tx.shape(), tx.dtype());
    dispatch_float(name, tx.dtype(), [&]<class T>() {
      const T *x = tx.data<T>(), *dy = tdy.data<T>();
      T* dx = tdx.mutable_data<T>(name);
      for (int64_t i = 0; i < tdx.numel(); ++i) {
        if constexpr (kWrong && std::is_same_v<T, float>)
          dx[i] = dy[i] / (std::exp(x[i]) - 1.0f);
        else
          dx[i] = static_cast<T>(dy[i] / std::expm1(double(x[i])));
      }
    });
    return {tdx};
  }
  static auto mutants() { return negated<LogOneMinusExp>(); }
};

/// Contrast of each row: y = s / m, with the mean m and the standard deviation s (over n) of positive numbers.
/// dx_i = dy ((x_i - m) / (n s m) - s / (n m^2)).
struct RowContrastBase {
  static inline const std::array inputs{In{"x", Domain::positive}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape.without_last());
    const int64_t n = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S m(0), v(0);
      for (int64_t j = 0; j < n; ++j) m += x[r * n + j] / S(n);
      for (int64_t j = 0; j < n; ++j) v += (x[r * n + j] - m) * (x[r * n + j] - m) / S(n);
      y[r] = sc::sqrt(v) / m;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<RowContrastBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {positive(r, {3, 5})}}, {"(2, 4, 6)", {}, {positive(r, {2, 4, 6}, 1, 3)}}};
  }
};
template <bool kWrong>
struct RowContrast : RowContrastBase {
  static constexpr std::string_view name = kWrong ? "row_contrast_wrong" : "row_contrast_right";
  static constexpr std::string_view kind = "f32";
  static constexpr std::string_view mistake =
      "in f32 the variance is the mean of squares minus the squared mean; rows whose mean is hundreds of times their "
      "spread lose it";
  static Tensors backward(const B& b) {
    const Tensor tx = b[0].contiguous(), tdy = b.dy().contiguous();
    Tensor tdx = Tensor::empty(tx.shape(), tx.dtype());
    const int64_t n = tx.size(-1), rows = tx.shape().rows();
    dispatch_float(name, tx.dtype(), [&]<class T>() {
      using A = std::conditional_t<kWrong, T, double>;
      const T* dy = tdy.data<T>();
      T* dx = tdx.mutable_data<T>(name);
      for (int64_t r = 0; r < rows; ++r) {
        const T* x = tx.data<T>() + r * n;
        A m = 0, v = 0;
        for (int64_t j = 0; j < n; ++j) m += x[j];
        m /= static_cast<A>(n);
        if constexpr (kWrong && std::is_same_v<T, float>) {
          for (int64_t j = 0; j < n; ++j) v += x[j] * x[j];
          v = std::max(v / static_cast<float>(n) - m * m, 1e-12f);
        } else {
          for (int64_t j = 0; j < n; ++j) v += (x[j] - m) * (x[j] - m);
          v /= static_cast<A>(n);
        }
        const A s = std::sqrt(v);
        for (int64_t j = 0; j < n; ++j)
          dx[r * n + j] =
              static_cast<T>(dy[r] * ((x[j] - m) / (static_cast<A>(n) * s * m) - s / (static_cast<A>(n) * m * m)));
      }
    });
    return {tdx};
  }
  static auto mutants() { return negated<RowContrast>(); }
};

/// Feature-wise modulation: y_bct = x_bct (1 + gamma_c) + beta_c.
/// dx = dy (1 + gamma),  dgamma_c = sum over b, t of dy x,  dbeta_c = sum over b, t of dy.
struct ModulateBase {
  static inline const std::array inputs{In{"x"}, In{"gamma"}, In{"beta"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    for (int64_t b = 0; b < x.size(0); ++b)
      for (int64_t c = 0; c < x.size(1); ++c)
        for (int64_t t = 0; t < x.size(2); ++t) y(b, c, t) = x(b, c, t) * (S(1) + in[1][c]) + in[2][c];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<ModulateBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 3, 4)", {}, {normal(r, {2, 3, 4}), normal(r, {3}), normal(r, {3})}},
            {"(3, 2, 5)", {}, {normal(r, {3, 2, 5}), normal(r, {2}), normal(r, {2})}}};
  }
};
template <bool kWrong>
struct Modulate : ModulateBase {
  static constexpr std::string_view name = kWrong ? "modulate_wrong" : "modulate_right";
  static constexpr std::string_view kind = "f32";
  static constexpr std::string_view mistake =
      "in f32 the gradients of gamma and beta are summed in a buffer of bf16; they have two or three digits, fewer the "
      "longer the sum";
  /// A running sum as the f32 path of this op keeps it.
  template <class T>
  static void add(double& sum, double v) {
    sum += v;
    if constexpr (kWrong && std::is_same_v<T, float>) sum = f32_from_bf16(bf16_from_f32(static_cast<float>(sum)));
  }
  static Tensors backward(const B& b) {
    const Tensor tx = b[0].contiguous(), tdy = b.dy().contiguous();
    const Vec gamma = values(b[1]);
    const int64_t batch = tx.size(0), channels = tx.size(1), steps = tx.size(2);
    Tensor tdx = Tensor::empty(tx.shape(), tx.dtype());
    Vec dgamma(gamma.size(), 0.0), dbeta(gamma.size(), 0.0);
    dispatch_float(name, tx.dtype(), [&]<class T>() {
      const T *x = tx.data<T>(), *dy = tdy.data<T>();
      T* dx = tdx.mutable_data<T>(name);
      int64_t at = 0;
      for (int64_t n = 0; n < batch; ++n)
        for (int64_t c = 0; c < channels; ++c)
          for (int64_t t = 0; t < steps; ++t, ++at) {
            dx[at] = static_cast<T>(dy[at] * (1 + gamma[c]));
            add<T>(dgamma[c], double(dy[at]) * x[at]);
            add<T>(dbeta[c], dy[at]);
          }
    });
    return {tdx, grad(b, 1, dgamma), grad(b, 2, dbeta)};
  }
  static auto mutants() { return negated<Modulate>(); }
};

/// Soft cap of logits: y = cap tanh(x / cap).  dx = dy (1 - tanh(x / cap)^2).
struct SoftCapBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double cap = 30;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return S(a.cap) * sc::tanh(x / S(a.cap)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<SoftCapBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6), cap 20", {20}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct SoftCap : SoftCapBase {
  static constexpr std::string_view name = kWrong ? "soft_cap_wrong" : "soft_cap_right";
  static constexpr std::string_view kind = "f32";
  static constexpr std::string_view mistake =
      "in f32 the backward's tanh is the fraction t (15 + t^2) / (15 + 6 t^2), good for small t only; logits as large "
      "as "
      "the cap get a gradient that is off by tenths";
  static Tensors backward(const B& b) {
    const Tensor tx = b[0].contiguous(), tdy = b.dy().contiguous();
    Tensor tdx = Tensor::empty(tx.shape(), tx.dtype());
    dispatch_float(name, tx.dtype(), [&]<class T>() {
      const T *x = tx.data<T>(), *dy = tdy.data<T>();
      T* dx = tdx.mutable_data<T>(name);
      for (int64_t i = 0; i < tdx.numel(); ++i) {
        if constexpr (kWrong && std::is_same_v<T, float>) {
          const float t = x[i] / static_cast<float>(b.args.cap), tanh = t * (15 + t * t) / (15 + 6 * t * t);
          dx[i] = dy[i] * (1 - tanh * tanh);
        } else {
          const double cosh = std::cosh(double(x[i]) / b.args.cap);
          dx[i] = static_cast<T>(dy[i] / cosh / cosh);
        }
      }
    });
    return {tdx};
  }
  static auto mutants() { return negated<SoftCap>(); }
};

/// Log-cosh loss of each prediction: y = log cosh(d), d = prediction - target.
/// dprediction = dy tanh(d),  dtarget = -dy tanh(d).
struct LogCoshBase {
  static inline const std::array inputs{In{"prediction"}, In{"target"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S p, S t) {
      const S d = p - t, size = d < S(0) ? -d : d;
      return size + sc::log1p(sc::exp(S(-2) * size)) - S(std::numbers::ln2);
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<LogCoshBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), normal(r, {3, 5})}}, {"(8,)", {}, {normal(r, {8}), normal(r, {8})}}};
  }
};
template <bool kWrong>
struct LogCosh : LogCoshBase {
  static constexpr std::string_view name = kWrong ? "log_cosh_wrong" : "log_cosh_right";
  static constexpr std::string_view kind = "f32";
  static constexpr std::string_view mistake =
      "tanh is written as a quotient of exponentials, in f32 in floats: residuals above 88 give NaN";
  static Tensors backward(const B& b) {
    const Tensor tp = b[0].contiguous(), tt = b[1].contiguous(), tdy = b.dy().contiguous();
    Tensor tdp = Tensor::empty(tp.shape(), tp.dtype()), tdt = Tensor::empty(tp.shape(), tp.dtype());
    dispatch_float(name, tp.dtype(), [&]<class T>() {
      const T *p = tp.data<T>(), *t = tt.data<T>(), *dy = tdy.data<T>();
      T *dp = tdp.mutable_data<T>(name), *dt = tdt.mutable_data<T>(name);
      for (int64_t i = 0; i < tdp.numel(); ++i) {
        double slope;
        if constexpr (kWrong && std::is_same_v<T, float>) {
          const float up = std::exp(p[i] - t[i]), down = std::exp(t[i] - p[i]);
          slope = (up - down) / (up + down);
        } else {
          slope = std::tanh(double(p[i]) - double(t[i]));
        }
        dp[i] = static_cast<T>(dy[i] * slope);
        dt[i] = static_cast<T>(-dy[i] * slope);
      }
    });
    return {tdp, tdt};
  }
  static auto mutants() { return negated<LogCosh>(); }
};

/// Rotary positions: neighbours (x_2i, x_2i+1) of step t turn by the angle (offset + t) base^(-2i/d).
/// dx is dy turned back by the same angle.
struct RotaryBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t offset = 0;
    double base = 10000;
  };
  using B = Backward<Tensor, Args>;
  static double angle(const Args& a, int64_t t, int64_t i, int64_t d) {
    return static_cast<double>(a.offset + t) * std::pow(a.base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    for (int64_t t = 0; t < x.size(0); ++t)
      for (int64_t i = 0; i < x.size(1) / 2; ++i) {
        const S c(std::cos(angle(a, t, i, x.size(1)))), s(std::sin(angle(a, t, i, x.size(1))));
        y(t, 2 * i) = x(t, 2 * i) * c - x(t, 2 * i + 1) * s;
        y(t, 2 * i + 1) = x(t, 2 * i) * s + x(t, 2 * i + 1) * c;
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    BG_CHECK(in[0].size(1) % 2 == 0, "rotary", "a row without pairs", str(in[0].size(1)), "an even number");
    return run_loops<RotaryBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"from the start", {}, {normal(r, {4, 6})}}, {"offset 5", {5}, {normal(r, {3, 4})}}};
  }
};
template <bool kWrong>
struct Rotary : RotaryBase {
  static constexpr std::string_view name = kWrong ? "rotary_wrong" : "rotary_right";
  static constexpr std::string_view kind = "f32";
  static constexpr std::string_view mistake =
      "in f32 the backward forms the angle in floats; at position 100000 it is off by thousandths of a radian";
  static Tensors backward(const B& b) {
    const Tensor tdy = b.dy().contiguous();
    const int64_t steps = tdy.size(0), d = tdy.size(1);
    Tensor tdx = Tensor::empty(tdy.shape(), tdy.dtype());
    dispatch_float(name, tdy.dtype(), [&]<class T>() {
      const T* dy = tdy.data<T>();
      T* dx = tdx.mutable_data<T>(name);
      for (int64_t t = 0; t < steps; ++t)
        for (int64_t i = 0; i < d / 2; ++i) {
          double turn = angle(b.args, t, i, d);
          if constexpr (kWrong && std::is_same_v<T, float>)
            turn = static_cast<float>(b.args.offset + t) *
                   std::pow(static_cast<float>(b.args.base), -2.0f * static_cast<float>(i) / static_cast<float>(d));
          const double c = std::cos(turn), s = std::sin(turn), u = dy[t * d + 2 * i], v = dy[t * d + 2 * i + 1];
          dx[t * d + 2 * i] = static_cast<T>(u * c + v * s);
          dx[t * d + 2 * i + 1] = static_cast<T>(v * c - u * s);
        }
    });
    return {tdx};
  }
  static auto mutants() { return negated<Rotary>(); }
};

}  // namespace strangers_b
