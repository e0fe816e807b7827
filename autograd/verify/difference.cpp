#include "autograd/verify/difference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace bg::verifier {
namespace {

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kUlps = 4;  // rounding of a function's value, in units of its last place

// A pair of values, f(t) and f(-t): their change, their bend f(t) - 2 f(0) + f(-t), and how large they were.
struct Pair {
  std::vector<double> change, bend, size;
  bool finite = true;
};

Pair pair_at(const Line& at, double t, const std::vector<double>& middle) {
  Pair p{at(t), {}, {}, true};
  const std::vector<double> down = at(-t);
  p.size.resize(p.change.size());
  p.bend.resize(p.change.size());
  for (size_t k = 0; k < p.change.size(); ++k) {
    const double up = p.change[k];
    p.size[k] = std::max(std::abs(up), std::abs(down[k]));
    p.bend[k] = std::abs((up - middle[k]) + (down[k] - middle[k]));
    p.change[k] = up - down[k];
    p.finite = p.finite && std::isfinite(p.change[k]);
  }
  return p;
}

double largest(const std::vector<double>& x) {
  double top = 0;
  for (const double v : x) top = std::max(top, std::abs(v));
  return top;
}

}  // namespace

double Difference::relative_error() const {
  if (slope.empty()) return 0;
  const double e = largest(error), s = largest(slope);
  if (e == 0) return 0;
  return std::isfinite(e) && s > 0 ? e / s : kInfinite;
}

Difference difference(const Line& at, double tolerance, double step) {
  double h = step;
  const std::vector<double> middle = at(0);
  Pair p1 = pair_at(at, h, middle), p2 = pair_at(at, 2 * h, middle), p4 = pair_at(at, 4 * h, middle);
  const size_t n = middle.size();
  Difference out{std::vector<double>(n, 0.0), std::vector<double>(n, kInfinite), h};
  std::vector<double> gap_before(n, kInfinite);
  std::vector<bool> moves(n, false);
  int idle = 0;  // halvings that brought nothing
  double least = kInfinite;
  for (;; h /= 2) {
    double coarsest_rounding = 0;
    if (p1.finite && p2.finite && p4.finite) {
      out.h = h;
      for (size_t k = 0; k < n; ++k) {
        const double rounding = kUlps * kEps * std::max({p1.size[k], p2.size[k], p4.size[k]}) / h;
        const double fine = (8 * p1.change[k] - p2.change[k]) / (12 * h);
        const double coarse = (8 * p2.change[k] - p4.change[k]) / (24 * h);
        // The gap of a smooth function falls by 16 with each halving, and the extrapolation takes 14/15 of it away; a
        // gap that falls slower is noise.
        const double gap = std::abs(fine - coarse);
        double error = (std::isfinite(gap_before[k]) && gap <= gap_before[k] / 4 ? gap / 15 : gap) + rounding;
        // Its bend falls by 4. One that falls by 2 is a kink within reach: averaged over it, all differences may agree.
        const double bend = p1.bend[k] / h;
        if (bend > rounding && (p1.bend[k] > 0.35 * p2.bend[k] || p2.bend[k] > 0.35 * p4.bend[k])) error += bend;
        // values that stop moving although they moved over longer steps: rounding inside the function has eaten the
        // change
        const bool still = p1.change[k] == 0 && p2.change[k] == 0 && p4.change[k] == 0;
        moves[k] = moves[k] || !still;
        if (still && moves[k]) error = kInfinite;
        if (error < out.error[k]) {
          out.error[k] = error;
          out.slope[k] = fine + (fine - coarse) / 15;
        }
        gap_before[k] = gap;
        coarsest_rounding = std::max(coarsest_rounding, rounding);
      }
      if (out.relative_error() <= tolerance) return out;
      const double now = largest(out.error);
      idle = now < least ? 0 : idle + 1;
      least = std::min(least, now);
    }
    constexpr int kPatience = 4;
    if ((idle >= kPatience && coarsest_rounding > 0.1 * least) || h < kTolerance.least_step) return out;
    p4 = std::move(p2);
    p2 = std::move(p1);
    p1 = pair_at(at, h / 2, middle);
  }
}

Jump find_jump(const std::function<double(double t)>& at, double h) {
  constexpr double kShrink = 8, kRounding = 16;
  const double y0 = at(0);
  Jump jump;
  if (!std::isfinite(y0)) return jump;
  double gap[2], noise[2];
  for (int k = 0; k < 2; ++k, h /= kShrink) {
    const double up = at(h), down = at(-h);
    if (!std::isfinite(up) || !std::isfinite(down)) return jump;
    jump.before = (y0 - down) / h;
    jump.after = (up - y0) / h;
    gap[k] = std::abs(jump.after - jump.before);
    noise[k] = kRounding * kEps * std::max({std::abs(y0), std::abs(up), std::abs(down)}) / h;
  }
  const double slope = std::max(std::abs(jump.before), std::abs(jump.after));
  jump.found = gap[1] > noise[1] && gap[1] > 0.5 * gap[0] && gap[1] > kTolerance.jump * slope;
  return jump;
}

}  // namespace bg::verifier
