// gradcheck over a model as a whole.
#pragma once

#include "autograd/verify/gradcheck.h"
#include "nn/module.h"

namespace bg {

/// Moves each of the model's parameters along random directions and compares with the gradient of f, which runs the
/// model; a wrong one is named by its path. The parameters must be f64 (model.to(DType::f64)). One that moves nothing
/// here (a bias that all keys share, what lies behind a head of zeros) is inconclusive, unless it is declared:
/// {.zero_inputs = {"b_k"}} names every path that ends so. See gradcheck_parameters.
///   gradcheck(model, [&] { return Vars{model.loss(ids, targets)}; })
GradcheckReport gradcheck(const Module& model, const std::function<Vars()>& f, const GradcheckOptions& options = {});

}  // namespace bg
