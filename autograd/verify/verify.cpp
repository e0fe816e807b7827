#include "autograd/verify/verify.h"

#include "autograd/verify/checks.h"
#include "autograd/verify/lint.h"
#include "core/clock.h"
#include "core/hash.h"

namespace bg::verifier {
namespace {

// The quick look at an op of very many samples takes every third: their configurations repeat in other strides.
constexpr size_t kManySamples = 24, kQuickStride = 3;

// Every sample has its own random numbers, so that one sample run alone sees what it saw among all.
Rng sample_rng(const Entry& entry, const VerifyOptions& o, int index) {
  return Rng(o.seed, hash_bytes(entry.name)).fork(static_cast<uint64_t>(index) + 1);
}

double f32_bound(const Entry& entry) {
  BG_CHECK(entry.f32_bound <= kTolerance.f32_limit, entry.name, "the stated f32 bound is too wide",
           str(entry.f32_bound), str("at most ", kTolerance.f32_limit));
  return entry.f32_bound > 0 ? entry.f32_bound : kTolerance.f32;
}

// Forward, draws and all checks of one sample. Leaves the case for the checks over all samples.
void check_sample(Recorder& r, const Entry& entry, const Point& point, std::vector<Case>& cases) {
  const VerifyOptions& o = r.options();
  Rng rng = sample_rng(entry, o, point.index);
  r.enter(point);
  Subject s(point);
  Forward f;
  const int64_t failures = r.report().failure_count;
  guarded(r, Step::V1, [&] {
    f = s.forward(point.values);
    check_forward(r, s, f);
  });
  if (f.out.empty() || !describe_non_finite("output", f.out).empty()) return;
  Rng extra = rng.fork(1);
  guarded(r, Step::V9, [&] { check_declared(r, s, f, extra); });
  if (s.differentiable().empty()) return;
  std::vector<Draw> draws;
  guarded(r, Step::V2, [&] {
    for (int k = 0; k < (o.quick ? 1 : 2); ++k) draws.push_back(make_draw(s, f, rng, /*balanced=*/k == 1));
    for (const Draw& d : draws) check_exact(r, s, f, d);
  });
  if (draws.empty()) return;
  guarded(r, Step::V2, [&] { check_moved(r, s, f, draws[0], extra); });
  if (point.kink.empty())
    guarded(r, Step::V3, [&] { check_difference(r, s, f, draws[0]); });
  else
    guarded(r, Step::V3, [&] { check_kink(r, s, f, draws[0]); });
  if (entry.composed) guarded(r, Step::V4, [&] { check_compose(r, s, f, draws[0]); });
  if (point.kink.empty()) guarded(r, Step::V5, [&] { check_jacobian(r, s, f); });
  guarded(r, Step::V6, [&] { check_structure(r, s, f, draws[0], rng); });
  guarded(r, Step::V7, [&] { check_precision(r, s, f, draws[0], f32_bound(entry), extra); });
  guarded(r, Step::V8, [&] { check_second(r, s, f, draws[0], entry, rng); });
  // negative controls mean something only where the op itself is right
  if (r.report().failure_count == failures) cases.push_back({s, std::move(f), std::move(draws)});
}

}  // namespace

OpReport verify_entry(const Entry& entry, const VerifyOptions& options) {
  const double start = seconds_now();
  OpReport report;
  report.op = entry.name;
  Recorder r(report, options, entry);
  std::vector<std::unique_ptr<Point>> points;
  guarded(r, Step::V9, [&] {
    Rng rng(options.seed, hash_bytes(entry.name));
    points = entry.samples(rng);
  });
  if (!points.empty() && options.sample >= static_cast<int>(points.size()))
    fail<UsageError>("gradcheck", "no such sample", str(options.sample),
                     str("0 to ", points.size() - 1, " for ", entry.name));
  if (options.sample < 0) guarded(r, Step::V9, [&] { report.advice = lint(entry, points); });
  bool differentiable = false;
  std::vector<Case> cases;
  for (size_t i = 0; i < points.size(); ++i) {
    points[i]->index = static_cast<int>(i);
    if (options.sample >= 0 && options.sample != static_cast<int>(i)) continue;
    if (options.sample < 0 && options.quick && points.size() > kManySamples && i % kQuickStride != 0) continue;
    ++report.samples;
    differentiable = differentiable || !Subject(*points[i]).differentiable().empty();
    check_sample(r, entry, *points[i], cases);
  }
  if (!entry.composed) report.na["V4"] = entry.primitive ? "primitive op: no compose" : "fused op without compose";
  if (differentiable) {
    guarded(r, Step::V6, [&] { check_threads(r, cases); });
    if (cases.empty())
      report.na["V10"] = "the op itself is wrong at every sample";
    else
      guarded(r, Step::V10, [&] { check_controls(r, entry, cases); });
    r.leave();
    for (const std::string& input : r.never_seen())
      if (options.sample < 0)
        r.inconclusive(
            Step::V9, "a gradient that is not zero", input,
            "the true gradient is zero at every sample, so no error in it could be seen: choose one where it "
            "is not, or declare it in the samples' zero_grads");
    if (report.count(Step::V2).comparisons + report.count(Step::V3).comparisons == 0)
      r.inconclusive(
          Step::V9, "something was compared", "",
          "no sample has a gradient that is not zero: an error in this backward could not be seen; where the "
          "true gradient is zero everywhere, declare the inputs without gradients: In{name, false}");
  } else {
    for (int v = 2; v <= kSteps; ++v) report.na[str("V", v)] = "no differentiable input";
  }
  r.leave();
  if (!entry.convention.empty()) report.na["convention"] = entry.convention;
  if (report.samples == 0) r.fail(Step::V9, "something was compared", "", "samples() is empty: nothing was verified");
  report.seconds = seconds_now() - start;
  return report;
}

}  // namespace bg::verifier
