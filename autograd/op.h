// What an op is. One struct in one header holds everything about it; adding it to ops/all.h gives it the row in the op
// table (boostgrad info) and all of the verifier's checks (boostgrad gradcheck). One that is yours alone needs no list.
//
//   struct Tanh {                                                                   // y = tanh(x);  dx = dy (1 - y^2)
//     static constexpr std::string_view name = "tanh";
//     static inline const std::array inputs{In{"x"}};
//     using Args = NoArgs;
//     template <class S>
//     static Arrs<S> reference(const Arrs<S>& in, const Args&);             // naive loops, any scalar
//     static Tensor forward(Saved& saved, const Tensors& in, const Args&);  // the fast kernel
//     static Vars backward(const Backward<Var, Args>& b);                   // primitive: in Var arithmetic
//     static std::vector<Sample<Args>> samples(Rng&);                       // what to verify it on, at least one
//     static std::vector<Mutant<Var, Args>> mutants();                      // wrong backwards to reject, at least one
//   };
//   inline Var tanh(const Var& x) { return apply<Tanh>({}, {x})[0]; }
//
// A *primitive* op writes its backward with Vars, so gradients of gradients work. A *fused* op writes it by hand on
// Tensors, `static Tensors backward(const Backward<Tensor, Args>&)`, and may add `static Vars compose(const Vars& in,
// const Args&)`: the same function from primitive ops, a second oracle, and what runs when a graph of the gradient is
// asked for. A fused op without compose throws then; it never returns a wrong second derivative.
//
// Variations: an op with a varying number of inputs has, instead of `inputs`,
// `static std::vector<In> inputs_for(const Args&, size_t count)`: the inputs that it has with these arguments when it
// is given `count`; another number than count is refused. An op with several outputs returns Tensors from forward. An
// op whose inputs broadcast declares `static constexpr bool broadcasts = true` and returns gradients of the output's
// shape: the engine sums them down. An op of one output that costs little beside the memory of that output declares
// `static constexpr bool cheap = true`: whoever saves its output keeps a recipe and computes it again.
//
// Declarations that the verifier needs where an op is right in an unusual way, each with its reason:
//
//   In{"target", false, "why"}             a constant by convention, though the output depends on it
//   In{"p", Domain::simplex}               the set that an input lives in
//   Sample(...).at_kink("first tie wins")  a point on a kink, and the convention there
//   static constexpr std::string_view convention = "straight-through: ..."
//                                          the backward is, on purpose, the derivative of another function, which is
//                                          template <class S>
//                                          static Arrs<S> gradient_of(const Arrs<S>& in, const Args&)
//   static constexpr std::string_view nonlinear = "clipped at 1"
//                                          the backward is linear for small cotangents (below 1e-6) and not beyond
//   static constexpr std::array fixed_arguments{2, 3}
//                                          fields of Args, from 1, that have one value by design (of a struct that
//                                          several ops share): no advice to vary them
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "autograd/profile.h"
#include "autograd/reference.h"
#include "autograd/var.h"
#include "core/rng.h"

namespace bg {

/// The set that an input lives in. The verifier's moved points and directions stay in it.
enum class Domain {
  any,
  positive,   ///< every element above 0
  simplex,    ///< rows (the last dimension) of positive numbers whose sum is 1
  symmetric,  ///< square matrices (the last two dimensions), equal to their transpose
};

/// An input: its name in messages, and whether gradients exist for it at all (indices and lengths have none).
struct In {
  std::string name;
  bool differentiable = true;
  std::string constant;  ///< why a floating input on which the output depends has no gradient, by convention
  Domain domain = Domain::any;

  In(std::string n, bool d = true, std::string why_constant = {}, Domain set = Domain::any)
      : name(std::move(n)), differentiable(d), constant(std::move(why_constant)), domain(set) {}
  In(std::string n, Domain set) : name(std::move(n)), domain(set) {}
};

struct NoArgs {};

/// All that a backward sees. V is Var for primitive ops, Tensor for fused ones.
template <class V, class A>
class Backward {
 public:
  Backward(std::string_view op, const std::vector<V>& cotangents, const std::vector<V>& saved, const Need& need,
           const A& args, const std::vector<Node::Value>& inputs)
      : args(args), op_(op), cotangents_(cotangents), saved_(saved), need_(need), inputs_(inputs) {}

  const A& args;
  const V& dy(size_t output = 0) const { return cotangents_[output]; }
  /// What forward kept, in the order in which it kept it.
  const V& operator[](size_t slot) const {
    BG_CHECK(slot < saved_.size(), op_, "backward reads a slot that forward did not keep", str(slot),
             str("below ", saved_.size()));
    return saved_[slot];
  }
  size_t saved_count() const { return saved_.size(); }
  bool need(size_t input) const { return need_(input); }
  const Shape& input_shape(size_t input) const { return inputs_[input].shape; }
  DType input_dtype(size_t input) const { return inputs_[input].dtype; }
  size_t input_count() const { return inputs_.size(); }

