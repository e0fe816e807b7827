// Attention iterated to its fixed point and trained there: does it retrieve, what do its fixed points look like, and
// would the implicit gradient have found something if there were anything to find?
#pragma once

#include "autograd/ops/fixed_point.h"
#include "models/denoise/task.h"

namespace bg::denoise {

/// As the paper trains: 30 iterations, tolerance 1e-5, and the last iterate where that is not enough.
inline constexpr FixedPointArgs kPaperIteration{.max_iterations = 30, .tolerance = 1e-5, .must_converge = false};

/// One step of attention with both loss terms; the fixed point with the cosine alone, trained by the implicit gradient
/// or by backpropagation through the unrolled iteration.
enum class IterateModel { one_step, implicit, unrolled };

struct IterateResult {
  double accuracy = 0;  ///< after 120 steps
  // Fixed points only. At 5,000 fresh queries, iterated as in training: the largest residual and the iterations.
  double residual = 0, iterations = 0;
  // 500 of them iterated until they stay, in f64: how many different points they end in (further apart than 1e-3), and
  // the largest spectral radius of the step's Jacobian at one of them.
  double distinct = 0, radius = 0;
};
IterateResult run_iterate(const Task& task, IterateModel model, uint64_t seed);

struct ControlResult {
  double loss_before = 0, loss_after = 0;
  double radius = 0;  ///< the largest spectral radius at the fixed points after training
};

/// The positive control. Four sets of five patterns in R^8, one W_Q and one beta for all: the fixed point of each set
/// must come to lie at a given point of the patterns' hull. T contracts, so each fixed point is one and is found
/// exactly (tolerance 1e-10, or an error); |z* - target|^2, mean over the sets, falls only if the gradient that comes
/// through the solver is right. `zeroed` replaces that gradient by 0. 1,000 Adam steps, cosine from 1e-2 to 0, in f64:
/// from about 1e-2 to below 1e-4 (40 seeds tried), or, zeroed, not at all.
ControlResult run_control(uint64_t seed, bool zeroed);

}  // namespace bg::denoise
