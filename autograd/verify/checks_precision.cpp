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
  if (largest(out) == 0) return true;
  if (largest(out) >= kVanished * most) return false;
  if (!s.point.has.wide) return true;
  const Arr<long double> exact = s.point.reference(to_arrs<long double>(in))[k];
  double off = 0;
  for (int64_t e = 0; e < out.numel(); ++e)
    off = std::max(off, std::abs(static_cast<double>(out.flat(e) - exact.v[static_cast<size_t>(e)])));
  return !(off <= kConfirmed * largest(out));
}

// f32 with f64 at one point. `how`: where that is.
class Comparison {
 public:
  Comparison(Recorder& r, const Subject& s, std::string how, const Tensors& in, const Tensors& cotangents)
      : r_(r),
        s_(s),
        how_(std::move(how)),
        x_(converted(in, DType::f32)),
        v_(converted(cotangents, DType::f32)),
        x64_(converted(x_, DType::f64)),
        v64_(converted(v_, DType::f64)) {}

  /// False: beyond what f32 can hold.
  bool in_range() {
    if (!verifier::in_range(x64_)) return false;
    wide_ = results(s_, x64_, v64_);
    return verifier::in_range(wide_.out) && verifier::in_range(wide_.g);
  }
  const Results& wide() const { return wide_; }
  const Tensors& narrow_gradients() const { return narrow_.g; }
  const Tensors& inputs() const { return x_; }
  const Tensors& wide_inputs() const { return x64_; }
  const Tensors& cotangents() const { return v_; }

  using Of = std::function<bool(size_t input)>;
  /// `share`: an element below this share of its tensor's largest is measured in that: larger terms add up to it.
  /// `zero`: inputs whose gradient is zero but for rounding; `left_out`: those of which only NaN would be an error.
  void compare(double bound, double share, const Of& zero, const Of& left_out, Rng& rng) {
    narrow_ = results(s_, x_, v_);
    std::vector<std::vector<double>> out_spread(wide_.out.size()), g_spread(wide_.g.size());
    for (int k = 0; k < (r_.options().quick ? 2 : 4); ++k) {
      const Results there = results(s_, perturbed(s_.point, x64_, kUlp, rng), perturbed(v64_, kUlp, rng));
      for (size_t i = 0; i < wide_.out.size(); ++i)
        if (is_float(wide_.out[i].dtype())) widen(out_spread[i], wide_.out[i], there.out[i]);
      for (size_t i : s_.differentiable()) widen(g_spread[i], wide_.g[i], there.g[i]);
    }
    for (size_t k = 0; k < wide_.out.size(); ++k)
      if (is_float(wide_.out[k].dtype()) && rounding_alone(s_, x64_, wide_.out[k], k))
        r_.skip("V7: an output that is zero but for rounding");
      else
        expect_near(r_, how_ + "f32 forward = f64 forward", str("output ", k), narrow_.out[k], wide_.out[k],
                    out_spread[k], share, bound);
    for (size_t i : s_.differentiable())
      if (!left_out(i) || !describe_non_finite(narrow_.g[i]).empty())
        expect_near(r_, how_ + "f32 backward = f64 backward", s_.point.inputs[i].name, narrow_.g[i], wide_.g[i],
                    g_spread[i], share, bound, zero(i) ? s_.unit() : 0);
  }

 private:
  Recorder& r_;
  const Subject& s_;
  std::string how_;
  Tensors x_, v_, x64_, v64_;
  Results wide_, narrow_;
};

// Where f32 loses what f64 does not: very small, very large, and with a common offset.
struct Far {
  std::string name;
  double most_growth;  ///< of the outputs, beyond which gradients are differences of them
  bool alone;          ///< of one input, another at each sample
  std::function<Tensor(const Tensor&)> make;
};
const std::vector<Far>& far_points() {
  auto times = [](double by) { return [by](const Tensor& x) { return num::scale(x, by); }; };
  auto plus = [](double by) {
    return [by](const Tensor& x) { return num::add(x, Tensor::full(x.shape(), by, x.dtype())); };
  };
  static const std::vector<Far> all{{"every number times 2^-20", 0x1p20, false, times(0x1p-20)},
                                    {"every number times 2^7", 0x1p9, false, times(0x1p7)},
                                    {"1000 added to one input", 10, true, plus(1000)},
                                    {"1000 added to every input", 10, false, plus(1000)}};
  return all;
}

// Where the function has left its scale, what is left is rounding, or what it was blown up from.
bool comparable(const Tensors& in, const Results& at, const Tensors& there, const Results& far, size_t i) {
  constexpr double kFaint = 1e-2;
  const double g = norm(flatten({at.g[i]})), g_far = norm(flatten({far.g[i]}));
  const double x = norm(flatten({in[i]})), x_far = norm(flatten({there[i]}));
  const double y = norm(flatten(at.out)), y_far = norm(flatten(far.out));
  return g_far > kFaint * g && g_far * x_far * y > kFaint * g * x * y_far;
}

// Coarser than at the author's point: sums cancel inside right code, too (dP - <dO, O> of values with an offset).
void check_far(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Results& at, double bound,
               Rng& rng) {
  constexpr double kCoarse = 3e-2, kFaint = 1e-4;
  const std::vector<size_t> inputs = s.differentiable();
  const size_t input = inputs[static_cast<size_t>(s.point.index) % inputs.size()];
  for (const Far& far : far_points()) {
    Tensors in = f.in;
    for (size_t i : inputs)
      if (!far.alone || i == input) in[i] = projected(s.point.inputs[i].domain, far.make(in[i]));
    Comparison c(r, s, "where " + far.name + ": ", in, d.v);
    try {
      if (!c.in_range()) {
        r.skip("V7: far points, beyond the range of f32");
        continue;
      }
      const double growth = norm(flatten(c.wide().out)) / norm(flatten(at.out));
      if (!(growth > kFaint && growth < far.most_growth)) {
        r.skip("V7: far points, where the outputs have another size");
        continue;
      }
      auto incomparable = [&](size_t i) {
        return s.declared_zero(i) || is_zero(s, f, d, i) || !comparable(f.in, at, in, c.wide(), i);
      };
      c.compare(
          std::max(bound, kCoarse), 1, [](size_t) { return false; }, incomparable, rng);
    } catch (const Error&) {
      r.skip("V7: far points, which forward refuses");
    }
  }
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
  Comparison here(r, s, "", f.in, d.v);
  if (!here.in_range()) return r.skip("V7: beyond the range of f32");
  // where the numbers span decades, every element counts at its own size
  here.compare(
      bound, spans_decades(here.wide_inputs()) ? 0 : 0.1,
      [&](size_t i) { return s.declared_zero(i) || is_zero(s, f, d, i); }, [](size_t) { return false; }, rng);
  scales(r, s, here.inputs(), here.cotangents(), here.narrow_gradients(), bound);
  if (!r.options().quick && s.point.kink.empty()) check_far(r, s, f, d, here.wide(), bound, rng);
}

}  // namespace bg::verifier
