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
  std::string op, what;  ///< what: "output" or "d input name"
  ErrorSummary f64, f32;
  ErrorSummary composed_f32;  ///< the same gradient through compose in f32; elements = 0 where there is none
  ErrorSummary bf16_inputs;   ///< f32 arithmetic on inputs rounded to bf16, against the unrounded ones
};

/// Elements smaller than a thousandth of their tensor's largest are measured in that thousandth's units: where a sum
/// cancels, its relative error says nothing about the arithmetic. Declared-zero gradients are left out. At most
/// 8 samples and 16 elements of each tensor are looked at.
std::vector<AccuracyRow> measure_accuracy(const verifier::Entry& entry, const VerifyOptions& options = {});

/// Lines of a table; `header` first.
std::string accuracy_table(const std::vector<AccuracyRow>& rows);

}  // namespace bg
