// Right ops of difficult kinds: their gradients are right in double precision, at points where differences, a fixed
// tolerance or a wrong guess about conventions make them look wrong. `DifficultOps` lists them; `functions` gives right
// functions of Vars of the same kinds.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "tests/verifiers/parts.h"

namespace difficult {

using namespace bg;

// -- Scalar functions that references need beside those of sc ---------------------------------------------------------

namespace sx {

template <class T>
T asin(T x) {
  return std::asin(x);
}
template <class T>
T expm1(T x) {
  return std::expm1(x);
}
template <class T>
T atan2(T y, T x) {
  return std::atan2(y, x);
}
template <class T>
Dual<T> asin(Dual<T> x) {
  return {std::asin(x.v), x.d / std::sqrt((1 - x.v) * (1 + x.v))};
}
template <class T>
Dual<T> expm1(Dual<T> x) {
  return {std::expm1(x.v), std::exp(x.v) * x.d};
}
template <class T>
Dual<T> atan2(Dual<T> y, Dual<T> x) {
  return {std::atan2(y.v, x.v), (x.v * y.d - y.v * x.d) / (x.v * x.v + y.v * y.v)};
}
/// ln(1 + e^x) without overflow.
template <class S>
S softplus(S x) {
  return x > S(0) ? x + sc::log1p(sc::exp(-x)) : sc::log1p(sc::exp(x));
}

}  // namespace sx

// -- Small dense matrices, row-major, for any scalar ------------------------------------------------------------------

template <class S>
std::vector<S> product(const std::vector<S>& a, const std::vector<S>& b, int64_t n, int64_t k, int64_t m) {
  std::vector<S> c(n * m, S(0));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < m; ++j) c[i * m + j] += a[i * k + l] * b[l * m + j];
  return c;
}

template <class S>
std::vector<S> transposed(const std::vector<S>& a, int64_t n, int64_t m) {
  std::vector<S> t(n * m, S(0));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) t[j * n + i] = a[i * m + j];
  return t;
}

template <class S>
std::vector<S> unit_matrix(int64_t n) {
  std::vector<S> e(n * n, S(0));
  for (int64_t i = 0; i < n; ++i) e[i * n + i] = S(1);
  return e;
}

/// X with A X = B for A (n, n) and B (n, m): Gauss-Jordan elimination, the largest pivot of each column first. The
/// pivots are what is left of A: their product is its determinant up to the sign.
template <class S>
std::vector<S> solved(std::vector<S> a, std::vector<S> b, int64_t n, int64_t m, std::vector<S>* pivots = nullptr) {
  for (int64_t c = 0; c < n; ++c) {
    int64_t p = c;
    for (int64_t i = c + 1; i < n; ++i)
      if (std::abs(sc::value(a[i * n + c])) > std::abs(sc::value(a[p * n + c]))) p = i;
    for (int64_t j = 0; j < n; ++j) std::swap(a[c * n + j], a[p * n + j]);
    for (int64_t j = 0; j < m; ++j) std::swap(b[c * m + j], b[p * m + j]);
    const S pivot = a[c * n + c];
    if (pivots) pivots->push_back(pivot);
    for (int64_t j = 0; j < n; ++j) a[c * n + j] = a[c * n + j] / pivot;
    for (int64_t j = 0; j < m; ++j) b[c * m + j] = b[c * m + j] / pivot;
    for (int64_t i = 0; i < n; ++i) {
      if (i == c) continue;
      const S factor = a[i * n + c];
      for (int64_t j = 0; j < n; ++j) a[i * n + j] = a[i * n + j] - factor * a[c * n + j];
      for (int64_t j = 0; j < m; ++j) b[i * m + j] = b[i * m + j] - factor * b[c * m + j];
    }
  }
  return b;
}

/// M M^T + shift I of a random M: symmetric to the last bit, positive definite.
inline Tensor positive_definite(Rng& r, int64_t n, double shift) {
  const std::vector<double> m = normal(r, {n, n}).to_vector<double>();
  std::vector<double> a = product(m, transposed(m, n, n), n, n, n);
  for (int64_t i = 0; i < n; ++i) {
    a[i * n + i] += shift;
    for (int64_t j = 0; j < i; ++j) a[i * n + j] = a[j * n + i];
  }
  return Tensor::of(std::move(a), {n, n});
}

/// Rows of positive numbers that sum to 1.
inline Tensor distributions(Rng& r, int64_t n, int64_t d) {
  std::vector<double> p = positive(r, {n, d}, 0.2, 2).to_vector<double>();
  for (int64_t i = 0; i < n; ++i) {
    const double total = std::accumulate(p.begin() + i * d, p.begin() + (i + 1) * d, 0.0);
    for (int64_t j = 0; j < d; ++j) p[i * d + j] /= total;
  }
  return Tensor::of(std::move(p), {n, d});
}

inline Tensor indices(std::vector<int64_t> v) {
  const auto n = static_cast<int64_t>(v.size());
  return Tensor::of(std::move(v), {n});
}

using strangers::negated;

/// A wrong backward for ops whose gradient is zero: the cotangent itself.
template <class O>
std::vector<Mutant<Tensor, typename O::Args>> passed_on() {
  return {{"the cotangent passed on", [](const Backward<Tensor, typename O::Args>& b) {
             Tensors g = O::backward(b);
             g[0] = b.dy();
             return g;
           }}};
}

// -- Element-wise ops -------------------------------------------------------------------------------------------------

/// An element-wise op y = f(x), dx = dy f'(x), of a struct that has `name`, `f`, `slope` and `points`. Saves x.
template <class Self>
struct Elementwise : strangers::Elementwise<Self> {
  using Args = NoArgs;

  static Tensors backward(const Backward<Tensor, Args>& b) {
    return strangers::Elementwise<Self>::by_slope(b, [](auto x) { return Self::slope(x); });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<Sample<Args>> out;
    for (const Tensor& x : Self::points(r)) out.push_back({str("shape ", x.shape()), {}, {x}});
    return out;
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Self>(); }
};

/// y = 1 / x at 1e-3;  dx = -dy / x^2, about 1e6.
struct Reciprocal : Elementwise<Reciprocal> {
  static constexpr std::string_view name = "difficult_reciprocal";
  template <class S>
  static S f(S x) {
    return S(1) / x;
  }
  template <class T>
  static T slope(T x) {
    return -1 / (x * x);
  }
  static Tensors points(Rng&) {
    return {Tensor::of({1e-3, -1e-3, 2e-3, 1.5e-3}, {4}), Tensor::of({1e-3}, {}), Tensor::of({3, -1e-3}, {1, 2})};
  }
};

