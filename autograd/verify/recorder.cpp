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
  int kept = 0;
  for (const Failure& f : report_.failures) kept += f.step == step;
  Failure f;
  f.op = report_.op;
  f.step = step;
  f.what = what;
  if (point_) {
    f.sample = point_->index;
    f.sample_label = point_->label;
  }
  f.input = input;
  f.analytic = analytic;
  f.reference = reference;
  f.error = error;
  f.tolerance = tolerance;
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
                                const Tensor& reference, double tolerance) {
  if (!(analytic.shape() == reference.shape()))
    return fail(step, what, input, str("shape ", analytic.shape(), " instead of ", reference.shape()));
  const std::vector<double> a = analytic.to_vector<double>(), b = reference.to_vector<double>();
  double scale = 1, worst = 0;
  size_t at = 0;
  for (double x : b) scale = std::max(scale, std::abs(x));  // a NaN in b is found below
  for (size_t i = 0; i < a.size(); ++i) {
    const double e = std::abs(a[i] - b[i]);
    if (!(e <= worst)) {
      worst = e;
      at = i;
      if (std::isnan(e)) break;
    }
  }
  if (a.empty()) return expect(step, what, input, 0, 0, 0, tolerance);
  Failure* f = expect(step, what, input, a[at], b[at], worst / scale, tolerance);
  if (f) f->index = describe_index(reference.shape(), static_cast<int64_t>(at));
  return f;
}

Failure* Recorder::expect_same(Step step, std::string_view what, std::string_view input, const Tensor& a,
                               const Tensor& b) {
  if (a.defined() != b.defined()) return fail(step, what, input, "one of two is undefined");
  if (!a.defined()) return nullptr;
  if (!(a.shape() == b.shape()) || a.dtype() != b.dtype())
    return fail(step, what, input, str(a.dtype(), " ", a.shape(), " against ", b.dtype(), " ", b.shape()));
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