 private:
  std::string_view op_;
  const std::vector<V>& cotangents_;
  const std::vector<V>& saved_;
  const Need& need_;
  const std::vector<Node::Value>& inputs_;
};

/// One point to verify an op at: f64 inputs of unit scale, away from kinks and singularities.
template <class A>
struct Sample {
  std::string label;
  A args;
  Tensors inputs;
  std::vector<int> zero_grads;  ///< inputs whose gradient is exactly zero here (declared, then tested)
  std::string kink;  ///< not empty: the point lies on a kink or tie, and what the gradient is there by convention

  Sample(std::string l, A a, Tensors in, std::vector<int> zero = {})
      : label(std::move(l)), args(std::move(a)), inputs(std::move(in)), zero_grads(std::move(zero)) {}

  /// Declares the point a kink. The dual numbers of the reference state the convention, which is what is verified;
  /// differences do not apply.
  Sample at_kink(std::string convention) && {
    kink = std::move(convention);
    return std::move(*this);
  }
};

/// A wrong backward that the verifier must reject.
template <class V, class A>
struct Mutant {
  using Function = std::function<std::vector<V>(const Backward<V, A>&)>;
  std::string name;
  Function backward;
  std::string equivalent;  ///< when not empty: why this one cannot be told apart (listed, not counted)

  Mutant(std::string n, Function f, std::string why_equivalent = {})
      : name(std::move(n)), backward(std::move(f)), equivalent(std::move(why_equivalent)) {}
};

/// One mutant of a fused op for each (fault, label), whose backward is `O::backward_with(b, fault)`.
template <class O, class Faults>
std::vector<Mutant<Tensor, typename O::Args>> mutants_of(const Faults& faults) {
  std::vector<Mutant<Tensor, typename O::Args>> mutants;
  for (const auto& [fault, label] : faults)
    mutants.emplace_back(
        label, [fault = fault](const Backward<Tensor, typename O::Args>& b) { return O::backward_with(b, fault); });
  return mutants;
}

template <class O>
concept HasArgs = requires {
  typename O::Args;
};

template <class O>
inline constexpr bool is_primitive = requires(const Backward<Var, typename O::Args>& b) {
  { O::backward(b) } -> std::same_as<Vars>;
};
template <class O>
inline constexpr bool has_compose = requires(const Vars& in, const typename O::Args& a) {
  { O::compose(in, a) } -> std::same_as<Vars>;
};
/// Is the backward, on purpose, the derivative of another function, O::gradient_of?
template <class O>
inline constexpr bool has_convention = requires {
  { O::convention } -> std::convertible_to<std::string_view>;
};
template <class O>
inline constexpr bool is_cheap = requires {
  requires O::cheap;
};
template <class O>
using GradValue = std::conditional_t<is_primitive<O>, Var, Tensor>;

/// What every op must bring. Leaving out the reference, the samples or the mutants does not compile.
template <class O>
concept Op = HasArgs<O> &&
    requires(Saved& s, const Tensors& in, const typename O::Args& a, Rng& r, const Arrs<double>& ref) {
  { O::name } -> std::convertible_to<std::string_view>;
  O::forward(s, in, a);
  { O::template reference<double>(ref, a) } -> std::same_as<Arrs<double>>;
  { O::samples(r) } -> std::same_as<std::vector<Sample<typename O::Args>>>;
  { O::mutants() } -> std::same_as<std::vector<Mutant<GradValue<O>, typename O::Args>>>;
};

namespace detail {
/// Throws unless an op that has the inputs `expected` was given that many.
void check_input_count(std::string_view op, size_t given, const std::vector<In>& expected);
}  // namespace detail

/// The inputs of an op, `count` of them: the one place where that number is checked.
template <class O>
std::vector<In> inputs_of(const typename O::Args& args, size_t count) {
  std::vector<In> inputs;
  if constexpr (requires { O::inputs_for(args, count); })
    inputs = O::inputs_for(args, count);
  else
    inputs.assign(O::inputs.begin(), O::inputs.end());
  detail::check_input_count(O::name, count, inputs);
  return inputs;
}

/// Runs an op's forward outside any graph.
template <class O>
Tensors run_forward(Saved& saved, const Tensors& in, const typename O::Args& args) {
  if constexpr (std::is_same_v<decltype(O::forward(saved, in, args)), Tensor>)
    return {O::forward(saved, in, args)};
  else
    return O::forward(saved, in, args);
}

namespace detail {

/// Anomaly mode: throws when an output is not finite, and says so when an input was bad already.
void check_forward_finite(std::string_view op, const Vars& in, const std::vector<In>& infos, const Tensors& out);
/// "saved input x (a leaf), not finite: nan at (1) of (3)", of the first such value; empty when all are finite.
std::string describe_bad_saved(const Saved& saved, const Node& node);
uint64_t next_node_id();

/// The saved values as V: Tensors, or Vars that stand at their place in the graph (see node_saved_vars).
Tensors saved_tensors(const Saved& saved, std::string_view op);
Vars saved_vars(const Saved& saved, const Node& node, const std::shared_ptr<Node>& self);

/// Aliases of a node's inputs at their place in the graph, for a function that runs again: each is a variable of its
/// own, even where one input is given twice or was computed from another.
Vars stand_ins_for(const Vars& inputs);
/// Gradients through `compose`, recorded. `inputs` are the node's inputs at their place in the graph.
Vars backward_through(const std::function<Vars(const Vars&)>& compose, const Vars& inputs, const Vars& cotangents,
                      const Need& need);
/// Fills in ids, scope, edges; returns the outputs as Vars of the node.
Vars record(std::shared_ptr<Node> node, const Vars& inputs, const std::vector<In>& infos, const Tensors& outputs,
            std::shared_ptr<const Recipe> recipe = nullptr);
bool should_record(const Vars& inputs, const std::vector<In>& infos);

}  // namespace detail

/// The node of an op: made by apply.
template <class O>
class OpNode final : public Node {
 public:
  OpNode(const typename O::Args& args, const Tensors& in) : args_(args) {
    if constexpr (has_compose<O> && !is_primitive<O>)
      for (size_t i = 0; i < in.size(); ++i) all_inputs_.keep_input(static_cast<int>(i), in[i]);
  }

