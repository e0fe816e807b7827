// Var: a Tensor and what backpropagation needs to know of it. Node: one recorded op of the graph.
//
// Ownership goes one way - outputs own the node that made them, nodes own their inputs' metadata, never their outputs -
// so graphs have no cycles and vanish with the last Var. Deep graphs are freed iteratively.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace bg {

class Node;
class Var;
struct Recipe;
using Vars = std::vector<Var>;

/// Sees a gradient once it is complete. Returns the gradient to use instead, or an undefined Tensor to keep it.
using Hook = std::function<Tensor(const Tensor& grad)>;

/// Gradient metadata of one value, shared by every handle on it.
struct Meta {
  bool requires_grad = false;
  std::shared_ptr<Node> node;  // the producer; null for a leaf
  int output = 0;              // which of the producer's outputs
  Tensor grad;                 // leaves only: what backward() accumulates
  std::vector<Hook> hooks;     // leaves only: hooks of interior values live in their node
};

class Var {
 public:
  Var() = default;
  /*implicit*/ Var(Tensor value, bool requires_grad = false);
  Var(Tensor value, std::shared_ptr<Meta> meta, std::shared_ptr<const Recipe> recipe = nullptr)
      : value_(std::move(value)), meta_(std::move(meta)), recipe_(std::move(recipe)) {}

  const Tensor& value() const { return value_; }
  /// The tensor for writing in place (optimizers). Writing to a value that a graph has saved is found at backward.
  Tensor& value() { return value_; }
  bool defined() const { return value_.defined(); }
  const Shape& shape() const { return value_.shape(); }
  int64_t size(int dim) const { return value_.size(dim); }
  int rank() const { return value_.rank(); }
  DType dtype() const { return value_.dtype(); }
  double item() const { return value_.item(); }

  bool requires_grad() const { return meta_ && meta_->requires_grad; }
  bool is_leaf() const { return !meta_ || !meta_->node; }
  /// What backward() has accumulated here; undefined before. Leaves only.
  const Tensor& grad() const;
  void set_grad(Tensor grad);
  void zero_grad() { set_grad({}); }
  /// Runs once per backward, after this value's gradient is complete.
  void add_hook(Hook hook);
  /// The same numbers outside the graph.
  Var detach() const { return Var(value_); }

  /// Backpropagates from this value into the .grad of every leaf. `cotangent` defaults to 1 for a single element.
  void backward(const Tensor& cotangent = {}, bool retain_graph = false) const;

  const std::shared_ptr<Meta>& meta() const { return meta_; }
  /// How to compute the value again; null unless it is the output of a cheap op.
  const std::shared_ptr<const Recipe>& recipe() const { return recipe_; }

 private:
  Tensor value_;
  std::shared_ptr<Meta> meta_;
  std::shared_ptr<const Recipe> recipe_;  // here and not in meta_, so that a graph alone does not keep its inputs
};

/// Which of a node's inputs want a gradient.
class Need {
 public:
  Need() = default;
  explicit Need(std::vector<bool> wanted) : wanted_(std::move(wanted)) {}
  bool operator()(size_t input) const { return wanted_[input]; }
  size_t size() const { return wanted_.size(); }
  bool any() const;

 private:
  std::vector<bool> wanted_;
};

/// Where a saved tensor comes from: needed to give it its place in the graph when a graph of the gradient is asked for.
enum class Origin { input, output, intermediate };

/// What a forward keeps for its backward. Each slot remembers its storage's version; reading it after somebody wrote
/// to that storage is an error that names the writer.
class Saved {
 public:
  explicit Saved(bool recording = true) : recording_(recording) {}

  /// Will a backward follow? When not, a forward need not prepare for one; what it keeps is dropped.
  bool recording() const { return recording_; }

  void keep_input(int input, const Tensor& t) { slots_.push_back({t, version(t), Origin::input, input}); }
  void keep_output(int output, const Tensor& t) { slots_.push_back({t, version(t), Origin::output, output}); }
  void keep(const Tensor& t) { slots_.push_back({t, version(t), Origin::intermediate, 0}); }

