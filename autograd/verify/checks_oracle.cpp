// V1 to V5 and V9: forward and backward against independent ways to the same numbers.
#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

constexpr double kSafety = 3;          // on the error bounds of differences, which are estimates
constexpr int64_t kMaxElements = 512;  // of an input that is gone through element by element: each is a reference run

// Inner products p and q that should agree: |p - q| over what rounding scales with.
double inner_error(double p, double q, double scale) { return scale == 0 ? std::abs(p - q) : std::abs(p - q) / scale; }

// What forward computes, or by convention the function whose derivative the backward is: floating outputs only.
std::vector<double> outputs_at(const Subject& s, const Tensors& in) {
  const Tensors out = s.forward(in, /*recording=*/false).out;
  if (!s.point.convention) return flatten(out);
  const Arrs<double> y = s.point.gradient_of(to_arrs<double>(in));
  std::vector<double> flat;
  for (size_t k = 0; k < y.size(); ++k)
    if (is_float(out[k].dtype())) flat.insert(flat.end(), y[k].v.begin(), y[k].v.end());
  return flat;
}

// J u by differences of the fast forward. Beside the error that the differences show, x + hu is rounded to the last
// place of x: the step is a little longer or shorter than h.
Difference outputs_along(const Subject& s, const Tensors& in, size_t input, const Tensor& u, double tolerance) {
  const std::vector<double> here = outputs_at(s, in);
  auto line = [&](double t) {
    if (t == 0) return here;
    try {
      return outputs_at(s, moved(in, input, u, t));
    } catch (const std::exception&) {  // a step out of the domain, which forward refuses
      return std::vector<double>(here.size(), std::numeric_limits<double>::quiet_NaN());
    }
  };
  Difference d = difference(line, tolerance);
  const double step_off = largest(in[input]) * 0x1p-51 / d.h;
  for (size_t k = 0; k < d.slope.size(); ++k) d.error[k] += step_off * std::abs(d.slope[k]);
  return d;
}

// The bound of the error of <v, slope>.
double bound_of(const std::vector<double>& v, const Difference& along) {
  double bound = 0;
  for (size_t k = 0; k < v.size(); ++k) bound += std::abs(v[k]) * along.error[k];
  return bound;
}

// Is there a slope, and is the difference sure enough of it to see an error?
bool sees(const std::vector<double>& v, const Difference& along) {
  const double scale = norm(v) * norm(along.slope);
  return norm(along.slope) > kTolerance.vacuous && kSafety * bound_of(v, along) <= kTolerance.visible * scale;
}

// Points a failed inner product of V2 to the element that is wrong.
void locate(Failure* f, const Point& point, const Forward& fwd, const Tensors& v, size_t input, const Tensor& g) {
  if (g.numel() > kMaxElements || g.numel() == 0 || point.inputs[input].domain == Domain::symmetric ||
      point.inputs[input].domain == Domain::simplex)
    return;
  const std::vector<double> a = g.to_vector<double>();
  const std::vector<double> b = exact_gradient(point, fwd, v, input).to_vector<double>();
  const Worst worst = worst_of(a, b);
  f->index = describe_index(g.shape(), worst.at);
  f->analytic = a[static_cast<size_t>(worst.at)];
  f->reference = b[static_cast<size_t>(worst.at)];
}

// Divides each element of the cotangent by how much its output moves, within six decades.
void balance(Tensors& v, const std::vector<double>& moves) {
  constexpr double kRange = 1e-6;
  double top = 0;
  for (const double m : moves) top = std::max(top, m);
  if (!(top > 0) || !std::isfinite(top)) return;
  size_t at = 0;
  for (Tensor& t : v) {
    if (!is_float(t.dtype())) continue;
    double* p = t.mutable_data<double>("cotangent");
    for (int64_t k = 0; k < t.numel(); ++k, ++at) p[k] /= std::max(moves[at] / top, kRange);
  }
}

}  // namespace

