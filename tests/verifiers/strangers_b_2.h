// Second part: forgotten gradients, points that the author did not think of, and work shared by threads.
#pragma once

#include "strangers_b_1.h"

namespace strangers_b {

// -- A forgotten gradient ---------------------------------------------------------------------------------------------

/// Distillation: y_r = -sum_j q_j log p_j with p = softmax(student), q = softmax(teacher), both of row r.
/// dstudent = dy (p - q),  dteacher_j = -dy q_j (log p_j - sum_i q_i log p_i).
struct DistillBase {
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static std::vector<S> log_softmax(const S* x, int64_t n) {
    S top = x[0], total(0);
    for (int64_t j = 1; j < n; ++j) top = larger(top, x[j]);
    for (int64_t j = 0; j < n; ++j) total += sc::exp(x[j] - top);
    std::vector<S> y(x, x + n);
    for (S& v : y) v = v - top - sc::log(total);
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t rows = in[0].size(0), n = in[0].size(1);
    Arr<S> y(Shape{rows});
    for (int64_t r = 0; r < rows; ++r) {
      const auto p = log_softmax(&in[0][r * n], n), q = log_softmax(&in[1][r * n], n);
      for (int64_t j = 0; j < n; ++j) y[r] -= sc::exp(q[j]) * p[j];
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<DistillBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), normal(r, {3, 5})}},
            {"(2, 4)", {}, {normal(r, {2, 4}), normal(r, {2, 4})}}};
  }
};
template <bool kWrong>
struct Distill : DistillBase {
  static constexpr std::string_view name = kWrong ? "distill_wrong" : "distill_right";
  static constexpr std::string_view kind = "forgotten";
  static constexpr std::string_view mistake =
      "the teacher is declared to have no gradient without a word why; two networks that teach each other need it";
  static inline const std::array inputs{In{"student"}, In{"teacher", !kWrong}};
  static Tensors backward(const B& b) {
    const Vec s = values(b[0]), t = values(b[1]), dy = values(b.dy());
    const int64_t rows = b[0].size(0), n = b[0].size(1);
    Vec ds(s.size()), dt(s.size());
    for (int64_t r = 0; r < rows; ++r) {
      const Vec p = log_softmax(&s[r * n], n), q = log_softmax(&t[r * n], n);
      double mean = 0;
      for (int64_t j = 0; j < n; ++j) mean += std::exp(q[j]) * p[j];
      for (int64_t j = 0; j < n; ++j) {
        ds[r * n + j] = dy[r] * (std::exp(p[j]) - std::exp(q[j]));
        dt[r * n + j] = -dy[r] * std::exp(q[j]) * (p[j] - mean);
      }
    }
    if constexpr (kWrong) return {grad(b, 0, ds), Tensor()};
    return {grad(b, 0, ds), grad(b, 1, dt)};
  }
  static auto mutants() { return negated<Distill>(); }
};

/// Two numbers of each row of logits: z = log sum exp(x) and the entropy H = z - sum p x of p = softmax(x).
/// dx_j = dz p_j - dH p_j (log p_j + H).
struct LogitStatsBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    const int64_t rows = x.size(0), n = x.size(1);
    Arr<S> z(Shape{rows}), h(Shape{rows});
    for (int64_t r = 0; r < rows; ++r) {
      const auto p = DistillBase::log_softmax(&x[r * n], n);
      z[r] = x[r * n] - p[0];
      for (int64_t j = 0; j < n; ++j) h[r] -= sc::exp(p[j]) * p[j];
    }
    return {z, h};
  }
  static Tensors forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<LogitStatsBase>(saved, in, a);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(4, 3)", {}, {normal(r, {4, 3})}}};
  }
};
template <bool kWrong>
struct LogitStats : LogitStatsBase {
  static constexpr std::string_view name = kWrong ? "logit_stats_wrong" : "logit_stats_right";
  static constexpr std::string_view kind = "forgotten";
  static constexpr std::string_view mistake =
      "rows whose first output has no cotangent are skipped, and the second output's cotangent with them; a loss of "
      "the "
      "entropy alone gets no gradient";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dz = values(b.dy(0)), dh = values(b.dy(1));
    const int64_t rows = b[0].size(0), n = b[0].size(1);
    Vec dx(x.size(), 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      if constexpr (kWrong)
        if (dz[r] == 0) continue;
      const Vec p = DistillBase::log_softmax(&x[r * n], n);
      double h = 0;
      for (double v : p) h -= std::exp(v) * v;
      for (int64_t j = 0; j < n; ++j) dx[r * n + j] = std::exp(p[j]) * (dz[r] - dh[r] * (p[j] + h));
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<LogitStats>(); }
};