/// y = sqrt(x) at 1e-4 and 1e-6;  dx = dy / (2 sqrt(x)).
struct SquareRoot : Elementwise<SquareRoot> {
  static constexpr std::string_view name = "difficult_square_root";
  template <class S>
  static S f(S x) {
    return sc::sqrt(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / (2 * std::sqrt(x));
  }
  static Tensors points(Rng&) { return {Tensor::of({1e-4, 2e-4, 5e-4}, {3}), Tensor::of({1e-6, 1}, {2, 1})}; }
};

/// y = asin(x) at 0.999;  dx = dy / sqrt(1 - x^2), with 1 - x^2 = (1 - x)(1 + x) to lose no digits.
struct ArcSine : Elementwise<ArcSine> {
  static constexpr std::string_view name = "difficult_arc_sine";
  template <class S>
  static S f(S x) {
    return sx::asin(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / std::sqrt((1 - x) * (1 + x));
  }
  static Tensors points(Rng&) { return {Tensor::of({0.999, -0.999, 0.9995}, {3}), Tensor::of({0.9999, 0}, {2})}; }
};

/// y = sin(1000 x);  dx = 1000 dy cos(1000 x).
struct FastSine : Elementwise<FastSine> {
  static constexpr std::string_view name = "difficult_fast_sine";
  template <class S>
  static S f(S x) {
    return sc::sin(S(1000) * x);
  }
  template <class T>
  static T slope(T x) {
    return 1000 * std::cos(1000 * x);
  }
  static Tensors points(Rng& r) { return {normal(r, {5}), normal(r, {2, 3}, 3), Tensor::of({0.7}, {})}; }
};

/// y = ln(1 + e^x) at -40 alone;  dx = dy sigmoid(x), about 4e-18.
struct SoftplusFarLeft : Elementwise<SoftplusFarLeft> {
  static constexpr std::string_view name = "difficult_softplus_far_left";
  template <class S>
  static S f(S x) {
    return sx::softplus(x);
  }
  template <class T>
  static T slope(T x) {
    return x < 0 ? std::exp(x) / (1 + std::exp(x)) : 1 / (1 + std::exp(-x));
  }
  static Tensors points(Rng&) { return {Tensor::of({-40}, {1}), Tensor::of({-40, -39.5, -41}, {3})}; }
};

/// y = e^x at -300: values and slopes of 5e-131.
struct ExpFarLeft : Elementwise<ExpFarLeft> {
  static constexpr std::string_view name = "difficult_exp_far_left";
  template <class S>
  static S f(S x) {
    return sc::exp(x);
  }
  template <class T>
  static T slope(T x) {
    return std::exp(x);
  }
  static Tensors points(Rng&) { return {Tensor::of({-300, -299, -301.5}, {3}), Tensor::of({-300}, {})}; }
};

/// y = x^2 at 1e150;  dx = 2 x dy.
struct HugeSquare : Elementwise<HugeSquare> {
  static constexpr std::string_view name = "difficult_huge_square";
  template <class S>
  static S f(S x) {
    return x * x;
  }
  template <class T>
  static T slope(T x) {
    return 2 * x;
  }
  static Tensors points(Rng&) { return {Tensor::of({1e150, -2e150, 0.5e150}, {3}), Tensor::of({1e150}, {})}; }
};

/// y = ln(1 + x) at 1e-12;  dx = dy / (1 + x).
struct LogOnePlusTiny : Elementwise<LogOnePlusTiny> {
  static constexpr std::string_view name = "difficult_log_one_plus_tiny";
  template <class S>
  static S f(S x) {
    return sc::log1p(x);
  }
  template <class T>
  static T slope(T x) {
    return 1 / (1 + x);
  }
  static Tensors points(Rng&) { return {Tensor::of({1e-12, -2e-12, 3e-12}, {3}), Tensor::of({1e-12}, {})}; }
};

/// y = e^x - 1 at 1e-12;  dx = dy e^x.
struct ExpMinusOneTiny : Elementwise<ExpMinusOneTiny> {
  static constexpr std::string_view name = "difficult_exp_minus_one_tiny";
  template <class S>
  static S f(S x) {
    return sx::expm1(x);
  }
  template <class T>
  static T slope(T x) {
    return std::exp(x);
  }
  static Tensors points(Rng&) { return {Tensor::of({1e-12, -2e-12, 3e-12}, {3}), Tensor::of({1e-12}, {})}; }
};

/// y = ln cosh x = |x| + ln(1 + e^(-2 |x|)) - ln 2 at +-400, near 0 ln(1 + (e^|x| - 1)^2 / (2 e^|x|));  dx = dy tanh x.
struct LogCosh : Elementwise<LogCosh> {
  static constexpr std::string_view name = "difficult_log_cosh";
  template <class S>
  static S f(S x) {
    const S a = x < S(0) ? -x : x, m = sx::expm1(a);
    if (a < S(1)) return sc::log1p(m * m / (S(2) * sc::exp(a)));
    return a + sc::log1p(sc::exp(S(-2) * a)) - sc::log(S(2));
  }
  template <class T>
  static T slope(T x) {
    return std::tanh(x);
  }
  static Tensors points(Rng&) { return {Tensor::of({400, -400, 25}, {3}), Tensor::of({0.5, -1e-3, 1e-9}, {3})}; }
};

/// y = sin(x) / x, 1 at 0: smooth there, though the formula is not.  dx = dy (x cos x - sin x) / x^2. Near 0 both by
/// their series: 1 - x^2/6 + x^4/120 - x^6/5040 and its derivative.
struct Sinc : Elementwise<Sinc> {
  static constexpr std::string_view name = "difficult_sinc";
  template <class S>
  static S f(S x) {
    const S u = x * x;
    if (u < S(4e-4)) return S(1) - u / S(6) * (S(1) - u / S(20) * (S(1) - u / S(42)));
    return sc::sin(x) / x;
  }
  template <class T>
  static T slope(T x) {
    const T u = x * x;
    if (u < T(4e-4)) return -x / 3 * (1 - u / 10 * (1 - u / 28 * (1 - u / 54)));
    return (x * std::cos(x) - std::sin(x)) / u;
  }
  static Tensors points(Rng&) {
    return {Tensor::of({0, 1e-8, -1e-4, 1e-2}, {4}), Tensor::of({0}, {}), Tensor::of({2, -1, 0}, {3})};
  }
};

/// y = max(0, 1 - x)^2 at its knot x = 1, where the slope is continuous (0 from both sides) and only the second
/// derivative jumps: no kink of the gradient.  dx = -2 dy max(0, 1 - x).
struct SquaredHinge : Elementwise<SquaredHinge> {
  static constexpr std::string_view name = "difficult_squared_hinge";
  template <class S>
  static S f(S x) {
    return x < S(1) ? (S(1) - x) * (S(1) - x) : S(0);
  }
  template <class T>
  static T slope(T x) {
    return x < 1 ? -2 * (1 - x) : T(0);
  }
  static Tensors points(Rng&) {
    return {Tensor::of({1, 0.5, 2}, {3}), Tensor::of({-1, 1}, {2}), Tensor::of({0.9}, {})};
  }
};

/// y = x e^(-x^2) of 0-dimensional tensors only;  dx = dy (1 - 2 x^2) e^(-x^2).
struct ScalarBump : Elementwise<ScalarBump> {
  static constexpr std::string_view name = "difficult_scalar_bump";
  template <class S>
  static S f(S x) {
    return x * sc::exp(-(x * x));
  }
  template <class T>
  static T slope(T x) {
    return (1 - 2 * x * x) * std::exp(-x * x);
  }
  static Tensors points(Rng& r) { return {normal(r, {}), Tensor::of({0}, {}), Tensor::of({0.7071}, {})}; }
};

/// y = |x|, also at 0;  dx = dy sign(x), 0 at 0.
struct AbsAtZero : Elementwise<AbsAtZero> {
  static constexpr std::string_view name = "difficult_abs_at_zero";
  template <class S>
  static S f(S x) {
    if (x == S(0)) return S(0);
    return x < S(0) ? -x : x;
  }
  template <class T>
  static T slope(T x) {
    return static_cast<T>((x > 0) - (x < 0));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<Sample<Args>> out{{"away from 0", {}, {away_from_zero(r, {2, 3})}}};
    out.push_back(Sample<Args>("zeros among others", {}, {Tensor::of({0, -1, 0, 2}, {4})}).at_kink("0 at 0"));
    out.push_back(Sample<Args>("scalar zero", {}, {Tensor::of({0}, {})}, {0}).at_kink("0 at 0"));
    return out;
  }
};

/// y = floor(3 x) / 3: stairs. Its true gradient is zero everywhere but at the steps.
struct Stairs : Elementwise<Stairs> {
  static constexpr std::string_view name = "difficult_stairs";
  template <class S>
  static S f(S x) {
    return S(std::floor(3 * sc::value(x)) / 3);
  }
  static Tensors backward(const Backward<Tensor, Args>&) { return {Tensor()}; }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(4,)", {}, {Tensor::of({0.5, -0.5, 1.1, 2.9}, {4})}, {0}}, {"scalar", {}, {Tensor::of({0.2}, {})}, {0}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return passed_on<Stairs>(); }
};

/// y = ceil(x) + [x > 1], the same kind, with the zeros written out.
struct CeilAndStep : Elementwise<CeilAndStep> {
  static constexpr std::string_view name = "difficult_ceil_and_step";
  template <class S>
  static S f(S x) {
    return S(std::ceil(sc::value(x))) + (x > S(1) ? S(1) : S(0));
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {Tensor::zeros(b.input_shape(0), b.dy().dtype())}; }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(2, 2)", {}, {Tensor::of({0.5, -0.5, 1.3, 2.7}, {2, 2})}, {0}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return passed_on<CeilAndStep>(); }
};

/// Huber's loss of a residual: x^2 / 2 within +-delta, delta (|x| - delta / 2) outside.  dx = dy clamp(x, -delta,
/// delta). At +-delta the second derivative jumps; both branches give the same slope.
struct Huber {
  static constexpr std::string_view name = "difficult_huber";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double delta = 1;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const S delta(a.delta);
    return {map(in[0], [&](S x) {
      const S size = x < S(0) ? -x : x;
      return size <= delta ? x * x / S(2) : delta * (size - delta / S(2));
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const T delta = static_cast<T>(a.delta);
      return map<T, T>(name, in[0],
                       [=](T x) { return std::abs(x) <= delta ? x * x / 2 : delta * (std::abs(x) - delta / 2); });
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const T delta = static_cast<T>(b.args.delta);
      return zip<T, T>(name, b[0], b.dy(), [=](T x, T dy) { return dy * std::clamp(x, -delta, delta); });
    })};
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    std::vector<Sample<Args>> out{{"both branches", {1}, {Tensor::of({0.5, -0.3, 2, -3, 0}, {5})}},
                                  {"other delta", {0.25}, {Tensor::of({0.1, 0.5, -0.2, -1}, {2, 2})}}};
    out.push_back(Sample<Args>("at the joins", {1}, {Tensor::of({1, -1, 0.5}, {3})}).at_kink("the slope is +-delta"));
    out.push_back(Sample<Args>("at a join", {0.5}, {Tensor::of({0.5}, {})}).at_kink("the slope is delta"));
    return out;
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Huber>(); }
};

/// The angle atan2(y, x) near its cut, the negative x axis.  With q = x^2 + y^2:  dy_in = dy x / q, dx = -dy y / q.
struct Angle {
  static constexpr std::string_view name = "difficult_angle";
  static inline const std::array inputs{In{"y"}, In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S y, S x) { return sx::atan2(y, x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return zip<T, T>(name, in[0], in[1], [](T y, T x) { return std::atan2(y, x); });
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto y = b[0].to_vector<T>(), x = b[1].to_vector<T>(), dy = b.dy().to_vector<T>();
      std::vector<T> gy(y.size()), gx(y.size());
      for (size_t i = 0; i < y.size(); ++i) {
        const T q = x[i] * x[i] + y[i] * y[i];
        gy[i] = dy[i] * x[i] / q;
        gx[i] = -dy[i] * y[i] / q;
      }
      return Tensors{Tensor::of(std::move(gy), b.input_shape(0)), Tensor::of(std::move(gx), b.input_shape(1))};
    });
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"above and below the cut", {}, {Tensor::of({1e-3, -1e-3, 1e-2}, {3}), Tensor::of({-1, -2, -0.5}, {3})}},
            {"closer", {}, {Tensor::of({1e-4, -1e-4}, {2}), Tensor::of({-1, -1}, {2})}},
            {"all quadrants", {}, {Tensor::of({1, -1, 1, -1}, {2, 2}), Tensor::of({1, 1, -1, -1}, {2, 2})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Angle>(); }
};

// -- Matrices ---------------------------------------------------------------------------------------------------------

/// Y = A^-1.  From A Y = I: dY = -Y dA Y, so the gradient of A is -Y^T dY Y^T. Saves Y.
struct Inverse {
  static constexpr std::string_view name = "difficult_inverse";
  static inline const std::array inputs{In{"A"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0);
    Arr<S> y(in[0].shape);
    y.v = solved(in[0].v, unit_matrix<S>(n), n, n);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const int64_t n = in[0].size(0);
    const Tensor y = dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(solved(in[0].to_vector<T>(), unit_matrix<T>(n), n, n), in[0].shape());
    });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0);
    return {dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const std::vector<T> t = transposed(b[0].to_vector<T>(), n, n);
      std::vector<T> g = product(product(t, b.dy().to_vector<T>(), n, n, n), t, n, n, n);
      for (T& v : g) v = -v;
      return Tensor::of(std::move(g), b[0].shape());
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 3)", {}, {num::add(normal(r, {3, 3}, 0.5), Tensor::of({2, 0, 0, 0, -2, 0, 0, 0, 2}, {3, 3}))}},
            {"Hilbert", {}, {Tensor::of({1, 1.0 / 2, 1.0 / 3, 1.0 / 2, 1.0 / 3, 0.25, 1.0 / 3, 0.25, 0.2}, {3, 3})}},
            {"nearly singular", {}, {Tensor::of({1, 1, 1, 1.001}, {2, 2})}},
            {"needs row exchanges", {}, {Tensor::of({0, 1, 2, 1, 0, 3, 4, -3, 8}, {3, 3})}},
            {"(1, 1)", {}, {Tensor::of({-0.01}, {1, 1})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Inverse>(); }
};

/// X with A X = B.  dB = A^-T dX, dA = -dB X^T. Saves A and X.
struct Solve {
  static constexpr std::string_view name = "difficult_solve";
  static inline const std::array inputs{In{"A"}, In{"B"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> x(in[1].shape);
    x.v = solved(in[0].v, in[1].v, in[0].size(0), in[1].size(1));
    return {x};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    const Tensor x = dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(solved(in[0].to_vector<T>(), in[1].to_vector<T>(), in[0].size(0), in[1].size(1)),
                        in[1].shape());
    });
    saved.keep_output(0, x);
    return x;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), m = b[1].size(1);
    return dispatch_float(name, b[0].dtype(), [&]<class T>() {
      std::vector<T> db = solved(transposed(b[0].to_vector<T>(), n, n), b.dy().to_vector<T>(), n, m);
      std::vector<T> da = product(db, transposed(b[1].to_vector<T>(), n, m), n, m, n);
      for (T& v : da) v = -v;
      return Tensors{Tensor::of(std::move(da), {n, n}), Tensor::of(std::move(db), {n, m})};
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 3) (3, 2)",
             {},
             {num::add(normal(r, {3, 3}, 0.5), Tensor::of({2, 0, 0, 0, -2, 0, 0, 0, 2}, {3, 3})), normal(r, {3, 2})}},
            {"nearly singular", {}, {Tensor::of({1, 1, 1, 1.001}, {2, 2}), normal(r, {2, 1})}},
            {"badly scaled rows", {}, {Tensor::of({1e-5, 2e-5, 3e4, -1e4}, {2, 2}), normal(r, {2, 3})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Solve>(); }
};

/// y = det A of a 3x3 matrix.  dA = dy times the matrix of cofactors, which exists for singular matrices, too.
struct Determinant {
  static constexpr std::string_view name = "difficult_determinant";
  static inline const std::array inputs{In{"A"}};
  using Args = NoArgs;

  template <class S>
  static S cofactor(const std::vector<S>& a, int64_t i, int64_t j) {  // cyclic, so that the signs are right
    const int64_t i1 = (i + 1) % 3, i2 = (i + 2) % 3, j1 = (j + 1) % 3, j2 = (j + 2) % 3;
    return a[i1 * 3 + j1] * a[i2 * 3 + j2] - a[i1 * 3 + j2] * a[i2 * 3 + j1];
  }
  template <class S>
  static S determinant(const std::vector<S>& a) {
    return a[0] * cofactor(a, 0, 0) + a[1] * cofactor(a, 0, 1) + a[2] * cofactor(a, 0, 2);
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{});
    y[0] = determinant(in[0].v);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return dispatch_float(name, in[0].dtype(),
                          [&]<class T>() { return Tensor::of(std::vector<T>{determinant(in[0].to_vector<T>())}, {}); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const std::vector<T> a = b[0].to_vector<T>();
      std::vector<T> g(9);
      for (int64_t i = 0; i < 3; ++i)
        for (int64_t j = 0; j < 3; ++j) g[i * 3 + j] = b.dy().to_vector<T>()[0] * cofactor(a, i, j);
      return Tensor::of(std::move(g), {3, 3});
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"regular", {}, {normal(r, {3, 3})}},
            {"singular, rank 2", {}, {Tensor::of({1, 2, 3, 4, 5, 6, 7, 8, 9}, {3, 3})}},
            {"singular, rank 1", {}, {Tensor::of({1, 2, 3, 2, 4, 6, -1, -2, -3}, {3, 3})}, {0}},
            {"small", {}, {normal(r, {3, 3}, 1e-3)}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Determinant>(); }
};

/// y = ln |det A|.  dA = dy A^-T. Saves A.
struct LogDeterminant {
  static constexpr std::string_view name = "difficult_log_determinant";
  static inline const std::array inputs{In{"A"}};
  using Args = NoArgs;

