#include "autograd/engine.h"

#include <algorithm>
#include <map>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "autograd/ops/reduce.h"
#include "autograd/profile.h"
#include "core/tensor_ops.h"

namespace bg {
namespace {

// A gradient under construction. The first contribution is borrowed; only a sum that the engine made itself may be
// added to in place.
class Sum {
 public:
  void add(const Var& g, bool create_graph) {
    if (!value_.defined()) {
      value_ = g;
      return;
    }
    const ProfileSpan span("accumulate", Profile::Kind::other);
    if (create_graph) {
      value_ = bg::add(value_, g);
    } else if (owned_) {
      num::add_into(value_.value(), g.value());
    } else {
      value_ = Var(num::add(value_.value(), g.value()));
      owned_ = true;
    }
  }
  bool defined() const { return value_.defined(); }
  Var& value() { return value_; }
  bool owned() const { return owned_; }

 private:
  Var value_;
  bool owned_ = false;
};

std::string where(const Node& node) {
  return node.scope.empty() ? std::string(node.name()) : str(node.name(), " in ", node.scope);
}

// Anomaly mode: `hint` is asked for only when something is wrong.
void check_finite(std::string_view op, const std::string& what, const Tensor& t,
                  const std::function<std::string()>& hint = {}) {
  if (!AnomalyMode::enabled()) return;
  const int64_t bad = num::first_non_finite(t);
  BG_CHECK(bad < 0, op, what + " is not finite",
           str(t.flat(bad), " at ", position_of(t.shape(), bad), " of ", t.shape()), "finite numbers",
           hint ? hint() : "");
}

Tensor run_hooks(const std::vector<Hook>& hooks, Tensor grad, std::string_view what, bool create_graph) {
  for (const Hook& hook : hooks) {
    const Tensor replaced = hook(grad);
    if (!replaced.defined() || (replaced.same_storage(grad) && replaced.offset() == grad.offset())) continue;
    BG_CHECK(!create_graph, what, "a hook replaced a gradient while its graph is recorded", "", "",
             "observe only (return Tensor()), or create_graph = false");
    BG_CHECK(replaced.shape() == grad.shape() && replaced.dtype() == grad.dtype(), what,
             "a hook returned another kind of gradient", str(replaced.dtype(), " ", replaced.shape()),
             str(grad.dtype(), " ", grad.shape()));
    check_finite(what, "the gradient that a hook returned", replaced);
    grad = replaced;
  }
  return grad;
}

// One backward walk. Nodes are taken by falling id: whoever uses a value was created after it, so when a node's turn
// comes its gradient is complete.
class Walk {
 public:
  Walk(bool retain, bool create_graph) : retain_(retain), create_graph_(create_graph) {}

  void seed(const Var& output, const Var& cotangent) {
    BG_CHECK(output.requires_grad(), "backward", "the output depends on nothing that requires a gradient",
             str("shape ", output.shape()), "a value computed from a Var(value, true)");
    BG_CHECK(cotangent.shape() == output.shape() && cotangent.dtype() == output.dtype(), "backward",
             "cotangent does not match its output", str(cotangent.dtype(), " ", cotangent.shape()),
             str(output.dtype(), " ", output.shape()));
    check_finite("backward", "the cotangent that was handed in", cotangent.value());
    deliver(output.meta(), cotangent);
  }

  /// Only these values matter: interior ones stop the walk there when nothing before them is wanted.
  void restrict_to(const Vars& targets) {
    targets_.emplace();
    for (const Var& t : targets) {
      BG_CHECK(t.requires_grad(), "grad", "an input requires no gradient", str("shape ", t.shape()),
               "a Var that takes part in the graph", "Var(value, true)");
      targets_->insert(key(t.meta()));
    }
    find_wanted();
  }

  /// Like restrict_to(the needed ones), with the walk ending at each of `variables`.
  void end_at(const Vars& variables, const Need& need) {
    targets_.emplace();
    for (size_t i = 0; i < variables.size(); ++i) {
      if (!variables[i].requires_grad()) continue;
      ends_.insert(key(variables[i].meta()));
      if (need(i)) targets_->insert(key(variables[i].meta()));
    }
    find_wanted();
  }

