#include "nn/module.h"

namespace bg {
namespace {

// The first few: a sentence, not a page.
std::string joined(const std::vector<std::string>& parts) {
  constexpr size_t kShown = 3;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, parts.size()); ++i) text += (text.empty() ? "" : "; ") + parts[i];
  if (parts.size() > kShown) text += str("; and ", parts.size() - kShown, " more");
  return text;
}

}  // namespace

void Module::check_name(const std::string& name) const {
  BG_CHECK(!name.empty(), "module", "empty name", "", "the name of a parameter or a child");
  for (const auto& [n, v] : parameters_) BG_CHECK(n != name, "module", "name used twice", name, "distinct names");
  for (const auto& c : children_) BG_CHECK(c->name_ != name, "module", "name used twice", name, "distinct names");
}

Var& Module::register_parameter(const std::string& name, const Tensor& value) {
  return register_tied(name, Var(value.contiguous(), true));
}

Var& Module::register_tied(const std::string& name, const Var& parameter) {
  check_name(name);
  BG_CHECK(parameter.requires_grad() && parameter.is_leaf(), "module", str("parameter ", name, " cannot be trained"),
           "a value that requires no gradient or was computed", "a leaf that requires a gradient");
  return parameters_.emplace_back(name, parameter).second;
}

void Module::adopt(const std::string& name, std::unique_ptr<Module> child) {
  check_name(name);
  child->name_ = name;
  children_.push_back(std::move(child));
}

void Module::collect(const std::string& prefix, NamedParameters& out) const {
  for (const auto& [name, var] : parameters_) out.push_back({prefix + name, var});
  for (const auto& child : children_) child->collect(prefix + child->name_ + ".", out);
}

template <class F>
void Module::for_each_slot(F&& f) {
  for (auto& slot : parameters_) f(slot.second);
  for (const auto& child : children_) child->for_each_slot(f);
}

NamedParameters Module::named_parameters() const {
  NamedParameters all;
  collect("", all);
  return all;
}

NamedParameters Module::parameters() const {
  NamedParameters unique;
  std::map<const Storage*, const NamedParameter> seen;
  for (NamedParameter& p : named_parameters()) {
    const auto [it, fresh] = seen.try_emplace(p.var.value().storage().get(), p);
    BG_CHECK(fresh || it->second.var.meta() == p.var.meta(), "module", "two parameters share memory but not gradients",
             str(it->second.path, " and ", p.path), "one parameter under two names", "register_tied");
    if (fresh) unique.push_back(std::move(p));
  }
  return unique;
}

std::vector<std::pair<std::string, const Module*>> Module::named_modules() const {
  std::vector<std::pair<std::string, const Module*>> all;
  for (const auto& child : children_) {
    all.emplace_back(child->name_, child.get());
    for (const auto& [path, module] : child->named_modules()) all.emplace_back(child->name_ + "." + path, module);
  }
  return all;
}

int64_t Module::parameter_count() const {
  int64_t n = 0;
  for (const NamedParameter& p : parameters()) n += p.var.shape().numel();
  return n;
}

StateDict Module::state_dict() const {
  StateDict state;
  for (const NamedParameter& p : parameters()) state.emplace(p.path, p.var.value());
  return state;
}

void check_state_fits(const StateDict& expected, const StateDict& state, std::string_view who) {
  std::vector<std::string> wrong;
  for (const auto& [path, want] : expected) {
    const auto found = state.find(path);
    if (found == state.end() || !found->second.defined()) {
      wrong.push_back(str("missing ", path, " ", want.shape()));
      continue;
    }
    const Tensor& t = found->second;
    if (!(t.shape() == want.shape()) || t.dtype() != want.dtype())
      wrong.push_back(str(path, " is ", t.dtype(), " ", t.shape(), " instead of ", want.dtype(), " ", want.shape()));
  }
  for (const auto& [path, t] : state)
    if (!expected.contains(path)) wrong.push_back(str("unexpected ", path));
  BG_CHECK(wrong.empty(), who, "the values do not fit", joined(wrong),
           str("exactly the ", expected.size(), " entries of this configuration"),
           "the configuration that they were saved with");
}

void Module::load_state_dict(const StateDict& state, std::string_view who) {
  const StateDict own = state_dict();
  check_state_fits(own, state, who);
  for (const auto& [path, value] : own) {
    Tensor target = value;
    target.copy_from(state.at(path), "load_state_dict");
  }
}

void Module::to(DType dtype) {
  BG_CHECK(is_float(dtype), "module", "parameters cannot have this dtype", str(dtype), "f32 or f64");
  std::map<const Meta*, Var> converted;  // a tied parameter stays one
  for_each_slot([&](Var& slot) {
    auto [it, fresh] = converted.try_emplace(slot.meta().get());
    if (fresh) it->second = Var(slot.value().to(dtype), true);
  });
  for_each_slot([&](Var& slot) { slot = converted.at(slot.meta().get()); });
}

void Module::zero_grad() {
  for_each_slot([](Var& slot) { slot.zero_grad(); });
}

void Module::train(bool on) {
  training_ = on;
  for (const auto& child : children_) child->train(on);
}

Vars vars_of(const NamedParameters& parameters) {
  Vars vars;
  for (const NamedParameter& p : parameters) vars.push_back(p.var);
  return vars;
}

}  // namespace bg
