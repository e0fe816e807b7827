// Element-wise functions of one tensor. The hot ones - tanh, sigmoid, relu, silu, gelu - are fused: one pass forward,
// one pass backward. The others are primitive.
//
// At kinks: relu'(0) = 0, abs'(0) = 0, and clamp passes the gradient at its two borders.
#pragma once

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/select.h"
#include "core/kernels/vec_math.h"

namespace bg {

namespace detail {

/// y = kernel(x) for kernels over spans.
template <class F>
Tensor by_kernel(std::string_view op, const Tensor& x, F kernel) {
  const Tensor from = x.contiguous();
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  dispatch_float(op, x.dtype(), [&]<class T>() { kernel(from.data<T>(), y.mutable_data<T>(op), y.numel()); });
  return y;
}

/// dx = kernel(kept, dy) for backward kernels over spans; `kept` is the input or the output.
template <class F>
Tensor by_kernel(std::string_view op, const Tensor& kept, const Tensor& dy, F kernel) {
  const Tensor from = kept.contiguous(), cotangent = dy.contiguous();
  Tensor dx = Tensor::empty(dy.shape(), dy.dtype());
  dispatch_float(op, dy.dtype(),
                 [&]<class T>() { kernel(from.data<T>(), cotangent.data<T>(), dx.mutable_data<T>(op), dx.numel()); });
  return dx;
}

/// y = f(x) for a function on one number.
template <class F>
Tensor by_element(std::string_view op, const Tensor& x, F f) {
  return dispatch_float(op, x.dtype(), [&]<class T>() { return map<T, T>(op, x, [&](T v) { return f(v); }); });
}

inline Tensor normal_like(Rng& r, const Shape& s) { return normal(r, s); }
inline Tensor positive_like(Rng& r, const Shape& s) { return positive(r, s); }
inline Tensor off_zero_like(Rng& r, const Shape& s) { return away_from_zero(r, s); }

}  // namespace detail

// -- Primitive --------------------------------------------------------------------------------------------------------

/// y = e^x;  dx = dy y.
struct Exp {
  static constexpr std::string_view name = "exp";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::exp(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::exp(x, y, n); });
    saved.keep_output(0, y);
    return y;
  }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() * b[0]}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"factor omitted", [](auto& b) { return Vars{b.dy()}; }}};
  }
};
inline Var exp(const Var& x) { return apply<Exp>({}, {x})[0]; }

/// y = ln x;  dx = dy / x. -infinity at 0, NaN below.
struct Log {
  static constexpr std::string_view name = "log";
  static inline const std::array inputs{In{"x", Domain::positive}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::log(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::log(x, y, n); });
  }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() / b[0]}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::positive_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"multiplied instead of divided", [](auto& b) { return Vars{b.dy() * b[0]}; }}};
  }
};
inline Var log(const Var& x) { return apply<Log>({}, {x})[0]; }

/// y = ln(1 + x), exact for small x;  dx = dy / (1 + x).
struct Log1p {
  static constexpr std::string_view name = "log1p";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::log1p(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [](auto x) { return std::log1p(x); });
  }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() / (b[0] + 1)}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return unary_samples(r, Args{}, [](Rng& g, const Shape& s) { return positive(g, s, -0.5, 1.5); });
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"log's gradient", [](auto& b) { return Vars{b.dy() / b[0]}; }}};
  }
};
inline Var log1p(const Var& x) { return apply<Log1p>({}, {x})[0]; }

/// y = sqrt(x);  dx = dy / (2 y): infinite at 0.
struct Sqrt {
  static constexpr std::string_view name = "sqrt";
  static inline const std::array inputs{In{"x", Domain::positive}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::sqrt(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::sqrt(x, y, n); });
    saved.keep_output(0, y);
    return y;
  }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() / (b[0] * 2)}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::positive_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"2 omitted", [](auto& b) { return Vars{b.dy() / b[0]}; }}};
  }
};
inline Var sqrt(const Var& x) { return apply<Sqrt>({}, {x})[0]; }

Var cos(const Var& x);

/// y = sin x;  dx = dy cos x.
struct Sin {
  static constexpr std::string_view name = "sin";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::sin(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [](auto x) { return std::sin(x); });
  }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() * cos(b[0])}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"sign lost", [](auto& b) { return Vars{-b.dy() * cos(b[0])}; }}};
  }
};
inline Var sin(const Var& x) { return apply<Sin>({}, {x})[0]; }

