// Fused optimizer updates over one span of parameters, vectorised and parallel. T is float or double.
#pragma once

#include <cstdint>

namespace bg::kernels {

struct AdamStep {
  double lr = 1e-3, beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = true;  ///< AdamW (Loshchilov and Hutter 2019); false adds the decay to the gradient (Adam with L2)
  int64_t step = 1;       ///< counts from 1: the bias corrections are 1 - beta^step
  double grad_scale = 1;  ///< multiplies every gradient, such as the factor of clipping by the norm
};

/// One step, with g = grad_scale grad [+ weight_decay p unless decoupled]:
///   p -= lr weight_decay p  [if decoupled, on the old p];  m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2)
///   g^2; p -= lr (m / (1 - beta1^step)) / (sqrt(v / (1 - beta2^step)) + eps)
/// Throws when step is below 1.
template <class T>
void adam_update(const AdamStep& s, T* p, const T* grad, T* m, T* v, int64_t n);

struct SgdStep {
  double lr = 1e-2, momentum = 0, weight_decay = 0;
  bool nesterov = false;
  double grad_scale = 1;  ///< multiplies every gradient
};

/// One step, with g = grad_scale grad + weight_decay p: b = momentum b + g; p -= lr b, or lr (g + momentum b) for
/// nesterov. The buffer b starts as zeros; it may be null when momentum is 0.
template <class T>
void sgd_update(const SgdStep& s, T* p, const T* grad, T* buffer, int64_t n);

/// Sum of squares, accumulated in double over fixed chunks. Not finite when any x is not, or when it overflows.
template <class T>
double sum_of_squares(const T* x, int64_t n);

}  // namespace bg::kernels