  void run() {
    GradMode mode(create_graph_);
    while (!pending_.empty()) {
      auto last = std::prev(pending_.end());
      std::shared_ptr<Node> node = std::move(last->second.node);
      std::vector<Sum> sums = std::move(last->second.sums);
      pending_.erase(last);
      const ProfileSpan span(node->name(), Profile::Kind::backward, &node->scope);
      visit(*node, sums);
      node.reset();  // what it kept is freed in its own time
    }
  }

  /// The finished gradient of a target; undefined when nothing reached it.
  Var result(const Var& target) {
    auto it = results_.find(key(target.meta()));
    return it == results_.end() ? Var() : it->second;
  }

  /// The gradient of a variable of end_at, once: the second time it is undefined.
  Var take_end(const Var& variable) {
    if (!variable.requires_grad()) return {};
    const auto it = end_sums_.find(key(variable.meta()));
    if (it == end_sums_.end()) return {};
    Var g = it->second.value();
    end_sums_.erase(it);
    return g;
  }

  /// Adds every leaf's gradient to its .grad. Whatever may fail, hooks and memory, comes first: either all gradients
  /// arrive or none.
  void accumulate_leaves() {
    const ProfileSpan span("accumulate", Profile::Kind::other);
    struct Arrival {
      Meta* meta;
      Tensor grad;
      bool in_place;
    };
    std::vector<Arrival> arrivals;
    for (auto& [meta, sum] : leaves_) {
      Tensor g = run_hooks(meta->hooks, sum.value().value(), "hook", false);
      const Tensor& old = meta->grad;
      // somebody may hold the old gradient (a hook, a Var): add in place only into a tensor that is ours alone
      const bool in_place = old.defined() && old.storage().use_count() == 1 && old.is_contiguous();
      if (old.defined() && !in_place)
        g = num::add(old, g);
      else if (!old.defined() && !sum.owned() && (g.storage().use_count() > 2 || !g.is_contiguous()))
        g = g.clone();
      arrivals.push_back({meta, std::move(g), in_place});
    }
    for (Arrival& a : arrivals) {
      if (a.in_place)
        num::add_into(a.meta->grad, a.grad);
      else
        a.meta->grad = std::move(a.grad);
    }
  }

 private:
  using Key = std::pair<const void*, int>;
  static Key key(const std::shared_ptr<Meta>& meta) {
    return meta->node ? Key{meta->node.get(), meta->output} : Key{meta.get(), -1};
  }
  struct KeyHash {
    size_t operator()(const Key& k) const {
      return std::hash<const void*>()(k.first) * 31 + static_cast<size_t>(k.second + 1);
    }
  };
  struct Pending {
    std::shared_ptr<Node> node;
    std::vector<Sum> sums;
  };

  void deliver(const std::shared_ptr<Meta>& meta, const Var& g) {
    if (ends_.count(key(meta))) {
      end_sums_[key(meta)].add(g, create_graph_);
      return;
    }
    if (!meta->node) {
      if (targets_ && !targets_->count(key(meta))) return;
      holds_.push_back(meta);
      leaves_[meta.get()].add(g, create_graph_);
      return;
    }
    Pending& p = pending_[meta->node->id];
    if (!p.node) {
      p.node = meta->node;
      p.sums.resize(meta->node->outputs.size());
    }
    p.sums[meta->output].add(g, create_graph_);
  }

  bool wanted(const std::shared_ptr<Meta>& meta) const {
    if (!meta || !meta->requires_grad) return false;
    if (!targets_) return true;
    return targets_->count(key(meta)) || (meta->node && useful_.count(meta->node.get()));
  }

  // Marks every reachable node through which some target is reached, walking up in rising id.
  void find_wanted() {
    std::map<uint64_t, Node*> reachable;
    std::vector<Node*> stack;
    for (auto& [id, p] : pending_) stack.push_back(p.node.get());
    while (!stack.empty()) {
      Node* node = stack.back();
      stack.pop_back();
      if (!reachable.emplace(node->id, node).second) continue;
      for (auto& meta : node->inputs)
        if (meta && meta->node && !ends_.count(key(meta))) stack.push_back(meta->node.get());
    }
    for (auto& [id, node] : reachable)
      for (auto& meta : node->inputs)
        if (wanted(meta)) {
          useful_.insert(node);
          break;
        }
  }