  template <class S>
  static S log_determinant(const std::vector<S>& a, int64_t n) {
    std::vector<S> pivots;
    solved(a, unit_matrix<S>(n), n, n, &pivots);
    S y(0);
    for (const S& p : pivots) y += sc::log(p < S(0) ? -p : p);
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{});
    y[0] = log_determinant(in[0].v, in[0].size(0));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(std::vector<T>{log_determinant(in[0].to_vector<T>(), in[0].size(0))}, {});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0);
    return {dispatch_float(name, b[0].dtype(), [&]<class T>() {
      std::vector<T> g = solved(transposed(b[0].to_vector<T>(), n, n), unit_matrix<T>(n), n, n);
      for (T& v : g) v *= b.dy().to_vector<T>()[0];
      return Tensor::of(std::move(g), {n, n});
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"positive definite", {}, {positive_definite(r, 4, 0.5)}},
            {"negative determinant", {}, {Tensor::of({0, 1, 0.5, 1, 0, 0.25, 0.5, 0.25, 3}, {3, 3})}},
            {"tiny determinant", {}, {Tensor::of({2e-3, 1e-3, 0, 1e-3, 3e-3, 1e-3, 0, 1e-3, 4e-3}, {3, 3})}},
            {"nearly singular", {}, {Tensor::of({1, 1, 1, 1.001}, {2, 2})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<LogDeterminant>(); }
};

/// L, lower triangular with A = L L^T, of the lower triangle of a symmetric positive definite A.
/// With Phi(M) the lower triangle of M, its diagonal halved, and P = Phi(L^T dL):  dA = sym(L^-T P L^-1).
///
/// From A = L L^T: L^-1 dA L^-T = L^-1 dL + (L^-1 dL)^T, so dL = L Phi(L^-1 dA L^-T). The transpose of that map,
/// restricted to symmetric dA, is the one above. Of the cotangent only the lower triangle counts. Saves L.
struct Cholesky {
  static constexpr std::string_view name = "difficult_cholesky";
  static inline const std::array inputs{In{"A", Domain::symmetric}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> factor(const std::vector<S>& a, int64_t n) {
    std::vector<S> l(n * n, S(0));
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j <= i; ++j) {
        S v = a[i * n + j];
        for (int64_t k = 0; k < j; ++k) v -= l[i * n + k] * l[j * n + k];
        l[i * n + j] = i == j ? sc::sqrt(v) : v / l[j * n + j];
      }
    return l;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    y.v = factor(in[0].v, in[0].size(0));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(factor(in[0].to_vector<T>(), in[0].size(0)), in[0].shape());
    });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0);
    return {dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const std::vector<T> lt = transposed(b[0].to_vector<T>(), n, n);
      std::vector<T> dl = b.dy().to_vector<T>();
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = i + 1; j < n; ++j) dl[i * n + j] = 0;
      std::vector<T> p = product(lt, dl, n, n, n);
      for (int64_t i = 0; i < n; ++i) {
        p[i * n + i] /= 2;
        for (int64_t j = i + 1; j < n; ++j) p[i * n + j] = 0;
      }
      const std::vector<T> left = solved(lt, p, n, n);                    // L^-T P
      const std::vector<T> g = solved(lt, transposed(left, n, n), n, n);  // (L^-T P L^-1)^T
      std::vector<T> da(g.size());
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) da[i * n + j] = (g[i * n + j] + g[j * n + i]) / 2;
      return Tensor::of(std::move(da), {n, n});
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 3)", {}, {positive_definite(r, 3, 0.5)}},
            {"(4, 4)", {}, {positive_definite(r, 4, 1)}},
            {"nearly singular", {}, {Tensor::of({1, 0.999, 0.999, 1}, {2, 2})}},
            {"(1, 1)", {}, {Tensor::of({0.01}, {1, 1})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Cholesky>(); }
};

/// The eigenvalues of a symmetric 3x3 matrix, rising; its upper triangle is read.  dA = sum over k of dy_k v_k v_k^T
/// with unit eigenvectors v_k. Right wherever the eigenvalues differ, however little. Saves the eigenvectors.
struct SymmetricEigenvalues {
  static constexpr std::string_view name = "difficult_symmetric_eigenvalues";
  static inline const std::array inputs{In{"A", Domain::symmetric}};
  using Args = NoArgs;

