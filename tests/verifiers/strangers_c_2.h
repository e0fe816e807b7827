// The other half of the ops of strangers_c_1.h: wrong only away from the author's points, with work shared by threads,
// with shapes and indices that the author did not think of, and with a mistake in the formula.
#pragma once

#include "tests/verifiers/strangers_c_1.h"

namespace strangers_c {

// --- Wrong away from the author's points -----------------------------------------------------------------------------

/// y = sin(x) / x, 1 at 0.  dx = dy (x cos x - sin x) / x^2.
struct SincBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) {
      if (x > S(0.5) || x < S(-0.5)) return sc::sin(x) / x;
      S term(1), total(1);
      for (int k = 1; k < 14; ++k) {
        term *= -x * x / S(2 * k * (2 * k + 1));
        total += term;
      }
      return total;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("sinc", in, 1);
    Doubles y = values(in[0]);
    for (double& v : y) {
      BG_CHECK(std::isfinite(v), "sinc", "not finite");
      v = std::abs(v) < 1e-5 ? 1 - v * v / 6 : std::sin(v) / v;
    }
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 4)", {}, {normal(r, {2, 4}, 2)}}, {"(5)", {}, {normal(r, {5}, 2)}}};
  }
};
template <bool kWrong>
struct Sinc : SincBase {
  static constexpr std::string_view name = kWrong ? "sinc_wrong" : "sinc_right";
  static constexpr std::string_view kind = "points",
                                    mistake = "the series near 0 is the first term alone, which is 0.1 % off at 0.1";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    for (size_t i = 0; i < x.size(); ++i) {
      const double v = x[i], q = v * v;
      double slope = 0;
      if (std::abs(v) >= 0.1)
        slope = (std::cos(v) - std::sin(v) / v) / v;
      else if (kWrong)
        slope = -v / 3;
      else
        slope = v * (-1.0 / 3 + q * (1.0 / 30 + q * (-1.0 / 840 + q * (1.0 / 45360 - q / 3991680))));
      dx[i] = dy[i] * slope;
    }
    return {like(dx, b[0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Sinc>(); }
};

/// y = x above 0, alpha (exp(x / alpha) - 1) below.  dx = dy above 0, dy exp(x / alpha) below.
struct CeluBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double alpha = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return x > S(0) ? x : S(a.alpha) * (sc::exp(x / S(a.alpha)) - S(1)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("celu", in, 1);
    BG_CHECK(a.alpha > 1e-6, "celu", "alpha too small", str(a.alpha), "above 1e-6");
    Doubles y = values(in[0]);
    for (double& v : y)
      if (v <= 0) v = a.alpha * std::expm1(v / a.alpha);
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 2, 4)", {}, {normal(r, {2, 2, 4})}}};
  }
};
template <bool kWrong>
struct Celu : CeluBase {
  static constexpr std::string_view name = kWrong ? "celu_wrong" : "celu_right";
  static constexpr std::string_view kind = "points", mistake = "exp(x) in place of exp(x / alpha): right for alpha 1";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    for (size_t i = 0; i < x.size(); ++i)
      dx[i] = x[i] > 0 ? dy[i] : dy[i] * std::exp(kWrong ? x[i] : x[i] / b.args.alpha);
    return {like(dx, b[0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Celu>(); }
};

/// Tukey's biweight loss: y = c^2 / 6 (1 - (1 - (x / c)^2)^3) for |x| <= c, c^2 / 6 beyond.
/// dx = dy x (1 - (x / c)^2)^2 inside, 0 beyond.
struct BiweightBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double c = 4.685;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) {
      const S q = x / S(a.c) * (x / S(a.c));
      return q > S(1) ? S(a.c * a.c / 6) : x * x / S(6) * (S(3) - S(3) * q + q * q);
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("biweight", in, 1);
    BG_CHECK(a.c > 0 && a.c < 1e6, "biweight", "c out of range", str(a.c), "above 0, below 1e6");
    Doubles y = values(in[0]);
    for (double& v : y) {
      const double q = v / a.c * (v / a.c);
      v = q > 1 ? a.c * a.c / 6 : v * v / 6 * (3 - 3 * q + q * q);
    }
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4, 4)", {}, {normal(r, {4, 4})}}, {"(7), c 6", {6}, {normal(r, {7})}}};
  }
};
template <bool kWrong>
struct Biweight : BiweightBase {
  static constexpr std::string_view name = kWrong ? "biweight_wrong" : "biweight_right";
  static constexpr std::string_view kind = "points", mistake = "the branch beyond c is forgotten in the gradient";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    for (size_t i = 0; i < x.size(); ++i) {
      const double q = x[i] / b.args.c * (x[i] / b.args.c);
      if (kWrong || q <= 1) dx[i] = dy[i] * x[i] * (1 - q) * (1 - q);
    }
    return {like(dx, b[0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Biweight>(); }
};

/// A triangle wave of period 2: y = |w - 1|, w = x - 2 floor(x / 2).  dx = dy where w >= 1, -dy elsewhere.
struct TriangleWaveBase {
  static inline const std::array inputs{In{"phase"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {
        map(in[0], [](S x) { return sc::abs(x - S(2 * std::floor(static_cast<double>(sc::value(x)) / 2)) - S(1)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("triangle_wave", in, 1);
    Doubles y = values(in[0]);
    for (double& v : y) {
      BG_CHECK(std::isfinite(v), "triangle_wave", "not finite");
      v = std::abs(v - 2 * std::floor(v / 2) - 1);
    }
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {positive(r, {3, 5}, 0, 6)}}, {"(9)", {}, {positive(r, {9}, 0, 6)}}};
  }
};
template <bool kWrong>
struct TriangleWave : TriangleWaveBase {
  static constexpr std::string_view name = kWrong ? "triangle_wave_wrong" : "triangle_wave_right";
  static constexpr std::string_view kind = "points", mistake = "fmod has the sign of a negative phase";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    for (size_t i = 0; i < x.size(); ++i) {
      const double w = kWrong ? std::fmod(x[i], 2) : x[i] - 2 * std::floor(x[i] / 2);
      dx[i] = w >= 1 ? dy[i] : -dy[i];
    }
    return {like(dx, b[0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<TriangleWave>(); }
};

/// A Catmull-Rom spline through p (n), read at positions u (m), which are held to [0, n - 1]; beyond its ends p repeats
/// its last value. y = sum_k w_k(f) p_(i - 1 + k).  dp collects dy w_k(f),  du = dy sum_k w_k'(f) p_(i - 1 + k).
struct SplineBase {
  static inline const std::array inputs{In{"p"}, In{"u"}};
  using Args = NoArgs;
  template <class S>
  static std::array<S, 4> weights(S f) {
    return {S(0.5) * (-f + S(2) * f * f - f * f * f), S(0.5) * (S(2) - S(5) * f * f + S(3) * f * f * f),
            S(0.5) * (f + S(4) * f * f - S(3) * f * f * f), S(0.5) * (f * f * f - f * f)};
  }
  static std::array<double, 4> slopes(double f) {
    return {0.5 * (-1 + 4 * f - 3 * f * f), 0.5 * (-10 * f + 9 * f * f), 0.5 * (1 + 8 * f - 9 * f * f),
            0.5 * (3 * f * f - 2 * f)};
  }
  static int64_t cell(double u, int64_t n) { return std::min<int64_t>(static_cast<int64_t>(u), n - 2); }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0);
    return {map(in[1], [&](S u) {
      if (u < S(0)) u = S(0);
      if (u > S(n - 1)) u = S(n - 1);
      const int64_t i = cell(static_cast<double>(sc::value(u)), n);
      const std::array<S, 4> w = weights<S>(u - S(i));
      S y(0);
      for (int64_t k = 0; k < 4; ++k) y += w[k] * in[0][std::clamp<int64_t>(i - 1 + k, 0, n - 1)];
      return y;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("spline", in, 2);
    check_rank("spline", "p", in[0], 1);
    check_rank("spline", "u", in[1], 1);
    const int64_t n = in[0].size(0);
    BG_CHECK(n >= 2, "spline", "too few points", str(n), "at least 2");
    const Doubles p = values(in[0]);
    Doubles y = values(in[1]);
    for (double& v : y) {
      BG_CHECK(std::isfinite(v), "spline", "position not finite");
      const double u = std::clamp(v, 0.0, static_cast<double>(n - 1));
      const int64_t i = cell(u, n);
      const std::array<double, 4> w = weights(u - static_cast<double>(i));
      v = 0;
      for (int64_t k = 0; k < 4; ++k) v += w[k] * p[std::clamp<int64_t>(i - 1 + k, 0, n - 1)];
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[1]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"7 points", {}, {normal(r, {7}), Tensor::of({2.3, 4.6, 1.2, 3.8}, {4})}},
            {"5 points", {}, {normal(r, {5}), Tensor::of({1.7, 2.25, 2.6}, {3})}}};
  }
};
template <bool kWrong>
struct Spline : SplineBase {
  static constexpr std::string_view name = kWrong ? "spline_wrong" : "spline_right";
  static constexpr std::string_view kind = "points",
                                    mistake = "at the ends, the part of the repeated point is dropped from dp";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0);
    const Doubles p = values(b[0]), us = values(b[1]), dy = values(b.dy());
    Doubles dp = zeros(b[0]), du = zeros(b[1]);
    for (size_t l = 0; l < us.size(); ++l) {
      const double u = std::clamp(us[l], 0.0, static_cast<double>(n - 1));
      const int64_t i = cell(u, n);
      const std::array<double, 4> w = weights(u - static_cast<double>(i)), s = slopes(u - static_cast<double>(i));
      for (int64_t k = 0; k < 4; ++k) {
        const int64_t at = i - 1 + k, held = std::clamp<int64_t>(at, 0, n - 1);
        if (u == us[l]) du[l] += dy[l] * s[k] * p[held];
        if (kWrong && at != held) continue;  // beyond the end
        dp[held] += dy[l] * w[k];
      }
    }
    return {like(dp, b[0]), like(du, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Spline>(); }
};

/// y = (x^lambda - 1) / lambda for x above 0 and a scalar lambda; log x at lambda 0.
/// dx = dy x^(lambda - 1),  dlambda = sum of dy (x^lambda (lambda log x - 1) + 1) / lambda^2, (log x)^2 / 2 at 0.
struct BoxCoxBase {
  static inline const std::array inputs{In{"x", Domain::positive}, In{"lambda"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [&](S x) { return sc::log(x) * expm1_ratio(in[1][0] * sc::log(x)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("box_cox", in, 2);
    check_shape("box_cox", "lambda", in[1], {});
    const double lambda = in[1].item();
    Doubles y = values(in[0]);
    for (double& v : y) {
      BG_CHECK(v > 0, "box_cox", "not positive", str(v), "above 0");
      const double log = std::log(v), z = lambda * log;
      v = z == 0 ? log : log * (std::expm1(z) / z);
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[0]);
  }
  /// ((exp(z) - 1) / z)' = (z exp(z) - exp(z) + 1) / z^2.
  static double ratio_slope(double z) {
    if (std::abs(z) > 0.5) return (std::exp(z) - std::expm1(z) / z) / z;
    double term = 1, total = 0.5;
    for (int k = 1; k < 18; ++k) {
      term *= z / k;
      total += term / (k + 2);
    }
    return total;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"0.5", {}, {positive(r, {3, 4}), Tensor::scalar(0.5, DType::f64)}},
            {"-1", {}, {positive(r, {6}), Tensor::scalar(-1, DType::f64)}},
            {"2", {}, {positive(r, {2, 3}), Tensor::scalar(2, DType::f64)}}};
  }
};
template <bool kWrong>
struct BoxCox : BoxCoxBase {
  static constexpr std::string_view name = kWrong ? "box_cox_wrong" : "box_cox_right";
  static constexpr std::string_view kind = "points", mistake = "lambda has no gradient in the branch near lambda 0";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), dy = values(b.dy());
    const double lambda = b[1].item();
    Doubles dx = zeros(b[0]);
    double dlambda = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double log = std::log(x[i]);
      dx[i] = dy[i] * std::exp((lambda - 1) * log);
      if (kWrong && std::abs(lambda) < 1e-3) continue;  // y = log x
      dlambda += dy[i] * log * log * ratio_slope(lambda * log);
    }
    return {like(dx, b[0]), Tensor::scalar(dlambda, b[1].dtype())};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<BoxCox>(); }
};

// --- Work shared by threads ------------------------------------------------------------------------------------------

/// A polynomial with coefficients c (k): y = sum_l c_l x^l.  dx = dy sum_l l c_l x^(l - 1),  dc_l = sum of dy x^l.
struct PolynomialBase {
  static inline const std::array inputs{In{"x"}, In{"c"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [&](S x) {
      S y(0), power(1);
      for (int64_t l = 0; l < in[1].numel(); ++l, power *= x) y += in[1][l] * power;
      return y;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("polynomial", in, 2);
    check_rank("polynomial", "c", in[1], 1);
    const Doubles c = values(in[1]);
    Doubles y = values(in[0]);
    for (double& v : y) {
      double total = 0;
      for (int64_t l = in[1].numel() - 1; l >= 0; --l) total = total * v + c[l];
      v = total;
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"cubic", {}, {normal(r, {3, 5}), normal(r, {4})}},
            {"line", {}, {normal(r, {9}), normal(r, {2})}},
            {"many", {}, {normal(r, {20, 40}), normal(r, {5})}}};
  }
};
template <bool kWrong>
struct Polynomial : PolynomialBase {
  static constexpr std::string_view name = kWrong ? "polynomial_wrong" : "polynomial_right";
  static constexpr std::string_view kind = "threads", mistake = "threads add into dc without a lock";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].numel(), k = b[1].numel(), grain = chunk_size(64), chunks = (n + grain - 1) / grain;
    const Doubles x = values(b[0]), c = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dc(k, 0.0), parts(kWrong ? 0 : chunks * k, 0.0);
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      double* sum = kWrong ? dc.data() : parts.data() + begin / grain * k;
      for (int64_t i = begin; i < end; ++i) {
        double power = 1, before = 0;
        for (int64_t l = 0; l < k; ++l) {
          dx[i] += dy[i] * static_cast<double>(l) * c[l] * before;
          sum[l] += dy[i] * power;
          before = power;
          power *= x[i];
        }
      }
    });
    for (size_t i = 0; i < parts.size(); ++i) dc[static_cast<int64_t>(i) % k] += parts[i];
    return {like(dx, b[0]), like(dc, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Polynomial>(); }
};

/// Energy of charges q (n) at x (n, d): y = sum_(i < j) q_i q_j / r_ij, r_ij = sqrt(|x_i - x_j|^2 + eps).
/// dq_i = dy sum_j q_j / r_ij,  dx_i = -dy sum_j q_i q_j (x_i - x_j) / r_ij^3.
struct ChargesBase {
  static inline const std::array inputs{In{"x"}, In{"q"}};
  struct Args {
    double eps = 0.1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y{Shape{}};
    const int64_t n = in[0].size(0), d = in[0].size(1);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i + 1; j < n; ++j) {
        S square(a.eps);
        for (int64_t k = 0; k < d; ++k) square += (in[0](i, k) - in[0](j, k)) * (in[0](i, k) - in[0](j, k));
        y[0] += in[1][i] * in[1][j] / sc::sqrt(square);
      }
    return {y};
  }
  static double distance(const Doubles& x, int64_t i, int64_t j, int64_t d, double eps) {
    double square = eps;
    for (int64_t k = 0; k < d; ++k) square += (x[i * d + k] - x[j * d + k]) * (x[i * d + k] - x[j * d + k]);
    return std::sqrt(square);
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("charges", in, 2);
    check_rank("charges", "x", in[0], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1);
    check_shape("charges", "q", in[1], {n});
    BG_CHECK(a.eps > 1e-6, "charges", "eps too small", str(a.eps), "above 1e-6");
    const Doubles x = values(in[0]), q = values(in[1]);
    double y = 0;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = i + 1; j < n; ++j) y += q[i] * q[j] / distance(x, i, j, d, a.eps);
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return Tensor::scalar(y, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"6 in space", {0.1}, {normal(r, {6, 3}), normal(r, {6})}},
            {"40 in a plane", {0.5}, {normal(r, {40, 2}), normal(r, {40})}}};
  }
};
template <bool kWrong>
struct Charges : ChargesBase {
  static constexpr std::string_view name = kWrong ? "charges_wrong" : "charges_right";
  static constexpr std::string_view kind = "threads",
                                    mistake = "each pair is visited once, and j's part is added from i's thread";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const Doubles x = values(b[0]), q = values(b[1]);
    const double dy = b.dy().item();
    Doubles dx = zeros(b[0]), dq = zeros(b[1]);
    parallel_for(n, 4, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t j = kWrong ? i + 1 : 0; j < n; ++j) {
          if (i == j) continue;
          const double r = distance(x, i, j, d, b.args.eps);
          dq[i] += dy * q[j] / r;
          if constexpr (kWrong) dq[j] += dy * q[i] / r;
          for (int64_t k = 0; k < d; ++k) {
            const double g = dy * q[i] * q[j] * (x[i * d + k] - x[j * d + k]) / (r * r * r);
            dx[i * d + k] -= g;
            if constexpr (kWrong) dx[j * d + k] += g;
          }
        }
    });
    return {like(dx, b[0]), like(dq, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Charges>(); }
};

