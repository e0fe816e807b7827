// V1 to V5 and V9: forward and backward against independent ways to the same numbers.
#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

constexpr int64_t kMaxElements = 512;  // of an input that is gone through element by element: each is a reference run

// Inner products p and q that should agree: |p - q| over what rounding scales with.
double inner_error(double p, double q, double scale) { return scale == 0 ? std::abs(p - q) : std::abs(p - q) / scale; }

bool truly_zero(const Draw::Direction& d) { return d.ju_norm <= kTolerance.vacuous * d.u_norm; }

// J u by differences of the fast forward.
Difference outputs_along(const Subject& s, const Tensors& in, size_t input, const Tensor& u, double tolerance) {
  return difference([&](double t) { return flatten(s.forward(moved(in, input, u, t)).out); }, tolerance);
}

// Points a failed inner product of V2 to the element that is wrong.
void locate(Failure* f, const Point& point, const Forward& fwd, const Tensors& v, size_t input, const Tensor& g) {
  if (g.numel() > kMaxElements || g.numel() == 0) return;
  const std::vector<double> a = g.to_vector<double>();
  const std::vector<double> b = exact_gradient(point, fwd, v, input).to_vector<double>();
  size_t at = 0;
  for (size_t i = 0; i < a.size(); ++i)
    if (!(std::abs(a[i] - b[i]) <= std::abs(a[at] - b[at]))) at = i;
  f->index = describe_index(g.shape(), static_cast<int64_t>(at));
  f->analytic = a[at];
  f->reference = b[at];
}

}  // namespace

Draw make_draw(const Subject& s, const Forward& f, Rng& rng) {
  Draw d;
  d.v = random_cotangents(f.out, rng);
  const std::vector<double> v = flatten(d.v);
  d.v_norm = norm(v);
  d.directions.resize(f.in.size());
  for (size_t i : s.differentiable()) {
    Draw::Direction& dir = d.directions[i];
    dir.u = Tensor::randn(f.in[i].shape(), rng, DType::f64);
    const std::vector<double> ju = directional(s.point, f.in, f.out, i, dir.u);
    dir.v_ju = dot(v, ju);
    dir.ju_norm = norm(ju);
    dir.u_norm = norm(flatten({dir.u}));
  }
  return d;
}

Tensor exact_gradient(const Point& point, const Forward& f, const Tensors& v, size_t input) {
  const std::vector<double> cotangent = flatten(v);
  const Shape& shape = f.in[input].shape();
  std::vector<double> g(static_cast<size_t>(shape.numel()));
  for (size_t k = 0; k < g.size(); ++k) {
    std::vector<double> e(g.size(), 0.0);
    e[k] = 1;
    g[k] = dot(cotangent, directional(point, f.in, f.out, input, Tensor::of(std::move(e), shape)));
  }
  return Tensor::of(std::move(g), shape);
}

void check_forward(Recorder& r, const Subject& s, const Forward& f) {
  const Arrs<double> want = s.point.reference(to_arrs<double>(f.in));
  if (want.size() != f.out.size()) {
    r.fail(Step::V1, "number of outputs", "", str(f.out.size(), " from forward, ", want.size(), " from reference"));
    return;
  }
  for (size_t k = 0; k < want.size(); ++k) {
    const std::string name = str("output ", k);
    const Shape& shape = f.out[k].shape();
    if (static_cast<int64_t>(want[k].v.size()) != shape.numel() || !(want[k].shape == shape))
      r.fail(Step::V1, "forward = reference", name, str("shape ", shape, " instead of ", want[k].shape));
    else
      r.expect_close(Step::V1, "forward = reference", name, f.out[k], Tensor::of(want[k].v, shape),
                     is_float(f.out[k].dtype()) ? kTolerance.forward : 0);
  }
}

void check_exact(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  const Tensors g = s.backward(f, d.v, s.need_all());
  for (size_t i : s.differentiable()) check_exact(r, s, f, d, i, g[i]);
}

void check_exact(Recorder& r, const Subject& s, const Forward& f, const Draw& d, size_t i, const Tensor& g) {
  const std::string& name = s.point.inputs[i].name;
  const Draw::Direction& dir = d.directions[i];
  const std::vector<double> gi = flatten({g});
  const double g_norm = norm(gi), gu = dot(gi, flatten({dir.u}));
  if (const int64_t bad = num::first_non_finite(g); bad >= 0) {
    Failure* e = r.fail(Step::V9, "a finite gradient", name, str("the gradient is ", g.flat(bad)));
    e->index = describe_index(g.shape(), bad);
    return;
  }
  if (g.numel() == 0) return;
  if (s.declared_zero(i)) {
    const double scale = std::max(1.0, d.v_norm);
    r.expect_close(Step::V9, "declared zero gradient is zero", name, num::scale(g, 1 / scale),
                   Tensor::zeros(g.shape(), g.dtype()), kTolerance.zero);
    r.expect(Step::V9, "declared zero gradient is zero by dual numbers", name, 0, dir.v_ju,
             inner_error(0, dir.v_ju, std::max(1.0, d.v_norm * dir.u_norm)), kTolerance.zero);
    return;
  }
  if (!(g_norm >= kTolerance.vacuous * d.v_norm) || d.v_norm == 0) {
    Failure* e = r.expect(Step::V9, "a gradient that is not zero", name, g_norm, dir.ju_norm, std::nan(""), 0);
    const bool truly = truly_zero(dir);
    e->note = truly ? "it is truly zero here: declare it in the sample's zero_grads, or choose a sample where it is not"
                    : "analytic is the gradient's norm, reference the norm of J u";
    if (truly) return;
  } else {
    r.expect(Step::V9, "a gradient that is not zero", name, g_norm, g_norm, 0, 0);
  }
  const double scale = d.v_norm * dir.ju_norm + g_norm * dir.u_norm;
  const double error = inner_error(gu, dir.v_ju, scale);
  OpReport& report = r.report();
  if (report.worst_sample < 0 || !(error <= report.count(Step::V2).worst)) report.worst_sample = s.point.index;
  Failure* e =
      r.expect(Step::V2, "<backward(v), u> = <v, J u> by dual numbers", name, gu, dir.v_ju, error, kTolerance.exact);
  if (e && r.explains()) locate(e, s.point, f, d.v, i, g);
}

