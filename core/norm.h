// 2-norms that neither overflow nor vanish where the squares of their numbers do.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>

namespace bg {

/// The square root of `squares`, a sum of squares in double. Where it left the range of normal numbers, calls
/// `largest()` for the largest magnitude and `scaled(s)` for the sum of squares of all numbers times s, a power of two.
/// Infinite only when a number is, or when the norm itself is beyond double. NaN when a number is.
template <class Largest, class Scaled>
double norm_of_squares(double squares, Largest&& largest, Scaled&& scaled) {
  constexpr double kLeast = 1e-280;  // above it, squares that vanished are beyond the last digit
  if (std::isfinite(squares) && squares >= kLeast) return std::sqrt(squares);
  const double top = largest();
  if (!std::isfinite(top) || top == 0) return top;
  int exponent = 0;
  std::frexp(top, &exponent);
  exponent = std::clamp(exponent, -1000, 1000);  // 2^1074 is no double
  return std::ldexp(std::sqrt(scaled(std::ldexp(1, -exponent))), exponent);
}

/// The 2-norm of x, summed from front to back.
inline double norm2(std::span<const double> x) {
  auto squares = [x](double scale) {
    double sum = 0;
    for (const double v : x) sum += (v * scale) * (v * scale);
    return sum;
  };
  auto largest = [x] {
    double top = 0;
    for (const double v : x) top = std::isnan(v) ? v : std::max(top, std::abs(v));
    return top;
  };
  return norm_of_squares(squares(1), largest, squares);
}

}  // namespace bg
