// Derivatives by finite differences that know how good they are: the step shrinks until the difference has converged,
// stays where the function is finite, and every slope comes with a bound of its error. They depend on the function
// alone, never on the gradient under test.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "autograd/verify/tolerances.h"

namespace bg::verifier {

/// A function along a line: its values at the distance t from the point.
using Line = std::function<std::vector<double>(double t)>;

/// d at / dt at 0, for each value.
struct Difference {
  std::vector<double> slope;
  std::vector<double> error;  ///< bound of what truncation and rounding leave in it; infinite where nothing was finite
  double h = 0;               ///< the last step taken

  /// The largest error over the largest slope; infinite where no step gave finite values, 0 where there is no value.
  double relative_error() const;
};

/// The 4-point formula (8 (f(h) - f(-h)) - (f(2h) - f(-2h))) / 12h with one step of Richardson's extrapolation. Halves
/// the step, from `step` on, until the bound of every error is below `tolerance` times the largest slope, or rounding
/// outweighs what halving could still bring; each value keeps its best slope. A step whose points are not all finite
/// (the end of a domain) is passed over.
Difference difference(const Line& at, double tolerance, double step = kTolerance.step);

/// Where a line's slope jumps at the point itself: a kink or a tie.
struct Jump {
  bool found = false;
  double before = 0, after = 0;  ///< the slopes on the two sides
};

/// Compares the slopes on the two sides at steps around `h` and below: the gap of a smooth function falls with the
/// step, that at a kink stays.
Jump find_jump(const std::function<double(double t)>& at, double h);

}  // namespace bg::verifier
