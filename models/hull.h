// How far a point lies from the convex hull of others: with it one sees whether a vector can be an average of values at
// all, which is all that one pass of attention can give.
#pragma once

#include <span>
#include <vector>

namespace bg {

struct HullDistance {
  double distance = 0;          ///< from the point to `nearest`, the closest point of the hull found
  double gap = 0;               ///< distance^2 exceeds the true one by at most this (duality gap)
  std::vector<double> weights;  ///< of the corners, at least 0 and of sum 1: they average to `nearest`
};

/// From `point` (d) to the hull of `corners` (n, d), row after row. Wolfe's algorithm (P. Wolfe, "Finding the nearest
/// point in a polytope", Mathematical Programming 11, 1976), which ends after finitely many steps; it stops at a gap of
/// 1e-12 times the largest squared distance from the point to a corner. Throws Error on no corners or sizes that do not
/// fit.
HullDistance distance_to_hull(std::span<const double> point, std::span<const double> corners);

}  // namespace bg