bool is_zero(const Subject& s, const Forward& f, const Draw& d, size_t i) {
  const Draw::Direction& dir = d.directions[i];
  if (!s.point.has.tangents || dir.ju_norm > kTolerance.vacuous * dir.u_norm) return false;
  if (dir.ju_norm == 0) return true;
  if (!s.point.has.wide) return dir.ju_norm <= kTolerance.zero * dir.u_norm;
  constexpr double kResolved = 1e-6;  // digits that long double confirms: small, but not rounding
  const std::vector<double> ju = directional(s.point, f.in, f.out, i, dir.u);
  const std::vector<long double> wide = directional<long double>(s.point, f.in, f.out, i, dir.u);
  std::vector<double> off(ju.size());
  for (size_t k = 0; k < ju.size(); ++k) off[k] = static_cast<double>(ju[k] - wide[k]);
  return norm(off) > kResolved * dir.ju_norm;
}

double forward_rounding(const Subject& s, const Forward& f, size_t output, const Tensor& reference) {
  const std::vector<double> a = f.out[output].to_vector<double>(), b = reference.to_vector<double>();
  const Worst worst = worst_of(a, b);
  if (!s.point.has.wide || worst.at < 0 || worst.error <= kTolerance.forward * largest(reference)) return 0;
  constexpr int kPoints = 4;
  constexpr double kUlp = 0x1p-52, kWithin = 32;
  auto value = [&](const Tensors& in) {
    return s.point.reference(to_arrs<long double>(in))[output].v[static_cast<size_t>(worst.at)];
  };
  const long double here = value(f.in);
  long double spread = std::abs(here - b[static_cast<size_t>(worst.at)]);
  Rng rng(0, output);
  for (int k = 0; k < kPoints; ++k)
    spread = std::max(spread, std::abs(value(perturbed(s.point, f.in, kUlp, rng)) - here));
  return kWithin * static_cast<double>(spread);
}

Draw make_draw(const Subject& s, const Forward& f, Rng& rng, bool balanced) {
  Draw d;
  d.v = random_cotangents(f.out, rng);
  d.directions.resize(f.in.size());
  std::vector<double> moves(flatten(f.out).size(), 0.0);
  std::vector<std::vector<double>> ju(f.in.size());
  for (size_t i : s.differentiable()) {
    Draw::Direction& dir = d.directions[i];
    dir.u = s.direction(i, Tensor::randn(f.in[i].shape(), rng, DType::f64));
    dir.u_norm = norm(flatten({dir.u}));
    if (!s.point.has.tangents) continue;
    ju[i] = directional(s.point, f.in, f.out, i, dir.u);
    dir.ju_norm = norm(ju[i]);
    for (size_t k = 0; k < ju[i].size(); ++k) moves[k] += std::abs(ju[i][k]);
  }
  if (balanced) balance(d.v, moves);
  if (s.unit() != 1)
    for (Tensor& t : d.v)
      if (is_float(t.dtype())) t = num::scale(t, s.unit());
  const std::vector<double> v = flatten(d.v);
  d.v_norm = norm(v);
  for (size_t i : s.differentiable())
    if (s.point.has.tangents) d.directions[i].v_ju = dot(v, ju[i]);
  return d;
}

Tensor exact_gradient(const Point& point, const Forward& f, const Tensors& v, size_t input) {
  const std::vector<double> cotangent = flatten(v);
  const Shape& shape = f.in[input].shape();
  std::vector<double> g(static_cast<size_t>(shape.numel()));
  for (size_t k = 0; k < g.size(); ++k) {
    std::vector<double> e(g.size(), 0.0);
    e[k] = 1;
    g[k] = dot(cotangent, directional(point, f.in, f.out, input, Tensor::of(std::move(e), shape)));
  }
  return Tensor::of(std::move(g), shape);
}