  /// Jacobi's method: `a` becomes diagonal, the columns of the result are eigenvectors. The rotation's tangent,
  /// 2 a_pq / (d +- sqrt(d^2 + 4 a_pq^2)) with d = a_qq - a_pp, is smooth at a_pq = 0, so that duals pass.
  template <class S>
  static std::vector<S> diagonalise(std::vector<S>& a) {
    std::vector<S> v = unit_matrix<S>(3);
    for (int i = 0; i < 3; ++i)
      for (int j = 0; j < i; ++j) a[i * 3 + j] = a[j * 3 + i];
    for (int sweep = 0; sweep < 12; ++sweep)
      for (int p = 0; p < 3; ++p)
        for (int q = p + 1; q < 3; ++q) {
          const S d = a[q * 3 + q] - a[p * 3 + p], off = a[p * 3 + q];
          if (d == S(0) && off == S(0)) continue;
          const S root = sc::sqrt(d * d + S(4) * off * off);
          const S t = S(2) * off / (d < S(0) ? d - root : d + root);
          const S c = S(1) / sc::sqrt(S(1) + t * t), s = t * c;
          for (int k = 0; k < 3; ++k) {
            const S x = a[k * 3 + p], y = a[k * 3 + q], vx = v[k * 3 + p], vy = v[k * 3 + q];
            a[k * 3 + p] = c * x - s * y;
            a[k * 3 + q] = s * x + c * y;
            v[k * 3 + p] = c * vx - s * vy;
            v[k * 3 + q] = s * vx + c * vy;
          }
          for (int k = 0; k < 3; ++k) {
            const S x = a[p * 3 + k], y = a[q * 3 + k];
            a[p * 3 + k] = c * x - s * y;
            a[q * 3 + k] = s * x + c * y;
          }
          a[p * 3 + q] = a[q * 3 + p] = S(0);
        }
    return v;
  }
  /// The diagonal's positions, by rising value.
  template <class S>
  static std::array<int, 3> order(const std::vector<S>& a) {
    std::array<int, 3> at{0, 1, 2};
    std::stable_sort(at.begin(), at.end(), [&](int i, int j) { return a[i * 4] < a[j * 4]; });
    return at;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    std::vector<S> a = in[0].v;
    diagonalise(a);
    Arr<S> y(Shape{3});
    for (int k = 0; k < 3; ++k) y[k] = a[order(a)[k] * 4];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      std::vector<T> a = in[0].to_vector<T>(), y(3), sorted(9);
      const std::vector<T> v = diagonalise(a);
      for (int k = 0; k < 3; ++k) {
        const int from = order(a)[k];
        y[k] = a[from * 4];
        for (int i = 0; i < 3; ++i) sorted[i * 3 + k] = v[i * 3 + from];
      }
      saved.keep(Tensor::of(std::move(sorted), {3, 3}));
      return Tensor::of(std::move(y), {3});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const auto v = b[0].to_vector<T>(), dy = b.dy().to_vector<T>();
      std::vector<T> g(9);
      for (int i = 0; i < 3; ++i)
        for (int j = 0; j < 3; ++j)
          for (int k = 0; k < 3; ++k) g[i * 3 + j] += dy[k] * v[i * 3 + k] * v[j * 3 + k];
      return Tensor::of(std::move(g), {3, 3});
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"generic", {}, {positive_definite(r, 3, -1)}},
            {"indefinite", {}, {Tensor::of({1, 2, -1, 2, -3, 0.5, -1, 0.5, 0}, {3, 3})}},
            {"two eigenvalues 1e-3 apart", {}, {Tensor::of({1, 1e-4, 0.1, 1e-4, 1.001, 0, 0.1, 0, 3}, {3, 3})}},
            {"diagonal", {}, {Tensor::of({2, 0, 0, 0, -1, 0, 0, 0, 0.5}, {3, 3})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SymmetricEigenvalues>(); }
};

// -- Networks and layers ----------------------------------------------------------------------------------------------

/// A network of two hidden ReLU layers and one output as one op: h = relu(x W1 + b1), k = relu(h W2 + b2),
/// y = k W3 + b3. Backward, from the top:  dW3 = k^T dy, db3 = sum dy, dk = [k > 0] dy W3^T, and so on down.
/// 64 wide with a batch of 64, thousands of kinks are close by; none is at the point.
struct ReluNetwork {
  static constexpr std::string_view name = "difficult_relu_network";
  static inline const std::array inputs{In{"x"}, In{"W1"}, In{"b1"}, In{"W2"}, In{"b2"}, In{"W3"}, In{"b3"}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> layer(const std::vector<S>& x, const std::vector<S>& w, const std::vector<S>& bias, int64_t n,
                              bool relu) {
    const auto m = static_cast<int64_t>(bias.size()), k = static_cast<int64_t>(w.size()) / m;
    std::vector<S> y = product(x, w, n, k, m);
    for (int64_t i = 0; i < n * m; ++i) {
      y[i] += bias[i % m];
      if (relu && !(y[i] > S(0))) y[i] = S(0);
    }
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0);
    Arr<S> y(Shape{n, in[6].numel()});
    y.v =
        layer(layer(layer(in[0].v, in[1].v, in[2].v, n, true), in[3].v, in[4].v, n, true), in[5].v, in[6].v, n, false);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const int64_t n = in[0].size(0);
    for (int i : {0, 1, 3, 5}) saved.keep_input(i, in[i]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      auto v = [&](int i) { return in[i].to_vector<T>(); };
      const std::vector<T> h = layer(v(0), v(1), v(2), n, true), k = layer(h, v(3), v(4), n, true);
      saved.keep(Tensor::of(h, {n, in[2].numel()}));
      saved.keep(Tensor::of(k, {n, in[4].numel()}));
      return Tensor::of(layer(k, v(5), v(6), n, false), {n, in[6].numel()});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0);
    return dispatch_float(name, b[0].dtype(), [&]<class T>() {
      auto v = [&](int i) { return b[i].to_vector<T>(); };
      Tensors g(7);
      // One layer down: dy is the cotangent of its output before the ReLU.
      auto down = [&](std::vector<T> dy, int x, int w, int at) {
        const int64_t k = b.input_shape(at)[0], m = b.input_shape(at)[1];
        std::vector<T> bias(m);
        for (int64_t i = 0; i < n * m; ++i) bias[i % m] += dy[i];
        g[at] = Tensor::of(product(transposed(v(x), n, k), dy, k, n, m), {k, m});
        g[at + 1] = Tensor::of(std::move(bias), {m});
        return product(dy, transposed(v(w), k, m), n, m, k);
      };
      auto masked = [](std::vector<T> dy, const std::vector<T>& h) {
        for (size_t i = 0; i < dy.size(); ++i)
          if (!(h[i] > 0)) dy[i] = 0;
        return dy;
      };
      const std::vector<T> dk = down(b.dy().to_vector<T>(), 5, 3, 5);
      const std::vector<T> dh = down(masked(dk, v(5)), 4, 2, 3);
      g[0] = Tensor::of(down(masked(dh, v(4)), 0, 1, 1), b.input_shape(0));
      return g;
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto make = [&](int64_t n, int64_t d) {
      const double scale = std::sqrt(2.0 / static_cast<double>(d));
      return Tensors{normal(r, {n, d}),   normal(r, {d, d}, scale), normal(r, {d}, 0.1), normal(r, {d, d}, scale),
                     normal(r, {d}, 0.1), normal(r, {d, 1}, scale), normal(r, {1})};
    };
    return {{"64 wide, batch 64", {}, make(64, 64)}, {"5 wide, batch 3", {}, make(3, 5)}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ReluNetwork>(); }
};

/// y = x W + b with inputs of 1e-8 and weights of 1e8.  dx = dy W^T (1e8), dW = x^T dy (1e-8), db = sum dy (1).
struct BadlyScaledLayer {
  static constexpr std::string_view name = "difficult_badly_scaled_layer";
  static inline const std::array inputs{In{"x"}, In{"W"}, In{"b"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{in[0].size(0), in[1].size(1)});
    y.v = ReluNetwork::layer(in[0].v, in[1].v, in[2].v, in[0].size(0), false);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::add(num::matmul(in[0], in[1]), in[2]);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::matmul(b.dy(), b[1].transpose(0, 1)), num::matmul(b[0].transpose(0, 1), b.dy()),
            num::sum(b.dy(), {0})};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4) (4, 2)", {}, {normal(r, {3, 4}, 1e-8), normal(r, {4, 2}, 1e8), normal(r, {2})}},
            {"one row", {}, {normal(r, {1, 3}, 1e-8), normal(r, {3, 3}, 1e8), normal(r, {3})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<BadlyScaledLayer>(); }
};

/// One head of attention with a bias b on all keys: y = softmax(q (k + b)^T / sqrt d) v. The bias adds the same number,
/// q_i b / sqrt d, to all logits of a query, so its gradient is exactly zero. With P the softmax:
///   dv = P^T dy,  dP = dy v^T,  dS = P (dP - rowsum(P dP)) / sqrt d,  dq = dS (k + b),  dk = dS^T q,  db = sum dk.
/// kSummed computes db as that sum, which leaves rounding errors; the other says that it is zero.
template <bool kSummed>
struct KeyBiasAttention {
  static constexpr std::string_view name = kSummed ? "difficult_key_bias_summed" : "difficult_key_bias_zero";
  static inline const std::array inputs{In{"q"}, In{"k"}, In{"b"}, In{"v"}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> weights(const std::vector<S>& q, std::vector<S> k, const std::vector<S>& bias, int64_t n,
                                int64_t m, int64_t d) {
    for (int64_t i = 0; i < m * d; ++i) k[i] += bias[i % d];
    std::vector<S> p = product(q, transposed(k, m, d), n, d, m);
    for (int64_t i = 0; i < n; ++i) {
      S total(0), largest = p[i * m];
      for (int64_t j = 0; j < m; ++j)
        if (p[i * m + j] > largest) largest = p[i * m + j];
      for (int64_t j = 0; j < m; ++j) {
        p[i * m + j] = sc::exp((p[i * m + j] - largest) / sc::sqrt(S(d)));
        total += p[i * m + j];
      }
      for (int64_t j = 0; j < m; ++j) p[i * m + j] = p[i * m + j] / total;
    }
    return p;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), m = in[1].size(0), d = in[1].size(1), w = in[3].size(1);
    Arr<S> y(Shape{n, w});
    y.v = product(weights(in[0].v, in[1].v, in[2].v, n, m, d), in[3].v, n, m, w);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const int64_t n = in[0].size(0), m = in[1].size(0), d = in[1].size(1), w = in[3].size(1);
    for (int i = 0; i < 4; ++i) saved.keep_input(i, in[i]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const std::vector<T> p = weights(in[0].to_vector<T>(), in[1].to_vector<T>(), in[2].to_vector<T>(), n, m, d);
      saved.keep(Tensor::of(p, {n, m}));
      return Tensor::of(product(p, in[3].to_vector<T>(), n, m, w), {n, w});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), m = b[1].size(0), d = b[1].size(1), w = b[3].size(1);
    return dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const auto q = b[0].to_vector<T>(), bias = b[2].to_vector<T>(), v = b[3].to_vector<T>(), p = b[4].to_vector<T>();
      const auto dy = b.dy().to_vector<T>();
      auto k = b[1].to_vector<T>();
      for (int64_t i = 0; i < m * d; ++i) k[i] += bias[i % d];
      std::vector<T> ds = product(dy, transposed(v, m, w), n, w, m);
      for (int64_t i = 0; i < n; ++i) {
        T along = 0;
        for (int64_t j = 0; j < m; ++j) along += p[i * m + j] * ds[i * m + j];
        for (int64_t j = 0; j < m; ++j)
          ds[i * m + j] = p[i * m + j] * (ds[i * m + j] - along) / std::sqrt(static_cast<T>(d));
      }
      const std::vector<T> dk = product(transposed(ds, n, m), q, m, n, d);
      Tensors g{Tensor::of(product(ds, k, n, m, d), {n, d}), Tensor::of(dk, {m, d}), Tensor(),
                Tensor::of(product(transposed(p, n, m), dy, m, n, w), {m, w})};
      if (kSummed) {
        std::vector<T> db(d);
        for (int64_t i = 0; i < m * d; ++i) db[i % d] += dk[i];
        g[2] = Tensor::of(std::move(db), {d});
      }
      return g;
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 queries, 4 keys", {}, {normal(r, {3, 2}), normal(r, {4, 2}), normal(r, {2}), normal(r, {4, 3})}, {2}},
            {"2 queries, 5 keys", {}, {normal(r, {2, 3}), normal(r, {5, 3}), normal(r, {3}), normal(r, {5, 1})}, {2}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<KeyBiasAttention>(); }
};

/// Rows taken to mean 0 and variance 1, y = (x - mean) / sqrt(var + eps), at rows of equal numbers, where
/// r = 1 / sqrt(eps) is large.  With h = y and g = dy:  dx = r (g - mean(g) - h mean(g h)). Saves h and r.
struct NormalizeFlatRows {
  static constexpr std::string_view name = "difficult_normalize_flat_rows";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double eps = 1e-5;
  };

  /// x less its mean, without rounding for equal numbers: the first is subtracted before the mean is taken.
  template <class S>
  static std::vector<S> centered(const S* x, int64_t d) {
    std::vector<S> c(x, x + d);
    S mean(0);
    for (S& v : c) {
      v -= x[0];
      mean += v / S(d);
    }
    for (S& v : c) v -= mean;
    return c;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int64_t d = in[0].size(-1);
    Arr<S> y(in[0].shape);
    for (int64_t r = 0; r < y.shape.rows(); ++r) {
      const std::vector<S> c = centered(in[0].v.data() + r * d, d);
      S variance(0);
      for (const S& v : c) variance += v * v / S(d);
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = c[j] / sc::sqrt(variance + S(a.eps));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const int64_t d = in[0].size(-1), rows = in[0].shape().rows();
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const std::vector<T> x = in[0].to_vector<T>();
      std::vector<T> y, scale;
      for (int64_t r = 0; r < rows; ++r) {
        const std::vector<T> c = centered(x.data() + r * d, d);
        T variance = 0;
        for (T v : c) variance += v * v / static_cast<T>(d);
        scale.push_back(1 / std::sqrt(variance + static_cast<T>(a.eps)));
        for (T v : c) y.push_back(v * scale.back());
      }
      const Tensor out = Tensor::of(std::move(y), in[0].shape());
      saved.keep_output(0, out);
      saved.keep(Tensor::of(std::move(scale), {rows}));
      return out;
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t d = b[0].size(-1), rows = b[0].shape().rows();
    return {dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const auto h = b[0].to_vector<T>(), scale = b[1].to_vector<T>();
      std::vector<T> g = b.dy().to_vector<T>();
      for (int64_t r = 0; r < rows; ++r) {
        T mean = 0, along = 0;
        for (int64_t j = r * d; j < (r + 1) * d; ++j) {
          mean += g[j] / static_cast<T>(d);
          along += g[j] * h[j] / static_cast<T>(d);
        }
        for (int64_t j = r * d; j < (r + 1) * d; ++j) g[j] = scale[r] * (g[j] - mean - h[j] * along);
      }
      return Tensor::of(std::move(g), b[0].shape());
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"flat rows, eps 1e-8", {1e-8}, {Tensor::of({0.3, 0.3, 0.3, -2, -2, -2}, {2, 3})}},
            {"a flat row among others", {1e-6}, {Tensor::of({0.3, 0.3, 0.3, 0.3, 1, -1, 0.5, 2}, {2, 4})}},
            {"ordinary", {}, {normal(r, {3, 5})}},
            {"width 1", {1e-8}, {normal(r, {3, 1})}, {0}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<NormalizeFlatRows>(); }
};

// -- Reductions along the last dimension ------------------------------------------------------------------------------

/// An op on one input that gives one number per row of the last dimension, of a struct that has `name`, `value` of a
/// row of any scalar, `gradient` of a row and `samples`. Saves x.
template <class Self>
struct RowReduction {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t d = in[0].size(-1);
    Arr<S> y(in[0].shape.without_last());
    for (int64_t r = 0; r < y.numel(); ++r) y[r] = Self::value(in[0].v.data() + r * d, d);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    const int64_t d = in[0].size(-1), rows = in[0].shape().rows();
    return dispatch_float(Self::name, in[0].dtype(), [&]<class T>() {
      const std::vector<T> x = in[0].to_vector<T>();
      std::vector<T> y;
      for (int64_t r = 0; r < rows; ++r) y.push_back(Self::value(x.data() + r * d, d));
      return Tensor::of(std::move(y), in[0].shape().without_last());
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t d = b[0].size(-1), rows = b[0].shape().rows();
    return {dispatch_float(Self::name, b[0].dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), dy = b.dy().to_vector<T>();
      std::vector<T> dx(x.size());
      for (int64_t r = 0; r < rows; ++r) Self::gradient(x.data() + r * d, dy[r], dx.data() + r * d, d);
      return Tensor::of(std::move(dx), b[0].shape());
    })};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Self>(); }
};

/// y = ln sum e^x at 1e6, where the value has few digits left beside its size;  dx = dy softmax(x).
struct FarLogSumExp : RowReduction<FarLogSumExp> {
  static constexpr std::string_view name = "difficult_far_logsumexp";
  template <class S>
  static S value(const S* x, int64_t d) {
    S largest = x[0], total(0);
    for (int64_t j = 1; j < d; ++j)
      if (x[j] > largest) largest = x[j];
    for (int64_t j = 0; j < d; ++j) total += sc::exp(x[j] - largest);
    return largest + sc::log(total);
  }
  template <class T>
  static void gradient(const T* x, T dy, T* dx, int64_t d) {
    const T largest = *std::max_element(x, x + d);
    T total = 0;
    for (int64_t j = 0; j < d; ++j) total += dx[j] = std::exp(x[j] - largest);
    for (int64_t j = 0; j < d; ++j) dx[j] *= dy / total;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"around 1e6", {}, {num::add(normal(r, {2, 4}), Tensor::full({}, 1e6, DType::f64))}},
            {"around -1e6", {}, {num::add(normal(r, {5}), Tensor::full({}, -1e6, DType::f64))}},
            {"one of them far away", {}, {Tensor::of({1e6, 0, -1e6}, {3})}}};
  }
};

/// y = the product of twelve factors of about 0.1: 1e-12.  dx_j = dy times the product of the others, from products of
/// those before and those after, so that a factor of zero does no harm.
struct ProductOfFactors : RowReduction<ProductOfFactors> {
  static constexpr std::string_view name = "difficult_product_of_factors";
  template <class S>
  static S value(const S* x, int64_t d) {
    S y(1);
    for (int64_t j = 0; j < d; ++j) y *= x[j];
    return y;
  }
  template <class T>
  static void gradient(const T* x, T dy, T* dx, int64_t d) {
    T before = dy, after = 1;
    for (int64_t j = 0; j < d; ++j, before *= x[j - 1]) dx[j] = before;
    for (int64_t j = d - 1; j >= 0; --j) {
      dx[j] *= after;
      after *= x[j];
    }
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    Tensor one_zero = positive(r, {12}, 0.08, 0.12), two_zeros = one_zero.clone();
    one_zero.slice(0, 4, 5).fill(0);
    two_zeros.slice(0, 4, 6).fill(0);
    return {{"twelve of 0.1", {}, {positive(r, {12}, 0.08, 0.12)}},
            {"two rows", {}, {positive(r, {2, 12}, 0.08, 0.12)}},
            {"one factor is zero", {}, {one_zero}},
            {"two factors are zero", {}, {two_zeros}, {0}}};
  }
};

/// y = |x|_2;  dx = dy x / y, and zero at the zero vector, by convention.
struct Norm : RowReduction<Norm> {
  static constexpr std::string_view name = "difficult_norm";
  template <class S>
  static S value(const S* x, int64_t d) {
    S total(0);
    for (int64_t j = 0; j < d; ++j) total += x[j] * x[j];
    return total == S(0) ? S(0) : sc::sqrt(total);
  }
  template <class T>
  static void gradient(const T* x, T dy, T* dx, int64_t d) {
    const T y = value(x, d);
    for (int64_t j = 0; j < d; ++j) dx[j] = y > 0 ? dy * x[j] / y : T(0);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<Sample<Args>> out{{"(2, 3)", {}, {normal(r, {2, 3})}}, {"of size 1e-4", {}, {normal(r, {4}, 1e-4)}}};
    out.push_back(Sample<Args>("zero vector", {}, {Tensor::zeros({3}, DType::f64)}, {0}).at_kink("zero at zero"));
    out.push_back(Sample<Args>("a row of zeros", {}, {Tensor::of({0, 0, 1, -2}, {2, 2})}).at_kink("zero at zero"));
    return out;
  }
};

/// y = the largest;  dx = dy at the first of the largest.
struct MaxFirst : RowReduction<MaxFirst> {
  static constexpr std::string_view name = "difficult_max_first";
  template <class S>
  static S value(const S* x, int64_t d) {
    S y = x[0];
    for (int64_t j = 1; j < d; ++j)
      if (x[j] > y) y = x[j];
    return y;
  }
  template <class T>
  static void gradient(const T* x, T dy, T* dx, int64_t d) {
    dx[std::max_element(x, x + d) - x] = dy;
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    std::vector<Sample<Args>> out{{"no ties", {}, {Tensor::of({1, 3, 2, -1, -3, -2}, {2, 3})}},
                                  {"1e-3 apart", {}, {Tensor::of({1, 1.001, 0.999}, {3})}}};
    out.push_back(Sample<Args>("ties", {}, {Tensor::of({2, 5, 5, 1, 1, 1}, {2, 3})}).at_kink("ties go to the first"));
    out.push_back(Sample<Args>("all equal", {}, {Tensor::of({0, 0, 0, 0}, {4})}).at_kink("ties go to the first"));
    return out;
  }
};

/// y = the largest;  dx = dy shared equally by all that are the largest.
struct MaxShared : RowReduction<MaxShared> {
  static constexpr std::string_view name = "difficult_max_shared";
  template <class S>
  static S value(const S* x, int64_t d) {
    const S largest = MaxFirst::value(x, d);
    S total(0), count(0);
    for (int64_t j = 0; j < d; ++j)
      if (x[j] == largest) total += x[j], count += S(1);
    return total / count;
  }
  template <class T>
  static void gradient(const T* x, T dy, T* dx, int64_t d) {
    const T largest = MaxFirst::value(x, d);
    const T share = dy / static_cast<T>(std::count(x, x + d, largest));
    for (int64_t j = 0; j < d; ++j) dx[j] = x[j] == largest ? share : T(0);
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    std::vector<Sample<Args>> out{{"no ties", {}, {Tensor::of({1, 3, 2, -1, -3, -2}, {2, 3})}}};
    out.push_back(
        Sample<Args>("ties", {}, {Tensor::of({2, 5, 5, 1, 1, 1}, {2, 3})}).at_kink("ties share the gradient equally"));
    return out;
  }
};

/// y = the median: the middle one, or the mean of the middle two.  dx = dy there, or half of it at either.
struct Median : RowReduction<Median> {
  static constexpr std::string_view name = "difficult_median";
  template <class S>
  static std::vector<int64_t> rising(const S* x, int64_t d) {
    std::vector<int64_t> at(d);
    std::iota(at.begin(), at.end(), int64_t{0});
    std::stable_sort(at.begin(), at.end(), [&](int64_t i, int64_t j) { return x[i] < x[j]; });
    return at;
  }
  template <class S>
  static S value(const S* x, int64_t d) {
    const std::vector<int64_t> at = rising(x, d);
    return (x[at[(d - 1) / 2]] + x[at[d / 2]]) / S(2);
  }
  template <class T>
  static void gradient(const T* x, T dy, T* dx, int64_t d) {
    const std::vector<int64_t> at = rising(x, d);
    dx[at[(d - 1) / 2]] += dy / 2;
    dx[at[d / 2]] += dy / 2;
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"odd", {}, {Tensor::of({3, -1, 2, 0.5, 7, 1, 5, -4, 2.5, 6}, {2, 5})}},
            {"even", {}, {Tensor::of({3, -1, 2, 0.5}, {4})}},
            {"1e-3 apart", {}, {Tensor::of({1.001, 1, 0.999}, {3})}},
            {"single", {}, {Tensor::of({-2}, {1})}}};
  }
};

/// y = the variance of numbers that are nearly equal: about 1e6, 1e-3 apart.  dx = dy 2 (x - mean) / d. Deviations
/// from the first number are exact; taking their mean away loses nothing.
struct NearEqualVariance : RowReduction<NearEqualVariance> {
  static constexpr std::string_view name = "difficult_near_equal_variance";
  template <class S>
  static S value(const S* x, int64_t d) {
    S y(0);
    for (const S& c : NormalizeFlatRows::centered(x, d)) y += c * c / S(d);
    return y;
  }
  template <class T>
  static void gradient(const T* x, T dy, T* dx, int64_t d) {
    const std::vector<T> c = NormalizeFlatRows::centered(x, d);
    for (int64_t j = 0; j < d; ++j) dx[j] = dy * 2 * c[j] / static_cast<T>(d);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"1e6 +- 1e-3", {}, {num::add(normal(r, {6}, 1e-3), Tensor::full({}, 1e6, DType::f64))}},
            {"1 +- 1e-6", {}, {num::add(normal(r, {2, 5}, 1e-6), Tensor::full({}, 1, DType::f64))}},
            {"equal", {}, {Tensor::full({4}, 0.1, DType::f64)}, {0}}};
  }
};