/// Running sums with weights, x and w (n): y_i = sum_(j <= i) w_j x_j.
/// With g_i = sum_(j >= i) dy_j:  dx_i = w_i g_i,  dw_i = x_i g_i.
struct WeightedRunBase {
  static inline const std::array inputs{In{"x"}, In{"w"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    S total(0);
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = total += in[0][i] * in[1][i];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("weighted_run", in, 2);
    check_rank("weighted_run", "x", in[0], 1);
    check_shape("weighted_run", "w", in[1], in[0].shape());
    const Doubles x = values(in[0]), w = values(in[1]);
    Doubles y = zeros(in[0]);
    double total = 0;
    for (size_t i = 0; i < x.size(); ++i) y[i] = total += w[i] * x[i];
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"7", {}, {normal(r, {7}), normal(r, {7})}}, {"40", {}, {normal(r, {40}), normal(r, {40})}}};
  }
};
template <bool kWrong>
struct WeightedRun : WeightedRunBase {
  static constexpr std::string_view name = kWrong ? "weighted_run_wrong" : "weighted_run_right";
  static constexpr std::string_view kind = "threads",
                                    mistake = "a chunk adds the sum of the next chunk, not of all after it";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].numel(), grain = chunk_size(32), chunks = (n + grain - 1) / grain;
    const Doubles x = values(b[0]), w = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dw = dx, carry(chunks + 1, 0.0);
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = end - 1; i >= begin; --i) carry[begin / grain] += dy[i];
    });
    if constexpr (!kWrong)
      for (int64_t c = chunks - 1; c >= 0; --c) carry[c] += carry[c + 1];
    parallel_for(n, grain, [&](int64_t begin, int64_t end) {
      double g = carry[begin / grain + 1];
      for (int64_t i = end - 1; i >= begin; --i) {
        g += dy[i];
        dx[i] = w[i] * g;
        dw[i] = x[i] * g;
      }
    });
    return {like(dx, b[0]), like(dw, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<WeightedRun>(); }
};

