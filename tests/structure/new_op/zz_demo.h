// The op that new_op.sh adds to a scratch copy: y = x^3;  dx = 3 x^2 dy. One part a line, so that the script can leave
// each of them out.
#pragma once

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/samples.h"

namespace bg {

// clang-format off
struct ZzDemo {
  static constexpr std::string_view name = "zz_demo";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S> static Arrs<S> reference(const Arrs<S>& in, const Args&) { Arr<S> y = in[0]; for (S& v : y.v) v = v * v * v; return {y}; }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) { saved.keep_input(0, in[0]); return num::mul(in[0], num::mul(in[0], in[0])); }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() * b[0] * b[0] * 3}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return unary_samples<Args>(r, {}, [](Rng& q, const Shape& s) { return normal(q, s); }); }
  static std::vector<Mutant<Var, Args>> mutants() { return {{"power rule with the wrong factor", [](auto& b) { return Vars{b.dy() * b[0] * b[0] * 2}; }}}; }
};
// clang-format on

}  // namespace bg
