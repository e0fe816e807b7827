// What gradcheck says of what it found.
#include <algorithm>
#include <cmath>

#include "autograd/verify/gradcheck.h"
#include "autograd/verify/tolerances.h"
#include "core/error.h"
#include "core/format.h"

namespace bg {
namespace {

// Names and messages come from users' functions: however long, a report stays short.
std::string shortened(std::string text, size_t limit = 400) {
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() > limit) text.replace(limit, std::string::npos, "...");
  return text;
}

std::string_view heading(Verdict v) {
  switch (v) {
    case Verdict::wrong:
      return "WRONG";
    case Verdict::not_differentiable:
      return "NOT DIFFERENTIABLE";
    case Verdict::inconclusive:
      return "INCONCLUSIVE";
    case Verdict::right:
      break;
  }
  return "RIGHT";
}

std::string whole(double value) { return std::isfinite(value) ? formatted("%.17g", value) : number_text(value); }

std::string about(const GradcheckPair& p) {
  std::string text = str(shortened(p.input, 80), " -> output ", p.output, ": ", p.comparisons, " comparisons, ");
  if (std::isfinite(p.noticeable))
    text += formatted("worst error %.1e, an error of %.1e would have been noticed", p.worst, p.noticeable);
  else
    text += "nothing could be seen";
  return text;
}

}  // namespace

std::string_view name_of(Verdict v) {
  switch (v) {
    case Verdict::right:
      return "right";
    case Verdict::inconclusive:
      return "inconclusive";
    case Verdict::not_differentiable:
      return "not differentiable here";
    case Verdict::wrong:
      break;
  }
  return "wrong";
}

bool GradcheckPair::seen() const { return noticeable <= verifier::kTolerance.visible; }

std::string GradcheckFailure::to_string() const {
  const std::string subject = input.empty() ? output : output.empty() ? input : input + ", " + output;
  std::string out = str(heading(verdict), " gradcheck: ", shortened(subject, 120), subject.empty() ? "" : ": ",
                        shortened(what), "\n");
  auto line = [&](std::string_view label, const std::string& text) {
    out += str("  ", label, std::string(11 - label.size(), ' '), text, "\n");
  };
  if (!input.empty()) line("input", str(shortened(input, 80), index.empty() ? "" : ", worst at ", index));
  if (tolerance > 0) {
    line("analytic", whole(analytic));
    line("reference", whole(reference) + (bound > 0 ? formatted(" +- %.1e", bound) : ""));
    line("error", str(std::isfinite(error) ? formatted("%.3g", error) : number_text(error), ", tolerance ",
                      formatted("%.3g", tolerance)));
  }
  if (fd_step > 0) line("step size", formatted("%.3g in units of the input", fd_step));
  if (!note.empty()) line("note", shortened(note, 700));
  line("seed", str(seed));
  line("rerun", str("the same call with {.seed = ", seed, "}"));
  return out;
}

std::string GradcheckReport::to_string() const {
  std::string out = str("gradient ", name_of(verdict), ": ", comparisons, " comparisons, worst error ",
                        formatted("%.1e", worst), "\n");
  if (!forward_mode) out += str("  differences only: ", shortened(note), "\n");
  constexpr size_t kFailures = 2, kPairs = 8, kLeftOut = 6;
  for (size_t i = 0; i < std::min(kFailures, failures.size()); ++i) out += failures[i].to_string();
  if (failures.size() > kFailures) {
    out += str("  and ", failures.size() - kFailures, " more findings:");
    for (size_t i = kFailures; i < std::min(kFailures + kPairs, failures.size()); ++i) {
      const GradcheckFailure& f = failures[i];
      out += str(i == kFailures ? " " : "; ", shortened(f.input.empty() ? f.output : f.input, 80), " (",
                 name_of(f.verdict), ")");
    }
    out += failures.size() > kFailures + kPairs ? "; ...\n" : "\n";
  }
  if (!failures.empty()) return out;
  std::vector<const GradcheckPair*> blindest;
  for (const GradcheckPair& p : pairs) blindest.push_back(&p);
  std::stable_sort(blindest.begin(), blindest.end(),
                   [](const auto* a, const auto* b) { return a->noticeable > b->noticeable; });
  for (size_t i = 0; i < std::min(kPairs, blindest.size()); ++i) out += str("  ", about(*blindest[i]), "\n");
  if (blindest.size() > kPairs) out += str("  and ", blindest.size() - kPairs, " more pairs, seen better than these\n");
  for (size_t i = 0; i < std::min(kLeftOut, left_out.size()); ++i) out += str("  ", shortened(left_out[i], 200), "\n");
  if (left_out.size() > kLeftOut) out += str("  and ", left_out.size() - kLeftOut, " more of these\n");
  return out;
}

}  // namespace bg