/// Rows of x (n, d) over one more than their sums of magnitudes: y_r = x_r / s_r, s_r = 1 + sum_j |x_rj|.
/// dx_rj = dy_rj / s_r - sign(x_rj) sum_l dy_rl x_rl / s_r^2.
struct TaxiNormBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    const int64_t n = y.size(0), d = y.size(1);
    for (int64_t r = 0; r < n; ++r) {
      S s(1);
      for (int64_t j = 0; j < d; ++j) s += sc::abs(in[0](r, j));
      for (int64_t j = 0; j < d; ++j) y(r, j) = in[0](r, j) / s;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("taxi_norm", in, 1);
    check_rank("taxi_norm", "x", in[0], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Doubles y = values(in[0]);
    for (int64_t r = 0; r < n; ++r) {
      double s = 1;
      for (int64_t j = 0; j < d; ++j) s += std::abs(y[r * d + j]);
      for (int64_t j = 0; j < d; ++j) y[r * d + j] /= s;
    }
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 6)", {}, {normal(r, {3, 6})}}, {"(30, 5)", {}, {normal(r, {30, 5})}}};
  }
};
template <bool kWrong>
struct TaxiNorm : TaxiNormBase {
  static constexpr std::string_view name = kWrong ? "taxi_norm_wrong" : "taxi_norm_right";
  static constexpr std::string_view kind = "threads", mistake = "a row's sums are in variables that threads share";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    auto row = [&](int64_t r, double& s, double& dot) {
      s = 1, dot = 0;
      for (int64_t i = r * d; i < (r + 1) * d; ++i) {
        s += std::abs(x[i]);
        dot += dy[i] * x[i];
      }
      for (int64_t i = r * d; i < (r + 1) * d; ++i) dx[i] = dy[i] / s - (x[i] < 0 ? -1 : 1) * dot / (s * s);
    };
    double shared_s = 0, shared_dot = 0;
    parallel_for(n, 4, [&](int64_t begin, int64_t end) {
      double s = 0, dot = 0;
      for (int64_t r = begin; r < end; ++r) row(r, kWrong ? shared_s : s, kWrong ? shared_dot : dot);
    });
    return {like(dx, b[0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<TaxiNorm>(); }
};

/// A signal x (n) cut into frames with a window w (l), `hop` apart: y_fk = x_(f hop + k) w_k.
/// dx_i = sum of dy_fk w_k over the f, k with f hop + k = i,  dw_k = sum_f dy_fk x_(f hop + k).
struct FramesBase {
  static inline const std::array inputs{In{"x"}, In{"w"}};
  struct Args {
    int64_t hop = 2;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    BG_CHECK(a.hop >= 1, "frames", "no hop", str(a.hop), "at least 1");
    const int64_t l = in[1].numel(), frames = 1 + (in[0].numel() - l) / a.hop;
    Arr<S> y(Shape{frames, l});
    for (int64_t f = 0; f < frames; ++f)
      for (int64_t k = 0; k < l; ++k) y(f, k) = in[0][f * a.hop + k] * in[1][k];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("frames", in, 2);
    check_rank("frames", "x", in[0], 1);
    check_rank("frames", "w", in[1], 1);
    const int64_t n = in[0].numel(), l = in[1].numel();
    BG_CHECK(l >= 1 && l <= n, "frames", "no frame fits", str(n, " samples, a window of ", l));
    BG_CHECK(a.hop >= 1, "frames", "no hop", str(a.hop), "at least 1");
    const int64_t frames = 1 + (n - l) / a.hop;
    const Doubles x = values(in[0]), w = values(in[1]);
    Doubles y(frames * l);
    for (int64_t f = 0; f < frames; ++f)
      for (int64_t k = 0; k < l; ++k) y[f * l + k] = x[f * a.hop + k] * w[k];
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return tensor(y, {frames, l}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"hop 2", {2}, {normal(r, {12}), normal(r, {4})}}, {"hop 3", {3}, {normal(r, {19}), normal(r, {5})}}};
  }
};
template <bool kWrong>
struct Frames : FramesBase {
  static constexpr std::string_view name = kWrong ? "frames_wrong" : "frames_right";
  static constexpr std::string_view kind = "threads",
                                    mistake =
                                        "a chunk of frames clears all that it adds to, of which its neighbour "
                                        "has a part";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].numel(), l = b[1].numel(), hop = b.args.hop, frames = 1 + (n - l) / hop;
    const Doubles x = values(b[0]), w = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dw = zeros(b[1]);
    if constexpr (kWrong) {
      parallel_for(frames, 8, [&](int64_t begin, int64_t end) {
        std::fill(dx.begin() + begin * hop, dx.begin() + (end - 1) * hop + l, 0.0);
        for (int64_t f = begin; f < end; ++f)
          for (int64_t k = 0; k < l; ++k) dx[f * hop + k] += dy[f * l + k] * w[k];
      });
    } else {
      parallel_for(n, 64, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          for (int64_t f = std::min(i / hop, frames - 1); f >= 0 && i - f * hop < l; --f)
            dx[i] += dy[f * l + i - f * hop] * w[i - f * hop];
      });
    }
    for (int64_t f = 0; f < frames; ++f)
      for (int64_t k = 0; k < l; ++k) dw[k] += dy[f * l + k] * x[f * hop + k];
    return {like(dx, b[0]), like(dw, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Frames>(); }
};