/// y = cos x;  dx = -dy sin x.
struct Cos {
  static constexpr std::string_view name = "cos";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::cos(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [](auto x) { return std::cos(x); });
  }
  static Vars backward(const Backward<Var, Args>& b) { return {-(b.dy() * sin(b[0]))}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"sign lost", [](auto& b) { return Vars{b.dy() * sin(b[0])}; }}};
  }
};
inline Var cos(const Var& x) { return apply<Cos>({}, {x})[0]; }

/// y = x^2;  dx = 2 x dy.
struct Square {
  static constexpr std::string_view name = "square";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x * x; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [](auto x) { return x * x; });
  }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() * b[0] * 2}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"2 omitted", [](auto& b) { return Vars{b.dy() * b[0]}; }}};
  }
};
inline Var square(const Var& x) { return apply<Square>({}, {x})[0]; }

/// y = erf(x) = 2/sqrt(pi) int_0^x e^(-t^2) dt;  dx = dy 2/sqrt(pi) e^(-x^2).
struct Erf {
  static constexpr std::string_view name = "erf";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::erf(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [](auto x) { return std::erf(x); });
  }
  static Vars backward(const Backward<Var, Args>& b) {
    return {b.dy() * exp(-square(b[0])) * (2 * std::numbers::inv_sqrtpi)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"square omitted in the exponent",
             [](auto& b) { return Vars{b.dy() * exp(-b[0]) * (2 * std::numbers::inv_sqrtpi)}; }},
            {"factor of the normal density", [](auto& b) {
               return Vars{b.dy() * exp(-square(b[0])) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2)};
             }}};
  }
};
inline Var erf(const Var& x) { return apply<Erf>({}, {x})[0]; }

Var pow(const Var& x, double exponent);

/// y = x^p for a constant p;  dx = dy p x^(p - 1). As std::pow: NaN for x < 0 unless p is whole; x^0 = 1 with gradient
/// 0 everywhere.
struct Pow {
  static constexpr std::string_view name = "pow";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double exponent = 1;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return sc::pow(x, S(a.exponent)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [&]<class T>(T x) { return std::pow(x, static_cast<T>(a.exponent)); });
  }
  static Vars backward(const Backward<Var, Args>& b) {
    const double p = b.args.exponent;
    return {p == 0 ? Var() : b.dy() * pow(b[0], p - 1) * p};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<Sample<Args>> out = unary_samples(r, Args{2.5}, detail::positive_like);
    out.push_back({"cube, both signs", {3}, {away_from_zero(r, {5})}});
    out.push_back({"reciprocal root", {-0.5}, {positive(r, {2, 3})}});
    out.push_back({"inverse square, both signs", {-2}, {away_from_zero(r, {3})}});
    out.push_back({"exponent 1", {1}, {normal(r, {3})}});
    out.push_back({"exponent 0", {0}, {away_from_zero(r, {3})}, {0}});
    return out;
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {
        {"p omitted", [](auto& b) { return Vars{b.dy() * pow(b[0], b.args.exponent - 1)}; }},
        {"exponent not lowered", [](auto& b) { return Vars{b.dy() * pow(b[0], b.args.exponent) * b.args.exponent}; }}};
  }
};
inline Var pow(const Var& x, double exponent) { return apply<Pow>({exponent}, {x})[0]; }

/// y = |x|;  dx = dy where x > 0, -dy where x < 0, 0 at 0.
struct Abs {
  static constexpr std::string_view name = "abs";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::abs(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [](auto x) { return std::abs(x); });
  }
  static Vars backward(const Backward<Var, Args>& b) {
    const Tensor& x = b[0].value();
    return {where(less(x, 0), -b.dy(), where(equal(x, 0), Tensor::scalar(0, x.dtype()), b.dy()))};
  }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::off_zero_like); }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"sign ignored", [](auto& b) { return Vars{b.dy()}; }},
            {"negated", [](auto& b) { return Vars{-backward(b)[0]}; }}};
  }
};
inline Var abs(const Var& x) { return apply<Abs>({}, {x})[0]; }

