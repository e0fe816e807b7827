// Matchers for tests: text in exceptions, and numbers with explicit tolerances where NaN always fails. [R40]
#pragma once

#include <cmath>

#include "tests/catch.h"

#if __has_include(<catch2/catch_test_macros.hpp>)
inline auto Contains(const std::string& s) { return Catch::Matchers::ContainsSubstring(s); }
#else
using Catch::Matchers::Contains;
#endif

/// |a - b| <= atol + rtol |b|; false when either is NaN.
inline bool close(double a, double b, double rtol, double atol = 0) {
  return std::abs(a - b) <= atol + rtol * std::abs(b);
}
