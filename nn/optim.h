// Optimizers. The learning rate is an argument of every step (see schedule.h), so all that an optimizer must remember
// is what state_dict() holds: for each parameter, by its path, the number of its updates and the running moments.
//
//   AdamW optimizer(model.parameters(), {.weight_decay = 0.1, .decays = decay_matrices});
#pragma once

#include <array>
#include <functional>

#include "nn/module.h"

namespace bg {

/// Which parameters weight decay shrinks: a parameter either has all of it or none. An optimizer throws on an empty
/// one.
using DecayRule = std::function<bool(const NamedParameter&)>;
/// Every parameter, as PyTorch does without parameter groups.
bool decay_all(const NamedParameter& parameter);
/// nanoGPT's convention: what has rank 2 or more - matrices and embeddings - but no biases and no gains.
bool decay_matrices(const NamedParameter& parameter);

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One update of every parameter from its gradient, all parameters in parallel. A parameter without a gradient is
  /// left alone, its moments and its count of updates too, as in PyTorch. Throws when the learning rate is negative or
  /// not finite.
  void step(double learning_rate);
  void zero_grad();

  /// Calls of step(). A parameter may have had fewer updates: see state_dict().
  int64_t steps() const { return steps_; }
  const NamedParameters& parameters() const { return parameters_; }

  /// "steps" (one i64), the updates of each parameter as steps.<parameter path> (one i64) and every moment as
  /// <moment>.<parameter path>. The moments share memory with the optimizer.
  StateDict state_dict() const;
  /// Copies a state in; one of an older version, with "steps" alone, means that many updates of every parameter. One
  /// error lists all that is missing, unexpected or of a wrong shape or dtype, or names a negative count; nothing is
  /// loaded then. `who` names the source in that error.
  void load_state_dict(const StateDict& state, std::string_view who = "load_state_dict");

 protected:
  /// Part of one parameter: what an update works on.
  template <class T>
  struct Slice {
    T* value;
    const T* grad;
    std::array<T*, 2> moments;  // null where the optimizer keeps fewer
    int64_t n;
    int64_t step;         // of this parameter, counted from 1
    double weight_decay;  // of this parameter
  };

  /// `moments` names the state kept for each parameter: zeros of its shape and dtype at first. Parameters that
  /// `decays` names have `weight_decay`, the others none.
  Optimizer(NamedParameters parameters, std::vector<std::string> moments, double weight_decay, const DecayRule& decays);

 private:
  /// Updates a slice on the calling thread. Elements are independent: any cut gives the same bits.
  virtual void update(const Slice<float>& s, double learning_rate) const = 0;
  virtual void update(const Slice<double>& s, double learning_rate) const = 0;
  template <class T>
  std::vector<Slice<T>> slices(DType dtype);
  template <class T>
  void update_all(const std::vector<Slice<T>>& slices, double learning_rate) const;

  NamedParameters parameters_;
  std::vector<std::string> moment_names_;
  std::vector<Tensors> moments_;      // [parameter][moment]
  std::vector<int64_t> counts_;       // [parameter]: updates
  std::vector<double> weight_decay_;  // [parameter]
  int64_t steps_ = 0;
};

struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;  ///< L2: added to the gradient
  DecayRule decays = decay_all;
};

/// g = grad + weight_decay p;  b = momentum b + g (b = 0 at first);  p -= lr b.
class Sgd final : public Optimizer {
 public:
  explicit Sgd(NamedParameters parameters, SgdOptions options = {});

 private:
  void update(const Slice<float>& s, double learning_rate) const override;
  void update(const Slice<double>& s, double learning_rate) const override;
  SgdOptions options_;
};

struct AdamOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  /// AdamW's decay, p *= 1 - lr weight_decay ahead of the update; otherwise L2, added to the gradient.
  bool decoupled = false;
  DecayRule decays = decay_all;
};

/// Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019), with bias correction, as PyTorch computes them:
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)     at the parameter's update t = 1, 2, ...
class Adam : public Optimizer {
 public:
  explicit Adam(NamedParameters parameters, AdamOptions options = {});

 private:
  void update(const Slice<float>& s, double learning_rate) const override;
  void update(const Slice<double>& s, double learning_rate) const override;
  AdamOptions options_;
};

/// PyTorch's defaults.
struct AdamWOptions {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0.01;
  DecayRule decays = decay_all;
};

/// Adam with decoupled decay.
class AdamW final : public Adam {
 public:
  explicit AdamW(NamedParameters parameters, const AdamWOptions& o = {})
      : Adam(std::move(parameters), {o.beta1, o.beta2, o.eps, o.weight_decay, true, o.decays}) {}
};

/// The 2-norm of all gradients together, accumulated in double, and scaled where their squares would over- or underflow
/// that. Throws naming the parameter when a gradient holds a NaN or an infinity [R35], and when the norm is beyond f64.
double grad_norm(const NamedParameters& parameters);
/// Scales all gradients by max_norm / norm when their norm is above max_norm; returns the norm before. Throws like
/// grad_norm, and unless max_norm > 0; then no gradient has changed.
double clip_grad_norm(const NamedParameters& parameters, double max_norm);

}  // namespace bg