/// Gaussian kernel matrix: K_ij = exp(-sum_d (x_id - z_jd)^2 / (2 l_d^2)), l of size d or 1.
/// With g = dK K and c = x_id - z_jd:  dx_id -= g c / l_d^2,  dz_jd += g c / l_d^2,  dl_d += g c^2 / l_d^3.
struct GaussKernelBase {
  static inline const std::array inputs{In{"x"}, In{"z"}, In{"lengthscale", Domain::positive}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&x = in[0], &z = in[1], &l = in[2];
    Arr<S> y(Shape{x.size(0), z.size(0)});
    for (int64_t i = 0; i < x.size(0); ++i)
      for (int64_t j = 0; j < z.size(0); ++j) {
        S far(0);
        for (int64_t d = 0; d < x.size(1); ++d) {
          const S c = (x(i, d) - z(j, d)) / l[l.numel() == 1 ? 0 : d];
          far += c * c;
        }
        y(i, j) = sc::exp(S(-0.5) * far);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<GaussKernelBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 and 4 points", {}, {normal(r, {3, 2}), normal(r, {4, 2}), positive(r, {2})}},
            {"2 and 5 points", {}, {normal(r, {2, 3}), normal(r, {5, 3}), positive(r, {3}, 1, 2)}}};
  }
};
template <bool kWrong>
struct GaussKernel : GaussKernelBase {
  static constexpr std::string_view name = kWrong ? "gauss_kernel_wrong" : "gauss_kernel_right";
  static constexpr std::string_view kind = "forgotten";
  static constexpr std::string_view mistake =
      "a lengthscale that all dimensions share gets no gradient; only one lengthscale per dimension does";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), z = values(b[1]), l = values(b[2]), dy = values(b.dy());
    const int64_t n = b[0].size(0), m = b[1].size(0), dims = b[0].size(1);
    const bool shared = l.size() == 1;
    Vec dx(x.size(), 0.0), dz(z.size(), 0.0), dl(l.size(), 0.0);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) {
        double far = 0;
        for (int64_t d = 0; d < dims; ++d) {
          const double c = (x[i * dims + d] - z[j * dims + d]) / l[shared ? 0 : d];
          far += c * c;
        }
        const double g = dy[i * m + j] * std::exp(-0.5 * far);
        for (int64_t d = 0; d < dims; ++d) {
          const double c = x[i * dims + d] - z[j * dims + d], scale = l[shared ? 0 : d];
          dx[i * dims + d] -= g * c / (scale * scale);
          dz[j * dims + d] += g * c / (scale * scale);
          dl[shared ? 0 : d] += g * c * c / (scale * scale * scale);
        }
      }
    return {grad(b, 0, dx), grad(b, 1, dz), kWrong && shared ? Tensor() : grad(b, 2, dl)};
  }
  static auto mutants() { return negated<GaussKernel>(); }
};

/// A diagonal state space, forwards or backwards in time: h_t = a h_before + u_t, the first one from h0; y is all h_t.
/// With g_t = dy_t + a g_after:  da = sum over t of g_t h_before,  du_t = g_t,  dh0 = a g_first.
struct DiagonalStateBase {
  static inline const std::array inputs{In{"a"}, In{"u"}, In{"h0"}};
  struct Args {
    bool reverse = false;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& args) {
    const Arr<S>&a = in[0], &u = in[1];
    Arr<S> y(u.shape);
    for (int64_t j = 0; j < u.size(1); ++j) {
      S h = in[2][j];
      for (int64_t i = 0; i < u.size(0); ++i) {
        const int64_t t = args.reverse ? u.size(0) - 1 - i : i;
        y(t, j) = h = a[j] * h + u(t, j);
      }
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<DiagonalStateBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"4 steps", {}, {normal(r, {3}, 0.5), normal(r, {4, 3}), normal(r, {3})}},
            {"7 steps", {}, {normal(r, {2}, 0.5), normal(r, {7, 2}), normal(r, {2})}}};
  }
};
template <bool kWrong>
struct DiagonalState : DiagonalStateBase {
  static constexpr std::string_view name = kWrong ? "diagonal_state_wrong" : "diagonal_state_right";
  static constexpr std::string_view kind = "forgotten";
  static constexpr std::string_view mistake =
      "with reverse = true the initial state gets a gradient of zero; only the forward direction passes it on";
  static Tensors backward(const B& b) {
    const Vec a = values(b[0]), h0 = values(b[2]), dy = values(b.dy());
    const Vec h =
        reference<double>({array_of<double>(b[0]), array_of<double>(b[1]), array_of<double>(b[2])}, b.args)[0].v;
    const int64_t steps = b[1].size(0), d = b[1].size(1), before = b.args.reverse ? 1 : -1;
    Vec da(a.size(), 0.0), du(h.size()), dh0(h0.size(), 0.0);
    for (int64_t j = 0; j < d; ++j) {
      double g = 0;
      for (int64_t i = steps - 1; i >= 0; --i) {
        const int64_t t = b.args.reverse ? steps - 1 - i : i;
        g = dy[t * d + j] + a[j] * g;
        da[j] += g * (i > 0 ? h[(t + before) * d + j] : h0[j]);
        du[t * d + j] = g;
      }
      if (!kWrong || !b.args.reverse) dh0[j] = a[j] * g;
    }
    return {grad(b, 0, da), grad(b, 1, du), grad(b, 2, dh0)};
  }
  static auto mutants() { return negated<DiagonalState>(); }
};