  /// Lets go of kept inputs that are large and cheap to compute again, by recipes of at most `deepest` steps: their
  /// slots hold the recipe instead. Returns the steps of the longest recipe held.
  int forgo_cheap(const Vars& inputs, int deepest = 3);

  size_t size() const { return slots_.size(); }
  /// Slot i, checked, or computed again; `op` is named in the error.
  Tensor get(size_t i, std::string_view op) const;
  Origin origin(size_t i) const { return slots_[i].origin; }
  int origin_index(size_t i) const { return slots_[i].index; }
  bool released() const { return released_; }
  int64_t bytes() const;
  void release() {
    slots_.clear();
    released_ = true;
  }

 private:
  struct Slot {
    Tensor tensor;
    uint64_t version;
    Origin origin;
    int index;
    std::shared_ptr<const Recipe> recipe = nullptr;  // in place of the tensor
  };
  static uint64_t version(const Tensor& t) { return t.defined() ? t.storage()->version() : 0; }
  std::vector<Slot> slots_;
  bool recording_;
  bool released_ = false;
};

/// How to compute the output of a cheap op (op.h) again: a normalisation, an activation, a dropout. It gives what the
/// output was when it was new, even if somebody has written to it since; its inputs must not have been written to.
struct Recipe {
  Saved inputs;
  std::function<Tensor(const Tensors& inputs)> run;
  std::string_view op;
  uint64_t version;  ///< of the output's storage when it was new
  int steps = 1;     ///< ops to run; few, so that long chains of cheap ops are not computed again from their beginning
};

/// One recorded op. Created by op.h; walked by the engine.
class Node : public std::enable_shared_from_this<Node> {
 public:
  struct Value {
    Shape shape;
    DType dtype;
  };

  virtual ~Node();
  virtual std::string_view name() const = 0;
  virtual std::string input_name(int i) const = 0;
  /// Cotangents of the outputs (always defined) to gradients of the inputs (undefined: exactly zero or not needed).
  /// With create_graph, the gradients are themselves recorded.
  virtual Vars backward(const Vars& cotangents, const Need& need, bool create_graph) = 0;
  /// May gradients come larger than the input, to be summed over broadcast dimensions by the engine?
  virtual bool broadcasts() const { return false; }
  virtual void release_saved() {}
  virtual int64_t saved_bytes() const { return 0; }
  /// Which saved value is not finite, in words; empty when all are (or it cannot be told). For anomaly mode.
  virtual std::string bad_saved() const { return {}; }

  uint64_t id = 0;  // rises with creation: an input's id is always below its user's
  std::string scope;
  std::vector<std::shared_ptr<Meta>> inputs;  // null where no gradient can flow
  std::vector<Value> input_values, outputs;
  std::vector<std::vector<Hook>> output_hooks;  // empty until a hook is added
};

// -- Grad mode and scopes ---------------------------------------------------------------------------------------------

bool grad_enabled();

/// Sets whether ops are recorded in this thread, for the scope of the object.
class GradMode {
 public:
  explicit GradMode(bool enabled);
  ~GradMode();
  GradMode(const GradMode&) = delete;

 private:
  bool before_;
};
struct NoGrad : GradMode {
  NoGrad() : GradMode(false) {}
};

/// Names the part of the model that runs, such as blocks.3.attn: nodes and errors carry it.
class Scope {
 public:
  explicit Scope(std::string_view name);
  ~Scope();
  Scope(const Scope&) = delete;
  static const std::string& current();

 private:
  size_t before_;
};

/// Checks every forward output and every gradient for NaN and infinities while it lives. The error names the first op
/// that gives such a value, its scope, shapes and the first bad index; where the op was handed the bad value (by a
/// leaf, a cotangent, or from a time before the mode) it names that instead.
class AnomalyMode {
 public:
  explicit AnomalyMode(bool enabled = true);
  ~AnomalyMode();
  AnomalyMode(const AnomalyMode&) = delete;
  static bool enabled();

 private:
  bool before_;
};

}  // namespace bg
