#include "autograd/ops/fixed_point.h"

#include <cmath>
#include <limits>

#include "autograd/ops/matmul.h"
#include "autograd/ops/samples.h"
#include "autograd/ops/softmax.h"

namespace bg {
namespace {

constexpr std::string_view kName = AttentionFixedPoint::name;

// |row| of every row of a contiguous (N, d) tensor.
std::vector<double> row_norms(const Tensor& x) {
  std::vector<double> norms(static_cast<size_t>(x.size(0)));
  dispatch_float(kName, x.dtype(), [&]<class T>() {
    const T* p = x.data<T>();
    const int64_t d = x.size(1);
    for (double& norm : norms) {
      double sum = 0;
      for (int64_t i = 0; i < d; ++i) sum += static_cast<double>(p[i]) * static_cast<double>(p[i]);
      norm = std::sqrt(sum);
      p += d;
    }
  });
  return norms;
}

// Rows of x divided by the given numbers.
Tensor divided(const Tensor& x, const std::vector<double>& by) {
  Tensor y = Tensor::empty(x.shape(), x.dtype());
  dispatch_float(kName, x.dtype(), [&]<class T>() {
    const T* p = x.data<T>();
    T* out = y.mutable_data<T>(kName);
    const int64_t d = x.size(1);
    for (size_t n = 0; n < by.size(); ++n)
      for (int64_t i = 0; i < d; ++i, ++p, ++out) *out = static_cast<T>(static_cast<double>(*p) / by[n]);
  });
  return y;
}

double largest(const std::vector<double>& values) {
  double most = 0;
  for (double v : values)
    if (!(v <= most)) most = v;  // a NaN stays
  return most;
}

double reachable(double tolerance, DType dtype) {
  const double rounding =
      dtype == DType::f32 ? std::numeric_limits<float>::epsilon() : std::numeric_limits<double>::epsilon();
  return std::max(tolerance, 32 * rounding);
}

void check_inputs(const Tensors& in, const FixedPointArgs& a) {
  static constexpr std::string_view kInputs[] = {"start", "w_q", "keys", "values"};
  for (size_t i = 0; i < 4; ++i) {
    num::check_same_float(kName, in[0], in[i]);
    BG_CHECK(in[i].rank() == 2, kName, str(kInputs[i], " is no matrix"), str(in[i].shape()), "two dimensions");
  }
  num::check_same_float(kName, in[0], in[4]);
  BG_CHECK(in[4].numel() == 1, kName, "log_beta is no single number", str(in[4].shape()), "(1)");
  const int64_t d = in[0].size(1), d_key = in[1].size(1), K = in[2].size(0);
  auto expect = [&](size_t i, const Shape& shape) {
    BG_CHECK(in[i].shape() == shape, kName, str("wrong shape of ", kInputs[i]), str(in[i].shape()), str(shape));
  };
  expect(1, {d, d_key});
  expect(2, {K, d_key});
  expect(3, {K, d});
  BG_CHECK(K >= 1, kName, "no keys to attend to", "0", "1 or more");
  BG_CHECK(a.max_iterations >= 1, kName, "bad number of iterations", str(a.max_iterations), "1 or more");
  BG_CHECK(a.tolerance >= 0, kName, "bad tolerance", str(a.tolerance), "0 or more");
}

void require(bool converged, const FixedPointArgs& a, std::string_view what, double residual, int iterations) {
  BG_CHECK(converged || !a.must_converge, kName, what,
           str("a residual of ", residual, " after ", iterations, " iterations"), str("at most ", a.tolerance),
           "more iterations, a smaller log_beta, or must_converge = false to take the last iterate");
}

// u = dz + J^T u at the point whose weights are p.
Tensor solve_adjoint(const AttentionStep& step, const Tensor& p, const Tensor& dz, const FixedPointArgs& a,
                     FixedPointFault fault) {
  if (fault == FixedPointFault::no_solve) return dz;
  const double tolerance = reachable(a.tolerance, dz.dtype());
  Tensor u = dz;
  double residual = 0;
  for (int i = 1; i <= a.max_iterations; ++i) {
    Tensor image = fault == FixedPointFault::jacobian_untransposed ? step.jvp(p, u) : step.vjp(p, u);
    if (fault == FixedPointFault::solve_sign) image = num::scale(image, -1);
    const Tensor next = num::add(dz, image);
    const std::vector<double> change = row_norms(num::sub(next, u)), size = row_norms(next);
    residual = 0;
    for (size_t n = 0; n < size.size(); ++n)
      if (!(change[n] <= residual * size[n])) residual = change[n] / size[n];
    u = next;
    if (residual <= tolerance || fault == FixedPointFault::two_terms) return u;
  }
  require(false, a, "the gradient's iteration has not converged", residual, a.max_iterations);
  return u;
}

}  // namespace

AttentionStep::AttentionStep(const Tensor& w_q, const Tensor& keys, const Tensor& values, double log_beta)
    : a_(num::scale(num::matmul(w_q, keys.transpose(0, 1)), std::exp(log_beta))), values_(values.contiguous()) {}

Tensor AttentionStep::weights(const Tensor& z) const {
  Tensor p = num::matmul(z, a_);
  dispatch_float(kName, p.dtype(), [&]<class T>() {
    T* s = p.mutable_data<T>(kName);
    kernels::softmax_forward(s, s, p.size(0), p.size(1));
  });
  return p;
}

Tensor AttentionStep::apply(const Tensor& z) const { return num::matmul(weights(z), values_); }

namespace {

// P * (x - rowsum(x * P)), in place of x: the softmax's Jacobian, which is symmetric.
Tensor through_softmax(const Tensor& p, Tensor x) {
  dispatch_float(kName, p.dtype(), [&]<class T>() {
    T* out = x.mutable_data<T>(kName);
    kernels::softmax_backward(p.data<T>(), out, out, p.size(0), p.size(1));
  });
  return x;
}

}  // namespace

Tensor AttentionStep::ds(const Tensor& p, const Tensor& u) const {
  return through_softmax(p, num::matmul(u, values_.transpose(0, 1)));
}

Tensor AttentionStep::vjp(const Tensor& p, const Tensor& u) const { return num::matmul(ds(p, u), a_.transpose(0, 1)); }

Tensor AttentionStep::jvp(const Tensor& p, const Tensor& w) const {
  return num::matmul(through_softmax(p, num::matmul(w, a_)), values_);
}

AttentionStep AttentionStep::to(DType dtype) const { return {a_.to(dtype), values_.to(dtype)}; }

std::vector<double> AttentionStep::spectral_radius(const Tensor& z, Rng& rng, int steps) const {
  const Tensor p = weights(z);
  Tensor w = Tensor::randn(z.shape(), rng, z.dtype());
  std::vector<double> growth(static_cast<size_t>(z.size(0)), 0.0);  // sum of logarithms
  for (int i = 0; i < steps; ++i) {
    w = jvp(p, w);
    std::vector<double> norms = row_norms(w);
    for (size_t n = 0; n < norms.size(); ++n) {
      if (i >= steps / 2) growth[n] += std::log(norms[n]);
      if (norms[n] == 0) norms[n] = 1;  // J is zero there: its logarithm is -infinity already
    }
    w = divided(w, norms);
  }
  for (double& g : growth) g = std::exp(g / (steps - steps / 2));
  return growth;
}

FixedPoint solve_fixed_point(const AttentionStep& step, const Tensor& start, const FixedPointArgs& args) {
  const double tolerance = reachable(args.tolerance, start.dtype());
  FixedPoint at;
  at.z = start.contiguous();
  while (!at.converged && at.iterations < args.max_iterations) {
    const Tensor next = step.apply(at.z);
    at.residuals = row_norms(num::sub(next, at.z));
    const std::vector<double> size = row_norms(next);
    for (size_t n = 0; n < size.size(); ++n) at.residuals[n] /= std::max(1.0, size[n]);
    at.residual = largest(at.residuals);
    at.converged = at.residual <= tolerance;
    at.z = next;
    ++at.iterations;
  }
  return at;
}

Tensor AttentionFixedPoint::forward(Saved& saved, const Tensors& in, const Args& a) {
  check_inputs(in, a);
  const FixedPoint at = solve_fixed_point(AttentionStep(in[1], in[2], in[3], in[4].item()), in[0], a);
  require(at.converged, a, "the iteration has not converged", at.residual, at.iterations);
  for (int i = 1; i < 5; ++i) saved.keep_input(i, in[static_cast<size_t>(i)]);
  saved.keep_output(0, at.z);
  return at.z;
}

Tensors AttentionFixedPoint::backward_with(const Backward<Tensor, Args>& b, FixedPointFault fault) {
  const Tensor &w_q = b[0], &keys = b[1], &values = b[2], &log_beta = b[3], &z = b[4];
  const double beta = std::exp(log_beta.item());
  const AttentionStep step(w_q, keys, values, log_beta.item());
  const Tensor p = step.weights(z), dz = b.dy().contiguous();
  const Tensor u = solve_adjoint(step, p, dz, b.args, fault);
  Tensors g(5);  // the start's stays undefined: exactly zero
  if (b.need(3)) g[3] = num::matmul(p.transpose(0, 1), fault == FixedPointFault::values_unsolved ? dz : u);
  if (!b.need(1) && !b.need(2) && !b.need(4)) return g;
  const Tensor ds =
      fault == FixedPointFault::row_dot_dropped ? num::mul(p, num::matmul(u, values.transpose(0, 1))) : step.ds(p, u);
  const Tensor da = num::matmul(z.transpose(0, 1), ds);
  const Tensor scaled = fault == FixedPointFault::beta_omitted ? da : num::scale(da, beta);
  if (b.need(1)) g[1] = num::matmul(scaled, keys);
  if (b.need(2)) g[2] = num::matmul(scaled.transpose(0, 1), w_q);
  if (b.need(4)) g[4] = num::sum(num::mul(da, step.a())).reshape(log_beta.shape());
  return g;
}

Vars AttentionFixedPoint::compose(const Vars& in, const Args& a) {
  const AttentionStep step(in[1].value(), in[2].value(), in[3].value(), in[4].item());
  const FixedPoint at = solve_fixed_point(step, in[0].value(), a);
  BG_CHECK(at.converged, name, "no second derivative at a point that is not fixed",
           str("a residual of ", at.residual, " after ", at.iterations, " iterations"), str("at most ", a.tolerance),
           "more iterations or a smaller log_beta");
  const Var weight = exp(in[4]) * matmul(in[1], transpose(in[2], 0, 1));
  Var z(at.z);
  for (int i = 0; i < 2 * at.iterations; ++i) z = matmul(softmax(matmul(z, weight)), in[3]);
  return {z};
}

// Points at which T contracts whatever the draw: |J| <= beta |W_q| |keys| |values| / 2 in Frobenius' norm, since the
// softmax's Jacobian is at most 1/2, and beta is chosen for that bound. It is loose but for two opposite patterns.
std::vector<Sample<FixedPointArgs>> AttentionFixedPoint::samples(Rng& r) {
  auto sample = [](std::string label, double bound, Tensors in) {
    const double norms = std::sqrt(num::dot(in[1], in[1]) * num::dot(in[2], in[2]) * num::dot(in[3], in[3]));
    in.push_back(Tensor::full({1}, std::log(2 * bound / norms), DType::f64));
    const bool single = in[2].size(0) == 1;  // the only value is the fixed point, whatever the weights
    return Sample<Args>(std::move(label), {.max_iterations = 400, .tolerance = 0}, std::move(in),
                        single ? std::vector<int>{0, 1, 2, 4} : std::vector<int>{0});
  };
  // of magnitudes near 1: an input of which one element stands everywhere is then not much larger either
  auto drawn = [&](std::string label, int64_t N, int64_t d, int64_t d_key, int64_t K) {
    auto signs = [&](int64_t rows, int64_t cols) { return away_from_zero(r, {rows, cols}, 0.8, 1.2); };
    return sample(std::move(label), 0.6, {normal(r, {N, d}), signs(d, d_key), signs(K, d_key), signs(K, d)});
  };
  auto opposite = [&](double base) {
    const double t = r.uniform() / 5;
    return Tensor::of({base + t, t - base}, {2, 1});
  };
  Sample<Args> wide = drawn("wider than a vector", 2, 17, 18, 3), single = drawn("one pattern", 2, 3, 3, 1);
  wide.args = {.max_iterations = 500, .tolerance = 1e-15};
  single.args.must_converge = false;  // what does not converge has no gradient; with one pattern, everything does
  return {
      drawn("three queries", 3, 4, 4, 5),
      drawn("narrow keys", 2, 5, 2, 4),
      drawn("wide keys", 2, 2, 6, 3),
      drawn("one query, two patterns", 1, 3, 3, 2),
      std::move(single),
      std::move(wide),
      sample("opposite patterns: slow", 0.7, {normal(r, {2, 1}), Tensor::of({1}, {1, 1}), opposite(1), opposite(1)})};
}

std::vector<Mutant<Tensor, FixedPointArgs>> AttentionFixedPoint::mutants() {
  static constexpr std::pair<FixedPointFault, const char*> kFaults[] = {
      {FixedPointFault::no_solve, "the gradient of one step: no solve"},
      {FixedPointFault::two_terms, "the series ends after J^T dz"},
      {FixedPointFault::jacobian_untransposed, "J in place of J^T"},
      {FixedPointFault::solve_sign, "u = dz - J^T u"},
      {FixedPointFault::row_dot_dropped, "softmax row dot dropped"},
      {FixedPointFault::beta_omitted, "beta omitted"},
      {FixedPointFault::values_unsolved, "values' gradient from dz"}};
  return mutants_of<AttentionFixedPoint>(kFaults);
}

}  // namespace bg
