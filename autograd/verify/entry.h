// An op as the verifier sees it: its types erased once, here, so that all checks are ordinary code that compiles once.
#pragma once

#include <memory>

#include "autograd/op.h"
#include "autograd/verify/fields.h"

namespace bg::verifier {

/// One sample of one op: everything that can be asked of it.
class Point {
 public:
  virtual ~Point() = default;

  int index = 0;  ///< among the op's samples
  std::string label;
  std::vector<In> inputs;
  Tensors values;
  std::vector<int> zero_grads;
  bool broadcasts = false;

  virtual Tensors forward(Saved& saved, const Tensors& in) const = 0;
  /// The raw gradients that the op (mutant < 0) or one of its mutants returns.
  virtual Tensors backward(const Saved& saved, const Tensors& cotangents, const Need& need,
                           const std::vector<Node::Value>& input_values, int mutant) const = 0;
  virtual Arrs<double> reference(const Arrs<double>& in) const = 0;
  virtual Arrs<long double> reference(const Arrs<long double>& in) const = 0;
  virtual Arrs<Dual<double>> reference(const Arrs<Dual<double>>& in) const = 0;
  virtual Arrs<Dual<long double>> reference(const Arrs<Dual<long double>>& in) const = 0;
  virtual Vars apply(const Vars& in) const = 0;    ///< through the node, recorded
  virtual Vars compose(const Vars& in) const = 0;  ///< throws when the op has none
  /// The fields of the op's arguments, compared with those of another sample of the op.
  virtual std::vector<Field> compared_arguments(const Point& other) const = 0;
};

struct MutantInfo {
  std::string name, equivalent;
};

/// An op: its name, its traits, and its samples.
struct Entry {
  std::string name;
  std::string type;     ///< of the struct, as C++ writes it
  bool listed = false;  ///< in ops/all.h, so that the program finds it by name
  bool primitive = false, composed = false;
  double f32_bound = 0;  ///< what the op states for V7; 0: nothing stated
  std::vector<MutantInfo> mutants;
  std::vector<size_t> fixed_arguments;  ///< fields of Args, from 1, that have one value by design
  std::function<std::vector<std::unique_ptr<Point>>(Rng&)> samples;
};

/// Entries of all ops in ops/all.h, in order.
const std::vector<Entry>& all_entries();

namespace detail {

template <class O>
class OpPoint final : public Point {
 public:
  using Args = typename O::Args;
  using Value = GradValue<O>;
  using Mutants = std::vector<Mutant<Value, Args>>;

  OpPoint(Sample<Args> sample, std::shared_ptr<const Mutants> mutants)
      : args_(std::move(sample.args)), mutants_(std::move(mutants)) {
    label = std::move(sample.label);
    values = std::move(sample.inputs);
    zero_grads = std::move(sample.zero_grads);
    inputs = inputs_of<O>(args_, values.size());
    if constexpr (requires { O::broadcasts; }) broadcasts = O::broadcasts;
  }

  Tensors forward(Saved& saved, const Tensors& in) const override { return run_forward<O>(saved, in, args_); }
  Tensors backward(const Saved& saved, const Tensors& cotangents, const Need& need,
                   const std::vector<Node::Value>& input_values, int mutant) const override {
    const Tensors kept = bg::detail::saved_tensors(saved, O::name);
    const std::vector<Value> dy(cotangents.begin(), cotangents.end()), slots(kept.begin(), kept.end());
    const Backward<Value, Args> b(O::name, dy, slots, need, args_, input_values);
    const std::vector<Value> g = mutant < 0 ? O::backward(b) : (*mutants_)[static_cast<size_t>(mutant)].backward(b);
    if constexpr (is_primitive<O>) {
      Tensors out;
      for (const Var& v : g) out.push_back(v.value());
      return out;
    } else {
      return g;
    }
  }
  Arrs<double> reference(const Arrs<double>& in) const override { return O::reference(in, args_); }
  Arrs<long double> reference(const Arrs<long double>& in) const override { return O::reference(in, args_); }
  Arrs<Dual<double>> reference(const Arrs<Dual<double>>& in) const override { return O::reference(in, args_); }
  Arrs<Dual<long double>> reference(const Arrs<Dual<long double>>& in) const override {
    return O::reference(in, args_);
  }
  Vars apply(const Vars& in) const override { return bg::apply<O>(args_, in); }
  Vars compose(const Vars& in) const override {
    if constexpr (has_compose<O>)
      return O::compose(in, args_);
    else
      fail(O::name, "the op has no compose");
  }
  std::vector<Field> compared_arguments(const Point& other) const override {
    return compared_fields(args_, dynamic_cast<const OpPoint&>(other).args_);
  }

 private:
  Args args_;
  std::shared_ptr<const Mutants> mutants_;
};

}  // namespace detail

template <class O>
Entry make_entry() {
  static_assert(Op<O>, "see the list at the top of autograd/op.h for what an op must bring");
  Entry e;
  e.name = O::name;
  e.type = type_name<O>();
  e.primitive = is_primitive<O>;
  e.composed = has_compose<O>;
  if constexpr (requires { O::f32_bound; }) e.f32_bound = O::f32_bound;
  if constexpr (requires { O::fixed_arguments; })
    e.fixed_arguments.assign(O::fixed_arguments.begin(), O::fixed_arguments.end());
  auto mutants = std::make_shared<const typename detail::OpPoint<O>::Mutants>(O::mutants());
  for (const auto& m : *mutants) e.mutants.push_back({m.name, m.equivalent});
  e.samples = [mutants](Rng& rng) {
    std::vector<std::unique_ptr<Point>> points;
    for (auto& s : O::samples(rng)) points.push_back(std::make_unique<detail::OpPoint<O>>(std::move(s), mutants));
    return points;
  };
  return e;
}

}  // namespace bg::verifier
