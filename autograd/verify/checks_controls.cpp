// V10, negative controls: a check that cannot fail proves nothing, so wrong backwards are planted and must be rejected.
#include <algorithm>
#include <cmath>

#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

// -- Errors that any backward can make --------------------------------------------------------------------------------

struct Generated {
  std::string name;
  std::function<Tensor(const Tensor& g)> make;  // undefined: does not apply to this shape
};

Tensor element_dropped(const Tensor& g) {
  Tensor out = g.clone();
  if (g.numel() < 2) return {};
  dispatch_float("verify", g.dtype(), [&]<class T>() { out.mutable_data<T>("verify")[g.numel() - 1] = 0; });
  return out;
}

// As when a kernel writes (n, m) where (m, n) is wanted.
Tensor transposed(const Tensor& g) {
  return g.rank() < 2 ? Tensor() : g.transpose(-1, -2).contiguous().reshape(g.shape());
}

Tensor off_by_one_row(const Tensor& g) {
  const int64_t n = g.rank() ? g.size(0) : 0;
  if (n < 2) return {};
  Tensor out = g.clone();
  out.slice(0, 0, n - 1).copy_from(g.slice(0, 1, n));
  out.slice(0, n - 1, n).copy_from(g.slice(0, 0, 1));
  return out;
}

const std::vector<Generated>& generated_errors() {
  static const std::vector<Generated> all{
      {"scaled by 1.001", [](const Tensor& g) { return num::scale(g, 1 + kTolerance.scale_error); }},
      {"sign flipped", [](const Tensor& g) { return num::scale(g, -1); }},
      {"last element dropped", element_dropped},
      {"transposed", transposed},
      {"off by one row", off_by_one_row}};
  return all;
}

// Does the planted error change the gradient by enough to be an error at all?
bool differs(const Tensor& a, const Tensor& b) {
  constexpr double kVisible = 1e-6;
  const std::vector<double> x = flatten({a}), y = flatten({b});
  std::vector<double> d(x.size());
  for (size_t i = 0; i < x.size(); ++i) d[i] = x[i] - y[i];
  return norm(d) > kVisible * norm(x);
}

// -- Trying to reject one ---------------------------------------------------------------------------------------------

// The step that rejects the subject at this sample, or nothing. Cheap steps first.
std::optional<Step> rejected(const Entry& entry, const Subject& s, const Case& c, const VerifyOptions& options,
                             bool thorough) {
  OpReport scratch;
  Recorder r(scratch, options, entry);
  r.set_explains(false);
  auto failed = [&] { return scratch.wrong(); };
  guarded(r, Step::V2, [&] { check_exact(r, s, c.forward, c.draws[0]); });
  if (!failed() && thorough) {
    if (entry.composed) guarded(r, Step::V4, [&] { check_compose(r, s, c.forward, c.draws[0]); });
    if (!failed() && !s.point.has.tangents && s.point.kink.empty())
      guarded(r, Step::V3, [&] { check_difference(r, s, c.forward, c.draws[0]); });
    if (!failed() && s.point.kink.empty()) guarded(r, Step::V5, [&] { check_jacobian(r, s, c.forward); });
    Rng rng(options.seed), moving(options.seed, 1);
    if (!failed()) guarded(r, Step::V2, [&] { check_moved(r, s, c.forward, c.draws[0], moving); });
    if (!failed()) guarded(r, Step::V6, [&] { check_structure(r, s, c.forward, c.draws[0], rng); });
  }
  if (!failed()) return std::nullopt;
  return std::find_if(scratch.failures.begin(), scratch.failures.end(), [](auto& f) { return !f.inconclusive; })->step;
}

// The same for one wrong gradient of the first draw's cotangent.
bool rejected_at_once(const Entry& entry, const Case& c, size_t input, const Tensor& wrong,
                      const VerifyOptions& options) {
  OpReport scratch;
  Recorder r(scratch, options, entry);
  r.set_explains(false);
  check_exact(r, c.subject, c.forward, c.draws[0], input, wrong);
  const Point& point = c.subject.point;
  if (!point.has.tangents && point.kink.empty()) {
    const Subject replaced(point, -1, [&](Tensors& g) { g[input] = wrong; });
    check_difference(r, replaced, c.forward, c.draws[0]);
  }
  return scratch.wrong();
}

Subject planted(const Case& c, size_t input, const Generated& kind) {
  return Subject(c.subject.point, -1, [input, &kind](Tensors& g) {
    if (g[input].defined()) g[input] = kind.make(g[input]);
  });
}

MutantResult try_mutant(const Entry& entry, int mutant, const std::vector<Case>& cases, const VerifyOptions& options) {
  MutantResult result;
  result.name = entry.mutants[static_cast<size_t>(mutant)].name;
  bool applies = false;
  std::string why_not;
  for (bool thorough : {false, true})
    for (const Case& c : cases) {
      try {
        const auto step = rejected(entry, Subject(c.subject.point, mutant), c, options, thorough);
        applies = true;
        if (!step) continue;
        result.killed = true;
        result.killed_by = str(name_of(*step), " at sample ", c.subject.point.index);
        return result;
      } catch (const DoesNotApply& e) {
        why_not = e.what();
      }
    }
  if (!applies) result.not_counted = "applies to no sample: " + why_not;
  return result;
}

