// V7: forward and backward in f32 against f64 at the same (f32-rounded) point, element by element. What f32 must lose
// is measured, not assumed: in f64, inputs and cotangents are moved by up to 2^-24 of themselves, and a multiple of the
// spread that this causes is allowed, so that cancellation in right code is no alarm. An op that is written for f64
// alone and says so by an error is not wrong: the step does not apply.
#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

constexpr double kUlp = 0x1p-24;     // half a unit in the last place of f32, relatively
constexpr double kLargest = 1e36;    // beyond it, f32 overflows in whatever comes next
constexpr double kSmallest = 1e-36;  // below it, f32 loses digits
constexpr double kVanished = 1e-13;  // an output below this share of the inputs may be their rounding
constexpr double kWithin = 64;       // of the spread of a few random perturbations

struct Results {
  Tensors out, g;
};

Results results(const Subject& s, const Tensors& in, const Tensors& v) {
  const Forward f = s.forward(in);
  return {f.out, s.backward(f, v, s.need_all())};
}

bool in_range(const Tensors& tensors) {
  for (const double x : flatten(tensors))
    if (!(std::abs(x) < kLargest)) return false;
  return true;
}

// Do the numbers differ in size by more than random normal ones do? Their least tenth counts, not the single least one.
bool spans_decades(const Tensors& tensors) {
  constexpr double kDecades = 1e4;
  for (const Tensor& t : tensors) {
    std::vector<double> sizes;
    for (const double x : flatten({t}))
      if (x != 0) sizes.push_back(std::abs(x));
    if (sizes.empty()) continue;
    std::sort(sizes.begin(), sizes.end());
    if (sizes.back() > kDecades * sizes[sizes.size() / 10]) return true;
  }
  return false;
}

void widen(std::vector<double>& spread, const Tensor& here, const Tensor& there) {
  const std::vector<double> a = here.to_vector<double>(), b = there.to_vector<double>();
  spread.resize(a.size(), 0.0);
  for (size_t k = 0; k < a.size(); ++k) spread[k] = std::max(spread[k], std::abs(a[k] - b[k]));
}

// |a - b| <= bound |b| + what the perturbations explain, for every element. `floor`: the size of the numbers whose sum
// a gradient of zero is.
void expect_near(Recorder& r, std::string_view what, std::string_view name, const Tensor& narrow, const Tensor& wide,
                 const std::vector<double>& spread, double share, double bound, double floor = 0) {
  if (!is_float(wide.dtype()) || wide.numel() == 0) return;
  const std::vector<double> a = narrow.to_vector<double>(), b = wide.to_vector<double>();
  double top = floor, worst = 0;
  for (const double e : b) top = std::max(top, std::abs(e));
  const double tiny = kSmallest * std::max(1.0, top);
  size_t at = 0;
  for (size_t k = 0; k < b.size(); ++k) {
    const double off = std::max(0.0, std::abs(a[k] - b[k]) - kWithin * spread[k] - tiny);
    const double error = std::isnan(a[k]) ? a[k] : off == 0 ? 0 : off / std::max(std::abs(b[k]), share * top);
    if (error <= worst) continue;
    worst = error;
    at = k;
    if (std::isnan(error)) break;
  }
  Failure* f = r.expect(Step::V7, what, name, a[at], b[at], worst, bound);
  if (f) f->index = describe_index(wide.shape(), static_cast<int64_t>(at));
}

// Is an output that is far smaller than the inputs nothing but their rounding (the mean of what is centred)? Not when
// long double confirms its digits (softplus far below zero).
bool rounding_alone(const Subject& s, const Tensors& in, const Tensor& out, size_t k) {
  constexpr double kConfirmed = 1e-6;
  double most = 0;
  for (const Tensor& x : in) most = std::max(most, largest(x));
  if (largest(out) >= kVanished * most) return false;
  if (!s.point.has.wide) return true;
  const Arr<long double> exact = s.point.reference(to_arrs<long double>(in))[k];
  double off = 0;
  for (int64_t e = 0; e < out.numel(); ++e)
    off = std::max(off, std::abs(static_cast<double>(out.flat(e) - exact.v[static_cast<size_t>(e)])));
  return !(off <= kConfirmed * largest(out));
}