namespace {

// <v, J u> in long double, at the point and at points within rounding of it: how well conditioned the function is.
double conditioning(const Subject& s, const Forward& f, const Draw& d, size_t input) {
  if (!s.point.has.wide) return 0;
  constexpr int kPoints = 4;
  constexpr double kUlp = 0x1p-52, kWithin = 32;
  const Draw::Direction& dir = d.directions[input];
  const std::vector<double> v = flatten(d.v);
  auto product = [&](const Tensors& in) {
    const std::vector<long double> ju = directional<long double>(s.point, in, f.out, input, dir.u);
    long double sum = 0;
    for (size_t k = 0; k < ju.size(); ++k) sum += ju[k] * v[k];
    return sum;
  };
  const long double here = product(f.in);
  long double spread = std::abs(here - dir.v_ju);
  Rng rng(0, static_cast<uint64_t>(input));
  for (int k = 0; k < kPoints && s.point.kink.empty(); ++k)  // off a kink, the derivative is another one
    spread = std::max(spread, std::abs(product(perturbed(s.point, f.in, kUlp, rng)) - here));
  return kWithin * static_cast<double>(spread);
}

// What the op's own arithmetic loses where sums cancel, as dP - <dO, O> in a saturated row of attention: its error in
// f32, brought to double. A wrong formula is as wrong in f32 as it is in f64, and so hides nothing.
double cancellation(const Subject& s, const Forward& f, const Draw& d, size_t input) {
  constexpr double kWithin = 64, kUlpRatio = 0x1p-29;
  auto rounded = [](const Tensors& in, DType dtype) { return converted(converted(in, DType::f32), dtype); };
  const Subject own(s.point);
  try {
    const Tensors narrow = own.gradients(rounded(f.in, DType::f32), rounded(d.v, DType::f32));
    const Tensors wide = own.gradients(rounded(f.in, DType::f64), rounded(d.v, DType::f64));
    const std::vector<double> a = flatten({narrow[input]}), b = flatten({wide[input]});
    std::vector<double> off(a.size());
    for (size_t k = 0; k < a.size(); ++k) off[k] = a[k] - b[k];
    const double lost = norm(off) * d.directions[input].u_norm;
    return std::isfinite(lost) ? kWithin * kUlpRatio * lost : 0;
  } catch (const Error&) {  // an op for f64 alone
    return 0;
  }
}

// The backward of one half of a cotangent and that of the other add up to that of the whole, but for rounding: where y
// is saturated, y (dy - <y, dy>) is nothing else. A wrong formula is additive all the same, and so hides nothing.
double additivity(const Subject& s, const Forward& f, const Draw& d, size_t input) {
  constexpr double kWithin = 32;
  const Subject own(s.point);
  auto gradient = [&](const Tensors& v) { return flatten({own.backward(f, v, own.need_all())[input]}); };
  Rng rng(1, static_cast<uint64_t>(input));
  double worst = 0, size = d.v_norm;
  for (int k = 0; k < 3; ++k) {
    Tensors a, b;
    for (const Tensor& t : d.v) {
      a.push_back(t.clone());
      b.push_back(t.clone());
      if (!is_float(t.dtype())) continue;
      double *p = a.back().mutable_data<double>("half"), *q = b.back().mutable_data<double>("half");
      for (int64_t e = 0; e < t.numel(); ++e) (rng.uniform() < 0.5 ? p : q)[e] = 0;
    }
    const std::vector<double> x = gradient(a), y = gradient(b), whole = gradient(d.v);
    std::vector<double> off(x.size());
    for (size_t e = 0; e < x.size(); ++e) off[e] = (x[e] + y[e]) - whole[e];
    worst = std::max(worst, norm(off));
    size = std::max(size, norm(whole));
  }
  constexpr double kRounding = 1e-6;  // more than that is no rounding; V6 reports less
  return worst <= kRounding * size ? kWithin * worst * d.directions[input].u_norm : 0;
}

}  // namespace

double rounding_of(const Subject& s, const Forward& f, const Draw& d, size_t input) {
  std::optional<double>& known = d.directions[input].rounding;
  if (!known) known = conditioning(s, f, d, input) + cancellation(s, f, d, input) + additivity(s, f, d, input);
  return *known;
}

namespace {

// How the reference's derivative differs between both sides of the point, `t` along u away from it.
std::vector<double> jump(const Subject& s, const Forward& f, size_t input, const Tensor& u, double t) {
  std::vector<double> up = directional(s.point, moved(f.in, input, u, t), f.out, input, u);
  const std::vector<double> down = directional(s.point, moved(f.in, input, u, -t), f.out, input, u);
  for (size_t k = 0; k < up.size(); ++k) up[k] -= down[k];
  return up;
}

}  // namespace