void own_mutants(Recorder& r, const Entry& entry, const std::vector<Case>& cases) {
  bool counted = false;
  for (size_t m = 0; m < entry.mutants.size(); ++m) {
    const std::string& equivalent = entry.mutants[m].equivalent;
    MutantResult result = try_mutant(entry, static_cast<int>(m), cases, r.options());
    const std::string what = str("mutant '", result.name, "'");
    if (!equivalent.empty()) {
      if (result.killed) r.fail(Step::V10, what + " is declared equivalent but was told apart", "", result.killed_by);
      result.not_counted = equivalent;
    } else if (r.options().sample >= 0 && !result.killed) {
      result.not_counted = "rejected at another sample, if at all";
    } else if (!result.not_counted.empty()) {
      r.fail(Step::V10, what + " applies nowhere", "", result.not_counted);
    } else {
      Failure* f = r.expect(Step::V10, what + " is rejected", "", 0, 0, result.killed ? 0 : 1, 0);
      if (f) f->note = "it survived every step at every sample: a sample is missing, or it is equivalent (say why)";
    }
    counted = counted || equivalent.empty();
    r.report().mutants.push_back(std::move(result));
  }
  if (!counted)
    r.fail(Step::V10, "the op brings a wrong backward of its own", "",
           "mutants() has none that counts: add the mistake that is easiest to make in this backward");
}

// Gradients from what a forward at another point has saved.
Tensors stale_gradients(const Case& c, Rng& rng) {
  constexpr double kStaleBy = 0.01;  // far more than rounding, far less than a sample's distance from its kinks
  const Subject& s = c.subject;
  Tensors in = c.forward.in;
  for (size_t i : s.differentiable())
    in[i] =
        projected(s.point.inputs[i].domain, num::add(in[i], Tensor::randn(in[i].shape(), rng, DType::f64, kStaleBy)));
  try {
    return s.backward(s.forward(in), c.draws[0].v, s.need_all());
  } catch (const std::exception&) {  // a point outside of the domain: there is no such stale value
    return Tensors(in.size());
  }
}

// Gradients of half of the cotangent: what is left when one of two uses' contributions is lost.
Tensors lost_gradients(const Case& c, Rng& rng) {
  Tensors half;
  for (const Tensor& v : c.draws[0].v) {
    Tensor h = v.clone();
    if (is_float(v.dtype()))
      for (int64_t k = 0; k < h.numel(); ++k)
        if (rng.uniform() < 0.5) h.mutable_data<double>("verify")[k] = 0;
    half.push_back(std::move(h));
  }
  return c.subject.backward(c.forward, half, c.subject.need_all());
}

class GeneratedControls {
 public:
  GeneratedControls(Recorder& r, const Entry& entry) : r_(r), entry_(entry) {}

  void run(const Case& c) {
    r_.enter(c.subject.point);
    Rng rng(r_.options().seed, static_cast<uint64_t>(c.subject.point.index));
    const Tensors g = c.subject.backward(c.forward, c.draws[0].v, c.subject.need_all());
    const Tensors stale = stale_gradients(c, rng), lost = lost_gradients(c, rng);
    for (size_t i : c.subject.differentiable()) {
      if (c.subject.declared_zero(i) || g[i].numel() == 0) continue;
      for (const Generated& kind : generated_errors()) {
        const Tensor wrong = kind.make(g[i]);
        expect_rejected(c, i, "gradient " + kind.name, g[i], wrong,
                        [&] { return rejected(entry_, planted(c, i, kind), c, r_.options(), true).has_value(); });
      }
      auto never = [] { return false; };
      expect_rejected(c, i, "a stale saved value", g[i], stale[i], never);
      expect_rejected(c, i, "accumulation dropped", g[i], lost[i], never);
    }
    r_.leave();
  }

 private:
  // The quick look at the wrong gradient first; `last_resort` runs every check.
  void expect_rejected(const Case& c, size_t input, const std::string& what, const Tensor& right, const Tensor& wrong,
                       const std::function<bool()>& last_resort) {
    OpReport& report = r_.report();
    const Subject& s = c.subject;
    if (!wrong.defined() || !differs(s.direction(input, right), s.direction(input, wrong))) {
      ++report.generated_na;
      return;
    }
    const bool killed = rejected_at_once(entry_, c, input, wrong, r_.options()) || last_resort();
    if (!killed && !can_see(s, c.forward, c.draws[0], input)) {
      ++report.generated_na;
      return;
    }
    ++report.generated;
    report.generated_killed += killed;
    r_.expect(Step::V10, "generated error is rejected: " + what, c.subject.point.inputs[input].name, 0, 0,
              killed ? 0 : 1, 0);
  }

  Recorder& r_;
  const Entry& entry_;
};

}  // namespace

void check_controls(Recorder& r, const Entry& entry, const std::vector<Case>& cases) {
  r.leave();
  own_mutants(r, entry, cases);
  GeneratedControls generated(r, entry);
  for (const Case& c : cases) generated.run(c);
}

}  // namespace bg::verifier
