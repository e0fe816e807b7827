// How exact are forward and backward? Against the reference in long double (gradients: on dual numbers of long double),
// at exactly the numbers that the op saw.
#pragma once

#include "autograd/verify/verify.h"

namespace bg {

struct ErrorSummary {
  double median_ulp = 0, max_ulp = 0;  ///< in units of the last place of the value's own type
  double median_relative = 0, max_relative = 0;
  int64_t elements = 0;
};

/// One output or one input's gradient of an op, over its samples.
struct AccuracyRow {
  std::string op, what;  ///< what: "output", "d input name", or "all gradients" of an op that has a compose
  ErrorSummary f64, f32;
  ErrorSummary composed_f32;  ///< the same gradient through compose in f32; elements = 0 where there is none
  ErrorSummary bf16_inputs;   ///< f32 arithmetic on inputs rounded to bf16, against the unrounded ones

  /// Median f32 error of the op's own backward over that of its composition; negative where there is none.
  double f32_ratio() const;
};

/// Elements smaller than a thousandth of their tensor's largest are measured in that thousandth's units: where a sum
/// cancels, its relative error says nothing about the arithmetic. Declared-zero gradients are left out. At most
/// 16 samples and 24 elements of each tensor are looked at.
std::vector<AccuracyRow> measure_accuracy(const verifier::Entry& entry, const VerifyOptions& options = {});

/// Lines of a table, a header first.
std::string accuracy_table(const std::vector<AccuracyRow>& rows);

/// Boosted attention feeds what one round got wrong to the next: rounding errors grow with the rounds, and where the
/// projections gain too much the map itself turns chaotic. Largest f32 error of any gradient against f64 at the same
/// (f32) inputs, relative to the gradient's largest element.
struct GrowthRow {
  int rounds = 0;
  struct Error {
    double median = 0, max = 0;
  };
  Error unit_gain;   ///< query, key and value weights of standard deviation 1 / sqrt(d)
  Error twice_gain;  ///< 2 / sqrt(d)
};
/// For 1 to 4 rounds, over both key/value sources, gates none and linear, and eight draws of a layer of
/// (B 2, T 8, d 8, heads 2).
std::vector<GrowthRow> measure_growth(uint64_t seed);
std::string growth_table(const std::vector<GrowthRow>& rows);

}  // namespace bg
