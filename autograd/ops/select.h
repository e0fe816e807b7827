// Choosing between values: where, maximum, minimum, and the masks that drive them.
#pragma once

#include <cmath>

#include "autograd/ops/arithmetic.h"

namespace bg {

Var where(const Tensor& cond, const Var& a, const Var& b);

namespace detail {

/// i32 mask of the elements for which f holds.
template <class F>
Tensor mask(std::string_view op, const Tensor& x, F f) {
  return dispatch_float(op, x.dtype(),
                        [&]<class T>() { return map<int32_t, T>(op, x, [&](T v) { return int32_t{f(v)}; }); });
}

/// i32 mask of the pairs for which f holds, with broadcasting.
template <class F>
Tensor mask(std::string_view op, const Tensor& a, const Tensor& b, F f) {
  num::check_same_float(op, a, b);
  return dispatch_float(
      op, a.dtype(), [&]<class T>() { return zip<int32_t, T>(op, a, b, [&](T x, T y) { return int32_t{f(x, y)}; }); });
}

}  // namespace detail

/// Comparisons: an i32 tensor of 0 and 1, with broadcasting; any comparison with NaN is 0. Conditions for where().
inline Tensor less(const Tensor& a, const Tensor& b) {
  return detail::mask("less", a, b, [](auto x, auto y) { return x < y; });
}
inline Tensor less_equal(const Tensor& a, const Tensor& b) {
  return detail::mask("less_equal", a, b, [](auto x, auto y) { return x <= y; });
}
inline Tensor equal(const Tensor& a, const Tensor& b) {
  return detail::mask("equal", a, b, [](auto x, auto y) { return x == y; });
}
inline Tensor less(const Tensor& a, double b) { return less(a, Tensor::scalar(b, a.dtype())); }
inline Tensor less_equal(const Tensor& a, double b) { return less_equal(a, Tensor::scalar(b, a.dtype())); }
inline Tensor equal(const Tensor& a, double b) { return equal(a, Tensor::scalar(b, a.dtype())); }

/// y = cond != 0 ? a : b, with broadcasting;  da = cond ? dy : 0, db = cond ? 0 : dy. cond is of any dtype.
///
/// Both directions select and never multiply by 0, so NaN and infinities of the branch not taken do not leak - from
/// this op. A branch that is itself infinite outside its domain still turns the 0 that it receives into NaN further up
/// (0 / 0 in log's backward). The recipe is to select twice: first a harmless input, then the result:
///   where(c, log(where(c, x, 1)), 0).
struct Where {
  static constexpr std::string_view name = "where";
  static inline const std::array inputs{In{"cond", false}, In{"a"}, In{"b"}};
  static constexpr bool broadcasts = true;
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Shape shape = broadcast_shapes(in[0].shape, broadcast_shapes(in[1].shape, in[2].shape, name), name);
    auto at = [&](size_t k, int64_t i) { return in[k][broadcast_index(in[k].shape, shape, i)]; };
    Arr<S> y(shape);
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = sc::value(at(0, i)) != 0 ? at(1, i) : at(2, i);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    num::check_same_float(name, in[1], in[2]);
    BG_CHECK(is_float(in[0].dtype()) || is_index(in[0].dtype()), name, "condition of a wrong dtype", str(in[0].dtype()),
             "i32, i64, f32 or f64");
    const Shape shape = broadcast_shapes(in[0].shape(), broadcast_shapes(in[1].shape(), in[2].shape(), name), name);
    Tensor y = Tensor::empty(shape, in[1].dtype());
    dispatch_float(name, y.dtype(), [&]<class T>() {
      if (in[0].dtype() == DType::i32) select_rows<int32_t, T>(in, y);
      if (in[0].dtype() == DType::i64) select_rows<int64_t, T>(in, y);
      if (in[0].dtype() == DType::f32) select_rows<float, T>(in, y);
      if (in[0].dtype() == DType::f64) select_rows<double, T>(in, y);
    });
    return y;
  }
  static Vars backward(const Backward<Var, Args>& b) {
    const Var zero = Tensor::scalar(0, b.dy().dtype());
    const Tensor& cond = b[0].value();
    return {Var(), b.need(1) ? where(cond, b.dy(), zero) : Var(), b.need(2) ? where(cond, zero, b.dy()) : Var()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto cond = [](std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); };
    return {{"same shapes", {}, {cond({1, 0, 0, 1, 1, 0}, {2, 3}), normal(r, {2, 3}), normal(r, {2, 3})}},
            {"broadcast condition", {}, {cond({0, 1, 1}, {3}), normal(r, {2, 3}), normal(r, {2, 3})}},
            {"broadcast branches", {}, {cond({1, 0, 0, 1}, {2, 2}), normal(r, {2, 1}), normal(r, {2})}},
            {"scalar branch", {}, {Tensor::of({0, 2, -1, 0, 1}, {5}), normal(r, {5}), normal(r, {})}},
            {"single", {}, {cond({1}, {1}), normal(r, {1}), normal(r, {1})}, {2}},
            {"wide", {}, {cond({1, 0, 1}, {3, 1}), normal(r, {3, 17}), normal(r, {17})}}};
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"branches swapped",
             [](auto& b) {
               const Var zero = Tensor::scalar(0, b.dy().dtype());
               return Vars{Var(), where(b[0].value(), zero, b.dy()), where(b[0].value(), b.dy(), zero)};
             }},
            {"gradient to both branches", [](auto& b) {
               return Vars{Var(), b.dy(), b.dy()};
             }}};
  }

 private:
  template <class C, class T>
  static void select_rows(const Tensors& in, Tensor& y) {
    const C* cond = in[0].data<C>();
    const T *a = in[1].data<T>(), *b = in[2].data<T>();
    T* out = y.mutable_data<T>(name);
    const Shape& shape = y.shape();
    walk<4>(shape,
            {y.strides(), broadcast_strides(in[0], shape), broadcast_strides(in[1], shape),
             broadcast_strides(in[2], shape)},
            [&](auto at, int64_t n, auto step) {
              T* o = out + at[0];
              const C* c = cond + at[1];
              const T *x = a + at[2], *z = b + at[3];
              // Unit steps, and one number for a branch, are loops of their own. Reading both branches before choosing
              // lets the compiler vectorise them.
              auto choose = [](C condition, T yes, T no) { return condition != C{0} ? yes : no; };
              const T x0 = *x, z0 = *z;
              if (step == std::array<int64_t, 4>{1, 1, 1, 1})
                for (int64_t i = 0; i < n; ++i) o[i] = choose(c[i], x[i], z[i]);
              else if (step == std::array<int64_t, 4>{1, 1, 1, 0})
                for (int64_t i = 0; i < n; ++i) o[i] = choose(c[i], x[i], z0);
              else if (step == std::array<int64_t, 4>{1, 1, 0, 1})
                for (int64_t i = 0; i < n; ++i) o[i] = choose(c[i], x0, z[i]);
              else
                for (int64_t i = 0; i < n; ++i) o[i * step[0]] = choose(c[i * step[1]], x[i * step[2]], z[i * step[3]]);
            });
  }
};
inline Var where(const Tensor& cond, const Var& a, const Var& b) { return apply<Where>({}, {Var(cond), a, b})[0]; }

