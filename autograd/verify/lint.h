// Weak samples: what a list of samples cannot show to be wrong, however exact the checks. Advice only; it fails no op.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "autograd/verify/entry.h"

namespace bg::verifier {

/// Weaknesses that all samples of an op share, one sentence each with what to add, and at last the size of the largest
/// sample. A weakness of an input counts only where every sample that has the input has it. No weaknesses: inputs that
/// are single numbers by nature (beside larger ones), what a Domain implies, and arguments that the op declares fixed.
/// No samples: no advice.
std::vector<std::string> lint(const Entry& entry, const std::vector<std::unique_ptr<Point>>& points);

}  // namespace bg::verifier
