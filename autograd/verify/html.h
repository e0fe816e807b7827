// The verifier's results as one self-contained page.
#pragma once

#include "autograd/verify/verify.h"

namespace bg {

/// The error of every element of one gradient: where in a tensor an op is least exact.
struct ErrorMap {
  std::string input, sample;
  Shape shape;
  std::vector<double> error;  ///< |analytic - exact| / max(1, max|exact|), row-major; empty: nothing was measured
};

/// Of the input and sample where the largest error is found; looks at no more than a few thousand elements.
ErrorMap error_map(const verifier::Entry& entry, const OpReport& report, const VerifyOptions& options);

/// A table op x {forward, vjp, jvp, double backward, f32 error, mutants killed} and a heat map per op. Needs nothing
/// from the network and reads well on light and dark screens.
std::string html_page(const std::vector<OpReport>& reports, const std::vector<ErrorMap>& maps,
                      const VerifyOptions& options);

}  // namespace bg