/// y = sum of x - mean(x), which is zero for every x, and so is its gradient.
struct CenteredSum : RowReduction<CenteredSum> {
  static constexpr std::string_view name = "difficult_centered_sum";
  template <class S>
  static S value(const S* x, int64_t d) {
    S y(0);
    for (const S& c : NormalizeFlatRows::centered(x, d)) y += c;
    return y;
  }
  template <class T>
  static void gradient(const T*, T, T*, int64_t) {}
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {normal(r, {5})}, {0}}, {"(2, 3)", {}, {normal(r, {2, 3}, 10)}, {0}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"mean left out", [](auto& b) { return Tensors{b.dy().unsqueeze(-1).expand(b.input_shape(0)).clone()}; }}};
  }
};

/// Softmax at logits of +-500: saturated rows, whose gradient is zero or far below 1.  dx = y (dy - sum y dy). Saves y.
struct SaturatedSoftmax {
  static constexpr std::string_view name = "difficult_saturated_softmax";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> softmax(std::vector<S> x, int64_t d) {
    for (size_t from = 0; from < x.size(); from += static_cast<size_t>(d)) {
      S* row = x.data() + from;
      S largest = row[0], total(0);
      for (int64_t j = 1; j < d; ++j)
        if (row[j] > largest) largest = row[j];
      for (int64_t j = 0; j < d; ++j) total += row[j] = sc::exp(row[j] - largest);
      for (int64_t j = 0; j < d; ++j) row[j] /= total;
    }
    return x;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    y.v = softmax(in[0].v, in[0].size(-1));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(softmax(in[0].to_vector<T>(), in[0].size(-1)), in[0].shape());
    });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t d = b[0].size(-1), rows = b[0].shape().rows();
    return {dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const auto y = b[0].to_vector<T>();
      std::vector<T> g = b.dy().to_vector<T>();
      for (int64_t r = 0; r < rows; ++r) {
        T along = 0;
        for (int64_t j = r * d; j < (r + 1) * d; ++j) along += y[j] * g[j];
        for (int64_t j = r * d; j < (r + 1) * d; ++j) g[j] = y[j] * (g[j] - along);
      }
      return Tensor::of(std::move(g), b[0].shape());
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"saturated and not", {}, {Tensor::of({500, -500, -500, 499, 500, -500, 0.1, 0.2, -0.3}, {3, 3})}},
            {"all saturated", {}, {Tensor::of({500, -500, 0, -500, 500, -499}, {2, 3})}},
            {"far, near each other", {}, {num::add(normal(r, {4}), Tensor::full({}, -500, DType::f64))}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SaturatedSoftmax>(); }
};

/// Cosine similarity of two vectors that are nearly parallel, per row.  With e = b - a:
///   the part of b across a is e - a (a e) / |a|^2, and da = dy times it / (|a| |b|);  for db likewise with -e.
/// Written with e, which is exact for vectors close to each other, it does not cancel. Saves a and b.
struct CosineSimilarity {
  static constexpr std::string_view name = "difficult_cosine_similarity";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;

  template <class S>
  static S dot(const S* a, const S* b, int64_t d) {
    S y(0);
    for (int64_t j = 0; j < d; ++j) y += a[j] * b[j];
    return y;
  }
  template <class S>
  static S cosine(const S* a, const S* b, int64_t d) {
    return dot(a, b, d) / (sc::sqrt(dot(a, a, d)) * sc::sqrt(dot(b, b, d)));
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t d = in[0].size(-1);
    Arr<S> y(in[0].shape.without_last());
    for (int64_t r = 0; r < y.numel(); ++r) y[r] = cosine(in[0].v.data() + r * d, in[1].v.data() + r * d, d);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    const int64_t d = in[0].size(-1), rows = in[0].shape().rows();
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto a = in[0].to_vector<T>(), b = in[1].to_vector<T>();
      std::vector<T> y;
      for (int64_t r = 0; r < rows; ++r) y.push_back(cosine(a.data() + r * d, b.data() + r * d, d));
      return Tensor::of(std::move(y), in[0].shape().without_last());
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t d = b[0].size(-1), rows = b[0].shape().rows();
    return dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), z = b[1].to_vector<T>(), dy = b.dy().to_vector<T>();
      auto across = [&](const std::vector<T>& from, const std::vector<T>& to) {
        std::vector<T> g(from.size());
        for (int64_t r = 0; r < rows; ++r) {
          const T *p = from.data() + r * d, *q = to.data() + r * d;
          const T pp = dot(p, p, d), qq = dot(q, q, d);
          T along = 0;
          for (int64_t j = 0; j < d; ++j) along += p[j] * (q[j] - p[j]);
          for (int64_t j = 0; j < d; ++j)
            g[r * d + j] = dy[r] * ((q[j] - p[j]) - p[j] * along / pp) / (std::sqrt(pp) * std::sqrt(qq));
        }
        return Tensor::of(std::move(g), b[0].shape());
      };
      return Tensors{across(x, z), across(z, x)};
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    const Tensor a = normal(r, {2, 4});
    return {{"1e-3 apart", {}, {a, num::add(a, normal(r, {2, 4}, 1e-3))}},
            {"1e-5 apart", {}, {a, num::add(a, normal(r, {2, 4}, 1e-5))}},
            {"ordinary", {}, {normal(r, {3, 5}), normal(r, {3, 5})}},
            {"nearly opposite", {}, {a, num::add(num::scale(a, -2), normal(r, {2, 4}, 1e-3))}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<CosineSimilarity>(); }
};

/// y = offset + 1/2 sum (x - t)^2 with an offset of 1e12, beside which the rest vanishes.  dx = dy (x - t), dt = -dx.
struct OffsetLoss {
  static constexpr std::string_view name = "difficult_offset_loss";
  static inline const std::array inputs{In{"x"}, In{"t"}};
  struct Args {
    double offset = 1e12;
  };