// --- Shapes and indices ----------------------------------------------------------------------------------------------

/// The largest of each window of x (n, l): y_ro = max_k x_r,(o stride + k), k < size.  dx = dy at the first largest.
struct MaxWindowBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t size = 2, stride = 2;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    BG_CHECK(a.stride >= 1, "max_window", "no stride", str(a.stride), "at least 1");
    const int64_t n = in[0].size(0), outs = 1 + (in[0].size(1) - a.size) / a.stride;
    Arr<S> y(Shape{n, outs});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t o = 0; o < outs; ++o) {
        y(r, o) = in[0](r, o * a.stride);
        for (int64_t k = 1; k < a.size; ++k)
          if (in[0](r, o * a.stride + k) > y(r, o)) y(r, o) = in[0](r, o * a.stride + k);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("max_window", in, 1);
    check_rank("max_window", "x", in[0], 2);
    const int64_t n = in[0].size(0), l = in[0].size(1);
    BG_CHECK(a.size >= 1 && a.size <= l && a.stride >= 1, "max_window", "no window fits",
             str("size ", a.size, ", stride ", a.stride), str("a size of 1 to ", l, ", a stride of at least 1"));
    const int64_t outs = 1 + (l - a.size) / a.stride;
    const Doubles x = values(in[0]);
    Doubles y(n * outs);
    std::vector<int64_t> chosen(n * outs);
    for (int64_t i = 0; i < n * outs; ++i) {
      int64_t at = i / outs * l + i % outs * a.stride;
      const int64_t first = at;
      for (int64_t k = 1; k < a.size; ++k)
        if (x[first + k] > x[at]) at = first + k;
      chosen[i] = at;
      y[i] = x[at];
    }
    saved.keep(indices(chosen, {n, outs}));
    return tensor(y, {n, outs}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"2 by 2", {2, 2}, {normal(r, {2, 8})}}, {"3 by 3", {3, 3}, {normal(r, {3, 10})}}};
  }
};
template <bool kWrong>
struct MaxWindow : MaxWindowBase {
  static constexpr std::string_view name = kWrong ? "max_window_wrong" : "max_window_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake = "an element that is largest in two windows that overlap has one gradient";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t* chosen = b[0].data<int64_t>();
    const Doubles dy = values(b.dy());
    Doubles dx(b.input_shape(0).numel(), 0.0);
    for (size_t i = 0; i < dy.size(); ++i) {
      if constexpr (kWrong)
        dx[chosen[i]] = dy[i];
      else
        dx[chosen[i]] += dy[i];
    }
    return {tensor(dx, b.input_shape(0), b.input_dtype(0))};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<MaxWindow>(); }
};

