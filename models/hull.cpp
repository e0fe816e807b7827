#include "models/hull.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/error.h"
#include "core/norm.h"

namespace bg {
namespace {

using Vector = std::vector<double>;

double dot(std::span<const double> a, std::span<const double> b) {
  double s = 0;
  for (size_t i = 0; i < a.size(); ++i) s += a[i] * b[i];
  return s;
}

// The corners as seen from the point, the farthest at distance 1.
struct Corners {
  size_t d = 0, n = 0;
  double scale = 0;
  Vector data;

  std::span<const double> operator[](size_t j) const { return {data.data() + j * d, d}; }
};

Corners seen_from(std::span<const double> point, std::span<const double> corners) {
  Corners c{point.size(), corners.size() / point.size(), 0, Vector(corners.begin(), corners.end())};
  for (size_t i = 0; i < c.data.size(); ++i) c.data[i] -= point[i % c.d];
  for (size_t j = 0; j < c.n; ++j) c.scale = std::max(c.scale, norm2(c[j]));
  if (c.scale > 0)
    for (double& x : c.data) x /= c.scale;
  return c;
}

// Solves m y = b for a positive definite m (k, k) by Cholesky; false when m is not, to working precision.
bool solve(Vector m, Vector& b) {
  constexpr double kSmallest = 1e-14;  // of a pivot, relative
  const size_t k = b.size();
  for (size_t i = 0; i < k; ++i)
    for (size_t j = 0; j <= i; ++j) {
      const double whole = m[i * k + j];
      double s = whole;
      for (size_t l = 0; l < j; ++l) s -= m[i * k + l] * m[j * k + l];
      if (i == j && !(s > kSmallest * whole)) return false;
      m[i * k + j] = i == j ? std::sqrt(s) : s / m[j * k + j];
    }
  for (size_t i = 0; i < k; ++i) {
    for (size_t l = 0; l < i; ++l) b[i] -= m[i * k + l] * b[l];
    b[i] /= m[i * k + i];
  }
  for (size_t i = k; i-- > 0;) {
    for (size_t l = i + 1; l < k; ++l) b[i] -= m[l * k + i] * b[l];
    b[i] /= m[i * k + i];
  }
  return true;
}

// A convex combination of some corners.
struct Combination {
  std::vector<size_t> chosen;
  Vector weights;

  Vector point(const Corners& c) const {
    Vector x(c.d, 0);
    for (size_t k = 0; k < chosen.size(); ++k)
      for (size_t i = 0; i < c.d; ++i) x[i] += weights[k] * c[chosen[k]][i];
    return x;
  }
  bool has(size_t j) const { return std::find(chosen.begin(), chosen.end(), j) != chosen.end(); }
  void add(size_t j) {
    chosen.push_back(j);
    weights.push_back(0);
  }
  void drop(size_t k) {
    chosen.erase(chosen.begin() + static_cast<std::ptrdiff_t>(k));
    weights.erase(weights.begin() + static_cast<std::ptrdiff_t>(k));
  }
};

// Weights of sum 1 and any sign that bring the chosen corners nearest to the origin: (S S^T + 1 1^T) u = 1, w = u / sum
// u. Empty when the corners are affinely dependent.
Vector affine_weights(const Corners& c, const std::vector<size_t>& chosen) {
  const size_t k = chosen.size();
  Vector m(k * k), u(k, 1);
  for (size_t i = 0; i < k; ++i)
    for (size_t j = 0; j <= i; ++j) m[i * k + j] = m[j * k + i] = 1 + dot(c[chosen[i]], c[chosen[j]]);
  if (!solve(std::move(m), u)) return {};
  double sum = 0;
  for (double x : u) sum += x;
  for (double& x : u) x /= sum;
  return u;
}

// Moves to the point of the chosen corners' hull that is nearest to the origin: towards the affine one until a weight
// would turn negative, without that corner again, and so on. False when the newest corner depends on the others.
bool settle(const Corners& c, Combination& now) {
  constexpr double kZero = 1e-14;
  while (true) {
    const Vector target = affine_weights(c, now.chosen);
    if (target.empty()) return false;
    double step = 1;
    for (size_t k = 0; k < target.size(); ++k)
      if (target[k] < kZero) step = std::min(step, now.weights[k] / (now.weights[k] - target[k]));
    for (size_t k = 0; k < target.size(); ++k) now.weights[k] += step * (target[k] - now.weights[k]);
    if (step == 1) return true;
    for (size_t k = target.size(); k-- > 0;)
      if (now.weights[k] < kZero) now.drop(k);
  }
}

}  // namespace

HullDistance distance_to_hull(std::span<const double> point, std::span<const double> corners) {
  BG_CHECK(!point.empty() && !corners.empty() && corners.size() % point.size() == 0, "hull", "sizes do not fit",
           str("a point of ", point.size(), " numbers, corners of ", corners.size(), " in all"),
           "one corner or more, each as long as the point");
  constexpr double kGap = 1e-12;
  const Corners c = seen_from(point, corners);
  Combination now;
  size_t first = 0;
  for (size_t j = 1; j < c.n; ++j)
    if (dot(c[j], c[j]) < dot(c[first], c[first])) first = j;
  now.add(first);
  now.weights[0] = 1;

  Combination before;
  double squared = 0, gap = 0;
  for (size_t step = 0, most = 100 * (c.d + 2); step < most; ++step) {
    const Vector x = now.point(c);
    if (step > 0 && !(dot(x, x) < squared)) {  // nothing is left to gain but rounding
      now = before;
      break;
    }
    squared = dot(x, x);
    size_t next = 0;  // the corner farthest towards the origin
    double least = dot(x, c[0]);
    for (size_t j = 1; j < c.n; ++j)
      if (const double along = dot(x, c[j]); along < least) {
        least = along;
        next = j;
      }
    gap = squared - least;
    if (gap <= kGap || now.has(next)) break;
    before = now;
    now.add(next);
    if (!settle(c, now)) {
      now = before;
      break;
    }
  }
  HullDistance result{std::sqrt(squared) * c.scale, std::max(0.0, gap) * c.scale * c.scale, Vector(c.n, 0)};
  for (size_t k = 0; k < now.chosen.size(); ++k) result.weights[now.chosen[k]] = now.weights[k];
  return result;
}

}  // namespace bg