  void visit(Node& node, std::vector<Sum>& sums) {
    Vars cotangents;
    for (size_t i = 0; i < sums.size(); ++i) {
      const Node::Value& v = node.outputs[i];
      Var c = sums[i].defined() ? sums[i].value() : Var(Tensor::zeros(v.shape, v.dtype));
      if (i < node.output_hooks.size() && sums[i].defined()) {
        const Tensor t = run_hooks(node.output_hooks[i], c.value(), node.name(), create_graph_);
        if (!create_graph_) c = Var(t);
      }
      if (AnomalyMode::enabled())  // each contribution was finite
        check_finite(where(node), str("the sum of the gradients of output ", i), c.value());
      if (targets_ && sums[i].defined() && targets_->count({&node, static_cast<int>(i)}))
        results_[{&node, static_cast<int>(i)}] = c;
      cotangents.push_back(std::move(c));
    }
    sums.clear();
    std::vector<bool> needed;
    for (auto& meta : node.inputs) needed.push_back(wanted(meta));
    const Need need(std::move(needed));
    if (!need.any()) return;
    Vars grads = [&] {
      const AnomalyMode steps(false);  // of a backward: what counts is what comes out of it, in the name of the node
      return node.backward(cotangents, need, create_graph_);
    }();
    if (AnomalyMode::enabled()) check_gradients(node, need, grads);  // while its saved values can be looked at
    if (!retain_) node.release_saved();
    BG_CHECK(grads.size() == node.inputs.size(), where(node), "backward returned a wrong number of gradients",
             str(grads.size()), str(node.inputs.size()));
    for (size_t i = 0; i < grads.size(); ++i) {
      if (!need(i)) continue;
      if (grads[i].defined())
        deliver(node.inputs[i], checked(node, i, std::move(grads[i])));
      else if (!targets_)
        deliver_zero(node.inputs[i], node.input_values[i]);
    }
  }

  // An exactly zero gradient: every leaf behind it gets zeros. No node in between runs for that.
  void deliver_zero(const std::shared_ptr<Meta>& first, const Node::Value& value) {
    std::vector<std::pair<std::shared_ptr<Meta>, Node::Value>> stack{{first, value}};
    while (!stack.empty()) {
      const auto [meta, v] = std::move(stack.back());
      stack.pop_back();
      if (!meta->node) {
        if (!leaves_.count(meta.get())) deliver(meta, Var(Tensor::zeros(v.shape, v.dtype)));
        continue;
      }
      if (!zeroed_.insert(meta->node->id).second) continue;
      for (size_t i = 0; i < meta->node->inputs.size(); ++i)
        if (const auto& input = meta->node->inputs[i]) stack.emplace_back(input, meta->node->input_values[i]);
    }
  }

  void check_gradients(const Node& node, const Need& need, const Vars& grads) const {
    for (size_t i = 0; i < std::min(grads.size(), need.size()); ++i)
      if (need(i) && grads[i].defined())
        check_finite(where(node), str("gradient of ", node.input_name(static_cast<int>(i))), grads[i].value(), [&] {
          const std::string bad = node.bad_saved();
          return "look at " + (bad.empty() ? "the ranges of this op's inputs" : "its " + bad);
        });
  }

  Var checked(const Node& node, size_t i, Var g) {
    const Node::Value& input = node.input_values[i];
    if (node.broadcasts()) g = reduce_gradient(g, input.shape);
    BG_CHECK(g.shape() == input.shape && g.dtype() == input.dtype, where(node),
             str("backward returned a wrong gradient for input ", i, " (", node.input_name(i), ")"),
             str(g.dtype(), " ", g.shape()), str(input.dtype, " ", input.shape));
    return g;
  }

  bool retain_, create_graph_;
  std::map<uint64_t, Pending> pending_;
  std::map<Meta*, Sum> leaves_;
  std::vector<std::shared_ptr<Meta>> holds_;  // keep leaves alive while the walk points at them
  std::optional<std::unordered_set<Key, KeyHash>> targets_;
  std::unordered_set<Key, KeyHash> ends_;  // of end_at: nothing is walked beyond them
  std::unordered_map<Key, Sum, KeyHash> end_sums_;
  std::unordered_set<uint64_t> zeroed_;  // nodes that deliver_zero has gone through, by id
  std::unordered_set<Node*> useful_;
  std::unordered_map<Key, Var, KeyHash> results_;