/// Soft triplet loss of rows of e (m, d), with triplets (t, 3) of an anchor a, a friend p and a stranger n:
/// y = log(1 + exp(|a - p|^2 - |a - n|^2 + margin)).  With g = dy sigmoid of the same:
/// da = 2 g (n - p),  dp = -2 g (a - p),  dn = 2 g (a - n).
struct TripletsBase {
  static inline const std::array inputs{In{"e"}, In{"triplets", false}};
  struct Args {
    double margin = 0.2;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& args) {
    const int64_t count = in[1].size(0), d = in[0].size(1);
    Arr<S> y(Shape{count});
    for (int64_t t = 0; t < count; ++t) {
      const int64_t a = in[1].index(3 * t), p = in[1].index(3 * t + 1), n = in[1].index(3 * t + 2);
      S z(args.margin);
      for (int64_t k = 0; k < d; ++k) {
        const S u = in[0](a, k) - in[0](p, k), v = in[0](a, k) - in[0](n, k);
        z += u * u - v * v;
      }
      y[t] = z > S(0) ? z + sc::log1p(sc::exp(-z)) : sc::log1p(sc::exp(z));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& args) {
    check_floats("triplets", in, 1);
    check_rank("triplets", "e", in[0], 2);
    check_rank("triplets", "triplets", in[1], 2);
    check_shape("triplets", "triplets", in[1], {in[1].size(0), 3});
    const Tensor triplets = num::checked_indices("triplets", "row", in[1], in[0].size(0));
    const int64_t count = in[1].size(0), d = in[0].size(1);
    const int64_t* at = triplets.data<int64_t>();
    const Doubles e = values(in[0]);
    Doubles y(count), rate(count);
    for (int64_t t = 0; t < count; ++t) {
      const int64_t a = at[3 * t] * d, p = at[3 * t + 1] * d, n = at[3 * t + 2] * d;
      double z = args.margin;
      for (int64_t k = 0; k < d; ++k) {
        const double u = e[a + k] - e[p + k], v = e[a + k] - e[n + k];
        z += u * u - v * v;
      }
      y[t] = std::max(z, 0.0) + std::log1p(std::exp(-std::abs(z)));
      rate[t] = sc::sigmoid(z);
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, triplets);
    saved.keep(Tensor::of(rate, {count}));
    return tensor(y, {count}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"two triplets", {0.2}, {normal(r, {6, 3}, 0.7), indices({0, 1, 2, 3, 4, 5}, {2, 3})}},
            {"one triplet", {0.5}, {normal(r, {4, 5}, 0.7), indices({2, 0, 3}, {1, 3})}}};
  }
};
template <bool kWrong>
struct Triplets : TripletsBase {
  static constexpr std::string_view name = kWrong ? "triplets_wrong" : "triplets_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake = "a row that is in two triplets has the last one's gradient";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t count = b[1].size(0), d = b[0].size(1);
    const int64_t* at = b[1].data<int64_t>();
    const Doubles e = values(b[0]), rate = values(b[2]), dy = values(b.dy());
    Doubles de = zeros(b[0]);
    auto give = [&](int64_t i, double g) { de[i] = kWrong ? g : de[i] + g; };
    for (int64_t t = 0; t < count; ++t) {
      const int64_t a = at[3 * t] * d, p = at[3 * t + 1] * d, n = at[3 * t + 2] * d;
      for (int64_t k = 0; k < d; ++k) {
        const double g = 2 * dy[t] * rate[t];
        give(a + k, g * (e[n + k] - e[p + k]));
        give(p + k, -g * (e[a + k] - e[p + k]));
        give(n + k, g * (e[a + k] - e[n + k]));
      }
    }
    return {like(de, b[0]), Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Triplets>(); }
};

/// y_r = x_r^T M_r x_r for x (n, d) and M (n, d, d), or one M (d, d) for all.
/// dx_r = dy_r (M_r + M_r^T) x_r,  dM_r = dy_r x_r x_r^T; one M collects those of all rows.
struct RowMetricBase {
  static inline const std::array inputs{In{"x"}, In{"M"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), d = in[0].size(1), step = in[1].shape.rank() == 3 ? d * d : 0;
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < d; ++i)
        for (int64_t j = 0; j < d; ++j) y[r] += in[0](r, i) * in[1][r * step + i * d + j] * in[0](r, j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("row_metric", in, 2);
    check_rank("row_metric", "x", in[0], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1), step = in[1].rank() == 3 ? d * d : 0;
    check_shape("row_metric", "M", in[1], in[1].rank() == 3 ? Shape{n, d, d} : Shape{d, d});
    const Doubles x = values(in[0]), m = values(in[1]);
    Doubles y(n, 0.0);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < d; ++i)
        for (int64_t j = 0; j < d; ++j) y[r] += x[r * d + i] * m[r * step + i * d + j] * x[r * d + j];
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return tensor(y, {n}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"a matrix for each row", {}, {normal(r, {3, 4}), normal(r, {3, 4, 4})}},
            {"one row", {}, {normal(r, {1, 5}), normal(r, {5, 5})}},
            {"two rows", {}, {normal(r, {2, 3}), normal(r, {2, 3, 3})}}};
  }
};
template <bool kWrong>
struct RowMetric : RowMetricBase {
  static constexpr std::string_view name = kWrong ? "row_metric_wrong" : "row_metric_right";
  static constexpr std::string_view kind = "shapes", mistake = "one M for several rows has the last row's gradient";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1), step = b[1].rank() == 3 ? d * d : 0;
    const Doubles x = values(b[0]), m = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dm = zeros(b[1]);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < d; ++i)
        for (int64_t j = 0; j < d; ++j) {
          const int64_t at = r * step + i * d + j;
          dx[r * d + i] += dy[r] * (m[at] + m[r * step + j * d + i]) * x[r * d + j];
          dm[at] = (kWrong ? 0 : dm[at]) + dy[r] * x[r * d + i] * x[r * d + j];
        }
    return {like(dx, b[0]), like(dm, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowMetric>(); }
};

