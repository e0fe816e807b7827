// A function with a gradient, as the verifier sees it: no templates, so that the ladder is ordinary code that compiles
// once, and functions from elsewhere (given.h) climb it as ops do (entry.h).
#pragma once

#include <functional>
#include <memory>

#include "autograd/op.h"
#include "autograd/verify/fields.h"

namespace bg::verifier {

/// One forward, and the backward that belongs to it.
struct Run {
  /// Raw gradients, one per input, undefined for "exactly zero". `mutant` < 0: the function's own; otherwise one of its
  /// wrong ones.
  using Backward = std::function<Tensors(const Tensors& cotangents, const Need& need, int mutant)>;

  Tensors out;
  Tensors kept;  ///< what it has saved for its backward, as far as that is known
  Backward backward;
};

/// What a function brings beside its forward and backward. A step of the ladder that lacks its oracle does not apply.
struct Oracles {
  bool reference = true;  ///< the formula on doubles
  bool tangents = true;   ///< J u exactly: the formula on dual numbers, or a forward-mode rule
  bool wide = true;       ///< the formula on long doubles and their dual numbers
  bool node = true;       ///< recorded by the engine
};

/// One sample: everything that can be asked of the function there.
class Point {
 public:
  virtual ~Point() = default;

  int index = 0;  ///< among the samples
  std::string label;
  std::vector<In> inputs;
  Tensors values;
  std::vector<int> zero_grads;
  std::string kink;  ///< not empty: differences do not apply
  bool broadcasts = false;
  bool nonlinear = false;   ///< the backward is linear for small cotangents only
  bool convention = false;  ///< the backward is that of `gradient_of`, not of forward
  Oracles has;

  virtual Run run(const Tensors& in, bool recording = true) const = 0;
  virtual Arrs<double> reference(const Arrs<double>& in) const = 0;
  virtual Arrs<long double> reference(const Arrs<long double>& in) const = 0;
  /// Values and J u; by convention those of `gradient_of`.
  virtual Arrs<Dual<double>> reference(const Arrs<Dual<double>>& in) const = 0;
  virtual Arrs<Dual<long double>> reference(const Arrs<Dual<long double>>& in) const = 0;
  virtual Arrs<double> gradient_of(const Arrs<double>& in) const = 0;
  virtual Vars apply(const Vars& in) const = 0;    ///< through the node, recorded
  virtual Vars compose(const Vars& in) const = 0;  ///< throws when there is none
  /// May the inputs get longer rows and more of them? Not where the arguments hold a table that belongs to their sizes.
  virtual bool may_grow() const { return true; }
  /// The same inputs with one argument changed, and how it was: "argument 2 of 3 is halved"; and with the arguments of
  /// other samples. `fixed`: arguments, from 1, that have one value by design.
  virtual std::vector<std::pair<std::string, std::unique_ptr<Point>>> other_arguments(
      const std::vector<size_t>& fixed) const {
    (void)fixed;
    return {};
  }
  /// The fields of an op's arguments, compared with those of another sample of it.
  virtual std::vector<Field> compared_arguments(const Point&) const { return {}; }
};

struct MutantInfo {
  std::string name, equivalent;
};

/// A function under test: its name, its traits, and its samples.
struct Entry {
  std::string name;
  std::string type;     ///< of an op's struct, as C++ writes it; empty for a function given in another way
  bool listed = false;  ///< in ops/all.h, so that the program finds it by name
  bool primitive = false, composed = false;
  double f32_bound = 0;    ///< what is stated for V7; 0: nothing
  std::string convention;  ///< why the backward is not the derivative; empty: it is
  std::string nonlinear;   ///< why the backward is not linear in the cotangent, where it is not small; empty: it is
  std::vector<MutantInfo> mutants;
  std::vector<size_t> fixed_arguments;  ///< fields of Args, from 1, that have one value by design
  std::function<std::vector<std::unique_ptr<Point>>(Rng&)> samples;
};

/// Entries of all ops in ops/all.h, in order.
const std::vector<Entry>& all_entries();

}  // namespace bg::verifier
