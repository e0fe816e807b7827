#include "autograd/jvp.h"

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/reduce.h"

namespace bg {
namespace detail {

Tensors tangents_of(const Vars& outputs, const Vars& leaves, const Tensors& tangents) {
  Vars reached, v;
  for (const Var& y : outputs)
    if (y.requires_grad()) {
      reached.push_back(y);
      v.emplace_back(Tensor::zeros(y.shape(), y.dtype()), true);
    }
  Tensors result;
  for (const Var& y : outputs) result.push_back(Tensor::zeros(y.shape(), y.dtype()));
  if (reached.empty()) return result;
  GradMode recording(true);
  const Vars g = grad(reached, leaves, v, {.create_graph = true});  // J^T v
  Var total;
  for (size_t i = 0; i < leaves.size(); ++i) {
    const Var part = sum(g[i] * Var(tangents[i]));
    total = total.defined() ? total + part : part;
  }
  if (!total.requires_grad()) return result;  // every gradient is exactly zero
  const Vars along = grad({total}, v);
  for (size_t k = 0, at = 0; k < outputs.size(); ++k)
    if (outputs[k].requires_grad()) result[k] = along[at++].value();
  return result;
}

}  // namespace detail

Jvp jvp(const std::function<Vars(const Vars&)>& f, const Tensors& inputs, const Tensors& tangents) {
  BG_CHECK(inputs.size() == tangents.size(), "jvp", "wrong number of tangents", str(tangents.size()),
           str(inputs.size(), ", one per input"));
  Vars leaves;
  for (size_t i = 0; i < inputs.size(); ++i) {
    BG_CHECK(tangents[i].shape() == inputs[i].shape() && tangents[i].dtype() == inputs[i].dtype(), "jvp",
             str("tangent ", i, " does not match its input"), str(tangents[i].dtype(), " ", tangents[i].shape()),
             str(inputs[i].dtype(), " ", inputs[i].shape()));
    leaves.emplace_back(inputs[i], true);
  }
  GradMode recording(true);
  Jvp result;
  result.outputs = f(leaves);
  result.tangents = detail::tangents_of(result.outputs, leaves, tangents);
  return result;
}

}  // namespace bg