/// Generalised-mean pooling with a learned exponent: y_r = M^(1/p), M = mean_j x_rj^p, x and p positive.
/// dx_j = dy y x_j^(p-1) / (n M),  dp = sum over r of dy y (mean(x^p ln x) / (p M) - ln(M) / p^2).
struct GemPoolBase {
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    const S p = in[1][0];
    const int64_t n = x.size(-1);
    Arr<S> y(x.shape.without_last());
    for (int64_t r = 0; r < y.numel(); ++r) {
      S mean(0);
      for (int64_t j = 0; j < n; ++j) mean += sc::pow(x[r * n + j], p) / S(n);
      y[r] = sc::pow(mean, S(1) / p);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<GemPoolBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5), p about 3", {}, {positive(r, {3, 5}), positive(r, {1}, 2.8, 3.2)}},
            {"(2, 3, 4)", {}, {positive(r, {2, 3, 4}), positive(r, {1}, 1.5, 2)}}};
  }
};
template <bool kWrong>
struct GemPool : GemPoolBase {
  static constexpr std::string_view name = kWrong ? "gem_pool_wrong" : "gem_pool_right";
  static constexpr std::string_view kind = "forgotten";
  static constexpr std::string_view mistake =
      "the exponent is declared to have no gradient, as if it were a setting; it is meant to be learned";
  static inline const std::array inputs{In{"x", Domain::positive},
                                        kWrong ? In{"p", false, "", Domain::positive} : In{"p", Domain::positive}};
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    const double p = values(b[1])[0];
    const int64_t n = b[0].size(-1), rows = b[0].shape().rows();
    Vec dx(x.size()), dp(1, 0.0);
    for (int64_t r = 0; r < rows; ++r) {
      double mean = 0, logs = 0;
      for (int64_t j = r * n; j < (r + 1) * n; ++j) {
        const double power = std::pow(x[j], p) / static_cast<double>(n);
        mean += power;
        logs += power * std::log(x[j]);
      }
      const double g = dy[r] * std::pow(mean, 1 / p);
      for (int64_t j = r * n; j < (r + 1) * n; ++j) dx[j] = g * std::pow(x[j], p - 1) / (static_cast<double>(n) * mean);
      dp[0] += g * (logs / (p * mean) - std::log(mean) / (p * p));
    }
    if constexpr (kWrong) return {grad(b, 0, dx), Tensor()};
    return {grad(b, 0, dx), grad(b, 1, dp)};
  }
  static auto mutants() { return negated<GemPool>(); }
};

/// Pads each row with a learned value of its own: y_r = (v_r, ..., v_r, x_r, v_r, ..., v_r), `left` and `right` times.
/// dx is the middle of dy,  dv_r the sum of the rest.
struct LearnedPadBase {
  static inline const std::array inputs{In{"x"}, In{"value"}};
  struct Args {
    int64_t left = 1, right = 1;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(Shape{x.size(0), a.left + x.size(1) + a.right});
    for (int64_t r = 0; r < y.size(0); ++r)
      for (int64_t j = 0; j < y.size(1); ++j) {
        const int64_t from = j - a.left;
        y(r, j) = from >= 0 && from < x.size(1) ? x(r, from) : in[1][r];
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<LearnedPadBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"one on each side", {}, {normal(r, {3, 4}), normal(r, {3})}},
            {"two and one", {2, 1}, {normal(r, {2, 5}), normal(r, {2})}},
            {"three on the left", {3, 0}, {normal(r, {2, 3}), normal(r, {2})}}};
  }
};
template <bool kWrong>
struct LearnedPad : LearnedPadBase {
  static constexpr std::string_view name = kWrong ? "learned_pad_wrong" : "learned_pad_right";
  static constexpr std::string_view kind = "forgotten";
  static constexpr std::string_view mistake =
      "left = 0 counts as no padding at all: the value's gradient is undefined then, though the right side has it too";
  static Tensors backward(const B& b) {
    const Vec dy = values(b.dy());
    const int64_t rows = b.input_shape(0)[0], n = b.input_shape(0)[1], width = b.args.left + n + b.args.right;
    Vec dx(static_cast<size_t>(rows * n)), dv(static_cast<size_t>(rows), 0.0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t j = 0; j < width; ++j) {
        const int64_t to = j - b.args.left;
        if (to >= 0 && to < n)
          dx[r * n + to] = dy[r * width + j];
        else
          dv[r] += dy[r * width + j];
      }
    return {grad(b, 0, dx), kWrong && b.args.left == 0 ? Tensor() : grad(b, 1, dv)};
  }
  static auto mutants() { return negated<LearnedPad>(); }
};

