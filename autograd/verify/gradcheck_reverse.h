// Reverse mode of a function under gradcheck: its gradients for given cotangents, and the same gradients computed
// in other ways. Internal to gradcheck*.cpp.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/verify/gradcheck.h"
#include "autograd/verify/tolerances.h"

namespace bg::verifier {

/// What differs between a function of inputs and a model with parameters.
struct Target {
  using Then = std::function<void(const Vars& leaves, const Vars& outputs)>;

  std::vector<std::string> names;  // of the leaves
  std::vector<int> numbers;        // of the leaves, among all inputs
  int inputs = 0;                  // how many there are
  Vars leaves;                     // what is differentiated
  bool layouts = false;            // may the leaves lie elsewhere in memory?
  std::function<Vars()> run;       // recorded, from the leaves
  // Unrecorded, with one leaf at another value (undefined: its own); by convention of `gradient_of` where wanted.
  std::function<Vars(size_t leaf, const Tensor& value, bool by_convention)> at;
  // Recorded, with all leaves at other values (or elsewhere in memory), for as long as `then` runs.
  std::function<void(const Tensors& values, const Then& then)> elsewhere;
};

/// An output that is compared: its place in a run's outputs and in the row of all numbers.
struct Output {
  int index = 0;
  bool constant = false;  // by declaration
  size_t begin = 0, end = 0;
  std::string name() const { return str("output ", index); }
};

/// Outputs that share a cotangent: positions [begin, end) among the compared ones.
struct Group {
  size_t begin = 0, end = 0;
};

/// A function under test: what is compared of it, and its gradients. A row is the elements of all compared outputs,
/// one after the other, each times its weight.
class Reverse {
 public:
  Target target;
  Tensors given, point;         ///< values of the leaves, and of all outputs
  std::vector<Output> outputs;  ///< those that are compared; declared constants last
  std::vector<double> weight;
  uint64_t seed = 1;

  Group all() const { return {0, outputs.size()}; }
  std::vector<double> row(const Tensors& run) const;
  /// f must give as many outputs as it did at the point.
  void check_count(size_t outputs) const;
  /// A row of cotangents of the weighted outputs, as one tensor per compared output.
  Tensors as_cotangents(const std::vector<double>& v) const;
  /// d <v, f> / d leaves, from the cotangents of the outputs in a group; `run` are all outputs of a recorded run.
  Tensors gradients(const Vars& run, const Vars& leaves, const Tensors& v, Group group) const;
  /// How much the gradients at these values move when the last places of values and cotangents do: what rounding may do
  /// to them.
  Tensors spread(const Tensors& at, const Tensors& v, Group group) const;
  /// The same of <v, J u> in forward mode, at the given values.
  double forward_spread(size_t leaf, const Tensor& u, const std::vector<double>& v, Group group) const;
};

/// Two gradients of a leaf that should be the same, and differ by more than `tolerance` times `size`.
struct Repeat {
  std::string what;
  size_t leaf = 0;
  Tensor got, want;
  Tensors at;  ///< the leaves' values
  double size = 0, tolerance = 0;
};
struct Repeats {
  std::vector<Repeat> differ;
  std::vector<GradcheckFailure> refused;  ///< where the backward throws or writes
  std::vector<std::string> left_out;
  int64_t comparisons = 0;
  double worst = 0;  ///< largest error of those that agree
};

/// Computes the gradients for the row of cotangents v again: with nothing changed, one leaf at a time, for cotangents
/// (and inputs) elsewhere in memory, and - a backward is linear, unless `nonlinear` says why not - for the cotangent
/// scaled and in parts.
Repeats repeat_gradients(const Reverse& reverse, const Vars& run, const std::vector<double>& v,
                         const std::string& nonlinear);

/// All of gradcheck.
GradcheckReport check_gradients(Target target, const GradcheckOptions& options);

// Small tools.
Tensors values_of(const Vars& v);
bool same_bits(const Tensor& a, const Tensor& b);
/// The element in which two tensors differ most.
struct Farthest {
  int64_t at = -1;
  double error = 0;  ///< infinite where one of them alone is finite
};
Farthest farthest(const Tensor& got, const Tensor& want);

}  // namespace bg::verifier
