// The verifier: is a hand-derived backward right? Checks ops against exact oracles and plants errors to show that it
// would have noticed. The ladder of checks, V1 to V10, and what each proves: README.md beside this file.
#pragma once

#include "autograd/verify/entry.h"
#include "autograd/verify/report.h"

namespace bg {

struct VerifyOptions {
  uint64_t seed = 1;
  bool quick = false;  ///< fewer draws, masks, layouts, moved points; of very many samples every third
  int sample = -1;     ///< only this sample of the op; -1: all
};

namespace verifier {
OpReport verify_entry(const Entry& entry, const VerifyOptions& options);
}

/// Verifies an op: yours or one of Boostgrad's. The struct is that of autograd/op.h; it need not be in ops/all.h.
/// Errors in the op (a wrong number of gradients, an exception) are reported, not thrown.
template <class O>
OpReport verify(const VerifyOptions& options = {}) {
  return verifier::verify_entry(verifier::make_entry<O>(), options);
}

}  // namespace bg
