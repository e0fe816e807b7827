// The fixed point of attention: one step attends from a query to patterns, and the result queries again until it stays.
//
//   z (N, d); w_q (d, d_key); keys (K, d_key); values (K, d); log_beta (1); rows of z are independent
//   T(z) = softmax(exp(log_beta) (z W_q) keys^T) values,      z* = T(z*), found by z <- T(z) from z = start
//
// With a = exp(log_beta) W_q keys^T (d, K), made once, a step is two small products: P = softmax(z a), T(z) = P values.
//
// Backward by the implicit-function theorem, without a memory of the iterations
//
//   Differentiate z* = T(z*, theta) along theta: dz* = J dz* + dT/dtheta, J = dT/dz at z*, so that a cotangent dz of z*
//   meets theta as u^T dT/dtheta with (I - J)^T u = dz. Its solution is the fixed point of
//
//     u = dz + J^T u                                                  (Neumann's series: it converges where T
//     contracts)
//
//   and J^T u is one step's backward, by hand:
//     T = P values                 dP = u values^T
//     P = softmax(s)               ds = P * (dP - rowsum(dP * P))
//     s = z a                      J^T u = ds a^T
//   At the solution u the same ds gives the parameters their gradients:
//     T = P values                 dvalues = P^T u
//     s = z a                      da = z^T ds
//     a = e^t W_q keys^T           dW_q = e^t da keys,   dkeys = e^t da^T W_q,   dt = sum(da * a)
//   The start only chooses among the fixed points. Moving it within its basin does not move z*: its gradient is exactly
//   zero, and returned as such.
//
// Saved: w_q, keys, values, log_beta, z*.
#pragma once

#include "autograd/op.h"

namespace bg {

/// When to stop. `tolerance` bounds what a step still changes: |T(z) - z| of every row, in units of max(1, |z|); in the
/// backward |dz + J^T u - u| in units of |u|. A tolerance finer than 32 roundings of the dtype means 32 roundings,
/// since no iteration gets closer.
///
/// An iteration that stops for its number of steps has not found a fixed point, and the gradient formula does not hold
/// there. That is an error, in forward and backward, unless `must_converge` is false: then the last iterate is taken
/// for the fixed point (in the backward: the first terms of the series for the whole), and it is for the caller to ask
/// solve_fixed_point what that is worth.
struct FixedPointArgs {
  int max_iterations = 100;
  double tolerance = 1e-8;
  bool must_converge = true;
};

/// One step and its derivative at rows z, where p = weights(z).
class AttentionStep {
 public:
  AttentionStep(const Tensor& w_q, const Tensor& keys, const Tensor& values, double log_beta);

  Tensor weights(const Tensor& z) const;               ///< P (N, K)
  Tensor apply(const Tensor& z) const;                 ///< T(z) (N, d)
  Tensor ds(const Tensor& p, const Tensor& u) const;   ///< P * (dP - rowsum(dP * P)), dP = u values^T: (N, K)
  Tensor vjp(const Tensor& p, const Tensor& u) const;  ///< J^T u of every row (N, d)
  Tensor jvp(const Tensor& p, const Tensor& w) const;  ///< J w of every row (N, d)
  const Tensor& a() const { return a_; }               ///< exp(log_beta) w_q keys^T (d, K)
  /// The largest absolute eigenvalue of J, per row of z (N): the growth |J^n w| per step, from random w, over the last
  /// half of the `steps`.
  std::vector<double> spectral_radius(const Tensor& z, Rng& rng, int steps = 60) const;

  AttentionStep to(DType dtype) const;

