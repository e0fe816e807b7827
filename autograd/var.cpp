#include "autograd/var.h"

#include <algorithm>

#include "autograd/engine.h"
#include "autograd/profile.h"

namespace bg {
namespace {
thread_local bool t_grad_enabled = true;
thread_local bool t_anomaly = false;
thread_local std::string t_scope;
const Tensor kNoTensor;
constexpr size_t kWorthForgoing = size_t{4} << 20;  // below that, time matters more than memory
}  // namespace

Var::Var(Tensor value, bool requires_grad) : value_(std::move(value)) {
  BG_CHECK(!requires_grad || is_float(value_.dtype()), "var", "only floating values have gradients",
           str(value_.dtype()), "f32 or f64");
  if (!requires_grad) return;
  meta_ = std::make_shared<Meta>();
  meta_->requires_grad = true;
}

const Tensor& Var::grad() const { return meta_ ? meta_->grad : kNoTensor; }

void Var::set_grad(Tensor grad) {
  if (!meta_ && !grad.defined()) return;
  BG_CHECK(requires_grad() && is_leaf(), "var", "not a leaf that requires a gradient", "", "a parameter",
           "Var(value, true)");
  BG_CHECK(!grad.defined() || grad.shape() == shape(), "var", "gradient has another shape", str(grad.shape()),
           str(shape()));
  meta_->grad = std::move(grad);
}

void Var::add_hook(Hook hook) {
  BG_CHECK(requires_grad(), "hook", "the value requires no gradient", "", "a Var inside a graph");
  if (!meta_->node) {
    meta_->hooks.push_back(std::move(hook));
    return;
  }
  Node& node = *meta_->node;
  node.output_hooks.resize(node.outputs.size());
  node.output_hooks[meta_->output].push_back(std::move(hook));
}

void Var::backward(const Tensor& cotangent, bool retain_graph) const {
  bg::backward({*this}, cotangent.defined() ? Tensors{cotangent} : Tensors{}, retain_graph);
}

bool Need::any() const { return std::find(wanted_.begin(), wanted_.end(), true) != wanted_.end(); }

int Saved::forgo_cheap(const Vars& inputs, int deepest) {
  int longest = 0;
  for (Slot& s : slots_) {
    if (s.origin != Origin::input || !s.tensor.defined() || s.tensor.storage()->bytes() < kWorthForgoing) continue;
    const Var& input = inputs[static_cast<size_t>(s.index)];
    const Tensor& value = input.value();
    if (!input.recipe() || input.recipe()->steps > deepest || s.version != input.recipe()->version ||
        !s.tensor.same_storage(value) || s.tensor.shape() != value.shape() || s.tensor.strides() != value.strides())
      continue;
    s.recipe = input.recipe();
    s.tensor = Tensor();
    longest = std::max(longest, s.recipe->steps);
  }
  return longest;
}

Tensor Saved::get(size_t i, std::string_view op) const {
  BG_CHECK(!released_, op, "the values saved for backward are gone", "a second backward through one graph",
           "one backward per graph", "retain_graph = true the first time");
  const Slot& s = slots_[i];
  if (s.recipe) {
    const ProfileSpan span(s.recipe->op, Profile::Kind::recomputed);
    Tensors in;
    for (size_t k = 0; k < s.recipe->inputs.size(); ++k) in.push_back(s.recipe->inputs.get(k, s.recipe->op));
    return s.recipe->run(in);
  }
  if (s.tensor.defined() && s.tensor.storage()->version() != s.version) {
    static constexpr std::string_view kOrigin[] = {"input", "output", "intermediate"};
    const auto kind = kOrigin[static_cast<int>(s.origin)];
    fail(op, str("saved ", kind, " ", s.index, " (slot ", i, ") of shape ", s.tensor.shape(), " was changed in place"),
         str("version ", s.tensor.storage()->version(), ", written by '", s.tensor.storage()->last_writer(), "'"),
         str("version ", s.version), "clone() before writing, or write after backward");
  }
  return s.tensor;
}

int64_t Saved::bytes() const {
  int64_t n = 0;
  for (const Slot& s : slots_)
    if (s.tensor.defined()) n += s.tensor.numel() * size_of(s.tensor.dtype());
  return n;
}

// Releasing a node may release the node before it, and so on for a million steps: a queue instead of the stack.
Node::~Node() {
  thread_local std::vector<std::shared_ptr<Meta>> queue;
  thread_local bool draining = false;
  for (auto& meta : inputs)
    if (meta) queue.push_back(std::move(meta));
  if (draining) return;
  draining = true;
  while (!queue.empty()) {
    const std::shared_ptr<Meta> next = std::move(queue.back());
    queue.pop_back();
  }
  draining = false;
}

bool grad_enabled() { return t_grad_enabled; }
GradMode::GradMode(bool enabled) : before_(t_grad_enabled) { t_grad_enabled = enabled; }
GradMode::~GradMode() { t_grad_enabled = before_; }

Scope::Scope(std::string_view name) : before_(t_scope.size()) {
  if (!t_scope.empty() && !name.empty()) t_scope += '.';
  t_scope += name;
}
Scope::~Scope() { t_scope.resize(before_); }
const std::string& Scope::current() { return t_scope; }

AnomalyMode::AnomalyMode(bool enabled) : before_(t_anomaly) { t_anomaly = enabled; }
AnomalyMode::~AnomalyMode() { t_anomaly = before_; }
bool AnomalyMode::enabled() { return t_anomaly; }

}  // namespace bg
