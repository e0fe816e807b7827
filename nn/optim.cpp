#include "nn/optim.h"

#include <cmath>
#include <set>

#include "autograd/profile.h"
#include "core/format.h"
#include "core/kernels/optim.h"
#include "core/parallel.h"
#include "core/tensor_ops.h"

namespace bg {
namespace {

constexpr int64_t kGrain = 32768;  // elements of a slice

void check_fraction(std::string_view op, std::string_view what, double x) {
  if (!(x >= 0 && x < 1)) fail<UsageError>(op, what, str(x), "at least 0 and below 1");
}

void check_decay(std::string_view op, double x) {
  if (!(x >= 0 && std::isfinite(x))) fail<UsageError>(op, "bad weight decay", str(x), "0 or a positive number");
}

kernels::SgdStep sgd_step(const SgdOptions& o, double learning_rate) {
  kernels::SgdStep s;
  s.lr = learning_rate, s.momentum = o.momentum, s.weight_decay = o.weight_decay;
  return s;
}

kernels::AdamStep adam_step(const AdamOptions& o, double learning_rate, int64_t step) {
  kernels::AdamStep s;
  s.lr = learning_rate, s.beta1 = o.beta1, s.beta2 = o.beta2, s.eps = o.eps;
  s.weight_decay = o.weight_decay, s.decoupled = o.decoupled, s.step = step;
  return s;
}

}  // namespace

Optimizer::Optimizer(NamedParameters parameters, std::vector<std::string> moments)
    : parameters_(std::move(parameters)), moment_names_(std::move(moments)) {
  std::set<const Storage*> seen;
  for (const NamedParameter& p : parameters_) {
    BG_CHECK(p.var.requires_grad() && p.var.is_leaf() && p.var.value().is_contiguous(), "optimizer",
             str(p.path, " cannot be updated"), "not a contiguous leaf that requires a gradient",
             "a module's parameter");
    BG_CHECK(seen.insert(p.var.value().storage().get()).second, "optimizer", "parameter given twice", p.path,
             "each parameter once", "Module::parameters()");
    Tensors& own = moments_.emplace_back();
    for (size_t k = 0; k < moment_names_.size(); ++k) own.push_back(Tensor::zeros(p.var.shape(), p.var.dtype()));
  }
}

void Optimizer::zero_grad() {
  for (NamedParameter& p : parameters_) p.var.zero_grad();
}

void Optimizer::step(double learning_rate) {
  BG_CHECK(learning_rate >= 0 && std::isfinite(learning_rate), "optimizer", "bad learning rate", str(learning_rate),
           "0 or a positive number");
  for (NamedParameter& p : parameters_)  // whatever needs memory comes first: a step happens as a whole or not at all
    if (p.var.grad().defined()) p.var.set_grad(p.var.grad().contiguous());
  ++steps_;
  const ProfileSpan span("optimizer step", Profile::Kind::other);
  step_parameters<float>(learning_rate, DType::f32);
  step_parameters<double>(learning_rate, DType::f64);
}

template <class T>
void Optimizer::step_parameters(double learning_rate, DType dtype) {
  std::vector<Slice<T>> slices;
  Tensors grads;  // keeps contiguous copies alive
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Var& var = parameters_[i].var;
    if (var.dtype() != dtype || !var.grad().defined()) continue;
    grads.push_back(var.grad().contiguous());
    Slice<T> whole{var.value().mutable_data<T>("optimizer"), grads.back().data<T>(), {}, var.shape().numel()};
    for (size_t k = 0; k < moments_[i].size(); ++k) whole.moments[k] = moments_[i][k].mutable_data<T>("optimizer");
    for (int64_t at = 0; at < whole.n; at += kGrain) {
      Slice<T> s{whole.value + at, whole.grad + at, {}, std::min(kGrain, whole.n - at)};
      for (size_t k = 0; k < moments_[i].size(); ++k) s.moments[k] = whole.moments[k] + at;
      slices.push_back(s);
    }
  }
  parallel_for(static_cast<int64_t>(slices.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) update(slices[static_cast<size_t>(i)], learning_rate);
  });
}