// -- Wrong away from the author's points ------------------------------------------------------------------------------

/// The logarithm of the normal distribution function: y = ln Phi(x).  dx = dy phi(x) / Phi(x).
/// Far on the left phi / Phi is the continued fraction a + 1 / (a + 2 / (a + 3 / ...)) with a = -x.
struct LogNormalCdfBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static S left_ratio(S a) {
    S f = a;
    for (int k = 120; k >= 1; --k) f = a + S(k) / f;
    return f;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) {
      if (x < S(-3)) return S(-0.5) * x * x - S(0.5 * std::log(2 * std::numbers::pi)) - sc::log(left_ratio(-x));
      return sc::log(S(0.5) * (S(1) + sc::erf(x * S(1 / std::numbers::sqrt2))));
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<LogNormalCdfBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct LogNormalCdf : LogNormalCdfBase {
  static constexpr std::string_view name = kWrong ? "log_normal_cdf_wrong" : "log_normal_cdf_right";
  static constexpr std::string_view kind = "points";
  static constexpr std::string_view mistake =
      "below -5 the ratio is replaced by -x, the first term of its expansion; that is 3 percent off at -6";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    Vec dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      double ratio;
      if (kWrong && x[i] < -5)
        ratio = -x[i];
      else if (x[i] < -3)
        ratio = left_ratio(-x[i]);
      else
        ratio = std::exp(-0.5 * x[i] * x[i]) / std::sqrt(2 * std::numbers::pi) /
                (0.5 * std::erfc(-x[i] / std::numbers::sqrt2));
      dx[i] = dy[i] * ratio;
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<LogNormalCdf>(); }
};

/// y = (exp(x) - 1) / x, and 1 at 0, the step of an exponential integrator.
/// dx = dy (exp(x) (x - 1) + 1) / x^2, near 0 the series dy (1/2 + x/3 + x^2/8 + x^3/30 + x^4/144 + x^5/840 +
/// x^6/5760).
struct ExpStepBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) {
      if (x > S(0.5) || x < S(-0.5)) return (sc::exp(x) - S(1)) / x;
      S term(1), total(1);
      for (int k = 2; k < 24; ++k) total += term = term * x / S(k);
      return total;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    Vec y = values(in[0]);
    for (double& v : y) v = v == 0 ? 1 : std::expm1(v) / v;
    return pack(y, in[0].shape(), in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {away_from_zero(r, {3, 5})}}, {"(2, 4, 6)", {}, {away_from_zero(r, {2, 4, 6}, 0.2, 3)}}};
  }
};
template <bool kWrong>
struct ExpStep : ExpStepBase {
  static constexpr std::string_view name = kWrong ? "exp_step_wrong" : "exp_step_right";
  static constexpr std::string_view kind = "points";
  static constexpr std::string_view mistake =
      "the series for |x| < 0.05 has the coefficient 1/6 where 1/3 belongs; up to 2 percent off";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    Vec dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i], first = kWrong ? 1.0 / 6 : 1.0 / 3;
      const double slope =
          std::abs(v) < 0.05
              ? 0.5 + v * (first + v * (1.0 / 8 + v * (1.0 / 30 + v * (1.0 / 144 + v * (1.0 / 840 + v / 5760)))))
              : (v * std::exp(v) - std::expm1(v)) / (v * v);
      dx[i] = dy[i] * slope;
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<ExpStep>(); }
};

/// Loss of an angle against another: y = d^2 / 2 with d = a - b brought into [-pi, pi] by whole turns.
/// da = dy d,  db = -dy d.
struct AngleLossBase {
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  static constexpr double kTurn = 2 * std::numbers::pi;
  static double turns(double d) { return std::round(d / kTurn); }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) {
      const S d = a - b, c = d - S(kTurn * turns(static_cast<double>(sc::value(d))));
      return S(0.5) * c * c;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<AngleLossBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}, 0.6), normal(r, {3, 5}, 0.6)}},
            {"(2, 6)", {}, {normal(r, {2, 6}, 0.6), normal(r, {2, 6}, 0.6)}}};
  }
};
template <bool kWrong>
struct AngleLoss : AngleLossBase {
  static constexpr std::string_view name = kWrong ? "angle_loss_wrong" : "angle_loss_right";
  static constexpr std::string_view kind = "points";
  static constexpr std::string_view mistake =
      "the backward uses the plain difference; angles more than half a turn apart (3 and -3) are pulled the long way";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), z = values(b[1]), dy = values(b.dy());
    Vec da(x.size()), db(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      double d = x[i] - z[i];
      if constexpr (!kWrong) d -= kTurn * turns(d);
      da[i] = dy[i] * d;
      db[i] = -dy[i] * d;
    }
    return {grad(b, 0, da), grad(b, 1, db)};
  }
  static auto mutants() { return negated<AngleLoss>(); }
};