/// The mean square of every channel of images x (n, c, h, w): y_nc = sum x^2 / (h w).  dx = 2 dy x / (h w).
struct ChannelPowerBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t pixels = in[0].size(2) * in[0].size(3);
    Arr<S> y(Shape{in[0].size(0), in[0].size(1)});
    for (int64_t i = 0; i < in[0].numel(); ++i) y[i / pixels] += in[0][i] * in[0][i] / S(pixels);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("channel_power", in, 1);
    check_rank("channel_power", "x", in[0], 4);
    const int64_t pixels = in[0].size(2) * in[0].size(3);
    BG_CHECK(pixels >= 1, "channel_power", "no pixels", str(in[0].shape()));
    const Doubles x = values(in[0]);
    Doubles y(in[0].size(0) * in[0].size(1), 0.0);
    for (int64_t i = 0; i < in[0].numel(); ++i) y[i / pixels] += x[i] * x[i] / static_cast<double>(pixels);
    saved.keep_input(0, in[0]);
    return tensor(y, {in[0].size(0), in[0].size(1)}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"4 x 4", {}, {normal(r, {2, 3, 4, 4})}}, {"5 x 5", {}, {normal(r, {1, 2, 5, 5})}}};
  }
};
template <bool kWrong>
struct ChannelPower : ChannelPowerBase {
  static constexpr std::string_view name = kWrong ? "channel_power_wrong" : "channel_power_right";
  static constexpr std::string_view kind = "shapes", mistake = "divides by the width's square: right for square images";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t h = b[0].size(2), w = b[0].size(3);
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    for (int64_t i = 0; i < b[0].numel(); ++i)
      dx[i] = 2 * dy[i / (h * w)] * x[i] / static_cast<double>(kWrong ? w * w : h * w);
    return {like(dx, b[0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ChannelPower>(); }
};

/// Cauchy's loss of rows of x (n, d) with weights w (d): y_r = sum_j w_j log(1 + x_rj^2).
/// dx_rj = 2 dy_r w_j x_rj / (1 + x_rj^2),  dw_j = sum_r dy_r log(1 + x_rj^2).
struct CauchyRowsBase {
  static inline const std::array inputs{In{"x"}, In{"w"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < d; ++j) y[r] += in[1][j] * sc::log1p(in[0](r, j) * in[0](r, j));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("cauchy_rows", in, 2);
    check_rank("cauchy_rows", "x", in[0], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1);
    check_shape("cauchy_rows", "w", in[1], {d});
    const Doubles x = values(in[0]), w = values(in[1]);
    Doubles y(n, 0.0);
    for (int64_t i = 0; i < n * d; ++i) y[i / d] += w[i % d] * std::log1p(x[i] * x[i]);
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return tensor(y, {n}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), normal(r, {5})}},
            {"(2, 16)", {}, {normal(r, {2, 16}), normal(r, {16})}}};
  }
};
template <bool kWrong>
struct CauchyRows : CauchyRowsBase {
  static constexpr std::string_view name = kWrong ? "cauchy_rows_wrong" : "cauchy_rows_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake = "what remains after blocks of 16 columns is done for short rows only";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    constexpr int64_t kBlock = 16;
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const Doubles x = values(b[0]), w = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dw = zeros(b[1]);
    auto columns = [&](int64_t r, int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        const double v = x[r * d + j];
        dx[r * d + j] = 2 * dy[r] * w[j] * v / (1 + v * v);
        dw[j] += dy[r] * std::log1p(v * v);
      }
    };
    for (int64_t r = 0; r < n; ++r) {
      int64_t j = 0;
      for (; j + kBlock <= d; j += kBlock) columns(r, j, j + kBlock);
      if (kWrong ? d < kBlock : j < d) columns(r, j, d);
    }
    return {like(dx, b[0]), like(dw, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<CauchyRows>(); }
};

/// x (n, c, l) over the root mean square of each group of c / groups channels.
/// With h = 1 / sqrt(mean(x^2) + eps) of a group:  dx = h (dy - y mean(dy y)).
struct GroupPowerBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t groups = 1;
    double eps = 1e-5;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(in[0].shape);
    const int64_t count = in[0].size(0) * a.groups;
    if (count <= 0) return {y};
    const int64_t size = y.numel() / count;
    for (int64_t g = 0; g < count; ++g) {
      S square(a.eps);
      for (int64_t i = g * size; i < (g + 1) * size; ++i) square += in[0][i] * in[0][i] / S(size);
      for (int64_t i = g * size; i < (g + 1) * size; ++i) y[i] = in[0][i] / sc::sqrt(square);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("group_power", in, 1);
    check_rank("group_power", "x", in[0], 3);
    BG_CHECK(a.groups >= 1 && in[0].size(1) >= a.groups && in[0].size(1) % a.groups == 0, "group_power",
             "channels do not fill the groups", str(in[0].size(1), " in ", a.groups));
    BG_CHECK(a.eps > 0, "group_power", "no eps", str(a.eps), "above 0");
    const int64_t n = in[0].size(0), size = in[0].size(1) / a.groups * in[0].size(2);
    Doubles y = values(in[0]), h(n * a.groups);
    for (int64_t g = 0; g < n * a.groups; ++g) {
      double square = a.eps;
      for (int64_t i = g * size; i < (g + 1) * size; ++i) square += y[i] * y[i] / static_cast<double>(size);
      h[g] = 1 / std::sqrt(square);
      for (int64_t i = g * size; i < (g + 1) * size; ++i) y[i] *= h[g];
    }
    saved.keep(Tensor::of(y, in[0].shape()));
    saved.keep(Tensor::of(h, {n, a.groups}));
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"one image, 2 groups", {2}, {normal(r, {1, 4, 5})}}, {"2 images, 1 group", {1}, {normal(r, {2, 3, 4})}}};
  }
};
template <bool kWrong>
struct GroupPower : GroupPowerBase {
  static constexpr std::string_view name = kWrong ? "group_power_wrong" : "group_power_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake = "h is read as (groups, n): right for one image or one group";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[1].size(0), groups = b[1].size(1);
    const Doubles y = values(b[0]), h = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    const int64_t size = n > 0 ? b[0].numel() / (n * groups) : 0;
    for (int64_t r = 0; r < n; ++r)
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t begin = (r * groups + g) * size;
        double mean = 0;
        for (int64_t i = begin; i < begin + size; ++i) mean += dy[i] * y[i] / static_cast<double>(size);
        for (int64_t i = begin; i < begin + size; ++i)
          dx[i] = h[kWrong ? g * n + r : r * groups + g] * (dy[i] - y[i] * mean);
      }
    return {tensor(dx, b[0].shape(), b.input_dtype(0))};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GroupPower>(); }
};

// --- The formula -----------------------------------------------------------------------------------------------------

