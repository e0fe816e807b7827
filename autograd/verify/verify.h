// The verifier: is a hand-derived backward right? Checks ops against exact oracles and plants errors to show that it
// would have noticed. The ladder, at every sample (tolerances: tolerances.h):
//
//   V1   the fast forward equals the naive reference
//   V2   <J^T v, u> of the backward equals <v, J u>, with J u exact by dual numbers through the reference
//   V3   the same with J u from 4-point differences of the fast forward
//   V4   the backward equals the engine's gradient of compose, element by element, where the op has one
//   V5   every entry of the Jacobian equals its difference, for small samples
//   V6   structure: linear in the cotangent, any choice of needed inputs, strided inputs, nothing written that others
//        hold, the same bits again and with 1, 2 and 4 threads
//   V7   the f32 backward is near the f64 one
//   V8   second derivatives are right, or refused
//   V9   vacuity: something finite and not zero was compared
//   V10  negative controls: the op's own mutants, and errors planted into every gradient, are all rejected
#pragma once

#include "autograd/verify/entry.h"
#include "autograd/verify/report.h"

namespace bg {

struct VerifyOptions {
  uint64_t seed = 1;
  bool quick = false;  ///< one draw instead of two, fewer masks and layouts
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