 public:
  void finish_leaf_targets(const Vars& targets) {
    for (const Var& t : targets)
      if (t.is_leaf())
        if (auto it = leaves_.find(t.meta().get()); it != leaves_.end()) {
          Var g = it->second.value();
          const Tensor h = run_hooks(t.meta()->hooks, g.value(), "hook", create_graph_);
          results_[key(t.meta())] = create_graph_ ? g : Var(h);
        }
  }
};

Var default_cotangent(const Var& output) {
  BG_CHECK(output.shape().numel() == 1, "backward", "no cotangent for an output with several elements",
           str("shape ", output.shape()), "a single element or an explicit cotangent", "sum() or mean() first");
  return Var(Tensor::full(output.shape(), 1, output.dtype()));
}

}  // namespace

Var reduce_gradient(const Var& grad, const Shape& shape) {
  if (grad.shape() == shape) return grad;
  if (!grad.requires_grad() || !grad_enabled()) return Var(num::reduce_to(grad.value(), shape));
  return sum_to(grad, shape);
}

void backward(const Vars& outputs, const Tensors& cotangents, bool retain_graph) {
  BG_CHECK(cotangents.empty() || cotangents.size() == outputs.size(), "backward", "wrong number of cotangents",
           str(cotangents.size()), str(outputs.size()));
  Walk walk(retain_graph, false);
  for (size_t i = 0; i < outputs.size(); ++i)
    walk.seed(outputs[i], cotangents.empty() ? default_cotangent(outputs[i]) : Var(cotangents[i]));
  walk.run();
  walk.accumulate_leaves();
}

Vars grad(const Vars& outputs, const Vars& inputs, const Vars& cotangents, GradOptions options) {
  BG_CHECK(cotangents.empty() || cotangents.size() == outputs.size(), "grad", "wrong number of cotangents",
           str(cotangents.size()), str(outputs.size()));
  Walk walk(options.retain_graph || options.create_graph, options.create_graph);
  for (size_t i = 0; i < outputs.size(); ++i)
    walk.seed(outputs[i], cotangents.empty() ? default_cotangent(outputs[i]) : cotangents[i]);
  walk.restrict_to(inputs);
  walk.run();
  walk.finish_leaf_targets(inputs);
  Vars results;
  for (const Var& input : inputs) {
    Var g = walk.result(input);
    results.push_back(g.defined() ? g : Var(Tensor::zeros(input.shape(), input.dtype())));
  }
  return results;
}

Vars partial_gradients(const Vars& outputs, const Vars& cotangents, const Vars& variables, const Need& need,
                       bool create_graph) {
  BG_CHECK(cotangents.size() == outputs.size(), "grad", "the function that ran again gave another number of outputs",
           str(outputs.size()), str(cotangents.size()), "a function that does the same each time");
  Walk walk(create_graph, create_graph);
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].requires_grad()) walk.seed(outputs[i], cotangents[i]);
  walk.end_at(variables, need);
  walk.run();
  Vars results;
  for (size_t i = 0; i < variables.size(); ++i) results.push_back(need(i) ? walk.take_end(variables[i]) : Var());
  return results;
}

std::vector<std::string> other_leaves(const Vars& outputs, const Vars& known) {
  std::unordered_set<const void*> seen;
  for (const Var& k : known) seen.insert(k.meta().get());
  std::vector<std::string> found;
  std::vector<Node*> stack;
  auto visit = [&](const std::shared_ptr<Meta>& meta, const std::string& role) {
    if (!meta || seen.count(meta.get())) return;
    if (meta->node) {
      if (seen.insert(meta->node.get()).second) stack.push_back(meta->node.get());
    } else if (seen.insert(meta.get()).second) {
      found.push_back(role);
    }
  };
  for (const Var& o : outputs) visit(o.meta(), str("an output of shape ", o.shape()));
  while (!stack.empty()) {
    Node& node = *stack.back();
    stack.pop_back();
    for (size_t i = 0; i < node.inputs.size(); ++i)
      visit(node.inputs[i], str("input ", i, " (", node.input_name(static_cast<int>(i)), ") of ", where(node),
                                ", shape ", node.input_values[i].shape));
  }
  return found;
}

}  // namespace bg