/// Rows of x (n, d) mirrored by a Householder vector v (d), not zero: y = x - 2 v (v x) / (v v).
/// dx = dy - 2 v (v dy) / (v v),  dv = sum over rows of -2 ((dy v) x + (v x) dy) / (v v) + 4 (v x) (dy v) v / (v v)^2.
struct MirrorBase {
  static inline const std::array inputs{In{"x"}, In{"v"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    const int64_t n = y.size(0), d = y.size(1);
    S square(0);
    for (int64_t j = 0; j < d; ++j) square += in[1][j] * in[1][j];
    for (int64_t r = 0; r < n; ++r) {
      S dot(0);
      for (int64_t j = 0; j < d; ++j) dot += in[0](r, j) * in[1][j];
      for (int64_t j = 0; j < d; ++j) y(r, j) = in[0](r, j) - S(2) * in[1][j] * dot / square;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("mirror", in, 2);
    check_rank("mirror", "x", in[0], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1);
    check_shape("mirror", "v", in[1], {d});
    const Doubles x = values(in[0]), v = values(in[1]);
    double square = 0;
    for (const double e : v) square += e * e;
    BG_CHECK(square > 1e-100 && square < 1e100, "mirror", "v is zero or out of range", str("v v ", square));
    Doubles y = x;
    for (int64_t r = 0; r < n; ++r) {
      double dot = 0;
      for (int64_t j = 0; j < d; ++j) dot += x[r * d + j] * v[j];
      for (int64_t j = 0; j < d; ++j) y[r * d + j] -= 2 * v[j] * dot / square;
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[0]);
  }
  static Tensor unit(Rng& r, int64_t d) {
    const Tensor v = normal(r, {d});
    return num::scale(v, 1 / std::sqrt(num::dot(v, v)));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {3, 4}), unit(r, 4)}}, {"(2, 6)", {}, {normal(r, {2, 6}), unit(r, 6)}}};
  }
};
template <bool kWrong>
struct Mirror : MirrorBase {
  static constexpr std::string_view name = kWrong ? "mirror_wrong" : "mirror_right";
  static constexpr std::string_view kind = "formula",
                                    mistake = "the last term has v v in place of (v v)^2: right for a unit v";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const Doubles x = values(b[0]), v = values(b[1]), dy = values(b.dy());
    Doubles dx = dy, dv = zeros(b[1]);
    double square = 0;
    for (const double e : v) square += e * e;
    for (int64_t r = 0; r < n; ++r) {
      double vx = 0, vg = 0;
      for (int64_t j = 0; j < d; ++j) {
        vx += v[j] * x[r * d + j];
        vg += v[j] * dy[r * d + j];
      }
      for (int64_t j = 0; j < d; ++j) {
        dx[r * d + j] -= 2 * v[j] * vg / square;
        dv[j] -= 2 * (vg * x[r * d + j] + vx * dy[r * d + j]) / square;
        dv[j] += 4 * vx * vg * v[j] / (kWrong ? square : square * square);
      }
    }
    return {like(dx, b[0]), like(dv, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Mirror>(); }
};

/// The solution y (n, m) of A y = b for A (n, n), b (n, m).  db = A^-T dy,  dA = -db y^T.
struct SolveBase {
  static inline const std::array inputs{In{"A"}, In{"b"}};
  using Args = NoArgs;
  /// Elimination with the largest pivot of each column; `rhs` becomes the solution. Returns the least pivot's size, as
  /// a part of the largest element.
  template <class S>
  static double eliminate(std::vector<S> a, std::vector<S>& rhs, int64_t n, int64_t m) {
    double top = 0, least = 1;
    for (const S& e : a) top = std::max(top, std::abs(static_cast<double>(sc::value(e))));
    for (int64_t k = 0; k < n; ++k) {
      int64_t pivot = k;
      for (int64_t i = k + 1; i < n; ++i)
        if (sc::abs(a[i * n + k]) > sc::abs(a[pivot * n + k])) pivot = i;
      for (int64_t j = 0; j < n; ++j) std::swap(a[k * n + j], a[pivot * n + j]);
      for (int64_t j = 0; j < m; ++j) std::swap(rhs[k * m + j], rhs[pivot * m + j]);
      const double size = std::abs(static_cast<double>(sc::value(a[k * n + k])));
      if (!(size > 0)) return 0;
      least = std::min(least, size / top);
      for (int64_t i = 0; i < n; ++i) {
        if (i == k) continue;
        const S f = a[i * n + k] / a[k * n + k];
        for (int64_t j = k; j < n; ++j) a[i * n + j] -= f * a[k * n + j];
        for (int64_t j = 0; j < m; ++j) rhs[i * m + j] -= f * rhs[k * m + j];
      }
    }
    for (int64_t i = 0; i < n * m; ++i) rhs[i] /= a[i / m * n + i / m];
    return least;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y = in[1];
    eliminate<S>(in[0].v, y.v, y.size(0), y.size(1));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("solve", in, 2);
    check_rank("solve", "A", in[0], 2);
    check_rank("solve", "b", in[1], 2);
    const int64_t n = in[0].size(0), m = in[1].size(1);
    check_shape("solve", "A", in[0], {n, n});
    check_shape("solve", "b", in[1], {n, m});
    Doubles y = values(in[1]);
    const double least = eliminate(values(in[0]), y, n, m);
    BG_CHECK(least > 1e-2, "solve", "A is close to singular", str("a pivot of ", least), "above 0.01");
    saved.keep_input(0, in[0]);
    saved.keep(Tensor::of(y, {n, m}));
    return like(y, in[1]);
  }
  /// Symmetric, with a strong diagonal.
  static Tensor stiffness(Rng& r, int64_t n) {
    const Tensor a = normal(r, {n, n}, 0.2);
    Tensor s = num::add(a, a.transpose(0, 1));
    double* p = s.mutable_data<double>("solve");
    for (int64_t i = 0; i < n; ++i) p[i * n + i] += 2;
    return s;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 equations", {}, {stiffness(r, 3), normal(r, {3, 2})}},
            {"4 equations", {}, {stiffness(r, 4), normal(r, {4, 1})}}};
  }
};
template <bool kWrong>
struct Solve : SolveBase {
  static constexpr std::string_view name = kWrong ? "solve_wrong" : "solve_right";
  static constexpr std::string_view kind = "formula", mistake = "A where A^T is meant: right for a symmetric A";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[1].size(0), m = b[1].size(1);
    const Doubles y = values(b[1]);
    Doubles g = values(b.dy()), da = zeros(b[0]);
    eliminate(values(kWrong ? b[0] : b[0].transpose(0, 1)), g, n, m);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        for (int64_t k = 0; k < m; ++k) da[i * n + j] -= g[i * m + k] * y[j * m + k];
    return {like(da, b[0]), tensor(g, {n, m}, b.input_dtype(1))};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Solve>(); }
};

