#include "nn/optim.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "autograd/profile.h"
#include "core/format.h"
#include "core/kernels/optim.h"
#include "core/norm.h"
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

kernels::SgdStep sgd_step(const SgdOptions& o, double learning_rate, double weight_decay) {
  kernels::SgdStep s;
  s.lr = learning_rate, s.momentum = o.momentum, s.weight_decay = weight_decay;
  return s;
}

kernels::AdamStep adam_step(const AdamOptions& o, double learning_rate, double weight_decay, int64_t step) {
  kernels::AdamStep s;
  s.lr = learning_rate, s.beta1 = o.beta1, s.beta2 = o.beta2, s.eps = o.eps;
  s.weight_decay = weight_decay, s.decoupled = o.decoupled, s.step = step;
  return s;
}

std::string count_key(const NamedParameter& p) { return "steps." + p.path; }

}  // namespace

bool decay_all(const NamedParameter&) { return true; }
bool decay_matrices(const NamedParameter& parameter) { return parameter.var.rank() >= 2; }

Optimizer::Optimizer(NamedParameters parameters, std::vector<std::string> moments, double weight_decay,
                     const DecayRule& decays)
    : parameters_(std::move(parameters)), moment_names_(std::move(moments)) {
  BG_CHECK(decays, "optimizer", "no rule for weight decay", "an empty function",
           "decay_all, decay_matrices or another");
  std::set<const Storage*> seen;
  for (const NamedParameter& p : parameters_) {
    BG_CHECK(p.var.requires_grad() && p.var.is_leaf() && p.var.value().is_contiguous(), "optimizer",
             str(p.path, " cannot be updated"), "not a contiguous leaf that requires a gradient",
             "a module's parameter");
    BG_CHECK(seen.insert(p.var.value().storage().get()).second, "optimizer", "parameter given twice", p.path,
             "each parameter once", "Module::parameters()");
    counts_.push_back(0);
    weight_decay_.push_back(decays(p) ? weight_decay : 0);
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
  const ProfileSpan span("optimizer step", Profile::Kind::other);
  const std::vector<Slice<float>> singles = slices<float>(DType::f32);
  const std::vector<Slice<double>> doubles = slices<double>(DType::f64);
  ++steps_;
  for (size_t i = 0; i < parameters_.size(); ++i) counts_[i] += parameters_[i].var.grad().defined();
  update_all(singles, learning_rate);
  update_all(doubles, learning_rate);
}

// What the next step updates, of one dtype. Gradients are contiguous.
template <class T>
std::vector<Optimizer::Slice<T>> Optimizer::slices(DType dtype) {
  std::vector<Slice<T>> all;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Var& var = parameters_[i].var;
    if (var.dtype() != dtype || !var.grad().defined()) continue;
    Slice<T> whole{var.value().mutable_data<T>("optimizer"),
                   var.grad().data<T>(),
                   {},
                   var.shape().numel(),
                   counts_[i] + 1,
                   weight_decay_[i]};
    for (size_t k = 0; k < moments_[i].size(); ++k) whole.moments[k] = moments_[i][k].mutable_data<T>("optimizer");
    for (int64_t at = 0; at < whole.n; at += kGrain) {
      Slice<T> s = whole;
      s.value += at, s.grad += at, s.n = std::min(kGrain, whole.n - at);
      for (size_t k = 0; k < moments_[i].size(); ++k) s.moments[k] += at;
      all.push_back(s);
    }
  }
  return all;
}

template <class T>
void Optimizer::update_all(const std::vector<Slice<T>>& slices, double learning_rate) const {
  parallel_for(static_cast<int64_t>(slices.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) update(slices[static_cast<size_t>(i)], learning_rate);
  });
}

StateDict Optimizer::state_dict() const {
  StateDict state{{"steps", Tensor::of<int64_t>({steps_}, {1})}};
  for (size_t i = 0; i < parameters_.size(); ++i) {
    state.emplace(count_key(parameters_[i]), Tensor::of<int64_t>({counts_[i]}, {1}));
    for (size_t k = 0; k < moment_names_.size(); ++k)
      state.emplace(moment_names_[k] + "." + parameters_[i].path, moments_[i][k]);
  }
  return state;
}

void Optimizer::load_state_dict(const StateDict& given, std::string_view who) {
  StateDict state = given;
  const auto steps = state.find("steps");
  const bool counted =
      std::any_of(state.begin(), state.end(), [](const auto& s) { return s.first.starts_with("steps."); });
  if (steps != state.end() && !counted)  // an older version counted for all parameters together
    for (const NamedParameter& p : parameters_) state[count_key(p)] = steps->second;
  const StateDict own = state_dict();
  check_state_fits(own, state, who);
  auto count = [&](const std::string& key) {
    const auto n = state.at(key).item<int64_t>();
    BG_CHECK(n >= 0, who, str("bad count ", key), str(n), "0 or more");
    return n;
  };
  std::vector<int64_t> counts;
  for (const NamedParameter& p : parameters_) counts.push_back(count(count_key(p)));
  steps_ = count("steps");
  counts_ = std::move(counts);
  for (const auto& [key, value] : own) {
    Tensor target = value;
    target.copy_from(state.at(key), "load_state_dict");
  }
}