  template <class S>
  static S loss(const std::vector<S>& x, const std::vector<S>& t, double offset) {
    S y(0);
    for (size_t i = 0; i < x.size(); ++i) y += (x[i] - t[i]) * (x[i] - t[i]) / S(2);
    return y + S(offset);
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(Shape{});
    y[0] = loss(in[0].v, in[1].v, a.offset);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(std::vector<T>{loss(in[0].to_vector<T>(), in[1].to_vector<T>(), a.offset)}, {});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor dx = num::mul(b.dy(), num::sub(b[0], b[1]));
    return {dx, num::scale(dx, -1)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"offset 1e12", {1e12}, {normal(r, {2, 3}), normal(r, {2, 3})}},
            {"offset -1e12", {-1e12}, {normal(r, {4}), normal(r, {4})}},
            {"no offset", {0}, {normal(r, {3}), normal(r, {3})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<OffsetLoss>(); }
};

/// Mean logistic loss of logits, y = mean(softplus(z) - t z).  dz = dy (sigmoid(z) - t) / n. The targets are floating
/// numbers on which y depends, constant by convention.
struct LogisticLoss {
  static constexpr std::string_view name = "difficult_logistic_loss";
  static inline const std::array inputs{In{"z"}, In{"target", false, "labels are data, nothing trains them"}};
  using Args = NoArgs;

  template <class S>
  static S loss(const std::vector<S>& z, const std::vector<S>& t) {
    S y(0);
    for (size_t i = 0; i < z.size(); ++i) y += (sx::softplus(z[i]) - t[i] * z[i]) / S(static_cast<double>(z.size()));
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{});
    y[0] = loss(in[0].v, in[1].v);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(std::vector<T>{loss(in[0].to_vector<T>(), in[1].to_vector<T>())}, {});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const double n = static_cast<double>(b[0].numel());
    const Tensor dz = dispatch_float(name, b[0].dtype(), [&]<class T>() {
      return zip<T, T>(name, b[0], b[1], [](T z, T t) { return sc::sigmoid(z) - t; });
    });
    return {num::mul(num::scale(dz, 1 / n), b.dy()), Tensor()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"soft targets", {}, {normal(r, {2, 3}), positive(r, {2, 3}, 0, 1)}},
            {"logits of +-30", {}, {Tensor::of({30, -30, 30, -30}, {4}), Tensor::of({1, 0, 0, 1}, {4})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<LogisticLoss>(); }
};

// -- Distributions ----------------------------------------------------------------------------------------------------

/// y_i = ln p[i, class_i] for rows p of a simplex.  dp = dy / p at the class, 0 elsewhere.
struct LogProbability {
  static constexpr std::string_view name = "difficult_log_probability";
  static inline const std::array inputs{In{"p", Domain::simplex}, In{"class", false}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[1].shape);
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = sc::log(in[0](i, in[1].index(i)));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto p = in[0].to_vector<T>();
      const auto at = in[1].to_vector<int64_t>();
      std::vector<T> y;
      for (size_t i = 0; i < at.size(); ++i) y.push_back(std::log(p[i * in[0].size(1) + at[i]]));
      return Tensor::of(std::move(y), in[1].shape());
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b[0].dtype(),
                           [&]<class T>() {
                             const auto p = b[0].to_vector<T>(), dy = b.dy().to_vector<T>();
                             const auto at = b[1].to_vector<int64_t>();
                             std::vector<T> g(p.size());
                             for (size_t i = 0; i < at.size(); ++i) {
                               const size_t k = i * b[0].size(1) + at[i];
                               g[k] = dy[i] / p[k];
                             }
                             return Tensor::of(std::move(g), b[0].shape());
                           }),
            Tensor()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {distributions(r, 3, 4), indices({2, 0, 3})}},
            {"an unlikely class", {}, {Tensor::of({0.999, 0.001, 0.5, 0.5}, {2, 2}), indices({1, 0})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<LogProbability>(); }
};

/// Entropy of rows of a simplex, y = -sum p ln p.  dp = -dy (ln p + 1); kTangent leaves the 1 away, which no direction
/// within the simplex can see, and takes the row's mean away, so that the gradient is such a direction itself.
template <bool kTangent>
struct Entropy : RowReduction<Entropy<kTangent>> {
  static constexpr std::string_view name = kTangent ? "difficult_entropy_tangent" : "difficult_entropy";
  static inline const std::array inputs{In{"p", Domain::simplex}};
  using Args = NoArgs;

  template <class S>
  static S value(const S* p, int64_t d) {
    S y(0);
    for (int64_t j = 0; j < d; ++j) y -= p[j] * sc::log(p[j]);
    return y;
  }
  template <class T>
  static void gradient(const T* p, T dy, T* dp, int64_t d) {
    T mean = 0;
    for (int64_t j = 0; j < d; ++j) mean += std::log(p[j]) / static_cast<T>(d);
    for (int64_t j = 0; j < d; ++j) dp[j] = -dy * (std::log(p[j]) + (kTangent ? -mean : T(1)));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {distributions(r, 3, 4)}},
            {"one nearly certain", {}, {Tensor::of({0.998, 0.001, 0.001}, {1, 3})}}};
  }
};

/// Kullback-Leibler divergence of rows of simplices, y = sum p ln(p / q).  dp = dy (ln(p / q) + 1), dq = -dy p / q.
struct Divergence {
  static constexpr std::string_view name = "difficult_divergence";
  static inline const std::array inputs{In{"p", Domain::simplex}, In{"q", Domain::simplex}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> rows(const std::vector<S>& p, const std::vector<S>& q, int64_t d) {
    std::vector<S> y(p.size() / static_cast<size_t>(d), S(0));
    for (size_t i = 0; i < p.size(); ++i) y[i / static_cast<size_t>(d)] += p[i] * sc::log(p[i] / q[i]);
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape.without_last());
    y.v = rows(in[0].v, in[1].v, in[0].size(-1));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(rows(in[0].to_vector<T>(), in[1].to_vector<T>(), in[0].size(-1)), in[0].shape().without_last());
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t d = b[0].size(-1);
    return dispatch_float(name, b[0].dtype(), [&]<class T>() {
      const auto p = b[0].to_vector<T>(), q = b[1].to_vector<T>(), dy = b.dy().to_vector<T>();
      std::vector<T> dp(p.size()), dq(p.size());
      for (size_t i = 0; i < p.size(); ++i) {
        const T g = dy[i / static_cast<size_t>(d)];
        dp[i] = g * (std::log(p[i] / q[i]) + 1);
        dq[i] = -g * p[i] / q[i];
      }
      return Tensors{Tensor::of(std::move(dp), b[0].shape()), Tensor::of(std::move(dq), b[1].shape())};
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    const Tensor p = distributions(r, 2, 3);
    return {{"(2, 3)", {}, {p, distributions(r, 2, 3)}},
            {"equal: the least value, 0", {}, {p, p.clone()}},
            {"unlikely under q", {}, {Tensor::of({0.5, 0.5}, {1, 2}), Tensor::of({0.999, 0.001}, {1, 2})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Divergence>(); }
};

// -- Backwards that are, on purpose, no derivatives -------------------------------------------------------------------

/// y = x rounded to whole numbers;  dx = dy, straight through.
struct StraightThroughRound {
  static constexpr std::string_view name = "difficult_straight_through_round";
  static constexpr std::string_view convention = "straight-through: the gradient passes as if nothing were rounded";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return S(std::round(sc::value(x))); })};
  }
  template <class S>
  static Arrs<S> gradient_of(const Arrs<S>& in, const Args&) {
    return {in[0]};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    return dispatch_float(name, in[0].dtype(),
                          [&]<class T>() { return map<T, T>(name, in[0], [](T x) { return std::round(x); }); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {b.dy()}; }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(5,)", {}, {Tensor::of({0.3, -1.2, 2.7, 0.6, -0.1}, {5})}},
            {"(2, 2)", {}, {Tensor::of({1.2, 3.8, -2.3, 0.1}, {2, 2})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<StraightThroughRound>(); }
};

/// y = x;  dx = -strength dy: what reverses a gradient on its way to the features.
struct GradientReversal {
  static constexpr std::string_view name = "difficult_gradient_reversal";
  static constexpr std::string_view convention = "reversed: the features are to make the loss larger";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double strength = 1;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {in[0]};
  }
  template <class S>
  static Arrs<S> gradient_of(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return S(-a.strength) * x; })};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return in[0].clone(); }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::scale(b.dy(), -b.args.strength)}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"strength 1", {1}, {normal(r, {2, 3})}}, {"strength 0.25", {0.25}, {normal(r, {4})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GradientReversal>(); }
};

/// y = x, cut off from the graph: dx = 0.
struct StopGradient {
  static constexpr std::string_view name = "difficult_stop_gradient";
  static constexpr std::string_view convention = "stopped: the output counts as a constant";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {in[0]};
  }
  template <class S>
  static Arrs<S> gradient_of(const Arrs<S>& in, const Args&) {
    return {Arr<S>(in[0].shape)};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return in[0].clone(); }
  static Tensors backward(const Backward<Tensor, Args>&) { return {Tensor()}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return {{"(2, 3)", {}, {normal(r, {2, 3})}, {0}}}; }
  static std::vector<Mutant<Tensor, Args>> mutants() { return passed_on<StopGradient>(); }
};

/// y = for each row of x, the nearest row of a codebook;  dx = dy, straight through, and the codebook gets nothing.
struct VectorQuantize {
  static constexpr std::string_view name = "difficult_vector_quantize";
  static constexpr std::string_view convention = "straight-through to x; the codebook learns by a loss of its own";
  static inline const std::array inputs{In{"x"}, In{"codebook"}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> nearest(const std::vector<S>& x, const std::vector<S>& codes, int64_t d) {
    std::vector<S> y;
    for (auto row = x.begin(); row != x.end(); row += d) {
      auto best = codes.begin();
      S least(0);
      for (auto code = codes.begin(); code != codes.end(); code += d) {
        S distance(0);
        for (int64_t j = 0; j < d; ++j) distance += (row[j] - code[j]) * (row[j] - code[j]);
        if (code != codes.begin() && !(distance < least)) continue;
        least = distance;
        best = code;
      }
      y.insert(y.end(), best, best + d);
    }
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    y.v = nearest(in[0].v, in[1].v, in[0].size(1));
    return {y};
  }
  template <class S>
  static Arrs<S> gradient_of(const Arrs<S>& in, const Args&) {
    return {in[0]};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(nearest(in[0].to_vector<T>(), in[1].to_vector<T>(), in[0].size(1)), in[0].shape());
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {b.dy(), Tensor()}; }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"3 rows, 3 codes",
             {},
             {Tensor::of({0.1, 0.2, 0.9, -0.8, 1.1, 0.9}, {3, 2}), Tensor::of({0, 0, 1, 1, 1, -1}, {3, 2})},
             {1}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<VectorQuantize>(); }
};

/// y = x;  dx = dy, each element clamped to +-limit.
struct ClippedGradient {
  static constexpr std::string_view name = "difficult_clipped_gradient";
  static constexpr std::string_view nonlinear = "each element of the gradient is clamped";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double limit = 1;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {in[0]};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return in[0].clone(); }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const T limit = static_cast<T>(b.args.limit);
      return map<T, T>(name, b.dy(), [=](T v) { return std::clamp(v, -limit, limit); });
    })};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"limit 1", {1}, {normal(r, {2, 3})}}, {"limit 10", {10}, {normal(r, {5})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ClippedGradient>(); }
};

/// y = x;  dx = dy, scaled down to the norm `limit` where it is longer.
struct NormClippedGradient {
  static constexpr std::string_view name = "difficult_norm_clipped_gradient";
  static constexpr std::string_view nonlinear = "the gradient's norm is bounded";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double limit = 1;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {in[0]};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return in[0].clone(); }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const double norm = std::sqrt(num::sum(num::mul(b.dy(), b.dy()).to(DType::f64)).item());
    return {num::scale(b.dy(), norm > b.args.limit ? b.args.limit / norm : 1)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"limit 1", {1}, {normal(r, {2, 3})}}, {"limit 100", {100}, {normal(r, {5})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<NormClippedGradient>(); }
};

// -- Choosing and ordering --------------------------------------------------------------------------------------------

/// y[k] = x[index[k]] for rows of x;  dx[i] = sum of dy[k] over all k with index[k] = i.
struct GatherRepeated {
  static constexpr std::string_view name = "difficult_gather_repeated";
  static inline const std::array inputs{In{"x"}, In{"index", false}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t d = in[0].size(1);
    Arr<S> y(Shape{in[1].numel(), d});
    for (int64_t k = 0; k < in[1].numel(); ++k)
      for (int64_t j = 0; j < d; ++j) y(k, j) = in[0](in[1].index(k), j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(1, in[1]);
    const int64_t d = in[0].size(1);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto x = in[0].to_vector<T>();
      std::vector<T> y;
      for (int64_t i : in[1].to_vector<int64_t>()) y.insert(y.end(), x.begin() + i * d, x.begin() + (i + 1) * d);
      return Tensor::of(std::move(y), {in[1].numel(), d});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(),
                           [&]<class T>() {
                             const auto dy = b.dy().to_vector<T>();
                             const auto index = b[0].to_vector<int64_t>();
                             const int64_t d = b.input_shape(0)[1];
                             std::vector<T> g(b.input_shape(0).numel());
                             for (size_t k = 0; k < index.size(); ++k)
                               for (int64_t j = 0; j < d; ++j) g[index[k] * d + j] += dy[k * d + j];
                             return Tensor::of(std::move(g), b.input_shape(0));
                           }),
            Tensor()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"some repeated, some never", {}, {normal(r, {4, 2}), indices({3, 1, 3, 3, 1})}},
            {"all the same", {}, {normal(r, {3, 3}), indices({1, 1, 1, 1})}},
            {"one", {}, {normal(r, {2, 1}), indices({1})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GatherRepeated>(); }
};

/// y = x sorted along the last dimension, rising;  dx = dy put back in the places where the numbers came from.
struct SortRows {
  static constexpr std::string_view name = "difficult_sort_rows";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t d = in[0].size(-1);
    Arr<S> y(in[0].shape);
    for (int64_t r = 0; r < y.shape.rows(); ++r) {
      const std::vector<int64_t> at = Median::rising(in[0].v.data() + r * d, d);
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = in[0][r * d + at[j]];
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const int64_t d = in[0].size(-1), rows = in[0].shape().rows();
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto x = in[0].to_vector<T>();
      std::vector<T> y;
      std::vector<int64_t> from;
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t at : Median::rising(x.data() + r * d, d)) {
          from.push_back(r * d + at);
          y.push_back(x[r * d + at]);
        }
      saved.keep(Tensor::of(std::move(from), in[0].shape()));
      return Tensor::of(std::move(y), in[0].shape());
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto dy = b.dy().to_vector<T>();
      const auto from = b[0].to_vector<int64_t>();
      std::vector<T> g(dy.size());
      for (size_t i = 0; i < dy.size(); ++i) g[from[i]] = dy[i];
      return Tensor::of(std::move(g), b.input_shape(0));
    })};
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    std::vector<Sample<Args>> out{{"(2, 4)", {}, {Tensor::of({3, -1, 2, 0.5, -2, 5, 1, 4}, {2, 4})}},
                                  {"1e-3 apart", {}, {Tensor::of({1.001, 1, 1.002, 0.999}, {4})}}};
    out.push_back(Sample<Args>("ties", {}, {Tensor::of({2, 1, 2, 1}, {4})}).at_kink("equal numbers keep their order"));
    return out;
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SortRows>(); }
};

