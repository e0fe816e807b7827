#include <algorithm>
#include <cmath>
#include <cstring>

#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {
constexpr int kKeptPerStep = 3;  // failures told in full; the rest are counted
}

Failure* Recorder::expect(Step step, std::string_view what, std::string_view input, double analytic, double reference,
                          double error, double tolerance) {
  StepCount& c = report_.steps[static_cast<size_t>(step) - 1];
  ++c.comparisons;
  c.tolerance = tolerance;
  if (!(error <= c.worst)) c.worst = error;
  if (error <= tolerance) return nullptr;  // false for NaN
  ++report_.failure_count;
  Failure* f = keep(step, what, input, false);
  f->analytic = analytic;
  f->reference = reference;
  f->error = error;
  f->tolerance = tolerance;
  return f;
}

Failure* Recorder::inconclusive(Step step, std::string_view what, std::string_view input, const std::string& advice) {
  ++report_.inconclusive_count;
  Failure* f = keep(step, what, input, true);
  f->note = advice;
  return f;
}

void Recorder::skip(const std::string& reason) { ++report_.skipped[reason]; }

void Recorder::saw(size_t input, bool something) {
  bool& seen = seen_[point_ ? point_->inputs[input].name : ""];
  seen = seen || something;
}

std::vector<std::string> Recorder::never_seen() const {
  std::vector<std::string> names;
  for (const auto& [name, seen] : seen_)
    if (!seen) names.push_back(name);
  return names;
}

Failure* Recorder::keep(Step step, std::string_view what, std::string_view input, bool inconclusive) {
  const auto kept = std::count_if(report_.failures.begin(), report_.failures.end(),
                                  [&](const Failure& f) { return f.step == step && f.inconclusive == inconclusive; });
  Failure f;
  f.inconclusive = inconclusive;
  f.op = report_.op;
  f.step = step;
  f.what = what;
  if (point_) {
    f.sample = point_->index;
    f.sample_label = point_->label;
  }
  f.input = input;
  f.seed = options_.seed;
  f.rerun = rerun();
  if (kept >= kKeptPerStep) {
    discarded_ = std::move(f);
    return &discarded_;
  }
  report_.failures.push_back(std::move(f));
  return &report_.failures.back();
}

// The command for an op that the program knows, the call for any other.
std::string Recorder::rerun() const {
  if (entry_.type.empty())
    return str("the same call with {.seed = ", options_.seed, point_ ? str(", .sample = ", point_->index) : "", "}");
  if (entry_.listed)
    return str("boostgrad gradcheck --op ", entry_.name, " --seed ", options_.seed,
               point_ ? str(" --sample ", point_->index) : "", options_.quick ? " --quick" : "");
  return str("bg::verify<", entry_.type, ">({.seed = ", options_.seed, options_.quick ? ", .quick = true" : "",
             point_ ? str(", .sample = ", point_->index) : "", "})");
}

Failure* Recorder::fail(Step step, std::string_view what, std::string_view input, const std::string& note) {
  Failure* f = expect(step, what, input, 0, 0, std::nan(""), 0);
  f->note = note;
  return f;
}

Failure* Recorder::expect_close(Step step, std::string_view what, std::string_view input, const Tensor& analytic,
                                const Tensor& reference, double tolerance, double floor) {
  if (!(analytic.shape() == reference.shape()))
    return fail(step, what, input, str("shape ", analytic.shape(), " instead of ", reference.shape()));
  const std::vector<double> a = analytic.to_vector<double>(), b = reference.to_vector<double>();
  if (a.empty()) return expect(step, what, input, 0, 0, 0, tolerance);
  double scale = floor;
  for (const double x : b)
    if (std::isfinite(x)) scale = std::max(scale, std::abs(x));
  const Worst worst = worst_of(a, b);
  const size_t at = static_cast<size_t>(worst.at);
  const double error = worst.error == 0 || scale == 0 ? worst.error : worst.error / scale;
  Failure* f = expect(step, what, input, a[at], b[at], error, tolerance);
  if (!f) return nullptr;
  f->index = describe_index(reference.shape(), worst.at);
  if (const std::string bad = describe_non_finite(analytic); !bad.empty()) f->note = str("what the op gave is ", bad);
  return f;
}

Failure* Recorder::expect_same(Step step, std::string_view what, std::string_view input, const Tensor& a,
                               const Tensor& b) {
  if (a.defined() != b.defined()) return fail(step, what, input, "one of two is undefined");
  if (!a.defined()) return nullptr;
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype())
    return fail(step, what, input, str(a.dtype(), " ", a.shape(), " instead of ", b.dtype(), " ", b.shape()));
  const Tensor x = a.contiguous(), y = b.contiguous();
  const int64_t size = size_of(x.dtype());
  const auto [px, py] = dispatch_any(x.dtype(), [&]<class T>() {
    return std::pair(reinterpret_cast<const char*>(x.data<T>()), reinterpret_cast<const char*>(y.data<T>()));
  });
  int64_t i = 0;  // the first element that differs
  while (i < x.numel() && std::memcmp(px + i * size, py + i * size, size) == 0) ++i;
  Failure* f = expect(step, what, input, 0, 0, i < x.numel(), 0);
  if (!f) return nullptr;
  f->analytic = a.flat(i);
  f->reference = b.flat(i);
  f->index = describe_index(a.shape(), i);
  f->error = std::abs(f->analytic - f->reference);
  return f;
}

}  // namespace bg::verifier
