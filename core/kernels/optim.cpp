// Optimizer updates: one pass over parameters, gradients and moments.
#include "core/kernels/optim.h"

#include <cmath>

#include "core/error.h"
#include "core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/optim.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "core/kernels/math-inl.h"

#ifndef BG_OPTIM_FACTORS
#define BG_OPTIM_FACTORS
namespace bg::kernels {

// AdamStep in the type of the parameters, with what all elements share worked out in double.
template <class T>
struct AdamFactors {
  T grad_scale, coupled_decay, keep, beta1, rest1, beta2, rest2, step_size, inverse_root, eps;
};

}  // namespace bg::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {

template <class T>
void adam(const AdamFactors<T>& f, T* p, const T* grad, T* m, T* v, int64_t n) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, f.grad_scale), decay = hn::Set(d, f.coupled_decay), keep = hn::Set(d, f.keep);
  const auto beta1 = hn::Set(d, f.beta1), rest1 = hn::Set(d, f.rest1), beta2 = hn::Set(d, f.beta2);
  const auto rest2 = hn::Set(d, f.rest2), size = hn::Set(d, f.step_size), root = hn::Set(d, f.inverse_root);
  const auto eps = hn::Set(d, f.eps);
  for_vectors(d, n, [&](int64_t i, auto lanes) BG_LANES {
    const auto old = lanes.load(d, p + i);
    const auto g = hn::MulAdd(decay, old, hn::Mul(scale, lanes.load(d, grad + i)));
    const auto m1 = hn::MulAdd(beta1, lanes.load(d, m + i), hn::Mul(rest1, g));
    const auto v1 = hn::MulAdd(beta2, lanes.load(d, v + i), hn::Mul(rest2, hn::Mul(g, g)));
    const auto denominator = hn::MulAdd(hn::Sqrt(v1), root, eps);
    lanes.store(d, m1, m + i);
    lanes.store(d, v1, v + i);
    lanes.store(d, hn::NegMulAdd(size, hn::Div(m1, denominator), hn::Mul(keep, old)), p + i);
  });
}

void adam_f32(const AdamFactors<float>& f, float* p, const float* grad, float* m, float* v, int64_t n) {
  adam(f, p, grad, m, v, n);
}
void adam_f64(const AdamFactors<double>& f, double* p, const double* grad, double* m, double* v, int64_t n) {
  adam(f, p, grad, m, v, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bg::kernels {
namespace {

HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);

constexpr int64_t kGrain = 16384;

}  // namespace

template <class T>
void adam_update(const AdamStep& s, T* p, const T* grad, T* m, T* v, int64_t n) {
  BG_CHECK(s.step >= 1, "adam", "bad step number", str(s.step), "at least 1", "count steps from 1");
  const double correction1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
  const double correction2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
  const AdamFactors<T> f = {T(s.grad_scale),
                            T(s.decoupled ? 0 : s.weight_decay),
                            T(s.decoupled ? 1 - s.lr * s.weight_decay : 1),
                            T(s.beta1),
                            T(1 - s.beta1),
                            T(s.beta2),
                            T(1 - s.beta2),
                            T(s.lr / correction1),
                            T(1 / std::sqrt(correction2)),
                            T(s.eps)};
  const auto update = [] {
    if constexpr (sizeof(T) == 4) {
      return HWY_DYNAMIC_DISPATCH(adam_f32);
    } else {
      return HWY_DYNAMIC_DISPATCH(adam_f64);
    }
  }();
  parallel_for(n, kGrain, [&](int64_t b, int64_t e) { update(f, p + b, grad + b, m + b, v + b, e - b); });
}

// The loops below are simple enough for the compiler to vectorise.

template <class T>
void sgd_update(const SgdStep& s, T* p, const T* grad, T* buffer, int64_t n) {
  const T lr = T(s.lr), momentum = T(s.momentum), decay = T(s.weight_decay), scale = T(s.grad_scale);
  const T ahead = s.nesterov ? momentum : T(1), now = s.nesterov ? T(1) : T(0);
  if (s.momentum == 0) {
    parallel_for(n, kGrain, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) p[i] -= lr * (scale * grad[i] + decay * p[i]);
    });
    return;
  }
  BG_CHECK(buffer != nullptr, "sgd", "momentum needs a buffer", "none", "one of the size of the parameters");
  parallel_for(n, kGrain, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const T g = scale * grad[i] + decay * p[i];
      buffer[i] = momentum * buffer[i] + g;
      p[i] -= lr * (now * g + ahead * buffer[i]);
    }
  });
}

template <class T>
double sum_of_squares(const T* x, int64_t n) {
  return parallel_sum<double>(n, kGrain, [=](int64_t begin, int64_t end) {
    constexpr int64_t kLanes = 16;  // running sums side by side: vectors without reordering a sum
    double lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes)
      for (int64_t j = 0; j < kLanes; ++j) lanes[j] += static_cast<double>(x[i + j]) * static_cast<double>(x[i + j]);
    double sum = 0;
    for (double lane : lanes) sum += lane;
    for (; i < end; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    return sum;
  });
}

template void adam_update(const AdamStep&, float*, const float*, float*, float*, int64_t);
template void adam_update(const AdamStep&, double*, const double*, double*, double*, int64_t);
template void sgd_update(const SgdStep&, float*, const float*, float*, int64_t);
template void sgd_update(const SgdStep&, double*, const double*, double*, int64_t);
template double sum_of_squares(const float*, int64_t);
template double sum_of_squares(const double*, int64_t);

}  // namespace bg::kernels
#endif  // HWY_ONCE
