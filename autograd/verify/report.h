// What a verification found: counts, worst errors, and failures that say where, what and how to see them again.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace bg {

/// The rungs of the ladder; what each proves is told in README.md.
enum class Step { V1 = 1, V2, V3, V4, V5, V6, V7, V8, V9, V10 };
inline constexpr int kSteps = 10;

std::string name_of(Step step);          ///< "V2"
std::string_view meaning_of(Step step);  ///< "backward against dual numbers"

/// One comparison that failed, or that could not be made although the ladder needs it.
struct Failure {
  bool inconclusive = false;  ///< neither right nor wrong: nothing could be seen; the note says what to do
  std::string op;
  Step step = Step::V1;
  std::string what;  ///< which comparison, in words
  int sample = -1;   ///< -1: the op as a whole
  std::string sample_label;
  std::string input;     ///< the input (or output) it is about; empty when it is about none
  std::string index;     ///< "(1, 2) of (2, 3)"; empty when no single element is to blame
  double analytic = 0;   ///< what the op gave
  double reference = 0;  ///< what the oracle gave
  double error = 0, tolerance = 0;
  double fd_step = 0;  ///< step length where finite differences took part
  uint64_t seed = 0;
  std::string rerun;  ///< the command (or, for an op outside ops/all.h, the call) that runs exactly this case again
  std::string note;   ///< an exception's text, or advice

  std::string to_string() const;  ///< under 20 lines whatever the sizes
};

struct StepCount {
  int64_t comparisons = 0;
  double worst = 0;  ///< largest error seen, on the scale of `tolerance`
  double tolerance = 0;
};

/// A wrong backward and what became of it.
struct MutantResult {
  std::string name;
  bool killed = false;
  std::string killed_by;    ///< "V2 at sample 0"
  std::string not_counted;  ///< why it is equivalent or does not apply; empty: it counts
};

struct OpReport {
  std::string op;
  int samples = 0;
  std::array<StepCount, kSteps> steps;    ///< [0] is V1
  std::map<std::string, std::string> na;  ///< "V4" -> why the step does not apply
  std::vector<Failure> failures;          ///< the first few of each step, inconclusive ones included
  int64_t failure_count = 0, inconclusive_count = 0;
  std::map<std::string, int64_t> skipped;  ///< comparisons that were left out, by reason; others stand in for them
  std::vector<MutantResult> mutants;       ///< the op's own, then the generated ones by kind
  int64_t generated = 0, generated_killed = 0;
  int64_t generated_na = 0;  ///< of a shape that the error cannot have, or changing nothing
  double jvp_error = -1;     ///< of J w by double backward (part of V8); negative: not measured
  int worst_sample = -1;     ///< where V2's error is largest
  /// What all samples are too weak to show, and at last the size of the largest (lint.h). Fails nothing.
  std::vector<std::string> advice;
  double seconds = 0;

  bool passed() const { return failure_count == 0 && inconclusive_count == 0; }
  bool wrong() const { return failure_count > 0; }  ///< an error was found; neither passed nor wrong: inconclusive
  bool failed(Step step) const;
  const StepCount& count(Step step) const { return steps[static_cast<size_t>(step) - 1]; }
  int64_t comparisons() const;
  int64_t mutants_counted() const;  ///< the op's own that apply and are not equivalent, and the generated ones
  int64_t mutants_killed() const;
  /// One line when passed, the failures too when not, and the advice where it names a weakness.
  std::string to_string() const;
};

}  // namespace bg
