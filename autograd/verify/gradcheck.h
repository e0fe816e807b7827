// Is the gradient of a function right? For any function of Vars, with no reference at hand: reverse mode is held
// against differences of the function and, where every op in it has a second derivative, against forward mode; and the
// gradient must be the same when no other input's is needed and for cotangents that are not contiguous.
#pragma once

#include "autograd/var.h"
#include "autograd/verify/report.h"

namespace bg {

struct GradcheckOptions {
  uint64_t seed = 1;
  int directions = 3;       ///< random directions per input
  double tolerance = 1e-7;  ///< of <J^T v, u> against differences, over |v| |J u| + |J^T v| |u|
  double step = 1.5e-3;     ///< first step, along directions of length 1; halved where the function bends much
};

enum class Verdict {
  right,
  wrong,
  not_differentiable,  ///< the slope jumps at or beside the point (a kink, a tie): there is no gradient to be right
                       ///< about
};
std::string_view name_of(Verdict v);

struct GradcheckReport {
  Verdict verdict = Verdict::right;
  std::vector<Failure> failures;  ///< wrong gradients, or where the slope jumps; one per input at most
  int64_t comparisons = 0;
  double worst = 0;          ///< largest error seen
  bool forward_mode = true;  ///< false: some op has no second derivative, so differences alone were used
  std::string note;          ///< why forward mode was left out

  bool passed() const { return verdict == Verdict::right; }
  std::string to_string() const;
};

/// Checks d f / d input for every input that requires a gradient (all when none does). f must be a function: same
/// inputs, same outputs; draw dropout masks from a fixed key inside it. Errors: f32 inputs (differences of f32
/// functions are good to 1e-4 at best: use to(DType::f64)), no inputs, an f whose outputs depend on none of them, an f
/// that gives other outputs when run again.
GradcheckReport gradcheck(const std::function<Vars(const Vars&)>& f, const Vars& inputs,
                          const GradcheckOptions& options = {});

/// The same over the parameters of a model: f runs it, the parameters are moved in place and put back.
///   gradcheck_parameters([&] { return Vars{loss(model(x))}; }, vars_of(model.parameters()));
/// `names` (optional) are used in reports.
GradcheckReport gradcheck_parameters(const std::function<Vars()>& f, const Vars& parameters,
                                     const std::vector<std::string>& names = {}, const GradcheckOptions& options = {});

}  // namespace bg
