// V7: the f32 backward against the f64 backward at the same (f32-rounded) point. An op that is written for f64 alone
// and says so by an error is not wrong: the step does not apply.
#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

Tensors converted(const Tensors& in, DType dtype) {
  Tensors out;
  for (const Tensor& t : in) out.push_back(t.defined() && is_float(t.dtype()) ? t.to(dtype) : t);
  return out;
}

}  // namespace

void check_precision(Recorder& r, const Subject& s, const Forward& f, const Draw& d, double bound) {
  // both sides see the same numbers, so that only the arithmetic differs
  const Tensors x = converted(f.in, DType::f32), v = converted(d.v, DType::f32);
  Tensors narrow;
  try {
    narrow = s.gradients(x, v);
  } catch (const Error& e) {
    r.report().na["V7"] = str("refuses f32: ", e.what());
    return;
  }
  const Tensors wide = s.gradients(converted(x, DType::f64), converted(v, DType::f64));
  for (size_t i : s.differentiable())
    r.expect_close(Step::V7, "f32 backward = f64 backward", s.point.inputs[i].name, narrow[i], wide[i], bound);
}

}  // namespace bg::verifier