 private:
  AttentionStep(Tensor a, Tensor values) : a_(std::move(a)), values_(std::move(values)) {}
  Tensor a_, values_;
};

struct FixedPoint {
  Tensor z;                       ///< (N, d)
  std::vector<double> residuals;  ///< of every row: what the last step changed, in units of max(1, |z|)
  double residual = 0;            ///< the largest of them
  int iterations = 0;
  bool converged = false;
};

/// Iterates T from `start` (N, d). Reports whether it converged, and does not throw for it.
FixedPoint solve_fixed_point(const AttentionStep& step, const Tensor& start, const FixedPointArgs& args);

/// What a mutant gets wrong in the backward.
enum class FixedPointFault {
  none,
  no_solve,               // u = dz: the gradient of one step
  two_terms,              // u = dz + J^T dz
  jacobian_untransposed,  // u = dz + J u
  solve_sign,             // u = dz - J^T u
  row_dot_dropped,        // ds = P * dP
  beta_omitted,           // dW_q and dkeys without e^t
  values_unsolved,        // dvalues = P^T dz
};

struct AttentionFixedPoint {
  static constexpr std::string_view name = "attention_fixed_point";
  static constexpr double f32_bound = 1e-3;  // the solve multiplies rounding by 1 / (1 - |J|), up to 3 at the samples
  static inline const std::array inputs{In{"start"}, In{"w_q"}, In{"keys"}, In{"values"}, In{"log_beta"}};
  using Args = FixedPointArgs;

  /// max_iterations steps, unrolled: where T contracts, dual numbers carry the exact derivative of z* along.
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a);
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a);
  static Tensors backward(const Backward<Tensor, Args>& b) { return backward_with(b, FixedPointFault::none); }
  static Tensors backward_with(const Backward<Tensor, Args>& b, FixedPointFault fault);
  /// Steps of primitive ops from z*, which is a constant: n of them give the derivative up to |J|^n, and the solve
  /// tells how many are enough, for it had to shrink its first error in the same way. Throws where the solve does not
  /// converge.
  static Vars compose(const Vars& in, const Args& a);
  static std::vector<Sample<Args>> samples(Rng& r);
  static std::vector<Mutant<Tensor, Args>> mutants();
};

/// z* (N, d), where z* = softmax(exp(log_beta) (z* W_q) keys^T) values, reached from `start` (N, d).
inline Var attention_fixed_point(const Var& start, const Var& w_q, const Var& keys, const Var& values,
                                 const Var& log_beta, const FixedPointArgs& args = {}) {
  return apply<AttentionFixedPoint>(args, {start, w_q, keys, values, log_beta})[0];
}

// -- Reference --------------------------------------------------------------------------------------------------------

template <class S>
Arrs<S> AttentionFixedPoint::reference(const Arrs<S>& in, const Args& a) {
  const Arr<S>&w_q = in[1], &keys = in[2], &values = in[3];
  const int64_t N = in[0].size(0), d = in[0].size(1), d_key = w_q.size(1), K = keys.size(0);
  const S beta = sc::exp(in[4][0]);
  Arr<S> z = in[0];
  for (int step = 0; step < a.max_iterations; ++step) {
    Arr<S> next(z.shape);
    for (int64_t n = 0; n < N; ++n) {
      std::vector<S> q(static_cast<size_t>(d_key), S(0)), p(static_cast<size_t>(K), S(0));
      for (int64_t j = 0; j < d_key; ++j)
        for (int64_t i = 0; i < d; ++i) q[static_cast<size_t>(j)] += z(n, i) * w_q(i, j);
      S largest(0), total(0);
      for (int64_t k = 0; k < K; ++k) {
        S& s = p[static_cast<size_t>(k)];
        for (int64_t j = 0; j < d_key; ++j) s += q[static_cast<size_t>(j)] * keys(k, j);
        s = s * beta;
        if (k == 0 || s > largest) largest = s;
      }
      for (S& s : p) total += s = sc::exp(s - largest);
      for (int64_t k = 0; k < K; ++k)
        for (int64_t i = 0; i < d; ++i) next(n, i) += p[static_cast<size_t>(k)] / total * values(k, i);
    }
    z = next;
  }
  return {z};
}

}  // namespace bg