bool kink_near(const Subject& s, const Forward& f, const Draw& d, size_t input, double error) {
  constexpr double kReach = 1e-6, kCloser = 1.0 / 16;
  const Draw::Direction& dir = d.directions[input];
  const double t = kReach * std::max(norm(flatten({f.in[input]})), 1.0) / dir.u_norm;
  const std::vector<double> wide = jump(s, f, input, dir.u, t), close = jump(s, f, input, dir.u, kCloser * t);
  const std::vector<double> v = flatten(d.v);
  double explained = 0;
  for (size_t k = 0; k < close.size(); ++k) explained += std::abs(v[k] * close[k]);
  return !(norm(close) <= norm(wide) / 2 || explained <= error / 2);
}

bool differences_agree(const Subject& s, const Forward& f, const Draw& d, size_t input, double gu) {
  const Draw::Direction& dir = d.directions[input];
  const std::vector<double> v = flatten(d.v);
  const Difference along = outputs_along(s, f.in, input, num::scale(dir.u, 1 / dir.u_norm), kTolerance.difference);
  const double slope = dir.u_norm * dot(v, along.slope), bound = kSafety * dir.u_norm * bound_of(v, along);
  return std::abs(gu - slope) <= bound && std::abs(dir.v_ju - slope) > 2 * bound;
}

bool can_see(const Subject& s, const Forward& f, const Draw& d, size_t input) {
  const Draw::Direction& dir = d.directions[input];
  if (!s.point.has.tangents)
    return sees(flatten(d.v), outputs_along(s, f.in, input, num::scale(dir.u, 1 / dir.u_norm), kTolerance.difference));
  return !is_zero(s, f, d, input) && rounding_of(s, f, d, input) <= kTolerance.visible * d.v_norm * dir.ju_norm;
}

void check_forward(Recorder& r, const Subject& s, const Forward& f) {
  if (!s.point.has.reference) {
    if (const std::string bad = describe_non_finite("output", f.out); !bad.empty())
      r.inconclusive(Step::V1, "a finite output", "", str(bad, " at the point itself: choose one inside the domain"));
    return;
  }
  const Arrs<double> want = s.point.reference(to_arrs<double>(f.in));
  if (want.size() != f.out.size()) {
    r.fail(Step::V1, "number of outputs", "", str(f.out.size(), " from forward, ", want.size(), " from reference"));
    return;
  }
  for (size_t k = 0; k < want.size(); ++k) {
    const std::string name = str("output ", k);
    const Shape& shape = f.out[k].shape();
    if (static_cast<int64_t>(want[k].v.size()) != shape.numel() || !(want[k].shape == shape)) {
      r.fail(Step::V1, "forward = reference", name, str("shape ", shape, " instead of ", want[k].shape));
      continue;
    }
    const Tensor reference = Tensor::of(want[k].v, shape);
    if (is_float(f.out[k].dtype()) && num::first_non_finite(reference) >= 0 &&
        num::first_non_finite(f.out[k]) == num::first_non_finite(reference)) {
      r.inconclusive(Step::V1, "a finite output", name,
                     str(name, " is ", describe_non_finite(reference),
                         " at the point itself, in forward and reference: "
                         "choose a point inside the domain"));
      continue;
    }
    if (!is_float(f.out[k].dtype())) {
      r.expect_close(Step::V1, "forward = reference", name, f.out[k], reference, 0);
      continue;
    }
    const double allowed =
        kTolerance.forward + forward_rounding(s, f, k, reference) / std::max(1.0, largest(reference));
    r.expect_close(Step::V1, "forward = reference", name, f.out[k], reference, allowed);
  }
}

void check_declared(Recorder& r, const Subject& s, const Forward& f, Rng& rng) {
  for (size_t i = 0; i < f.in.size(); ++i) {
    const In& in = s.point.inputs[i];
    if (in.differentiable || !in.constant.empty() || !f.in[i].defined() || !is_float(f.in[i].dtype())) continue;
    const Tensor u = s.direction(i, Tensor::randn(f.in[i].shape(), rng, DType::f64)).to(f.in[i].dtype());
    const double length = norm(flatten({u}));
    if (length == 0) continue;
    const std::vector<double> ju = s.point.has.tangents
                                       ? directional(s.point, f.in, f.out, i, u)
                                       : outputs_along(s, f.in, i, num::scale(u, 1 / length), 1e-3).slope;
    Failure* e = r.expect(Step::V9, "an input without a gradient does not move the outputs", in.name, 0, norm(ju),
                          norm(ju) / length, kTolerance.vacuous);
    if (e)
      e->note =
          "the outputs depend on it: give it a gradient, or declare it a constant by convention, with the reason: "
          "In{name, false, \"reason\"}";
  }
}