void check_difference(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  const Tensors g = s.backward(f, d.v, s.need_all());
  const std::vector<double> v = flatten(d.v);
  for (size_t i : s.differentiable()) {
    const Draw::Direction& dir = d.directions[i];
    if (s.declared_zero(i) || truly_zero(dir)) continue;  // a relative error of rounding noise says nothing
    const Tensor u = num::scale(dir.u, 1 / dir.u_norm);   // a long direction would leave the formula's range
    const Difference along = outputs_along(s, f.in, i, u, kTolerance.difference);
    const std::vector<double>& ju = along.slope;
    const std::vector<double> gi = flatten({g[i]});
    const double p = dot(gi, flatten({u})), q = dot(v, ju);
    Failure* e = r.expect(Step::V3, "<backward(v), u> = <v, (f(x + hu) - ...) / h>", s.point.inputs[i].name, p, q,
                          inner_error(p, q, d.v_norm * norm(ju) + norm(gi)), kTolerance.difference);
    if (e) e->fd_step = along.h;
  }
}

void check_compose(Recorder& r, const Subject& s, const Forward& f, const Draw& d) {
  const Tensors g = s.backward(f, d.v, s.need_all());
  const std::vector<size_t> wanted = s.differentiable();
  Vars in, leaves;
  for (size_t i = 0; i < f.in.size(); ++i) {
    const bool leaf = std::find(wanted.begin(), wanted.end(), i) != wanted.end();
    in.emplace_back(f.in[i], leaf);
    if (leaf) leaves.push_back(in.back());
  }
  const Vars out = s.point.compose(in);
  if (out.size() != f.out.size()) {
    r.fail(Step::V4, "number of outputs", "", str(out.size(), " from compose, ", f.out.size(), " from forward"));
    return;
  }
  Vars reached, cotangents;
  for (size_t k = 0; k < out.size(); ++k) {
    r.expect_close(Step::V4, "compose computes the same outputs", str("output ", k), f.out[k], out[k].value(),
                   kTolerance.compose);
    if (!out[k].requires_grad()) continue;
    reached.push_back(out[k]);
    cotangents.emplace_back(d.v[k]);
  }
  if (leaves.empty() || reached.empty()) return;
  const Vars want = grad(reached, leaves, cotangents);
  for (size_t k = 0; k < wanted.size(); ++k)
    r.expect_close(Step::V4, "backward = gradient of compose", s.point.inputs[wanted[k]].name, g[wanted[k]],
                   want[k].value(), kTolerance.compose);
}

void check_jacobian(Recorder& r, const Subject& s, const Forward& f) {
  int64_t rows = 0;
  for (const Tensor& y : f.out)
    if (is_float(y.dtype())) rows += y.numel();
  if (rows == 0 || rows > kTolerance.max_jacobian) return;
  std::vector<size_t> wanted;
  for (size_t i : s.differentiable())
    if (f.in[i].numel() > 0 && f.in[i].numel() <= kTolerance.max_jacobian) wanted.push_back(i);
  if (wanted.empty()) return;
  std::vector<std::vector<double>> analytic(wanted.size());  // per input: (rows, numel)
  for (size_t k = 0; k < f.out.size(); ++k) {
    if (!is_float(f.out[k].dtype())) continue;
    for (int64_t j = 0; j < f.out[k].numel(); ++j) {
      Tensors v;
      for (const Tensor& y : f.out) v.push_back(Tensor::zeros(y.shape(), y.dtype()));
      v[k].mutable_data<double>("one-hot cotangent")[j] = 1;
      const Tensors g = s.backward(f, v, s.need_all());
      for (size_t w = 0; w < wanted.size(); ++w) {
        const std::vector<double> row = flatten({g[wanted[w]]});
        analytic[w].insert(analytic[w].end(), row.begin(), row.end());
      }
    }
  }
  for (size_t w = 0; w < wanted.size(); ++w) {
    const Tensor& x = f.in[wanted[w]];
    const int64_t n = x.numel();
    std::vector<double> numeric(static_cast<size_t>(rows * n));
    for (int64_t j = 0; j < n; ++j) {
      Tensor u = Tensor::zeros(x.shape(), DType::f64);
      u.mutable_data<double>("one-hot direction")[j] = 1;
      const std::vector<double> column = outputs_along(s, f.in, wanted[w], u, kTolerance.jacobian).slope;
      for (int64_t i = 0; i < rows; ++i) numeric[static_cast<size_t>(i * n + j)] = column[static_cast<size_t>(i)];
    }
    Failure* e = r.expect_close(Step::V5, "Jacobian (output element, input element)", s.point.inputs[wanted[w]].name,
                                Tensor::of(std::move(analytic[w]), {rows, n}),
                                Tensor::of(std::move(numeric), {rows, n}), kTolerance.jacobian);
    if (e) e->fd_step = kTolerance.step;
  }
}

}  // namespace bg::verifier