// -- SGD --------------------------------------------------------------------------------------------------------------

Sgd::Sgd(NamedParameters parameters, SgdOptions options)
    : Optimizer(std::move(parameters),
                options.momentum > 0 ? std::vector<std::string>{"momentum"} : std::vector<std::string>{},
                options.weight_decay, options.decays),
      options_(options) {
  check_fraction("sgd", "bad momentum", options.momentum);
  check_decay("sgd", options.weight_decay);
}

void Sgd::update(const Slice<float>& s, double learning_rate) const {
  kernels::sgd_update(sgd_step(options_, learning_rate, s.weight_decay), s.value, s.grad, s.moments[0], s.n);
}
void Sgd::update(const Slice<double>& s, double learning_rate) const {
  kernels::sgd_update(sgd_step(options_, learning_rate, s.weight_decay), s.value, s.grad, s.moments[0], s.n);
}

// -- Adam -------------------------------------------------------------------------------------------------------------

Adam::Adam(NamedParameters parameters, AdamOptions options)
    : Optimizer(std::move(parameters), {"m", "v"}, options.weight_decay, options.decays), options_(options) {
  check_fraction("adam", "bad beta1", options.beta1);
  check_fraction("adam", "bad beta2", options.beta2);
  check_decay("adam", options.weight_decay);
  if (!(options.eps > 0 && std::isfinite(options.eps)))
    fail<UsageError>("adam", "bad eps", str(options.eps), "a positive number");
}

void Adam::update(const Slice<float>& s, double learning_rate) const {
  kernels::adam_update(adam_step(options_, learning_rate, s.weight_decay, s.step), s.value, s.grad, s.moments[0],
                       s.moments[1], s.n);
}
void Adam::update(const Slice<double>& s, double learning_rate) const {
  kernels::adam_update(adam_step(options_, learning_rate, s.weight_decay, s.step), s.value, s.grad, s.moments[0],
                       s.moments[1], s.n);
}

// -- Clipping ---------------------------------------------------------------------------------------------------------

namespace {

double sum_of_squares(const Tensor& t) {
  const Tensor x = t.contiguous();
  return dispatch_float("grad_norm", x.dtype(),
                        [&]<class T>() { return kernels::sum_of_squares(x.data<T>(), x.numel()); });
}

void check_finite(const NamedParameter& p) {
  const int64_t bad = num::first_non_finite(p.var.grad());
  BG_CHECK(bad < 0, "clip_grad_norm", str("the gradient of ", p.path, " is not finite"),
           bad < 0 ? "" : str(number_text(p.var.grad().flat(bad)), " at element ", bad), "finite numbers",
           "AnomalyMode to find the op that made it");
}

// g max_norm / norm. A factor below the normal numbers of its dtype would lose digits: it is applied in two steps.
Tensor shrunk(const Tensor& g, double max_norm, double norm) {
  const double factor = max_norm / norm;
  const double least =
      g.dtype() == DType::f32 ? double{std::numeric_limits<float>::min()} : std::numeric_limits<double>::min();
  if (factor >= least) return num::scale(g, factor);
  const double root = std::sqrt(max_norm) / std::sqrt(norm);
  return num::scale(num::scale(g, root), root);
}

}  // namespace

double grad_norm(const NamedParameters& parameters) {
  NamedParameters with;
  for (const NamedParameter& p : parameters)
    if (p.var.grad().defined()) with.push_back(p);
  double total = 0;
  for (const NamedParameter& p : with) total += sum_of_squares(p.var.grad());
  auto largest = [&] {
    double top = 0;
    for (const NamedParameter& p : with) {
      check_finite(p);
      top = std::max(top, num::max_abs(p.var.grad()));
    }
    return top;
  };
  auto scaled = [&](double s) {
    double sum = 0;
    for (const NamedParameter& p : with) sum += sum_of_squares(num::scale(p.var.grad(), s));
    return sum;
  };
  const double norm = norm_of_squares(total, largest, scaled);
  BG_CHECK(std::isfinite(norm), "clip_grad_norm", "the norm of the gradients is beyond f64", str(norm),
           str("at most ", std::numeric_limits<double>::max()), "a smaller loss");
  return norm;
}

double clip_grad_norm(const NamedParameters& parameters, double max_norm) {
  BG_CHECK(max_norm > 0, "clip_grad_norm", "bad max_norm", str(max_norm), "a positive number");
  const ProfileSpan span("clip_grad_norm", Profile::Kind::other);
  const double norm = grad_norm(parameters);
  if (norm <= max_norm) return norm;
  Tensors scaled;  // all before the first is replaced: memory may run out
  for (const NamedParameter& p : parameters)
    scaled.push_back(p.var.grad().defined() ? shrunk(p.var.grad(), max_norm, norm) : Tensor());
  for (size_t i = 0; i < parameters.size(); ++i) {
    Var var = parameters[i].var;
    if (scaled[i].defined()) var.set_grad(std::move(scaled[i]));
  }
  return norm;
}

}  // namespace bg