/// Smooth table look-up: a Catmull-Rom curve through table[0], ..., table[n - 1] at whole x, and straight lines with
/// the same slope outside. Between i and i + 1 it is a sum of four table values with weights in t = x - i; beyond the
/// ends a value on the line through the last two stands in.  dx = dy curve'(x),  dtable_k = sum of dy weight_k.
struct SmoothTableBase {
  static inline const std::array inputs{In{"table"}, In{"x"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  /// Weights of points i - 1, ..., i + 2.
  template <class S>
  static std::array<S, 4> weights(S t) {
    const S h(0.5);
    return {h * (-t + S(2) * t * t - t * t * t), h * (S(2) - S(5) * t * t + S(3) * t * t * t),
            h * (t + S(4) * t * t - S(3) * t * t * t), h * (t * t * t - t * t)};
  }
  static std::array<double, 4> slopes(double t) {
    return {0.5 * (-1 + 4 * t - 3 * t * t), 0.5 * (-10 * t + 9 * t * t), 0.5 * (1 + 8 * t - 9 * t * t),
            0.5 * (3 * t * t - 2 * t)};
  }
  /// Calls f(k, factor) for the table values that point `i` consists of.
  template <class F>
  static void points(int64_t i, int64_t n, F f) {
    if (i < 0) return f(0, 2.0), f(1, -1.0);
    if (i >= n) return f(n - 1, 2.0), f(n - 2, -1.0);
    f(i, 1.0);
  }
  static int64_t cell(double x, int64_t n) {
    return std::clamp<int64_t>(static_cast<int64_t>(std::floor(x)), 0, n - 2);
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& p = in[0];
    const int64_t n = p.numel();
    return {map(in[1], [&](S x) {
      if (x < S(0)) return p[0] + x * (p[1] - p[0]);
      if (x > S(n - 1)) return p[n - 1] + (x - S(n - 1)) * (p[n - 1] - p[n - 2]);
      const int64_t i = cell(static_cast<double>(sc::value(x)), n);
      const auto w = weights(x - S(i));
      S y(0);
      for (int k = 0; k < 4; ++k) points(i - 1 + k, n, [&](int64_t at, double f) { y += S(f) * w[k] * p[at]; });
      return y;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<SmoothTableBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"6 values", {}, {normal(r, {6}), Tensor::rand({8}, r, 0.1, 4.9, DType::f64)}},
            {"4 values", {}, {normal(r, {4}), Tensor::rand({2, 3}, r, 0.1, 2.9, DType::f64)}}};
  }
};
template <bool kWrong>
struct SmoothTable : SmoothTableBase {
  static constexpr std::string_view name = kWrong ? "smooth_table_wrong" : "smooth_table_right";
  static constexpr std::string_view kind = "points";
  static constexpr std::string_view mistake =
      "outside the table x gets no gradient, as if the curve were flat there; it goes on with the slope of its end";
  static Tensors backward(const B& b) {
    const Vec p = values(b[0]), x = values(b[1]), dy = values(b.dy());
    const int64_t n = static_cast<int64_t>(p.size());
    const double end = static_cast<double>(n - 1);
    Vec dp(p.size(), 0.0), dx(x.size(), 0.0);
    for (size_t j = 0; j < x.size(); ++j) {
      if (x[j] < 0 || x[j] > end) {
        const bool left = x[j] < 0;
        const int64_t from = left ? 0 : n - 2, near = left ? 0 : n - 1;
        const double beyond = left ? x[j] : x[j] - end;
        dp[near] += dy[j];
        dp[from + 1] += dy[j] * beyond;
        dp[from] -= dy[j] * beyond;
        if constexpr (!kWrong) dx[j] = dy[j] * (p[from + 1] - p[from]);
        continue;
      }
      const int64_t i = cell(x[j], n);
      const auto w = weights(x[j] - static_cast<double>(i)), dw = slopes(x[j] - static_cast<double>(i));
      for (int k = 0; k < 4; ++k)
        points(i - 1 + k, n, [&](int64_t at, double f) {
          dp[at] += dy[j] * f * w[k];
          dx[j] += dy[j] * f * dw[k] * p[at];
        });
    }
    return {grad(b, 0, dp), grad(b, 1, dx)};
  }
  static auto mutants() { return negated<SmoothTable>(); }
};

/// y = ln I0(x), the modified Bessel function of order 0 (the normaliser of a von Mises density).
/// dx = dy I1(x) / I0(x), an odd function. I_m(x) = mean over angles of exp(x cos a) cos(m a).
struct LogBesselBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  static constexpr int kAngles = 256;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) {
      const S size = x < S(0) ? -x : x;
      S mean(0);
      for (int k = 0; k < kAngles; ++k)
        mean += sc::exp(size * S(std::cos(2 * std::numbers::pi * k / kAngles) - 1)) / S(kAngles);
      return size + sc::log(mean);
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<LogBesselBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 7)", {}, {normal(r, {2, 7})}}};
  }
};
template <bool kWrong>
struct LogBessel : LogBesselBase {
  static constexpr std::string_view name = kWrong ? "log_bessel_wrong" : "log_bessel_right";
  static constexpr std::string_view kind = "points";
  static constexpr std::string_view mistake =
      "beyond |x| = 3.75 the ratio is computed for |x| and its sign is not put back; wrong for x below -3.75";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    Vec dx(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double size = std::abs(x[i]);
      double ratio;
      if (size <= 3.75) {  // power series, both with the term (x/2)^2k / (k!)^2
        double term = 1, i0 = 0, i1 = 0;
        for (int k = 0; k < 40; ++k) {
          i0 += term;
          i1 += term * x[i] / 2 / (k + 1);
          term *= x[i] * x[i] / 4 / ((k + 1) * (k + 1));
        }
        ratio = i1 / i0;
      } else {
        double i0 = 0, i1 = 0;
        for (int k = 0; k < kAngles; ++k) {
          const double c = std::cos(2 * std::numbers::pi * k / kAngles), e = std::exp(size * (c - 1));
          i0 += e;
          i1 += e * c;
        }
        ratio = i1 / i0;
        if constexpr (!kWrong) ratio = std::copysign(ratio, x[i]);
      }
      dx[i] = dy[i] * ratio;
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<LogBessel>(); }
};

