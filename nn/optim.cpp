#include "nn/optim.h"

#include <cmath>
#include <set>

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
  ++steps_;
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

namespace {

template <class T, class S>
void sgd(const S& s, const SgdOptions& o, double learning_rate) {
  const T lr = static_cast<T>(learning_rate), decay = static_cast<T>(o.weight_decay), mu = static_cast<T>(o.momentum);
  T* b = s.moments[0];
  for (int64_t i = 0; i < s.n; ++i) {
    T g = s.grad[i] + decay * s.value[i];
    if (b) g = b[i] = mu * b[i] + g;
    s.value[i] -= lr * g;
  }
}

}  // namespace

void Sgd::update(const Slice<float>& s, double learning_rate) const { sgd<float>(s, options_, learning_rate); }
void Sgd::update(const Slice<double>& s, double learning_rate) const { sgd<double>(s, options_, learning_rate); }

// -- Adam -------------------------------------------------------------------------------------------------------------

Adam::Adam(NamedParameters parameters, AdamOptions options)
    : Optimizer(std::move(parameters), {"m", "v"}), options_(options) {
  check_fraction("adam", "bad beta1", options.beta1);
  check_fraction("adam", "bad beta2", options.beta2);
  check_decay("adam", options.weight_decay);
  if (!(options.eps > 0 && std::isfinite(options.eps)))
    fail<UsageError>("adam", "bad eps", str(options.eps), "a positive number");
}

namespace {

template <class T, class S>
void adam(const S& s, const AdamOptions& o, double learning_rate, int64_t t) {
  const double correction1 = 1 - std::pow(o.beta1, static_cast<double>(t));
  const double correction2 = 1 - std::pow(o.beta2, static_cast<double>(t));
  const T rate = static_cast<T>(learning_rate / correction1), eps = static_cast<T>(o.eps);
  const T to_root = static_cast<T>(1 / std::sqrt(correction2));
  const T keep1 = static_cast<T>(o.beta1), take1 = static_cast<T>(1 - o.beta1);
  const T keep2 = static_cast<T>(o.beta2), take2 = static_cast<T>(1 - o.beta2);
  const T l2 = static_cast<T>(o.decoupled ? 0 : o.weight_decay);
  const T shrink = static_cast<T>(o.decoupled ? 1 - learning_rate * o.weight_decay : 1);
  T *m = s.moments[0], *v = s.moments[1];
  for (int64_t i = 0; i < s.n; ++i) {
    const T g = s.grad[i] + l2 * s.value[i];
    m[i] = keep1 * m[i] + take1 * g;
    v[i] = keep2 * v[i] + take2 * g * g;
    s.value[i] = shrink * s.value[i] - rate * m[i] / (std::sqrt(v[i]) * to_root + eps);
  }
}

}  // namespace

void Adam::update(const Slice<float>& s, double learning_rate) const {
  adam<float>(s, options_, learning_rate, steps());
}
void Adam::update(const Slice<double>& s, double learning_rate) const {
  adam<double>(s, options_, learning_rate, steps());
}

// -- Clipping ---------------------------------------------------------------------------------------------------------

namespace {

double sum_of_squares(const Tensor& t) {
  const Tensor x = t.contiguous();
  return dispatch_float("grad_norm", x.dtype(), [&]<class T>() {
    const T* v = x.data<T>();
    return parallel_sum<double>(x.numel(), kGrain, [v](int64_t begin, int64_t end) {
      double s = 0;
      for (int64_t i = begin; i < end; ++i) s += static_cast<double>(v[i]) * static_cast<double>(v[i]);
      return s;
    });
  });
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
               bad < 0 ? "" : str(g.flat(bad), " at element ", bad), "finite numbers",
               "AnomalyMode to find the op that made it");
    }
    total += squares;
  }
  return std::sqrt(total);
}

double clip_grad_norm(const NamedParameters& parameters, double max_norm) {
  BG_CHECK(max_norm > 0, "clip_grad_norm", "bad max_norm", str(max_norm), "a positive number");
  const double norm = grad_norm(parameters);
  if (norm <= max_norm) return norm;
  for (const NamedParameter& p : parameters) {
    if (!p.var.grad().defined()) continue;
    Var var = p.var;
    var.set_grad(num::scale(var.grad(), max_norm / norm));
  }
  return norm;
}

}  // namespace bg
