// Any function with a gradient, verified without being an op: a forward that hands out its backward as a closure, and
// as many oracles as there are. Functions from other languages come in here.
//
//   Given f;
//   f.name = "cube";
//   f.inputs = {In{"x"}};
//   f.forward = [](const Tensors& in) {
//     const Tensor x = in[0];
//     return Given::Result{{num::mul(x, num::mul(x, x))},
//                          [x](const Tensors& dy, const Need&) { return Tensors{num::scale(num::mul(dy[0], num::mul(x,
//                          x)), 3)}; }};
//   };
//   f.samples = [](Rng& r) { return std::vector<Sample<NoArgs>>{{"(3, 4)", {}, {Tensor::randn({3, 4}, r,
//   DType::f64)}}}; }; verify(f);
//
// A step of the ladder applies when its oracle is there: V1 with `reference`; V2 with `jvp`; V3, V5, V6 and V7 always;
// V4 with `compose`. V8 is for ops, which the engine records.
#pragma once

#include "autograd/verify/verify.h"

namespace bg {

struct Given {
  /// The gradients of all inputs, undefined for "exactly zero" and where `need` says that it is not wanted. f64 and f32
  /// cotangents of the outputs' shapes, in any layout.
  using Backward = std::function<Tensors(const Tensors& cotangents, const Need& need)>;
  struct Result {
    Tensors outputs;
    Backward backward;
  };
  using Forward = std::function<Result(const Tensors& in)>;

  struct Mutant {
    std::string name;
    Forward forward;  ///< with a wrong backward, which must be rejected
    std::string equivalent = {};
  };

  std::string name;
  std::vector<In> inputs;
  Forward forward;
  std::function<std::vector<Sample<NoArgs>>(Rng&)> samples;

  // Oracles; all may be left out.
  std::function<Tensors(const Tensors& in)> reference;                     ///< the formula, in f64
  std::function<Tensors(const Tensors& in, const Tensors& tangents)> jvp;  ///< J u, exactly, in f64
  std::function<Vars(const Vars& in)> compose;                             ///< the same from the library's ops
  std::function<Tensors(const Tensors& in)> gradient_of;                   ///< with `convention`, in f64
  std::vector<Mutant> mutants;                                             ///< at least one

  // Declarations: see autograd/op.h.
  std::string convention, nonlinear;
  bool broadcasts = false;
  double f32_bound = 0;
};

namespace verifier {
Entry make_entry(const Given& f);
}

/// Climbs the ladder with a given function. Errors in it are reported, not thrown; UsageError for one without a name,
/// inputs, forward or samples.
OpReport verify(const Given& f, const VerifyOptions& options = {});

}  // namespace bg