void check_exact(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  const Tensors g = s.backward(f, d.v, s.need_all());
  for (size_t i : s.differentiable()) check_exact(r, s, f, d, i, g[i]);
}

void check_exact(Recorder& r, const Subject& s, const Forward& f, const Draw& d, size_t i, const Tensor& g) {
  const std::string& name = s.point.inputs[i].name;
  const Draw::Direction& dir = d.directions[i];
  if (const int64_t bad = num::first_non_finite(g); bad >= 0) {
    Failure* e = r.fail(Step::V9, "a finite gradient", name, str("the gradient is ", g.flat(bad)));
    e->index = describe_index(g.shape(), bad);
    return;
  }
  const std::vector<double> gi = flatten({s.direction(i, g)});  // what lies across the domain has no meaning
  const double g_norm = norm(gi), gu = dot(gi, flatten({dir.u}));
  if (g.numel() == 0 || !s.point.has.tangents) return;
  if (s.declared_zero(i)) {
    // what dual numbers leave of a true zero is how far its sums cancel: the gradient's may leave as much
    constexpr double kWithin = 64;
    const double noise = is_zero(s, f, d, i) && dir.u_norm > 0 ? kWithin * dir.ju_norm / dir.u_norm : 0;
    const double zero = std::clamp(noise, kTolerance.zero, kTolerance.vacuous);
    r.expect(Step::V9, "declared zero gradient is zero", name, g_norm, 0, inner_error(g_norm, 0, d.v_norm), zero);
    Failure* e = r.expect(Step::V9, "declared zero gradient is zero by dual numbers", name, 0, dir.v_ju,
                          inner_error(0, dir.v_ju, d.v_norm * dir.u_norm), zero);
    if (e) e->note = "it is not zero: take it out of zero_grads; small gradients are compared at their own size";
    return;
  }
  if (is_zero(s, f, d, i)) {
    if (g_norm <= kTolerance.vacuous * d.v_norm)
      r.saw(i, false);
    else
      r.expect(Step::V2, "a gradient of zero", name, gu, dir.v_ju, g_norm, 0);
    return;
  }
  r.expect(Step::V9, "a gradient that is not zero", name, g_norm, g_norm, 0, 0);
  const double scale = d.v_norm * dir.ju_norm + g_norm * dir.u_norm;
  double error = inner_error(gu, dir.v_ju, scale);
  if (!(error <= kTolerance.exact)) {
    const double rounding = rounding_of(s, f, d, i);
    if (rounding > kTolerance.visible * scale && std::abs(gu - dir.v_ju) <= rounding) {
      r.skip("V2: a derivative that rounding swamps; another sample stands in");
      return r.saw(i, false);
    }
    error = inner_error(beyond(std::abs(gu - dir.v_ju), rounding), 0, scale);
  } else if (!dir.rounding) {
    dir.rounding = kTolerance.exact * scale;  // one gradient agrees so far: others need no more room
  }
  r.saw(i, true);
  OpReport& report = r.report();
  if (report.worst_sample < 0 || !(error <= report.count(Step::V2).worst)) report.worst_sample = s.point.index;
  Failure* e =
      r.expect(Step::V2, "<backward(v), u> = <v, J u> by dual numbers", name, gu, dir.v_ju, error, kTolerance.exact);
  if (e && r.explains()) locate(e, s.point, f, d.v, i, g);
}