// -- Work shared by threads -------------------------------------------------------------------------------------------

/// Exponential moving average along each row: y_0 = x_0, y_t = keep y_{t-1} + (1 - keep) x_t.
/// With g_t = dy_t + keep g_{t+1}:  dx_t = (1 - keep) g_t, and dx_0 = g_0.
struct MovingAverageBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double keep = 0.7;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y = x;
    for (int64_t r = 0; r < x.size(0); ++r)
      for (int64_t t = 1; t < x.size(1); ++t) y(r, t) = S(a.keep) * y(r, t - 1) + S(1 - a.keep) * x(r, t);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<MovingAverageBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}},
            {"(2, 40)", {0.9}, {normal(r, {2, 40})}},
            {"(8, 100)", {}, {normal(r, {8, 100})}}};
  }
};
template <bool kWrong>
struct MovingAverage : MovingAverageBase {
  static constexpr std::string_view name = kWrong ? "moving_average_wrong" : "moving_average_right";
  static constexpr std::string_view kind = "threads";
  static constexpr std::string_view mistake =
      "the flat elements are cut into chunks of 1024 and the carry starts anew in each: rows that a chunk's border "
      "cuts "
      "lose what comes from behind it";
  static Tensors backward(const B& b) {
    const Vec dy = values(b.dy());
    const int64_t rows = b[0].size(0), steps = b[0].size(1);
    const double keep = b.args.keep;
    Vec dx(dy.size());
    if constexpr (kWrong) {
      parallel_for(rows * steps, 1024, [&](int64_t begin, int64_t end) {
        double g = 0;
        for (int64_t i = end - 1; i >= begin; --i) {
          if (i % steps == steps - 1) g = 0;
          g = dy[i] + keep * g;
          dx[i] = i % steps == 0 ? g : (1 - keep) * g;
        }
      });
    } else {
      parallel_for(rows, std::max<int64_t>(1, 1024 / std::max<int64_t>(1, steps)), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          double g = 0;
          for (int64_t t = steps - 1; t >= 0; --t) {
            g = dy[r * steps + t] + keep * g;
            dx[r * steps + t] = t == 0 ? g : (1 - keep) * g;
          }
        }
      });
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<MovingAverage>(); }
};