/// y = the larger (or smaller) of a and b, with broadcasting; NaN when either is NaN. The gradient goes to the input
/// that was taken; at a tie, to a.
template <bool Largest>
struct PairExtreme {
  static constexpr std::string_view name = Largest ? "maximum" : "minimum";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  static constexpr bool broadcasts = true;
  using Args = NoArgs;

  template <class T>
  static bool takes_a(T a, T b) {
    return (Largest ? a >= b : a <= b) || a != a;  // a != a: NaN
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) { return takes_a(sc::value(a), sc::value(b)) ? a : b; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    num::check_same_float(name, in[0], in[1]);
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return zip<T, T>(name, in[0], in[1], [](T a, T b) { return takes_a(a, b) ? a : b; });
    });
  }
  static Vars backward(const Backward<Var, Args>& b) {
    const Tensor from_a = taken(b);
    const Var zero = Tensor::scalar(0, b.dy().dtype());
    return {b.need(0) ? where(from_a, b.dy(), zero) : Var(), b.need(1) ? where(from_a, zero, b.dy()) : Var()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    // the larger input alternates around -1 and 1, the other stays within 0.25 of 0: both win, by at least 0.5
    auto values = [&](const Shape& s, bool alternates) {
      std::vector<double> v(static_cast<size_t>(s.numel()));
      for (size_t i = 0; i < v.size(); ++i) v[i] = r.uniform() / 4 + (alternates ? (i % 2 ? -1.25 : 1) : 0);
      return Tensor::of(std::move(v), s);
    };
    std::vector<Sample<Args>> out;
    for (const auto& [a, b] : broadcast_pairs()) {
      const bool a_alternates = a.numel() >= b.numel();
      if (a.numel() * b.numel() == 1) continue;
      out.push_back({str(a, " with ", b), {}, {values(a, a_alternates), values(b, !a_alternates)}});
    }
    const double winner = Largest ? 1 : -1;
    out.push_back({"single, a wins", {}, {Tensor::of({winner}, {1}), Tensor::of({0.0}, {1})}, {1}});
    out.push_back({"single, b wins", {}, {Tensor::of({-winner}, {1}), Tensor::of({0.0}, {1})}, {0}});
    return out;
  }
  static std::vector<Mutant<Var, Args>> mutants() {
    return {{"gradient to the input not taken",
             [](auto& b) {
               const Var zero = Tensor::scalar(0, b.dy().dtype());
               return Vars{where(taken(b), zero, b.dy()), where(taken(b), b.dy(), zero)};
             }},
            {"gradient to both", [](auto& b) {
               return Vars{b.dy(), b.dy()};
             }}};
  }

 private:
  static Tensor taken(const Backward<Var, Args>& b) {
    return detail::mask(name, b[0].value(), b[1].value(), [](auto x, auto y) { return takes_a(x, y); });
  }
};
using Maximum = PairExtreme<true>;
using Minimum = PairExtreme<false>;
inline Var maximum(const Var& a, const Var& b) { return apply<Maximum>({}, {a, b})[0]; }
inline Var minimum(const Var& a, const Var& b) { return apply<Minimum>({}, {a, b})[0]; }

}  // namespace bg