/// y = lo where x < lo, hi where x > hi, else x;  dx = dy where lo <= x <= hi, else 0. NaN stays NaN and passes its
/// gradient. lo <= hi; either may be infinite.
struct Clamp {
  static constexpr std::string_view name = "clamp";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double lo = 0, hi = 1;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return x < S(a.lo) ? S(a.lo) : x > S(a.hi) ? S(a.hi) : x; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    BG_CHECK(a.lo <= a.hi, name, "empty interval", str("[", a.lo, ", ", a.hi, "]"), "lo <= hi");
    saved.keep_input(0, in[0]);
    return detail::by_element(name, in[0], [&]<class T>(T x) {
      const T lo = static_cast<T>(a.lo), hi = static_cast<T>(a.hi);
      return x < lo ? lo : x > hi ? hi : x;
    });
  }
  static Vars backward(const Backward<Var, Args>& b) {
    return {where(outside(b), Tensor::scalar(0, b.dy().dtype()), b.dy())};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"all three parts", {-1, 1}, {Tensor::of({-2.5, -1.5, -0.4, 0.3, 0.5, 1.5, 2.2}, {7})}},
            {"open below", {-INFINITY, 0.5}, {Tensor::of({-30, -2, 0, 1, 1.5, 40}, {2, 3})}},
            {"single, inside", {0, 2}, {Tensor::of({1}, {})}},
            {"single, outside", {0, 2}, {Tensor::of({3}, {1})}, {0}},
            {"wide, open above", {0, INFINITY}, {away_from_zero(r, {17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"passes everywhere", [](auto& b) { return Vars{b.dy()}; }},
            {"passes outside only",
             [](auto& b) { return Vars{where(outside(b), b.dy(), Tensor::scalar(0, b.dy().dtype()))}; }}};
  }

 private:
  static Tensor outside(const Backward<Var, Args>& b) {
    return detail::mask(name, b[0].value(),
                        [&]<class T>(T x) { return x < static_cast<T>(b.args.lo) || x > static_cast<T>(b.args.hi); });
  }
};
inline Var clamp(const Var& x, double lo, double hi) { return apply<Clamp>({lo, hi}, {x})[0]; }

// -- Fused ------------------------------------------------------------------------------------------------------------

namespace detail {
/// 1 / (1 + e^-x) from primitive ops, finite with all its derivatives for every finite x: each side of 0 has the form
/// that cannot overflow, and sees only its own half of the numbers.
inline Var sigmoid_from_primitives(const Var& x) {
  const Tensor negative = less(x.value(), 0);
  const Var zero = Tensor::scalar(0, x.dtype()), one = Tensor::scalar(1, x.dtype());
  const Var left = exp(where(negative, x, zero)), right = exp(-where(negative, zero, x));
  return where(negative, left / (left + 1), one / (right + 1));
}
}  // namespace detail

/// y = tanh x = sinh x / cosh x;  dx = dy (cosh^2 x - sinh^2 x) / cosh^2 x = dy (1 - y^2). Saves y.
struct Tanh {
  static constexpr std::string_view name = "tanh";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::tanh(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::tanh(x, y, n); });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {detail::by_kernel(name, b[0], b.dy(),
                              [](auto* y, auto* dy, auto* dx, int64_t n) { kernels::tanh_backward(y, dy, dx, n); })};
  }
  static Vars compose(const Vars& in, const Args&) { return {2 * detail::sigmoid_from_primitives(2 * in[0]) - 1}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"square omitted", [](auto& b) { return Tensors{num::sub(b.dy(), num::mul(b.dy(), b[0]))}; }}};
  }
};
inline Var tanh(const Var& x) { return apply<Tanh>({}, {x})[0]; }

/// y = 1 / (1 + e^-x);  dx = dy e^-x y^2, and e^-x y = 1 - y, so dx = dy y (1 - y). Saves y.
struct Sigmoid {
  static constexpr std::string_view name = "sigmoid";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::sigmoid(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::sigmoid(x, y, n); });
    saved.keep_output(0, y);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {detail::by_kernel(name, b[0], b.dy(),
                              [](auto* y, auto* dy, auto* dx, int64_t n) { kernels::sigmoid_backward(y, dy, dx, n); })};
  }
  static Vars compose(const Vars& in, const Args&) { return {detail::sigmoid_from_primitives(in[0])}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"factor 1 - y omitted", [](auto& b) { return Tensors{num::mul(b.dy(), b[0])}; }}};
  }
};
inline Var sigmoid(const Var& x) { return apply<Sigmoid>({}, {x})[0]; }