/// A reparametrised normal sample: y_rc = x_rc + softplus(rho_c) e_rc, e standard normal numbers of a fixed seed.
/// dx = dy,  drho_c = sigmoid(rho_c) sum over r of dy e.
struct NoisyRowsBase {
  static inline const std::array inputs{In{"x"}, In{"rho"}};
  struct Args {
    uint64_t seed = 1;
  };
  using B = Backward<Tensor, Args>;
  static Vec noise(uint64_t seed, int64_t n) {
    Rng r(seed);
    Vec e(static_cast<size_t>(n));
    for (double& v : e) v = r.normal();
    return e;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y = in[0];
    const Vec e = noise(a.seed, y.numel());
    for (int64_t i = 0; i < y.numel(); ++i) {
      const S rho = in[1][i % y.size(1)];
      y[i] += S(e[i]) * (rho > S(0) ? rho + sc::log1p(sc::exp(-rho)) : sc::log1p(sc::exp(rho)));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<NoisyRowsBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4, 3)", {}, {normal(r, {4, 3}), normal(r, {3})}},
            {"(60, 2), another seed", {7}, {normal(r, {60, 2}), normal(r, {2})}}};
  }
};
template <bool kWrong>
struct NoisyRows : NoisyRowsBase {
  static constexpr std::string_view name = kWrong ? "noisy_rows_wrong" : "noisy_rows_right";
  static constexpr std::string_view kind = "threads";
  static constexpr std::string_view mistake =
      "the chunk that holds the first row sets the shared sum, all others add to it: right only if that chunk ends "
      "first";
  static Tensors backward(const B& b) {
    const Vec dy = values(b.dy()), rho = values(b[1]);
    const int64_t rows = b[0].size(0), channels = b[0].size(1), grain = 16;
    const Vec e = noise(b.args.seed, rows * channels);
    Vec drho(rho.size(), 0.0);
    auto part = [&](int64_t begin, int64_t end) {
      Vec sum(rho.size(), 0.0);
      for (int64_t i = begin * channels; i < end * channels; ++i) sum[i % channels] += dy[i] * e[i];
      return sum;
    };
    if constexpr (kWrong) {
      std::mutex one_at_a_time;
      parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
        const Vec sum = part(begin, end);
        const std::lock_guard lock(one_at_a_time);
        for (int64_t c = 0; c < channels; ++c) drho[c] = begin == 0 ? sum[c] : drho[c] + sum[c];
      });
    } else {
      const int64_t size = chunk_size(grain);
      std::vector<Vec> parts(static_cast<size_t>((rows + size - 1) / size));
      parallel_for(rows, grain, [&](int64_t begin, int64_t end) { parts[begin / size] = part(begin, end); });
      for (const Vec& sum : parts)
        for (int64_t c = 0; c < channels; ++c) drho[c] += sum[c];
    }
    for (int64_t c = 0; c < channels; ++c) drho[c] *= sigmoid(rho[c]);
    return {grad(b, 0, dy), grad(b, 1, drho)};
  }
  static auto mutants() { return negated<NoisyRows>(); }
};

/// Log power of the cosine spectrum of each row: y_k = log(1 + s_k^2), s_k = sum_j x_j cos(pi (j + 1/2) k / n).
/// ds_k = dy_k 2 s_k / (1 + s_k^2),  dx_j = sum_k ds_k cos(pi (j + 1/2) k / n).
struct CosinePowerBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  static double wave(int64_t j, int64_t k, int64_t n) {
    return std::cos(std::numbers::pi * (static_cast<double>(j) + 0.5) * static_cast<double>(k) /
                    static_cast<double>(n));
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t n = x.size(1);
    for (int64_t r = 0; r < x.size(0); ++r)
      for (int64_t k = 0; k < n; ++k) {
        S s(0);
        for (int64_t j = 0; j < n; ++j) s += x(r, j) * S(wave(j, k, n));
        y(r, k) = sc::log1p(s * s);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<CosinePowerBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(10, 32)", {}, {normal(r, {10, 32})}}};
  }
};
template <bool kWrong>
struct CosinePower : CosinePowerBase {
  static constexpr std::string_view name = kWrong ? "cosine_power_wrong" : "cosine_power_right";
  static constexpr std::string_view kind = "threads";
  static constexpr std::string_view mistake =
      "all chunks of rows share one scratch row for the spectrum; with two threads they write into each other's";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    const int64_t rows = b[0].size(0), n = b[0].size(1);
    Vec dx(x.size(), 0.0), shared(static_cast<size_t>(n));
    parallel_for(rows, 4, [&](int64_t begin, int64_t end) {
      Vec own(kWrong ? 0 : static_cast<size_t>(n));
      Vec& ds = kWrong ? shared : own;
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t k = 0; k < n; ++k) {
          double s = 0;
          for (int64_t j = 0; j < n; ++j) s += x[r * n + j] * wave(j, k, n);
          ds[k] = dy[r * n + k] * 2 * s / (1 + s * s);
        }
        for (int64_t j = 0; j < n; ++j)
          for (int64_t k = 0; k < n; ++k) dx[r * n + j] += ds[k] * wave(j, k, n);
      }
    });
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<CosinePower>(); }
};

