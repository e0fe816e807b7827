// Optimizers. The learning rate is an argument of every step (see schedule.h), so all that an optimizer must remember
// is what state_dict() holds: the step count and, for each parameter by its path, the running moments.
#pragma once

#include <array>

#include "nn/module.h"

namespace bg {

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  /// One update of every parameter from its gradient, all parameters in parallel. A parameter without a gradient is
  /// left alone, its moments too. Throws when the learning rate is negative or not finite.
  void step(double learning_rate);
  void zero_grad();

  int64_t steps() const { return steps_; }
  const NamedParameters& parameters() const { return parameters_; }

  /// "steps" (one i64) and every moment as <moment>.<parameter path>. The moments share memory with the optimizer.
  StateDict state_dict() const;
  /// Copies a state in. One error lists all that is missing, unexpected or of a wrong shape or dtype; nothing is
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
  };

  /// `moments` names the state kept for each parameter: zeros of its shape and dtype at first.
  Optimizer(NamedParameters parameters, std::vector<std::string> moments);

 private:
  /// Updates a slice on the calling thread. Elements are independent: any cut gives the same bits.
  virtual void update(const Slice<float>& s, double learning_rate) const = 0;
  virtual void update(const Slice<double>& s, double learning_rate) const = 0;
  template <class T>
  void step_parameters(double learning_rate, DType dtype);

  NamedParameters parameters_;
  std::vector<std::string> moment_names_;
  std::vector<Tensors> moments_;  // [parameter][moment]
  int64_t steps_ = 0;
};

struct SgdOptions {
  double momentum = 0;
  double weight_decay = 0;  ///< L2: added to the gradient
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
};

/// Adam (Kingma & Ba, 2015) and AdamW (Loshchilov & Hutter, 2019), with bias correction, as PyTorch computes them:
///   m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
///   p -= lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^t)) + eps)     at step t = 1, 2, ...
class Adam : public Optimizer {
 public:
  explicit Adam(NamedParameters parameters, AdamOptions options = {});

 private:
  void update(const Slice<float>& s, double learning_rate) const override;
  void update(const Slice<double>& s, double learning_rate) const override;
  AdamOptions options_;
};

/// Adam with decoupled decay.
class AdamW final : public Adam {
 public:
  explicit AdamW(NamedParameters parameters, double weight_decay = 0.01, double beta1 = 0.9, double beta2 = 0.999,
                 double eps = 1e-8)
      : Adam(std::move(parameters), {beta1, beta2, eps, weight_decay, true}) {}
};

/// The 2-norm of all gradients together, accumulated in double. Throws naming the parameter when a gradient holds a NaN
/// or an infinity [R35].
double grad_norm(const NamedParameters& parameters);
/// Scales all gradients by max_norm / norm when their norm is above max_norm; returns the norm before. Throws like
/// grad_norm, and unless max_norm > 0; then no gradient has changed.
double clip_grad_norm(const NamedParameters& parameters, double max_norm);

}  // namespace bg