// A threshold or a clamp in the f32 branch alone.
void scales(Recorder& r, const Subject& s, const Tensors& x, const Tensors& v, const Tensors& g, double bound) {
  constexpr double kFar = 0x1p30;
  if (!r.entry().nonlinear.empty()) return;
  for (const double by : {kFar, 1 / kFar}) {
    Tensors scaled;
    for (const Tensor& t : v) scaled.push_back(is_float(t.dtype()) ? num::scale(t, by) : t);
    const Tensors got = s.gradients(x, scaled);
    for (size_t i : s.differentiable()) {
      const Tensor a = num::scale(got[i].to(DType::f64), 1 / by);
      const double top = largest(g[i]);
      if (top * by > kLargest || top * by < kSmallest / bound) continue;  // nothing, or f32 cannot hold it
      r.expect_close(
          Step::V7,
          str("f32, linear in the cotangent: B(2^", by > 1 ? "" : "-", "30 v) = 2^", by > 1 ? "" : "-", "30 B(v)"),
          s.point.inputs[i].name, a, g[i].to(DType::f64), bound, s.declared_zero(i) ? s.unit() : 0);
    }
  }
}

bool refuses_f32(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  try {
    s.gradients(converted(f.in, DType::f32), converted(d.v, DType::f32));
    return false;
  } catch (const Error& e) {
    r.report().na["V7"] = str("refuses f32: ", e.what());
    return true;
  }
}

}  // namespace

void check_precision(Recorder& r, const Subject& s, const Forward& f, const Draw& d, double bound, Rng& rng) {
  if (refuses_f32(r, s, f, d)) return;
  const Tensors x = converted(f.in, DType::f32), v = converted(d.v, DType::f32);
  const Tensors x64 = converted(x, DType::f64), v64 = converted(v, DType::f64);
  if (!in_range(f.in)) return r.skip("V7: beyond the range of f32");
  const Results wide = results(s, x64, v64);
  if (!in_range(wide.out) || !in_range(wide.g)) return r.skip("V7: beyond the range of f32");
  const Results narrow = results(s, x, v);
  std::vector<std::vector<double>> out_spread(wide.out.size()), g_spread(wide.g.size());
  for (int k = 0; k < (r.options().quick ? 2 : 4); ++k) {
    const Results there = results(s, perturbed(s.point, x64, kUlp, rng), perturbed(v64, kUlp, rng));
    for (size_t i = 0; i < wide.out.size(); ++i)
      if (is_float(wide.out[i].dtype())) widen(out_spread[i], wide.out[i], there.out[i]);
    for (size_t i : s.differentiable()) widen(g_spread[i], wide.g[i], there.g[i]);
  }
  // An element below a tenth of its tensor's largest is measured in tenths of that: larger terms add up to it. Where
  // the numbers span decades, every element counts at its own size.
  const double share = spans_decades(x64) ? 0 : 0.1;
  for (size_t k = 0; k < wide.out.size(); ++k)
    if (is_float(wide.out[k].dtype()) && rounding_alone(s, x64, wide.out[k], k))
      r.skip("V7: an output that is zero but for rounding");
    else
      expect_near(r, "f32 forward = f64 forward", str("output ", k), narrow.out[k], wide.out[k], out_spread[k], share,
                  bound);
  for (size_t i : s.differentiable())
    expect_near(r, "f32 backward = f64 backward", s.point.inputs[i].name, narrow.g[i], wide.g[i], g_spread[i], share,
                bound, s.declared_zero(i) || is_zero(s, f, d, i) ? s.unit() : 0);
  scales(r, s, x, v, narrow.g, bound);
}

}  // namespace bg::verifier
