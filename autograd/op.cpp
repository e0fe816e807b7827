#include "autograd/op.h"

#include "autograd/engine.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/watch.h"
#include "core/tensor_ops.h"

namespace bg::detail {

uint64_t next_node_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

void check_input_count(std::string_view op, size_t given, const std::vector<In>& expected) {
  if (given == expected.size()) return;
  std::string names;
  for (const In& in : expected) names += (names.empty() ? "" : ", ") + in.name;
  fail(op, "wrong number of inputs", str(given), str(expected.size(), ": ", names));
}

bool should_record(const Vars& inputs, const std::vector<In>& infos) {
  if (!grad_enabled()) return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (infos[i].differentiable && inputs[i].requires_grad()) return true;
  return false;
}

namespace {

std::string in_scope() { return Scope::current().empty() ? "" : " in " + Scope::current(); }

// "nan at (0, 1) of (2, 3)"; empty when all is finite.
std::string first_bad(const Tensor& t) {
  const int64_t bad = t.defined() ? num::first_non_finite(t) : -1;
  return bad < 0 ? "" : str(t.flat(bad), " at ", position_of(t.shape(), bad), " of ", t.shape());
}

std::string producer(const std::shared_ptr<Meta>& meta) {
  if (!meta || !meta->node) return "a leaf";
  const Node& node = *meta->node;
  return str("computed by ", node.name(), node.scope.empty() ? "" : " in " + node.scope);
}

}  // namespace

void check_forward_finite(std::string_view op, const Vars& in, const std::vector<In>& infos, const Tensors& out) {
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string bad = first_bad(out[i]);
    if (bad.empty()) continue;
    std::string shapes;
    for (size_t k = 0; k < in.size(); ++k) {
      if (const std::string given = first_bad(in[k].value()); !given.empty())
        fail(op, str("input ", infos[k].name, " is already not finite", in_scope()),
             str(given, " (", producer(in[k].meta()), ")"), "finite numbers",
             in[k].is_leaf() ? "look at how this value was set" : "switch anomaly mode on before it is computed");
      shapes += str(shapes.empty() ? "" : ", ", in[k].shape());
    }
    fail(op, str("output ", i, " is not finite", in_scope()), str(bad, " from finite inputs ", shapes),
         "finite numbers", "look at the ranges of the inputs");
  }
}

std::string describe_bad_saved(const Saved& saved, const Node& node) {
  if (saved.released()) return {};
  for (size_t i = 0; i < saved.size(); ++i) {
    const std::string bad = first_bad(saved.get(i, node.name()));
    if (bad.empty()) continue;
    const int index = saved.origin_index(i);
    if (saved.origin(i) == Origin::input)
      return str("saved input ", node.input_name(index), " (", producer(node.inputs[index]), "), not finite: ", bad);
    return str("saved ", saved.origin(i) == Origin::output ? "output" : "intermediate value", ", not finite: ", bad);
  }
  return {};
}

Vars record(std::shared_ptr<Node> node, const Vars& inputs, const std::vector<In>& infos, const Tensors& outputs,
            std::shared_ptr<const Recipe> recipe) {
  node->id = next_node_id();
  node->scope = Scope::current();
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool flows = infos[i].differentiable && inputs[i].requires_grad();
    node->inputs.push_back(flows ? inputs[i].meta() : nullptr);
    node->input_values.push_back({inputs[i].shape(), inputs[i].dtype()});
  }
  Vars result;
  for (size_t i = 0; i < outputs.size(); ++i) {
    node->outputs.push_back({outputs[i].shape(), outputs[i].dtype()});
    if (!is_float(outputs[i].dtype())) {  // indices (argmax and the like) carry no gradient
      result.emplace_back(outputs[i]);
      continue;
    }
    auto meta = std::make_shared<Meta>();
    meta->requires_grad = true;
    meta->node = node;
    meta->output = static_cast<int>(i);
    result.emplace_back(outputs[i], std::move(meta), recipe);
  }
  tell_watchers(node->scope, result);
  return result;
}

Tensors saved_tensors(const Saved& saved, std::string_view op) {
  Tensors out;
  if (saved.size() == 0) return saved.released() ? (saved.get(0, op), out) : out;
  for (size_t i = 0; i < saved.size(); ++i) out.push_back(saved.get(i, op));
  return out;
}

Vars saved_vars(const Saved& saved, const Node& node, const std::shared_ptr<Node>& self) {
  Vars out;
  const Tensors tensors = saved_tensors(saved, node.name());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int index = saved.origin_index(i);
    if (saved.origin(i) == Origin::input && node.inputs[index]) {
      out.emplace_back(tensors[i], node.inputs[index]);
    } else if (saved.origin(i) == Origin::output) {
      auto meta = std::make_shared<Meta>();
      meta->requires_grad = true;
      meta->node = self;
      meta->output = index;
      out.emplace_back(tensors[i], std::move(meta));
    } else {
      out.emplace_back(tensors[i]);
    }
  }
  return out;
}

Vars stand_ins_for(const Vars& inputs) {
  Vars aliases;
  for (const Var& x : inputs) aliases.push_back(x.requires_grad() ? identity(x) : x);
  return aliases;
}

Vars backward_through(const std::function<Vars(const Vars&)>& compose, const Vars& inputs, const Vars& cotangents,
                      const Need& need) {
  GradMode recording(true);
  const Vars stand_ins = stand_ins_for(inputs);
  return partial_gradients(compose(stand_ins), cotangents, stand_ins, need, true);
}

}  // namespace bg::detail