void check_difference(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  constexpr std::string_view kWhat = "<backward(v), u> = <v, (f(x + hu) - ...) / h>";
  const Tensors g = s.backward(f, d.v, s.need_all());
  const std::vector<double> v = flatten(d.v);
  for (size_t i : s.differentiable()) {
    const Draw::Direction& dir = d.directions[i];
    if (s.declared_zero(i) || dir.u_norm == 0 || (s.point.has.tangents && is_zero(s, f, d, i))) continue;
    const std::string& name = s.point.inputs[i].name;
    const Tensor u = num::scale(dir.u, 1 / dir.u_norm);  // a long direction would leave the formula's range
    const Difference along = outputs_along(s, f.in, i, u, kTolerance.difference);
    const std::vector<double> gi = flatten({s.direction(i, g[i])});
    const double p = dot(gi, flatten({u})), q = dot(v, along.slope), scale = d.v_norm * norm(along.slope) + norm(gi);
    const double bound = kSafety * bound_of(v, along);
    if (!s.point.has.tangents) r.saw(i, sees(v, along));
    if (!(bound <= kTolerance.visible * scale)) {
      const Jump jump = find_jump([&](double t) { return dot(v, outputs_at(s, moved(f.in, i, u, t))); }, along.h);
      if (jump.found && (!s.point.has.tangents || kink_near(s, f, d, i, 0)))
        r.inconclusive(Step::V3, kWhat, name,
                       str("the slope jumps from ", jump.before, " to ", jump.after,
                           " at the point: a kink or a tie; declare the convention there with Sample::at_kink, or move "
                           "the point"));
      else if (s.point.has.tangents)
        r.skip("V3: differences of the forward do not converge, or drown in rounding; dual numbers stand in");
      else
        r.inconclusive(Step::V3, kWhat, name,
                       std::isfinite(bound) ? "the difference has not converged, or rounding drowns it: choose a point "
                                              "at which the function bends less, or outputs without a large offset"
                                            : "the function is not finite around the point: move it into the domain");
      continue;
    }
    double error = inner_error(p, q, scale);
    if (error > kTolerance.difference) error = beyond(error, bound / scale);
    Failure* e = r.expect(Step::V3, kWhat, name, p, q, error, kTolerance.difference);
    if (e) e->fd_step = along.h;
  }
}

void check_kink(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  r.skip("V3, V5: differences, at a point that is declared a kink");
  const std::vector<double> v = flatten(d.v);
  for (size_t i : s.differentiable()) {
    const Draw::Direction& dir = d.directions[i];
    if (dir.u_norm == 0) continue;
    const Tensor u = num::scale(dir.u, 1 / dir.u_norm);
    auto line = [&](double t) {
      try {
        return dot(v, outputs_at(s, t == 0 ? f.in : moved(f.in, i, u, t)));
      } catch (const std::exception&) {  // the end of a domain
        return std::numeric_limits<double>::quiet_NaN();
      }
    };
    // a domain that ends at the point, as that of sqrt at 0, has one side only
    constexpr double kNear = 1e-6;
    if (find_jump(line, kTolerance.step).found || !std::isfinite(line(kNear) - line(-kNear))) return;
  }
  r.inconclusive(Step::V3, "a point that is declared a kink is one", "",
                 "no slope jumps here: differences apply, so leave at_kink away, or move the point onto the kink");
}

void check_compose(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  const Tensors g = s.backward(f, d.v, s.need_all());
  const std::vector<size_t> wanted = s.differentiable();
  Vars in, leaves;
  for (size_t i = 0; i < f.in.size(); ++i) {
    const bool leaf = std::find(wanted.begin(), wanted.end(), i) != wanted.end();
    in.emplace_back(f.in[i], leaf);
    if (leaf) leaves.push_back(in.back());
  }
  const Vars out = s.point.compose(in);
  if (out.size() != f.out.size()) {
    r.fail(Step::V4, "number of outputs", "", str(out.size(), " from compose, ", f.out.size(), " from forward"));
    return;
  }
  Vars reached, cotangents;
  for (size_t k = 0; k < out.size(); ++k) {
    r.expect_close(Step::V4, "compose computes the same outputs", str("output ", k), f.out[k], out[k].value(),
                   kTolerance.compose);
    if (!out[k].requires_grad()) continue;
    reached.push_back(out[k]);
    cotangents.emplace_back(d.v[k]);
  }
  if (leaves.empty() || reached.empty()) return;
  const Vars want = grad(reached, leaves, cotangents);
  for (size_t k = 0; k < wanted.size(); ++k)
    r.expect_close(Step::V4, "backward = gradient of compose", s.point.inputs[wanted[k]].name,
                   s.direction(wanted[k], g[wanted[k]]), s.direction(wanted[k], want[k].value()), kTolerance.compose);
}

