// Addition, subtraction, multiplication, division with broadcasting; negation, a x + b with constants, identity.
// The engine sums gradients over broadcast dimensions.
#pragma once

#include "autograd/ops/samples.h"
#include "core/elementwise.h"
#include "core/tensor_ops.h"

namespace bg {

Var add(const Var& a, const Var& b);
Var sub(const Var& a, const Var& b);
Var mul(const Var& a, const Var& b);
Var div(const Var& a, const Var& b);
Var affine(const Var& x, double scale, double shift);
inline Var neg(const Var& x);

inline Var operator+(const Var& a, const Var& b) { return add(a, b); }
inline Var operator-(const Var& a, const Var& b) { return sub(a, b); }
inline Var operator*(const Var& a, const Var& b) { return mul(a, b); }
inline Var operator/(const Var& a, const Var& b) { return div(a, b); }
inline Var operator-(const Var& x) { return neg(x); }
inline Var operator*(const Var& x, double c) { return affine(x, c, 0); }
inline Var operator*(double c, const Var& x) { return affine(x, c, 0); }
inline Var operator+(const Var& x, double c) { return affine(x, 1, c); }
inline Var operator+(double c, const Var& x) { return affine(x, 1, c); }
inline Var operator-(const Var& x, double c) { return affine(x, 1, -c); }
inline Var operator-(double c, const Var& x) { return affine(x, -1, c); }
inline Var operator/(const Var& x, double c) { return affine(x, 1 / c, 0); }

/// y = a + b;  da = dy, db = dy.
struct Add {
  static constexpr std::string_view name = "add";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  static constexpr bool broadcasts = true;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) { return a + b; })};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return num::add(in[0], in[1]); }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy(), b.dy()}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return binary_samples(r, Args{}, [](Rng& g, const Shape& s) { return normal(g, s); });
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"b's gradient negated",
             [](auto& b) {
               return Vars{b.dy(), -b.dy()};
             }},
            {"b's gradient dropped", [](auto& b) {
               return Vars{b.dy(), Var()};
             }}};
  }
};
inline Var add(const Var& a, const Var& b) { return apply<Add>({}, {a, b})[0]; }

/// y = a - b;  da = dy, db = -dy.
struct Sub {
  static constexpr std::string_view name = "sub";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  static constexpr bool broadcasts = true;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) { return a - b; })};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return num::sub(in[0], in[1]); }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy(), b.need(1) ? -b.dy() : Var()}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return binary_samples(r, Args{}, [](Rng& g, const Shape& s) { return normal(g, s); });
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"b's sign lost", [](auto& b) { return Vars{b.dy(), b.dy()}; }}};
  }
};
inline Var sub(const Var& a, const Var& b) { return apply<Sub>({}, {a, b})[0]; }

/// y = a b;  da = dy b, db = dy a.
struct Mul {
  static constexpr std::string_view name = "mul";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  static constexpr bool broadcasts = true;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) { return a * b; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::mul(in[0], in[1]);
  }
  static Vars backward(const Backward<Var, Args>& b) {
    return {b.need(0) ? b.dy() * b[1] : Var(), b.need(1) ? b.dy() * b[0] : Var()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return binary_samples(r, Args{}, [](Rng& g, const Shape& s) { return normal(g, s); });
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"factors swapped",
             [](auto& b) {
               return Vars{b.dy() * b[0], b.dy() * b[1]};
             }},
            {"factor omitted", [](auto& b) {
               return Vars{b.dy(), b.dy() * b[0]};
             }}};
  }
};
inline Var mul(const Var& a, const Var& b) { return apply<Mul>({}, {a, b})[0]; }

/// y = a / b;  da = dy / b, db = -dy y / b. b must not be 0 where a finite gradient is expected.
struct Div {
  static constexpr std::string_view name = "div";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  static constexpr bool broadcasts = true;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) { return a / b; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(1, in[1]);
    const Tensor y = num::div(in[0], in[1]);
    saved.keep_output(0, y);
    return y;
  }
  static Vars backward(const Backward<Var, Args>& b) {
    const Var da = b.dy() / b[0];
    return {da, b.need(1) ? -(da * b[1]) : Var()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return binary_samples(r, Args{}, [](Rng& g, const Shape& s) { return away_from_zero(g, s); });
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"b's sign lost",
             [](auto& b) {
               const Var da = b.dy() / b[0];
               return Vars{da, da * b[1]};
             }},
            {"b's factor y omitted", [](auto& b) {
               const Var da = b.dy() / b[0];
               return Vars{da, -da};
             }}};
  }
};
inline Var div(const Var& a, const Var& b) { return apply<Div>({}, {a, b})[0]; }

/// y = scale x + shift with constants;  dx = scale dy.
struct Affine {
  static constexpr std::string_view name = "affine";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double scale = 1, shift = 0;
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return S(a.scale) * x + S(a.shift); })};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const T scale = static_cast<T>(a.scale), shift = static_cast<T>(a.shift);
      return map<T, T>(name, in[0], [=](T x) { return scale * x + shift; });
    });
  }
  static Vars backward(const Backward<Var, Args>& b) { return {affine(b.dy(), b.args.scale, 0)}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto out = unary_samples(r, Args{-1.5, 0.25}, [](Rng& g, const Shape& s) { return normal(g, s); });
    out.push_back({"other numbers", {0.7, -2}, {normal(r, {3})}});
    return out;
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"scale omitted", [](auto& b) { return Vars{b.dy()}; }},
            {"shift kept", [](auto& b) { return Vars{affine(b.dy(), b.args.scale, b.args.shift)}; }}};
  }
};
inline Var affine(const Var& x, double scale, double shift) { return apply<Affine>({scale, shift}, {x})[0]; }
inline Var neg(const Var& x) { return affine(x, -1, 0); }

/// y = x;  dx = dy. A place of its own in the graph for the same numbers.
struct Identity {
  static constexpr std::string_view name = "identity";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return in;
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return in[0]; }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy()}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return unary_samples(r, Args{}, [](Rng& g, const Shape& s) { return normal(g, s); });
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"gradient doubled", [](auto& b) { return Vars{b.dy() + b.dy()}; }}};
  }
};
inline Var identity(const Var& x) { return apply<Identity>({}, {x})[0]; }

}  // namespace bg
