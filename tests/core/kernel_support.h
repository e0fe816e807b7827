// What the kernel tests share: awkward lengths, random data, distances in ulp, and running under several thread counts
// and instruction sets.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/kernels/simd.h"
#include "core/parallel.h"
#include "core/rng.h"
#include "tests/catch.h"

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

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
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

/// Requires that run() (which returns a vector) gives the same bits on 1, 2 and 4 threads, all of them at work.
template <class F>
void check_same_bits_for_threads(F&& run) {
  const int before = num_threads();
  set_num_threads(1);
  const auto one = run();
  for (int threads : {2, 4}) {
    set_num_threads(threads);
    reset_distinct_workers();
    const GatherWorkers gather;
    CHECK(same_bits(one, run()));
    CHECK(distinct_workers() == threads);
  }
  set_num_threads(before);
}

}  // namespace bg::test
