// What the kernel tests share: awkward lengths, random data, distances in ulp, and running under several instruction
// sets.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "core/kernels/simd.h"
#include "core/rng.h"
#include "tests/support.h"

namespace bg::test {

inline const std::vector<int64_t> kLengths = {0, 1, 3, 7, 17, 1000003};

template <class T>
std::vector<T> normals(int64_t n, uint64_t seed, double scale = 1, double mean = 0) {
  Rng rng(seed);
  std::vector<T> x(n);
  for (T& v : x) v = T(mean + scale * rng.normal());
  return x;
}

/// Distance between neighbours of T at |x|, never below that of the smallest normal number; 1 ulp of T.
template <class T>
long double ulp(long double x) {
  const long double a = std::max(std::abs(x), static_cast<long double>(std::numeric_limits<T>::min()));
  return std::ldexp(static_cast<long double>(std::numeric_limits<T>::epsilon()), std::ilogb(a));
}

/// max |a - b| / max(1, max |b|); infinity when sizes differ or anything is not finite.
template <class A, class B>
double relative_error(const std::vector<A>& a, const std::vector<B>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  long double worst = 0, scale = 1;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, std::abs(static_cast<long double>(a[i]) - static_cast<long double>(b[i])));
    scale = std::max(scale, std::abs(static_cast<long double>(b[i])));
  }
  return static_cast<double>(worst / scale);
}

/// Calls f on every instruction set of this machine, and leaves the best one in use.
template <class F>
void on_each_simd_target(F&& f) {
  const auto targets = simd_targets();
  for (const auto& name : targets) {
    use_simd_target(name);
    f(name);
  }
  use_simd_target(targets.front());
}

}  // namespace bg::test
