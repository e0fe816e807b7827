#include "autograd/op.h"

#include "autograd/engine.h"
#include "autograd/ops/arithmetic.h"
#include "core/tensor_ops.h"

namespace bg::detail {

uint64_t next_node_id() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

bool should_record(const Vars& inputs, const std::vector<In>& infos) {
  if (!grad_enabled()) return false;
  for (size_t i = 0; i < inputs.size(); ++i)
    if (infos[i].differentiable && inputs[i].requires_grad()) return true;
  return false;
}

void check_forward_finite(std::string_view op, const Tensors& in, const Tensors& out) {
  for (const Tensor& t : in)
    if (t.defined() && num::first_non_finite(t) >= 0) return;  // not this op's doing
  for (size_t i = 0; i < out.size(); ++i) {
    const int64_t bad = num::first_non_finite(out[i]);
    if (bad < 0) continue;
    std::string shapes;
    for (const Tensor& t : in) shapes += str(shapes.empty() ? "" : ", ", t.shape());
    fail(op, str("output ", i, " is not finite", Scope::current().empty() ? "" : " in " + Scope::current()),
         str(out[i].flat(bad), " at flat index ", bad, " of ", out[i].shape(), " from inputs ", shapes),
         "finite numbers", "look at the ranges of the inputs");
  }
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

Vars backward_through(const std::function<Vars(const Vars&)>& compose, const Vars& inputs, const Vars& cotangents,
                      const Need& need) {
  GradMode recording(true);
  // Aliases cut the inputs' own history off: one input may depend on another, and that path is not this node's.
  Vars aliases, wanted;
  for (size_t i = 0; i < inputs.size(); ++i) {
    aliases.push_back(need(i) ? identity(inputs[i]) : inputs[i]);
    if (need(i)) wanted.push_back(aliases.back());
  }
  const Vars outputs = compose(aliases);
  Vars used_outputs, used_cotangents;
  for (size_t i = 0; i < outputs.size(); ++i)
    if (outputs[i].requires_grad()) {
      used_outputs.push_back(outputs[i]);
      used_cotangents.push_back(cotangents[i]);
    }
  const Vars g = grad(used_outputs, wanted, used_cotangents, {.create_graph = true});
  Vars all(inputs.size());
  for (size_t i = 0, k = 0; i < inputs.size(); ++i)
    if (need(i)) all[i] = g[k++];
  return all;
}

}  // namespace bg::detail
