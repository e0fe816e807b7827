#include "autograd/verify/report.h"

#include <cmath>

#include "core/error.h"
#include "core/format.h"

namespace bg {
namespace {

// Names come from users' ops: however long, a report stays short.
std::string shortened(const std::string& text, size_t limit = 300) {
  std::string out = text.substr(0, limit);
  for (char& c : out)
    if (c == '\n') c = ' ';
  if (text.size() > limit) out.append("...");
  return out;
}

}  // namespace

std::string name_of(Step step) { return str("V", static_cast<int>(step)); }

std::string_view meaning_of(Step step) {
  static constexpr std::string_view kMeaning[] = {"forward against the reference",
                                                  "backward against dual numbers",
                                                  "backward against differences of the forward",
                                                  "backward against the gradient of compose",
                                                  "full Jacobian against differences",
                                                  "structure: linear, masks, layouts, purity, repeatability, threads",
                                                  "f32 against f64, forward and backward",
                                                  "second derivatives",
                                                  "vacuity: something finite and not zero was compared",
                                                  "negative controls: wrong backwards are rejected"};
  return kMeaning[static_cast<int>(step) - 1];
}

std::string Failure::to_string() const {
  std::string out =
      str(inconclusive ? "INCONCLUSIVE " : "FAIL ", name_of(step), " ", shortened(op, 80), ": ", shortened(what), "\n");
  auto line = [&](std::string_view label, const std::string& text) {
    out += str("  ", label, std::string(11 - label.size(), ' '), text, "\n");
  };
  if (sample >= 0) line("sample", str(sample, " (", shortened(sample_label, 100), ")"));
  if (!input.empty()) line("input", str(shortened(input, 80), index.empty() ? "" : ", worst at ", index));
  if (tolerance > 0 || analytic != reference) {
    line("analytic", formatted("%.17g", analytic));
    line("reference", formatted("%.17g", reference));
    line("error", str(formatted("%.3g", error), ", tolerance ", formatted("%.3g", tolerance)));
  }
  if (fd_step > 0) line("step size", formatted("%.3g", fd_step));
  if (!note.empty()) line("note", shortened(note));
  line("seed", str(seed));
  if (!rerun.empty()) line("rerun", shortened(rerun, 200));
  return out;
}

bool OpReport::failed(Step step) const {
  for (const Failure& f : failures)
    if (f.step == step && !f.inconclusive) return true;
  return false;
}

int64_t OpReport::comparisons() const {
  int64_t n = 0;
  for (const StepCount& s : steps) n += s.comparisons;
  return n;
}

int64_t OpReport::mutants_counted() const {
  int64_t n = generated;
  for (const MutantResult& m : mutants) n += m.not_counted.empty();
  return n;
}

int64_t OpReport::mutants_killed() const {
  int64_t n = generated_killed;
  for (const MutantResult& m : mutants) n += m.not_counted.empty() && m.killed;
  return n;
}

std::string OpReport::to_string() const {
  std::string out = str(passed()  ? "ok   "
                        : wrong() ? "FAIL "
                                  : "?    ",
                        op, std::string(op.size() < 24 ? 24 - op.size() : 1, ' '), samples, " samples, ", comparisons(),
                        " comparisons, worst");
  for (Step s : {Step::V1, Step::V2, Step::V3, Step::V4})
    out += str(" ", name_of(s), " ", na.count(name_of(s)) ? "n/a" : formatted("%.1e", count(s).worst));
  out += str(", mutants ", mutants_killed(), "/", mutants_counted(), ", ", formatted("%.2f", seconds), " s\n");
  for (const Failure& f : failures) out += f.to_string();
  const int64_t untold = failure_count + inconclusive_count - static_cast<int64_t>(failures.size());
  if (untold > 0) out += str("  and ", untold, wrong() ? " more failures\n" : " more that are inconclusive\n");
  if (!passed())
    for (const auto& [reason, times] : skipped) out += str("  skipped ", times, " x ", shortened(reason), "\n");
  if (advice.size() > 1)
    for (const std::string& a : advice) out += str("     advice: ", shortened(a), "\n");
  return out;
}

}  // namespace bg
