// Dual numbers: a value and its derivative along one direction. Running a formula on them gives the exact directional
// derivative - the oracle that every hand-written backward is compared with.
#pragma once

#include <cmath>
#include <numbers>

namespace bg {

template <class T>
struct Dual {
  T v{};  // value
  T d{};  // derivative

  constexpr Dual() = default;
  constexpr Dual(T value) : v(value) {}  // NOLINT: constants mix freely with duals
  constexpr Dual(T value, T derivative) : v(value), d(derivative) {}
  template <class U>
  requires(std::is_arithmetic_v<U> && !std::is_same_v<U, T>) constexpr Dual(U value) : v(static_cast<T>(value)) {}

  friend Dual operator+(Dual a, Dual b) { return {a.v + b.v, a.d + b.d}; }
  friend Dual operator-(Dual a, Dual b) { return {a.v - b.v, a.d - b.d}; }
  friend Dual operator*(Dual a, Dual b) { return {a.v * b.v, a.d * b.v + a.v * b.d}; }
  friend Dual operator/(Dual a, Dual b) { return {a.v / b.v, (a.d - a.v / b.v * b.d) / b.v}; }
  friend Dual operator-(Dual a) { return {-a.v, -a.d}; }
  Dual& operator+=(Dual b) { return *this = *this + b; }
  Dual& operator-=(Dual b) { return *this = *this - b; }
  Dual& operator*=(Dual b) { return *this = *this * b; }
  Dual& operator/=(Dual b) { return *this = *this / b; }
  friend bool operator<(Dual a, Dual b) { return a.v < b.v; }
  friend bool operator>(Dual a, Dual b) { return a.v > b.v; }
  friend bool operator<=(Dual a, Dual b) { return a.v <= b.v; }
  friend bool operator>=(Dual a, Dual b) { return a.v >= b.v; }
  friend bool operator==(Dual a, Dual b) { return a.v == b.v; }
};

/// Scalar functions that references use: on float, double, long double and Dual alike. A namespace of its own keeps
/// them apart from the ops of the same names on Vars.
namespace sc {

template <class T>
T exp(T x) {
  return std::exp(x);
}
template <class T>
T log(T x) {
  return std::log(x);
}
template <class T>
T log1p(T x) {
  return std::log1p(x);
}
template <class T>
T sqrt(T x) {
  return std::sqrt(x);
}
template <class T>
T tanh(T x) {
  return std::tanh(x);
}
template <class T>
T sin(T x) {
  return std::sin(x);
}
template <class T>
T cos(T x) {
  return std::cos(x);
}
template <class T>
T erf(T x) {
  return std::erf(x);
}
template <class T>
T abs(T x) {
  return std::abs(x);
}
template <class T>
T pow(T x, T y) {
  return std::pow(x, y);
}

template <class T>
Dual<T> exp(Dual<T> x) {
  const T e = std::exp(x.v);
  return {e, e * x.d};
}
template <class T>
Dual<T> log(Dual<T> x) {
  return {std::log(x.v), x.d / x.v};
}
template <class T>
Dual<T> log1p(Dual<T> x) {
  return {std::log1p(x.v), x.d / (1 + x.v)};
}
template <class T>
Dual<T> sqrt(Dual<T> x) {
  const T r = std::sqrt(x.v);
  return {r, x.d / (2 * r)};
}
template <class T>
Dual<T> tanh(Dual<T> x) {
  const T t = std::tanh(x.v);
  return {t, (1 - t * t) * x.d};
}
template <class T>
Dual<T> sin(Dual<T> x) {
  return {std::sin(x.v), std::cos(x.v) * x.d};
}
template <class T>
Dual<T> cos(Dual<T> x) {
  return {std::cos(x.v), -std::sin(x.v) * x.d};
}
template <class T>
Dual<T> erf(Dual<T> x) {
  return {std::erf(x.v), 2 / std::sqrt(std::numbers::pi_v<T>) * std::exp(-x.v * x.v) * x.d};
}
template <class T>
Dual<T> abs(Dual<T> x) {
  return x.v < 0 ? -x : x;
}
template <class T>
Dual<T> pow(Dual<T> x, Dual<T> y) {
  const T p = std::pow(x.v, y.v);
  T d = y.v == 0 ? T{0} : y.v * std::pow(x.v, y.v - 1) * x.d;
  if (y.d != 0) d += p * std::log(x.v) * y.d;
  return {p, d};
}

template <class S>
S sigmoid(S x) {
  return x < S(0) ? exp(x) / (S(1) + exp(x)) : S(1) / (S(1) + exp(-x));
}

/// The plain value inside.
template <class T>
T value(T x) {
  return x;
}
template <class T>
T value(Dual<T> x) {
  return x.v;
}

}  // namespace sc
}  // namespace bg