  Saved saved;
  void forgo_cheap(const Vars& inputs) {
    saved.forgo_cheap(inputs);
    all_inputs_.forgo_cheap(inputs);
  }

  std::string_view name() const override { return O::name; }
  std::string input_name(int i) const override { return inputs_of<O>(args_, input_values.size())[i].name; }
  bool broadcasts() const override {
    if constexpr (requires { O::broadcasts; })
      return O::broadcasts;
    else
      return false;
  }
  void release_saved() override {
    saved.release();
    all_inputs_.release();
  }
  int64_t saved_bytes() const override { return saved.bytes(); }
  std::string bad_saved() const override { return detail::describe_bad_saved(saved, *this); }

  Vars backward(const Vars& cotangents, const Need& need, bool create_graph) override {
    if constexpr (is_primitive<O>) {
      const Vars kept = detail::saved_vars(saved, *this, shared_from_this());
      return O::backward(Backward<Var, typename O::Args>(O::name, cotangents, kept, need, args_, input_values));
    } else if (create_graph) {
      if constexpr (has_compose<O>) {
        const Vars in = detail::saved_vars(all_inputs_, *this, shared_from_this());
        return detail::backward_through([&](const Vars& x) { return O::compose(x, args_); }, in, cotangents, need);
      } else {
        fail(O::name, "no second derivative: the op has a hand-derived backward and no compose",
             "a backward with create_graph", "a first derivative", "primitive ops, or add compose to the op");
      }
    } else {
      Tensors dy;
      for (const Var& c : cotangents) dy.push_back(c.value());
      const Tensors kept = detail::saved_tensors(saved, O::name);
      const Tensors g = O::backward(Backward<Tensor, typename O::Args>(O::name, dy, kept, need, args_, input_values));
      return Vars(g.begin(), g.end());
    }
  }

 private:
  typename O::Args args_;
  Saved all_inputs_;  // handles for compose; the same storages that the producers hold
};

/// How to get `output`, of O on `in`, again; null unless O is cheap.
template <class O>
std::shared_ptr<const Recipe> recipe_of(const typename O::Args& args, const Vars& in, const Tensor& output) {
  if constexpr (is_cheap<O>) {
    auto r = std::make_shared<Recipe>();
    for (size_t i = 0; i < in.size(); ++i) r->inputs.keep_input(static_cast<int>(i), in[i].value());
    r->steps = 1 + r->inputs.forgo_cheap(in, 2);
    r->run = [args](const Tensors& values) {
      Saved nothing(/*recording=*/false);
      return run_forward<O>(nothing, values, args)[0];
    };
    r->op = O::name;
    r->version = output.storage()->version();
    return r;
  } else {
    return nullptr;
  }
}

/// Runs op O on `in` and records it when grad mode is on and some input requires a gradient.
template <class O>
Vars apply(const typename O::Args& args, const Vars& in) {
  static_assert(Op<O>, "see the list at the top of autograd/op.h for what an op must bring");
  const ProfileSpan span(O::name, Profile::Kind::forward);
  const std::vector<In> infos = inputs_of<O>(args, in.size());
  Tensors values;
  for (const Var& v : in) values.push_back(v.value());
  const bool recorded = detail::should_record(in, infos);
  std::shared_ptr<OpNode<O>> node;
  if (recorded) node = std::make_shared<OpNode<O>>(args, values);
  Saved scratch(/*recording=*/false);
  const Tensors out = run_forward<O>(recorded ? node->saved : scratch, values, args);
  if (AnomalyMode::enabled()) detail::check_forward_finite(O::name, in, infos, out);
  if (!recorded) return Vars(out.begin(), out.end());
  node->forgo_cheap(in);
  return detail::record(std::move(node), in, infos, out, recipe_of<O>(args, in, out[0]));
}

}  // namespace bg