/// Two outputs: the largest of each row, and its position as an integer, which has no gradient.
struct TopValue {
  static constexpr std::string_view name = "difficult_top_value";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t d = in[0].size(1);
    Arr<S> y(Shape{in[0].size(0)}), at(y.shape);
    for (int64_t r = 0; r < y.numel(); ++r) {
      int64_t best = 0;
      for (int64_t j = 1; j < d; ++j)
        if (in[0](r, j) > in[0](r, best)) best = j;
      y[r] = in[0](r, best);
      at[r] = S(static_cast<double>(best));
    }
    return {y, at};
  }
  static Tensors forward(Saved& saved, const Tensors& in, const Args&) {
    const int64_t d = in[0].size(1), rows = in[0].size(0);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto x = in[0].to_vector<T>();
      std::vector<T> y;
      std::vector<int64_t> at;
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = x.begin() + r * d, best = std::max_element(row, row + d);
        y.push_back(*best);
        at.push_back(best - row);
      }
      const Tensor index = Tensor::of(std::move(at), {rows});
      saved.keep_output(1, index);
      return Tensors{Tensor::of(std::move(y), {rows}), index};
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy(0).dtype(), [&]<class T>() {
      const auto dy = b.dy(0).to_vector<T>();
      const auto at = b[0].to_vector<int64_t>();
      std::vector<T> g(b.input_shape(0).numel());
      for (size_t r = 0; r < dy.size(); ++r) g[r * b.input_shape(0)[1] + at[r]] = dy[r];
      return Tensor::of(std::move(g), b.input_shape(0));
    })};
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(3, 3)", {}, {Tensor::of({1, 3, 2, 5, -1, 0, -3, -2, -1}, {3, 3})}},
            {"one column", {}, {Tensor::of({1, -2}, {2, 1})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<TopValue>(); }
};

/// Linear interpolation in a table t at whole positions: with i = floor(x) and u = x - i,
/// y = (1 - u) t_i + u t_(i+1).  dx = dy (t_(i+1) - t_i);  dt_i += dy (1 - u), dt_(i+1) += dy u. At a knot the slope is
/// the one to the right of it, by convention.
struct Interpolation {
  static constexpr std::string_view name = "difficult_interpolation";
  static inline const std::array inputs{In{"x"}, In{"table"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [&](S x) {
      const int64_t i = place(static_cast<double>(sc::value(x)), in[1].numel());
      return in[1][i] + (x - S(static_cast<double>(i))) * (in[1][i + 1] - in[1][i]);
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto t = in[1].to_vector<T>();
      return map<T, T>(name, in[0], [&](T x) {
        const int64_t i = place(x, in[1].numel());
        return t[i] + (x - static_cast<T>(i)) * (t[i + 1] - t[i]);
      });
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), t = b[1].to_vector<T>(), dy = b.dy().to_vector<T>();
      std::vector<T> dx(x.size()), dt(t.size());
      for (size_t k = 0; k < x.size(); ++k) {
        const int64_t i = place(x[k], b[1].numel());
        const T u = x[k] - static_cast<T>(i);
        dx[k] = dy[k] * (t[i + 1] - t[i]);
        dt[i] += dy[k] * (1 - u);
        dt[i + 1] += dy[k] * u;
      }
      return Tensors{Tensor::of(std::move(dx), b[0].shape()), Tensor::of(std::move(dt), b[1].shape())};
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<Sample<Args>> out{{"between knots", {}, {Tensor::of({0.3, 2.5, 1.7, 2.6}, {2, 2}), normal(r, {5})}},
                                  {"1e-3 beside knots", {}, {Tensor::of({1.001, 1.999}, {2}), normal(r, {4})}}};
    out.push_back(Sample<Args>("at knots", {}, {Tensor::of({0, 1, 2}, {3}), normal(r, {5})})
                      .at_kink("the slope to the right of the knot"));
    return out;
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Interpolation>(); }

 private:
  static int64_t place(double x, int64_t knots) {
    return std::clamp<int64_t>(static_cast<int64_t>(std::floor(x)), 0, knots - 2);
  }
};

// -- Long computations ------------------------------------------------------------------------------------------------

/// A recurrence of 200 steps, h_(t+1) = tanh(w h_t + u x_t + c) from h_0 = 0; y is all of h_1, h_2, ...
/// Backward from the end, with g the gradient of h_(t+1):  s = (g + dy_t) (1 - h_(t+1)^2);  dw += s h_t, du += s x_t,
/// dc += s, dx_t = u s, and the next g = w s. Saves x, w, u and y.
struct LongRecurrence {
  static constexpr std::string_view name = "difficult_long_recurrence";
  static inline const std::array inputs{In{"x"}, In{"w"}, In{"u"}, In{"c"}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> states(const std::vector<S>& x, S w, S u, S c) {
    std::vector<S> h;
    S now(0);
    for (const S& v : x) h.push_back(now = sc::tanh(w * now + u * v + c));
    return h;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    y.v = states(in[0].v, in[1][0], in[2][0], in[3][0]);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    for (int i : {0, 1, 2}) saved.keep_input(i, in[i]);
    const Tensor y = dispatch_float(name, in[0].dtype(), [&]<class T>() {
      auto number = [&](int i) { return in[i].to_vector<T>()[0]; };
      return Tensor::of(states(in[0].to_vector<T>(), number(1), number(2), number(3)), in[0].shape());
    });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), h = b[3].to_vector<T>(), dy = b.dy().to_vector<T>();
      const T w = b[1].to_vector<T>()[0], u = b[2].to_vector<T>()[0];
      std::vector<T> dx(x.size());
      T g = 0, dw = 0, du = 0, dc = 0;
      for (auto t = static_cast<int64_t>(x.size()) - 1; t >= 0; --t) {
        const T s = (g + dy[t]) * (1 - h[t] * h[t]);
        if (t > 0) dw += s * h[t - 1];
        du += s * x[t];
        dc += s;
        dx[t] = u * s;
        g = w * s;
      }
      auto number = [](T v) { return Tensor::of(std::vector<T>{v}, {}); };
      return Tensors{Tensor::of(std::move(dx), b[0].shape()), number(dw), number(du), number(dc)};
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto number = [](double v) { return Tensor::of({v}, {}); };
    return {{"200 steps, contracting", {}, {normal(r, {200}), number(0.9), number(0.3), number(0.1)}},
            {"200 steps, long memory", {}, {normal(r, {200}, 0.1), number(1), number(0.05), number(-0.001)}},
            {"200 steps, unstable", {}, {normal(r, {200}, 0.1), number(-1.5), number(0.2), number(0)}},
            {"1 step", {}, {normal(r, {1}), number(0.9), number(0.3), number(0.1)}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<LongRecurrence>(); }
};

/// The logistic map, x -> r x (1 - x), 20 times: at r = 3.9 the derivative is of the size of 1e4, and a thousandth of
/// a step away the orbit is another one.  Backward along the orbit:  dr += g x (1 - x), g *= r (1 - 2 x).
struct ChaoticMap {
  static constexpr std::string_view name = "difficult_chaotic_map";
  static inline const std::array inputs{In{"x"}, In{"r"}};
  struct Args {
    int steps = 20;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) {
      for (int k = 0; k < a.steps; ++k) x = in[1][0] * x * (S(1) - x);
      return x;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const T r = in[1].to_vector<T>()[0];
      return map<T, T>(name, in[0], [=](T x) {
        for (int k = 0; k < a.steps; ++k) x = r * x * (1 - x);
        return x;
      });
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), dy = b.dy().to_vector<T>();
      const T r = b[1].to_vector<T>()[0];
      std::vector<T> dx;
      T dr = 0;
      for (size_t i = 0; i < x.size(); ++i) {
        std::vector<T> orbit{x[i]};
        for (int k = 1; k < b.args.steps; ++k) orbit.push_back(r * orbit.back() * (1 - orbit.back()));
        T g = dy[i];
        for (int k = b.args.steps - 1; k >= 0; --k) {
          dr += g * orbit[k] * (1 - orbit[k]);
          g *= r * (1 - 2 * orbit[k]);
        }
        dx.push_back(g);
      }
      return Tensors{Tensor::of(std::move(dx), b[0].shape()), Tensor::of(std::vector<T>{dr}, {})};
    });
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"20 steps at 3.9", {20}, {Tensor::of({0.3, 0.61, 0.123}, {3}), Tensor::of({3.9}, {})}},
            {"20 steps at 2.5, settled", {20}, {Tensor::of({0.3, 0.7}, {2}), Tensor::of({2.5}, {})}},
            {"1 step", {1}, {Tensor::of({0.3}, {}), Tensor::of({3.7}, {})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ChaoticMap>(); }
};

/// y = the integral over [0, 1] of e^(-b t) sin(a t) with a about 200, by the trapezoidal rule with 2000 steps, whose
/// exact derivative is taken:  da = dy times the rule for t e^(-b t) cos(a t),  db = -dy times that for
/// t e^(-b t) sin(a t). Much larger parts of both signs cancel.
struct OscillatingIntegral {
  static constexpr std::string_view name = "difficult_oscillating_integral";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;
  static constexpr int kSteps = 2000;

  template <class S, class F>
  static S integral(F f) {
    S total = (f(S(0)) + f(S(1))) / S(2);
    for (int k = 1; k < kSteps; ++k) total += f(S(k) / S(kSteps));
    return total / S(kSteps);
  }
  template <class S>
  static S value(S a, S b) {
    return integral<S>([&](S t) { return sc::exp(-(b * t)) * sc::sin(a * t); });
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) { return value(a, b); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return zip<T, T>(name, in[0], in[1], [](T a, T b) { return value(a, b); });
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& g) {
    return dispatch_float(name, g.dy().dtype(), [&]<class T>() {
      const Tensor by_a = zip<T, T>(name, g[0], g[1], [](T a, T b) {
        return integral<T>([&](T t) { return t * std::exp(-b * t) * std::cos(a * t); });
      });
      const Tensor by_b = zip<T, T>(name, g[0], g[1], [](T a, T b) {
        return -integral<T>([&](T t) { return t * std::exp(-b * t) * std::sin(a * t); });
      });
      return Tensors{num::mul(g.dy(), by_a), num::mul(g.dy(), by_b)};
    });
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"a about 200", {}, {Tensor::of({200, 213.5, -190}, {3}), Tensor::of({0.5, 1, 2}, {3})}},
            {"a = 1", {}, {Tensor::of({1}, {}), Tensor::of({0.5}, {})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<OscillatingIntegral>(); }
};

// -- Tensors without elements -----------------------------------------------------------------------------------------

/// y = the rows of a, then those of 2 b; either may have none.  da = the first of dy, db = twice the others.
struct AppendRows {
  static constexpr std::string_view name = "difficult_append_rows";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{in[0].size(0) + in[1].size(0), in[0].size(1)});
    for (int64_t i = 0; i < in[0].numel(); ++i) y[i] = in[0][i];
    for (int64_t i = 0; i < in[1].numel(); ++i) y[in[0].numel() + i] = S(2) * in[1][i];
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      std::vector<T> y = in[0].to_vector<T>();
      for (T v : in[1].to_vector<T>()) y.push_back(2 * v);
      return Tensor::of(std::move(y), {in[0].size(0) + in[1].size(0), in[0].size(1)});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t first = b.input_shape(0)[0];
    return {b.dy().slice(0, 0, first).clone(), num::scale(b.dy().slice(0, first, b.dy().size(0)), 2)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 3) and (1, 3)", {}, {normal(r, {2, 3}), normal(r, {1, 3})}},
            {"(0, 3) and (2, 3)", {}, {Tensor::zeros({0, 3}, DType::f64), normal(r, {2, 3})}},
            {"(1, 2) and (0, 2)", {}, {normal(r, {1, 2}), Tensor::zeros({0, 2}, DType::f64)}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<AppendRows>(); }
};

/// y = s sum of x^2, also of no elements.  dx = 2 dy s x, ds = dy sum of x^2.
struct ScaledSquares {
  static constexpr std::string_view name = "difficult_scaled_squares";
  static inline const std::array inputs{In{"x"}, In{"s"}};
  using Args = NoArgs;

  template <class S>
  static S squares(const std::vector<S>& x) {
    S total(0);
    for (const S& v : x) total += v * v;
    return total;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{});
    y[0] = in[1][0] * squares(in[0].v);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(std::vector<T>{in[1].to_vector<T>()[0] * squares(in[0].to_vector<T>())}, {});
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      std::vector<T> x = b[0].to_vector<T>();
      const T s = b[1].to_vector<T>()[0], dy = b.dy().to_vector<T>()[0];
      const T ds = dy * squares(x);
      for (T& v : x) v *= 2 * dy * s;
      return Tensors{Tensor::of(std::move(x), b[0].shape()), Tensor::of(std::vector<T>{ds}, {})};
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"no elements", {}, {Tensor::zeros({0}, DType::f64), Tensor::of({1.5}, {})}, {1}},
            {"(2, 3)", {}, {normal(r, {2, 3}), Tensor::of({-0.5}, {})}},
            {"(2, 0, 3)", {}, {Tensor::zeros({2, 0, 3}, DType::f64), Tensor::of({1.5}, {})}, {1}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ScaledSquares>(); }
};

