// The engine walks a graph backwards, without recursion, and hands out gradients.
#pragma once

#include "autograd/var.h"

namespace bg {

/// Backpropagates `cotangents` (one per output; empty: 1 for single-element outputs) into the .grad of every leaf that
/// requires a gradient and that the outputs depend on, adding to what is there; zeros where an op says that a gradient
/// is exactly zero. The graph's saved values are released unless retain_graph.
/// Errors: an output outside any graph, a cotangent of another shape or dtype, a graph already released.
void backward(const Vars& outputs, const Tensors& cotangents = {}, bool retain_graph = false);

struct GradOptions {
  bool retain_graph = false;  ///< implied by create_graph
  bool create_graph = false;  ///< record the gradients, so that they can be differentiated again
};

/// d<cotangents, outputs>/d(inputs), touching no .grad. An input that the outputs do not depend on gets zeros.
Vars grad(const Vars& outputs, const Vars& inputs, const Vars& cotangents = {}, GradOptions options = {});

/// For nodes that run a function again: d<cotangents, outputs>/d(variables) with the variables independent of each
/// other. The walk ends at each of them, in whatever way one was computed from another, and runs none of their hooks:
/// that is for the walk that owns the complete gradient. One result per variable; undefined where `need` says no, where
/// nothing arrives, and for a variable that is in the list a second time. Outputs that require no gradient count for
/// nothing.
Vars partial_gradients(const Vars& outputs, const Vars& cotangents, const Vars& variables, const Need& need,
                       bool create_graph);

/// Sums a gradient over broadcast dimensions down to `shape`, recorded when grad mode is on.
/// The only place that un-broadcasts.
Var reduce_gradient(const Var& grad, const Shape& shape);

/// Describes each leaf that requires a gradient and that `outputs` depend on, besides the `known` ones.
std::vector<std::string> other_leaves(const Vars& outputs, const Vars& known);

}  // namespace bg