/// The deviation of rows of x (n, d) as samples: y_r = sqrt(sum_j (x_rj - mean_r)^2 / (d - 1) + eps).
/// dx_rj = dy_r (x_rj - mean_r) / ((d - 1) y_r).
struct DeviationBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double eps = 1e-6;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r) {
      S mean(0), square(a.eps);
      for (int64_t j = 0; j < d; ++j) mean += in[0](r, j) / S(d);
      for (int64_t j = 0; j < d; ++j) square += (in[0](r, j) - mean) * (in[0](r, j) - mean) / S(d - 1);
      y[r] = sc::sqrt(square);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("deviation", in, 1);
    check_rank("deviation", "x", in[0], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1);
    BG_CHECK(d >= 2, "deviation", "too few samples", str(d), "at least 2");
    BG_CHECK(a.eps > 0, "deviation", "no eps", str(a.eps), "above 0");
    Doubles y(n), centred = values(in[0]);
    for (int64_t r = 0; r < n; ++r) {
      double mean = 0, square = a.eps;
      for (int64_t i = r * d; i < (r + 1) * d; ++i) mean += centred[i] / static_cast<double>(d);
      for (int64_t i = r * d; i < (r + 1) * d; ++i) {
        centred[i] -= mean;
        square += centred[i] * centred[i] / static_cast<double>(d - 1);
      }
      y[r] = std::sqrt(square);
    }
    saved.keep(Tensor::of(centred, in[0].shape()));
    saved.keep(Tensor::of(y, {n}));
    return tensor(y, {n}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 100)", {}, {normal(r, {2, 100})}}, {"(3, 250)", {1e-3}, {normal(r, {3, 250})}}};
  }
};
template <bool kWrong>
struct Deviation : DeviationBase {
  static constexpr std::string_view name = kWrong ? "deviation_wrong" : "deviation_right";
  static constexpr std::string_view kind = "formula", mistake = "d in place of d - 1: 1 % or less off in long rows";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t d = b[0].size(1);
    const Doubles centred = values(b[0]), y = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    for (int64_t i = 0; i < b[0].numel(); ++i)
      dx[i] = dy[i / d] * centred[i] / (static_cast<double>(kWrong ? d : d - 1) * y[i / d]);
    return {tensor(dx, b[0].shape(), b.input_dtype(0))};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Deviation>(); }
};

/// Smooth Dice loss of rows of p and t (n, d): y = 1 - N / D, N = 2 sum p t + s, D = sum p^2 + sum t^2 + s.
/// dp = dy (2 p N / D^2 - 2 t / D),  dt likewise.
struct DiceBase {
  static inline const std::array inputs{In{"p"}, In{"t"}};
  struct Args {
    double smooth = 0.1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r) {
      S num(a.smooth), den(a.smooth);
      for (int64_t j = 0; j < d; ++j) {
        num += S(2) * in[0](r, j) * in[1](r, j);
        den += in[0](r, j) * in[0](r, j) + in[1](r, j) * in[1](r, j);
      }
      y[r] = S(1) - num / den;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("dice", in, 2);
    check_rank("dice", "p", in[0], 2);
    check_shape("dice", "t", in[1], in[0].shape());
    BG_CHECK(a.smooth > 1e-6, "dice", "smooth too small", str(a.smooth), "above 1e-6");
    const int64_t n = in[0].size(0), d = in[0].size(1);
    const Doubles p = values(in[0]), t = values(in[1]);
    Doubles y(n), parts(2 * n, 0.0);
    for (int64_t i = 0; i < n * d; ++i) {
      parts[i / d * 2] += 2 * p[i] * t[i];
      parts[i / d * 2 + 1] += p[i] * p[i] + t[i] * t[i];
    }
    for (int64_t r = 0; r < n; ++r) y[r] = 1 - (parts[2 * r] + a.smooth) / (parts[2 * r + 1] + a.smooth);
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    saved.keep(Tensor::of(parts, {n, 2}));
    return tensor(y, {n}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 16)", {}, {positive(r, {2, 16}, 0, 1), positive(r, {2, 16}, 0, 1)}},
            {"(3, 9), smooth 0.05", {0.05}, {positive(r, {3, 9}, 0, 1), positive(r, {3, 9}, 0, 1)}}};
  }
};
template <bool kWrong>
struct Dice : DiceBase {
  static constexpr std::string_view name = kWrong ? "dice_wrong" : "dice_right";
  static constexpr std::string_view kind = "formula", mistake = "one of the denominators is without smooth: 1 % off";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const Doubles p = values(b[0]), t = values(b[1]), parts = values(b[2]), dy = values(b.dy());
    Doubles dp = zeros(b[0]), dt = dp;
    for (int64_t i = 0; i < n * d; ++i) {
      const double top = parts[i / d * 2] + b.args.smooth, den = parts[i / d * 2 + 1] + b.args.smooth;
      const double ratio = top / (kWrong ? std::max(parts[i / d * 2 + 1], 1e-12) : den);
      dp[i] = 2 * dy[i / d] * (p[i] * ratio - t[i]) / den;
      dt[i] = 2 * dy[i / d] * (t[i] * ratio - p[i]) / den;
    }
    return {like(dp, b[0]), like(dt, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Dice>(); }
};

/// One midpoint step of x' = tanh(w x): u = tanh(w x), z = x + h u / 2, v = tanh(w z), y = x + h v; w is a scalar.
/// With g = dy h (1 - v^2):  dx = dy + g w (1 + h w (1 - u^2) / 2),  dw = sum of g (z + h w (1 - u^2) x / 2).
struct MidpointBase {
  static inline const std::array inputs{In{"x"}, In{"w"}};
  struct Args {
    double h = 0.1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) {
      const S w = in[1][0];
      return x + S(a.h) * sc::tanh(w * (x + S(a.h / 2) * sc::tanh(w * x)));
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"h 0.1", {0.1}, {normal(r, {3, 4}), normal(r, {})}}, {"h 0.2", {0.2}, {normal(r, {7}), normal(r, {})}}};
  }
};
template <bool kWrong>
struct Midpoint : MidpointBase {
  static constexpr std::string_view name = kWrong ? "midpoint_wrong" : "midpoint_right";
  static constexpr std::string_view kind = "formula",
                                    mistake = "the buffer of u is overwritten with v before it is saved: 1 % off";
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats(name, in, 2);
    check_shape(name, "w", in[1], {});
    BG_CHECK(std::isfinite(a.h), name, "step not finite");
    const double w = in[1].item();
    const Doubles x = values(in[0]);
    Doubles rate = x, y = x;
    for (double& v : rate) v = std::tanh(w * v);
    Tensor first = Tensor::of(rate, in[0].shape());
    for (size_t i = 0; i < x.size(); ++i) {
      rate[i] = std::tanh(w * (x[i] + a.h / 2 * rate[i]));
      y[i] += a.h * rate[i];
    }
    if constexpr (kWrong) first = Tensor::of(rate, in[0].shape());
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    saved.keep(first);
    saved.keep(Tensor::of(rate, in[0].shape()));
    return like(y, in[0]);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), us = values(b[2]), vs = values(b[3]), dy = values(b.dy());
    const double w = b[1].item(), h = b.args.h;
    Doubles dx = zeros(b[0]);
    double dw = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double u = us[i], v = vs[i], g = dy[i] * h * (1 - v * v);
      dx[i] = dy[i] + g * w * (1 + h / 2 * w * (1 - u * u));
      dw += g * (x[i] + h / 2 * (u + w * (1 - u * u) * x[i]));
    }
    return {like(dx, b[0]), Tensor::scalar(dw, b[1].dtype())};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Midpoint>(); }
};

}  // namespace strangers_c