StateDict Optimizer::state_dict() const {
  StateDict state{{"steps", Tensor::of<int64_t>({steps_}, {1})}};
  for (size_t i = 0; i < parameters_.size(); ++i)
    for (size_t k = 0; k < moment_names_.size(); ++k)
      state.emplace(moment_names_[k] + "." + parameters_[i].path, moments_[i][k]);
  return state;
}

void Optimizer::load_state_dict(const StateDict& state, std::string_view who) {
  const StateDict own = state_dict();
  check_state_fits(own, state, who);
  for (const auto& [key, value] : own) {
    Tensor target = value;
    target.copy_from(state.at(key), "load_state_dict");
    if (key == "steps") steps_ = static_cast<int64_t>(target.item());
  }
}

// -- SGD --------------------------------------------------------------------------------------------------------------

Sgd::Sgd(NamedParameters parameters, SgdOptions options)
    : Optimizer(std::move(parameters),
                options.momentum > 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{}),
      options_(options) {
  check_fraction("sgd", "bad momentum", options.momentum);
  check_decay("sgd", options.weight_decay);
}

void Sgd::update(const Slice<float>& s, double learning_rate) const {
  kernels::sgd_update(sgd_step(options_, learning_rate), s.value, s.grad, s.moments[0], s.n);
}
void Sgd::update(const Slice<double>& s, double learning_rate) const {
  kernels::sgd_update(sgd_step(options_, learning_rate), s.value, s.grad, s.moments[0], s.n);
}

// -- Adam -------------------------------------------------------------------------------------------------------------

Adam::Adam(NamedParameters parameters, AdamOptions options)
    : Optimizer(std::move(parameters), {"m", "v"}), options_(options) {
  check_fraction("adam", "bad beta1", options.beta1);
  check_fraction("adam", "bad beta2", options.beta2);
  check_decay("adam", options.weight_decay);
  if (!(options.eps > 0 && std::isfinite(options.eps)))
    fail<UsageError>("adam", "bad eps", str(options.eps), "a positive number");
}

void Adam::update(const Slice<float>& s, double learning_rate) const {
  kernels::adam_update(adam_step(options_, learning_rate, steps()), s.value, s.grad, s.moments[0], s.moments[1], s.n);
}
void Adam::update(const Slice<double>& s, double learning_rate) const {
  kernels::adam_update(adam_step(options_, learning_rate, steps()), s.value, s.grad, s.moments[0], s.moments[1], s.n);
}

// -- Clipping ---------------------------------------------------------------------------------------------------------

namespace {

double sum_of_squares(const Tensor& t) {
  const Tensor x = t.contiguous();
  return dispatch_float("grad_norm", x.dtype(),
                        [&]<class T>() { return kernels::sum_of_squares(x.data<T>(), x.numel()); });
}

}  // namespace

double grad_norm(const NamedParameters& parameters) {
  double total = 0;
  for (const NamedParameter& p : parameters) {
    const Tensor& g = p.var.grad();
    if (!g.defined()) continue;
    const double squares = sum_of_squares(g);
    if (!std::isfinite(squares)) {
      const int64_t bad = num::first_non_finite(g);
      BG_CHECK(bad < 0, "clip_grad_norm", str("the gradient of ", p.path, " is not finite"),
               bad < 0 ? "" : str(number_text(g.flat(bad)), " at element ", bad), "finite numbers",
               "AnomalyMode to find the op that made it");
    }
    total += squares;
  }
  return std::sqrt(total);
}

double clip_grad_norm(const NamedParameters& parameters, double max_norm) {
  BG_CHECK(max_norm > 0, "clip_grad_norm", "bad max_norm", str(max_norm), "a positive number");
  const ProfileSpan span("clip_grad_norm", Profile::Kind::other);
  const double norm = grad_norm(parameters);
  if (norm <= max_norm) return norm;
  Tensors scaled;  // all before the first is replaced: memory may run out
  for (const NamedParameter& p : parameters)
    scaled.push_back(p.var.grad().defined() ? num::scale(p.var.grad(), max_norm / norm) : Tensor());
  for (size_t i = 0; i < parameters.size(); ++i) {
    Var var = parameters[i].var;
    if (scaled[i].defined()) var.set_grad(std::move(scaled[i]));
  }
  return norm;
}

}  // namespace bg