/// y = max(x, 0);  dx = dy where x > 0, else 0 (also at 0). Saves x. NaN stays NaN.
struct Relu {
  static constexpr std::string_view name = "relu";
  static constexpr bool cheap = true;
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x <= S(0) ? S(0) : x; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::relu(x, y, n); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {detail::by_kernel(name, b[0], b.dy(),
                              [](auto* x, auto* dy, auto* dx, int64_t n) { kernels::relu_backward(x, dy, dx, n); })};
  }
  static Vars compose(const Vars& in, const Args&) {
    return {where(less_equal(in[0].value(), 0), Tensor::scalar(0, in[0].dtype()), in[0])};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"both sides", {}, {Tensor::of({-2, -0.5, 0.7, 1.2, 3, -1}, {2, 3})}},
            {"odd", {}, {Tensor::of({0.6, -0.8, 1, -1.5, 0.5, 2, 0.9}, {7})}},
            {"single, positive", {}, {positive(r, {})}},
            {"single, negative", {}, {Tensor::of({-1}, {1, 1})}, {0}},
            {"wide", {}, {away_from_zero(r, {17})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"passes everywhere", [](auto& b) { return Tensors{b.dy()}; }},
            {"passes on the negative side", [](auto& b) { return Tensors{num::sub(b.dy(), backward(b)[0])}; }}};
  }
};
inline Var relu(const Var& x) { return apply<Relu>({}, {x})[0]; }

/// y = x s, s = sigmoid(x) (Hendrycks and Gimpel 2016);  s' = s (1 - s), so dx = dy s (1 + x (1 - s)). Saves x.
struct Silu {
  static constexpr std::string_view name = "silu";
  static constexpr bool cheap = true;
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x * sc::sigmoid(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::silu(x, y, n); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {detail::by_kernel(name, b[0], b.dy(),
                              [](auto* x, auto* dy, auto* dx, int64_t n) { kernels::silu_backward(x, dy, dx, n); })};
  }
  static Vars compose(const Vars& in, const Args&) { return {in[0] * detail::sigmoid_from_primitives(in[0])}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"gate's own gradient omitted", [](auto& b) {
               return Tensors{num::mul(b.dy(), detail::by_element(name, b[0], [](auto x) { return sc::sigmoid(x); }))};
             }}};
  }
};
inline Var silu(const Var& x) { return apply<Silu>({}, {x})[0]; }

/// y = x Phi(x) with Phi the standard normal distribution function, = x (1 + erf(x / sqrt 2)) / 2 exactly (Hendrycks
/// and Gimpel 2016);  Phi' = phi, the normal density, so dx = dy (Phi(x) + x phi(x)). Saves x.
struct Gelu {
  static constexpr std::string_view name = "gelu";
  static constexpr bool cheap = true;
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return S(0.5) * x * (S(1) + sc::erf(x / sc::sqrt(S(2)))); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return detail::by_kernel(name, in[0], [](auto* x, auto* y, int64_t n) { kernels::gelu(x, y, n); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {detail::by_kernel(name, b[0], b.dy(),
                              [](auto* x, auto* dy, auto* dx, int64_t n) { kernels::gelu_backward(x, dy, dx, n); })};
  }
  static Vars compose(const Vars& in, const Args&) { return {0.5 * in[0] * (1 + erf(in[0] / std::numbers::sqrt2))}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples(r, Args{}, detail::normal_like); }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"density term omitted",
             [](auto& b) {
               return Tensors{num::mul(b.dy(), detail::by_element(name, b[0], []<class T>(T x) {
                                         return (1 + std::erf(x * std::numbers::sqrt2_v<T> / 2)) / 2;
                                       }))};
             }},
            {"gradient of the tanh approximation", [](auto& b) {
               return Tensors{num::mul(b.dy(), detail::by_element(name, b[0], []<class T>(T x) {
                                         const double c = std::sqrt(2 / std::numbers::pi), v = x;
                                         const double t = std::tanh(c * (v + 0.044715 * v * v * v));
                                         const double du = c * (1 + 3 * 0.044715 * v * v);
                                         return static_cast<T>(0.5 * (1 + t) + 0.5 * v * (1 - t * t) * du);
                                       }))};
             }}};
  }
};
inline Var gelu(const Var& x) { return apply<Gelu>({}, {x})[0]; }

}  // namespace bg