/// Elements scaled by a number of their group, groups being runs of neighbours: y_e = x_e exp(-m_group(e)). The group
/// numbers are sorted.  dx_e = dy_e exp(-m),  dm_s = -sum over the elements of group s of dy_e y_e.
struct GroupScaleBase {
  static inline const std::array inputs{In{"x"}, In{"m"}, In{"group", false}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y = in[0];
    for (int64_t e = 0; e < y.numel(); ++e) y[e] *= sc::exp(-in[1][in[2].index(e)]);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<GroupScaleBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    Ints long_groups;
    for (int64_t e = 0; e < 100; ++e) long_groups.push_back(e / 30);
    return {{"9 elements", {}, {normal(r, {9}), normal(r, {3}), Tensor::of(Ints{0, 0, 0, 1, 1, 2, 2, 2, 2}, Shape{9})}},
            {"100 elements", {}, {normal(r, {100}), normal(r, {4}), Tensor::of(long_groups, Shape{100})}}};
  }
};
template <bool kWrong>
struct GroupScale : GroupScaleBase {
  static constexpr std::string_view name = kWrong ? "group_scale_wrong" : "group_scale_right";
  static constexpr std::string_view kind = "threads";
  static constexpr std::string_view mistake =
      "each chunk of 256 elements stores the sum of a group that it has run through, instead of adding it: a group "
      "that "
      "lies in two chunks keeps one part";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), m = values(b[1]), dy = values(b.dy());
    const Ints group = whole(b[2]);
    Vec dx(x.size()), dm(m.size(), 0.0);
    std::mutex one_at_a_time;
    parallel_for(static_cast<int64_t>(x.size()), 256, [&](int64_t begin, int64_t end) {
      double sum = 0;
      for (int64_t e = begin; e < end; ++e) {
        const int64_t s = group[e];
        dx[e] = dy[e] * std::exp(-m[s]);
        if constexpr (kWrong) {
          sum -= dx[e] * x[e];
          if (e + 1 < end && group[e + 1] == s) continue;
          const std::lock_guard lock(one_at_a_time);
          dm[s] = sum;
          sum = 0;
        }
      }
    });
    if constexpr (!kWrong)
      for (size_t e = 0; e < x.size(); ++e) dm[group[e]] -= dx[e] * x[e];
    return {grad(b, 0, dx), grad(b, 1, dm), Tensor()};
  }
  static auto mutants() { return negated<GroupScale>(); }
};

/// Smooth roughness between neighbours: y_i = sqrt(eps + (x_{i+1} - x_i)^2), one shorter than x.
/// With g_i = dy_i (x_{i+1} - x_i) / y_i:  dx_i = g_{i-1} - g_i.
struct RoughnessBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double eps = 0.01;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(Shape{x.numel() - 1});
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = sc::sqrt(S(a.eps) + (x[i + 1] - x[i]) * (x[i + 1] - x[i]));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<RoughnessBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"7", {}, {normal(r, {7})}}, {"40, eps 0.1", {0.1}, {normal(r, {40})}}, {"200", {}, {normal(r, {200})}}};
  }
};
template <bool kWrong>
struct Roughness : RoughnessBase {
  static constexpr std::string_view name = kWrong ? "roughness_wrong" : "roughness_right";
  static constexpr std::string_view kind = "threads";
  static constexpr std::string_view mistake =
      "a chunk of 512 differences collects into a buffer with one more element and does not hand that one on: the "
      "first "
      "element of the next chunk lacks its left neighbour";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    const int64_t n = static_cast<int64_t>(dy.size());
    Vec dx(x.size(), 0.0);
    auto slope = [&](int64_t i) {
      const double d = x[i + 1] - x[i];
      return dy[i] * d / std::sqrt(b.args.eps + d * d);
    };
    if constexpr (kWrong) {
      parallel_for(n, 512, [&](int64_t begin, int64_t end) {
        Vec part(static_cast<size_t>(end - begin + 1), 0.0);
        for (int64_t i = begin; i < end; ++i) {
          const double g = slope(i);
          part[i - begin] -= g;
          part[i - begin + 1] += g;
        }
        for (int64_t i = begin; i < end; ++i) dx[i] = part[i - begin];
        if (end == n) dx[n] = part[end - begin];
      });
    } else {
      parallel_for(n + 1, 512, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) dx[i] = (i > 0 ? slope(i - 1) : 0) - (i < n ? slope(i) : 0);
      });
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<Roughness>(); }
};

}  // namespace strangers_b