template <class... O>
struct Ops {
  static constexpr size_t size = sizeof...(O);
};

using DifficultOps =
    Ops<Reciprocal, SquareRoot, ArcSine, FastSine, SoftplusFarLeft, ExpFarLeft, HugeSquare, LogOnePlusTiny,
        ExpMinusOneTiny, LogCosh, Sinc, SquaredHinge, ScalarBump, AbsAtZero, Stairs, CeilAndStep, Huber, Angle, Inverse,
        Solve, Determinant, LogDeterminant, Cholesky, SymmetricEigenvalues, ReluNetwork, BadlyScaledLayer,
        KeyBiasAttention<true>, KeyBiasAttention<false>, NormalizeFlatRows, FarLogSumExp, ProductOfFactors, Norm,
        MaxFirst, MaxShared, Median, NearEqualVariance, CenteredSum, SaturatedSoftmax, CosineSimilarity, OffsetLoss,
        LogisticLoss, LogProbability, Entropy<false>, Entropy<true>, Divergence, StraightThroughRound, GradientReversal,
        StopGradient, VectorQuantize, ClippedGradient, NormClippedGradient, GatherRepeated, SortRows, TopValue,
        Interpolation, LongRecurrence, ChaoticMap, OscillatingIntegral, AppendRows, ScaledSquares>;

// -- Functions of Vars ------------------------------------------------------------------------------------------------

/// A function built from the library's ops, and f64 inputs to differentiate it at. All are right.
struct Function {
  std::string name;
  std::function<Vars(const Vars&)> f;
  Tensors inputs;
};

inline std::vector<Function> functions(Rng& r) {
  auto number = [](double v) { return Tensor::of({v}, {}); };
  auto constant = [](double v) { return Var(Tensor::scalar(v, DType::f64)); };
  auto at = [](std::initializer_list<double> v) { return Tensor::of(v, {static_cast<int64_t>(v.size())}); };
  auto near = [&](const Shape& shape, double center, double spread) {
    return num::add(normal(r, shape, spread), Tensor::scalar(center, DType::f64));
  };
  std::vector<Function> out;
  auto add = [&](std::string name, Tensors inputs, std::function<Vars(const Vars&)> f) {
    out.push_back({std::move(name), std::move(f), std::move(inputs)});
  };

  // relu(relu(x W1 + b1) W2 + b2) summed over its 64 units, a batch of 64.
  add("relu network, 64 wide, batch 64",
      {normal(r, {64, 64}), normal(r, {64, 64}, 0.18), normal(r, {64}, 0.1), normal(r, {64, 64}, 0.18),
       normal(r, {64}, 0.1)},
      [](const Vars& v) { return Vars{mean(relu(linear(relu(linear(v[0], v[1], v[2])), v[3], v[4])), {1})}; });
  add("logsumexp at 1e6", {near({3, 4}, 1e6, 1)}, [](const Vars& v) { return Vars{logsumexp(v[0], -1)}; });
  // ln sum e^x with a shift that is cut off: the total does not depend on it, so its gradient is not missed.
  add("logsumexp by hand, its shift detached", {near({3, 4}, 100, 2)}, [](const Vars& v) {
    const Var shift = max(v[0], -1, true).detach();
    return Vars{log(sum(exp(v[0] - shift), {-1}, true)) + shift};
  });
  add("1 / x at 1e-3", {at({1e-3, -2e-3, 1.5e-3})}, [=](const Vars& v) { return Vars{constant(1) / v[0]}; });
  add("sqrt at 1e-4", {at({1e-4, 2e-4, 1})}, [](const Vars& v) { return Vars{sqrt(v[0])}; });
  // tan(asin x) = x / sqrt((1 - x)(1 + x)), as steep at 1 as asin and more.
  add("tan asin x at 0.999", {at({0.999, -0.999, 0.5})},
      [](const Vars& v) { return Vars{v[0] / sqrt((1 - v[0]) * (1 + v[0]))}; });
  add("sin 1000 x", {normal(r, {5})}, [](const Vars& v) { return Vars{sin(1000 * v[0])}; });
  add("softplus at -40 alone", {number(-40)}, [](const Vars& v) { return Vars{log1p(exp(v[0]))}; });
  add("product of twelve factors of 0.1", {positive(r, {12}, 0.08, 0.12)}, [](const Vars& v) {
    Var y = select(v[0], 0, 0);
    for (int64_t i = 1; i < 12; ++i) y = y * select(v[0], 0, i);
    return Vars{y};
  });
  add("a loss with an offset of 1e12", {normal(r, {2, 3})},
      [](const Vars& v) { return Vars{sum(square(v[0])) + 1e12}; });
  add("sum of softmax, gradient zero", {normal(r, {2, 5})},
      [](const Vars& v) { return Vars{sum(softmax(v[0]), {-1})}; });
  add("sum of what is centered, gradient zero", {normal(r, {6})},
      [](const Vars& v) { return Vars{sum(v[0] - mean(v[0]))}; });
  add("norm of a vector of 1e-3", {normal(r, {5}, 1e-3)}, [](const Vars& v) { return Vars{sqrt(sum(square(v[0])))}; });
  add("max with neighbours 1e-3 apart", {Tensor::of({1, 1.001, 0.999, -2, -2.001, -3}, {2, 3})},
      [](const Vars& v) { return Vars{max(v[0], 1)}; });
  add("softmax, one row saturated", {Tensor::of({500, -500, 0, 0.1, 0.3, -0.2}, {2, 3})},
      [](const Vars& v) { return Vars{softmax(v[0])}; });
  add("softmax, all saturated", {Tensor::of({500, -500, 0, -500, 500, -499}, {2, 3})},
      [](const Vars& v) { return Vars{softmax(v[0])}; });
  add("log_softmax, saturated", {Tensor::of({500, -500, 0, -500, 500, -499}, {2, 3})},
      [](const Vars& v) { return Vars{log_softmax(v[0])}; });
  add("recurrence of 200 steps", {normal(r, {200}, 0.5), number(0.95), number(0.2)}, [](const Vars& v) {
    Var h = select(v[0], 0, 0);
    for (int64_t t = 1; t < 200; ++t) h = tanh(v[1] * h + v[2] * select(v[0], 0, t));
    return Vars{h};
  });
  add("logistic map, 20 steps at 3.9", {at({0.3, 0.61}), number(3.9)}, [](const Vars& v) {
    Var x = v[0];
    for (int k = 0; k < 20; ++k) x = v[1] * x * (1 - x);
    return Vars{x};
  });
  // A detached constant and a detached zero: neither depends on the inputs.
  add("detached parts", {normal(r, {4}), normal(r, {4})}, [](const Vars& v) {
    const Var ones = exp(v[0] - v[0]).detach(), nothing = (v[1] - v[1]).detach();
    return Vars{v[0] * ones * v[1] + nothing};
  });
  add("dropout with a fixed key", {normal(r, {4, 7})}, [](const Vars& v) {
    return Vars{sum(square(dropout(v[0], 0.4, {11, 12})), {1})};
  });
  add("embedding with repeated rows", {normal(r, {5, 3})}, [](const Vars& v) {
    return Vars{tanh(embedding(indices({4, 0, 4, 4, 2}), v[0]))};
  });
  add("gather with repeated indices", {normal(r, {4, 2})}, [](const Vars& v) {
    return Vars{square(index_select(v[0], indices({3, 1, 3, 3})))};
  });
  add("variance of nearly equal numbers", {near({6}, 1e6, 1e-2)}, [](const Vars& v) {
    return Vars{variance(v[0] - select(v[0], 0, 0).detach())};  // a shift changes no variance
  });
  {
    const Tensor a = normal(r, {5});
    add("cosine of nearly parallel vectors", {a, num::add(a, normal(r, {5}, 1e-3))},
        [](const Vars& v) { return Vars{sum(v[0] * v[1]) / (sqrt(sum(square(v[0]))) * sqrt(sum(square(v[1]))))}; });
  }
  add("exp at -300", {at({-300, -299, -301})}, [](const Vars& v) { return Vars{exp(v[0])}; });
  add("square at 1e150", {at({1e150, -2e150})}, [](const Vars& v) { return Vars{square(v[0])}; });
  add("log1p at 1e-12", {at({1e-12, -2e-12})}, [](const Vars& v) { return Vars{log1p(v[0])}; });
  add("a badly scaled layer", {normal(r, {3, 4}, 1e-8), normal(r, {4, 2}, 1e8), normal(r, {2})},
      [](const Vars& v) { return Vars{tanh(linear(v[0], v[1], v[2]))}; });
  // A bias of all keys adds the same to all logits of a query: its gradient is zero.
  add("attention with a key bias, gradient zero",
      {normal(r, {3, 2}), normal(r, {4, 2}), normal(r, {2}), normal(r, {4, 3})},
      [](const Vars& v) { return Vars{matmul(softmax(matmul(v[0], transpose(v[1] + v[2], 0, 1))), v[3])}; });
  add("layer_norm of flat rows",
      {Tensor::of({0.25, 0.25, 0.25, 0.25, -2, -2, -2, -2}, {2, 4}), normal(r, {4}), normal(r, {4})},
      [](const Vars& v) { return Vars{layer_norm(v[0], v[1], v[2], 1e-6)}; });
  // sum over 200 points of sin(a t) e^(-b t) / 200 with a about 100.
  add("an oscillating sum", {at({100, 113.5}), at({0.5, 1})}, [](const Vars& v) {
    std::vector<double> t(200);
    for (size_t k = 0; k < t.size(); ++k) t[k] = (static_cast<double>(k) + 0.5) / 200;
    const Var times(Tensor::of(t, {200, 1}));
    return Vars{mean(sin(times * v[0]) * exp(-(times * v[1])), {0})};
  });
  add("the same input twice", {normal(r, {3, 3})},
      [](const Vars& v) { return Vars{matmul(v[0], v[0]) + v[0] * v[0]}; });
  add("an input without influence", {normal(r, {3}), normal(r, {2})}, [](const Vars& v) { return Vars{exp(v[0])}; });
  add("an empty input", {Tensor::zeros({0, 3}, DType::f64), normal(r, {2, 3})}, [](const Vars& v) {
    return Vars{sum(square(concat({v[0], v[1]}, 0)), {0})};
  });
  add("a 0-dimensional input", {number(0.7)}, [](const Vars& v) { return Vars{v[0] * exp(-square(v[0]))}; });
  add("outputs of 1e8 and 1e-8", {normal(r, {3})}, [](const Vars& v) {
    return Vars{1e8 * sin(v[0]), 1e-8 * square(v[0])};
  });
  // where() on a mask of the values, both branches finite and not near the border.
  add("softplus by branches, +-30", {at({30, -30, 2, -2})}, [](const Vars& v) {
    const Var z = abs(v[0]);
    return Vars{where(less(v[0].value(), 0), log1p(exp(-z)), z + log1p(exp(-z)))};
  });
  add("pow 2.5 at 1e-3", {at({1e-3, 2e-3, 1})}, [](const Vars& v) { return Vars{pow(v[0], 2.5)}; });
  add("pow -3 at 0.02", {at({0.02, 0.03})}, [](const Vars& v) { return Vars{pow(v[0], -3)}; });
  add("a part of an input unused", {normal(r, {5})}, [](const Vars& v) { return Vars{sin(slice(v[0], 0, 1, 5, 2))}; });
  add("cross entropy with ignored targets", {normal(r, {4, 3}, 3)}, [](const Vars& v) {
    return Vars{cross_entropy(v[0], indices({2, kIgnoreIndex, 0, 1}))};
  });
  add("clamp between, beside and outside its borders", {at({-0.999, 0.999, 0.2, 1.001, -3})},
      [](const Vars& v) { return Vars{clamp(v[0], -1, 1)}; });
  add("entropy of softmax", {normal(r, {2, 4}, 3)},
      [](const Vars& v) { return Vars{-sum(softmax(v[0]) * log_softmax(v[0]), {-1})}; });
  add("cancelling terms of 1e8", {normal(r, {3})}, [](const Vars& v) {
    const Var large = 1e8 * v[0];
    return Vars{(large + square(v[0])) - large};
  });
  add("tanh at 8, nearly flat", {at({8, -8, 7})}, [](const Vars& v) { return Vars{tanh(v[0])}; });
  add("sigmoid at -300", {at({-300, -20, 8})}, [](const Vars& v) { return Vars{sigmoid(v[0])}; });
  return out;
}

}  // namespace difficult
