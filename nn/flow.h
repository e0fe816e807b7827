// The flow of activations and gradients through a model: one forward and one backward pass, summed up per module. Shows
// where gradients vanish, explode, or never arrive.
//
//   const Flow flow = gradient_flow(model, [&] { return model.loss(ids, targets); });
//   std::cout << flow.table();
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nn/module.h"

namespace bg {

/// One module, as its last call in the pass left it. rms is the root of the mean square.
struct FlowRow {
  std::string path;            ///< such as blocks.0.attn
  Shape shape;                 ///< of its output
  double activation = 0;       ///< rms of its output
  double gradient = 0;         ///< rms of d loss / d output
  double weight = 0;           ///< 2-norm of all parameters in it
  double weight_gradient = 0;  ///< 2-norm of their gradients
  int64_t parameters = 0;      ///< numbers in all of them; 0: the two norms say nothing
  std::string problem;         ///< "no gradient arrives", "the output is zero", ...; empty when there is none

  /// |d w| / |w|: how far a step of unit rate would go; 0 without parameters.
  double ratio() const { return weight > 0 ? weight_gradient / weight : 0; }
};

struct Flow {
  double loss = 0;
  std::vector<FlowRow> rows;      ///< modules that computed something, parents before their children
  std::vector<std::string> dead;  ///< parameters whose gradient is exactly zero, but for attention's key biases

  /// One line per module with a bar for the gradient on a logarithmic scale, then what is wrong.
  std::string table() const;
  /// A program for gnuplot that draws both rms per module as SVG on standard output.
  std::string plot_script() const;
};

/// Runs `loss` (a single element that `model` and the caller's data give), and backpropagates without touching any
/// .grad. Any module counts whose forward begins with enter(). Throws Error when the loss does not depend on the model.
Flow gradient_flow(const Module& model, const std::function<Var()>& loss);

}  // namespace bg