void check_jacobian(Recorder& r, const Subject& s, const Forward& f) {
  // every row of the Jacobian: an element of an output
  struct Row {
    size_t output;
    int64_t element;
  };
  std::vector<Row> rows;
  for (size_t k = 0; k < f.out.size(); ++k)
    for (int64_t j = 0; is_float(f.out[k].dtype()) && j < f.out[k].numel(); ++j) {
      rows.push_back({k, j});
      if (rows.size() > static_cast<size_t>(kTolerance.max_jacobian)) return;
    }
  std::vector<size_t> wanted;
  for (size_t i : s.differentiable())
    if (f.in[i].numel() > 0 && f.in[i].numel() <= kTolerance.max_jacobian) wanted.push_back(i);
  if (wanted.empty() || rows.empty()) return;
  std::vector<Tensors> analytic(rows.size());
  for (size_t row = 0; row < rows.size(); ++row) {
    Tensors v;
    for (const Tensor& y : f.out) v.push_back(Tensor::zeros(y.shape(), y.dtype()));
    v[rows[row].output].mutable_data<double>("one-hot cotangent")[rows[row].element] = s.unit();
    analytic[row] = s.backward(f, v, s.need_all());
  }
  for (size_t i : wanted) {
    const Shape& shape = f.in[i].shape();
    struct Entry {
      size_t row = 0;
      int64_t column = 0;
      double analytic = 0, numeric = 0, bound = 0, h = 0;
    };
    std::vector<Entry> entries;
    double top = 0;
    for (int64_t j = 0; j < shape.numel(); ++j) {
      Tensor u = Tensor::zeros(shape, DType::f64);
      u.mutable_data<double>("one-hot direction")[j] = 1;
      u = s.direction(i, u);
      const Difference column = outputs_along(s, f.in, i, u, kTolerance.jacobian);
      for (size_t row = 0; row < rows.size(); ++row) {
        const double a = num::dot(analytic[row][i], u) / s.unit(), b = column.slope[row];
        if (std::isfinite(column.error[row])) top = std::max(top, std::abs(b));
        entries.push_back({row, j, a, b, kSafety * column.error[row], column.h});
      }
    }
    // Do dual numbers confirm the entry? Forward has the reference's values, so the difference has met a kink.
    auto exact = [&](size_t row, int64_t column, double entry) {
      if (!s.point.has.tangents) return false;
      Tensor u = Tensor::zeros(shape, DType::f64);
      u.mutable_data<double>("one-hot direction")[column] = 1;
      const double dual = directional(s.point, f.in, f.out, i, s.direction(i, u))[row];
      return std::abs(entry - dual) <= kTolerance.exact * std::max(top, std::abs(dual));
    };
    Entry at;
    double worst = -1;
    for (const Entry& e : entries) {
      const double scale = top > 0 ? top : 1;
      if (!(e.bound <= kTolerance.visible * scale)) {
        r.skip("V5: entries of the Jacobian whose difference does not converge, or drowns in rounding");
        continue;
      }
      double error = std::abs(e.analytic - e.numeric) / scale;
      if (error > kTolerance.jacobian) error = beyond(error, e.bound / scale);
      if (!(error <= kTolerance.jacobian) && exact(e.row, e.column, e.analytic)) {
        r.skip("V5: entries of the Jacobian with a kink within reach of the difference");
        continue;
      }
      if (worst >= 0 && error <= worst) continue;
      worst = error;
      at = e;
      if (std::isnan(error)) break;
    }
    if (worst == -1) continue;
    Failure* e = r.expect(Step::V5, "Jacobian, every element by differences", s.point.inputs[i].name, at.analytic,
                          at.numeric, worst, kTolerance.jacobian);
    if (!e) continue;
    e->fd_step = at.h;
    e->index = str(describe_index(shape, at.column), ", output ", rows[at.row].output, " at ",
                   describe_index(f.out[rows[at.row].output].shape(), rows[at.row].element));
  }
}

}  // namespace bg::verifier
