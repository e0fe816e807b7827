// V8: gradients of gradients. With g = J^T v recorded by the engine and s = sum <w_i, g_i>:
//   ds/dx along u  is compared with differences of the (first-order) backward, and
//   ds/dv = J w    with dual numbers: forward mode by double backward.
#include <algorithm>
#include <cmath>

#include "autograd/engine.h"
#include "autograd/ops/arithmetic.h"
#include "autograd/ops/reduce.h"
#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

constexpr Step kStep = Step::V8;

// A fused op without compose must refuse: a wrong second derivative would be silent.
void expect_refusal(Recorder& r, const std::function<Vars()>& recorded_gradient) {
  try {
    recorded_gradient();
  } catch (const Error& e) {
    r.expect(kStep, "a backward with create_graph is refused", "", 0, 0, 0, 0);
    return;
  }
  r.fail(kStep, "a backward with create_graph is refused", "",
         "the op has no compose, and yet a graph of its gradient was handed out");
}

}  // namespace

void check_second(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Entry& entry, Rng& rng) {
  if (!s.point.has.node) {
    r.report().na["V8"] = "not an op: the engine records no graph of its gradient";
    return;
  }
  const std::vector<size_t> wanted = s.differentiable();
  Vars in, leaves;
  for (size_t i = 0; i < f.in.size(); ++i) {
    const bool leaf = std::find(wanted.begin(), wanted.end(), i) != wanted.end();
    in.emplace_back(f.in[i], leaf);
    if (leaf) leaves.push_back(in.back());
  }
  const Vars out = s.point.apply(in);
  Vars reached, cotangents;
  for (size_t k = 0; k < out.size(); ++k) {
    if (!out[k].requires_grad()) continue;
    reached.push_back(out[k]);
    cotangents.emplace_back(d.v[k], true);
  }
  if (reached.empty()) return;
  auto recorded_gradient = [&] { return grad(reached, leaves, cotangents, {.create_graph = true}); };
  if (!entry.primitive && !entry.composed) return expect_refusal(r, recorded_gradient);

  const Vars g = recorded_gradient();
  Tensors w(f.in.size());
  Var total;
  for (size_t k = 0; k < wanted.size(); ++k) {
    w[wanted[k]] = Tensor::randn(f.in[wanted[k]].shape(), rng, DType::f64);
    const Var part = sum(g[k] * Var(w[wanted[k]]));
    total = total.defined() ? total + part : part;
  }
  const bool moves = total.requires_grad();  // not when every gradient is exactly zero
  Vars targets = leaves;
  targets.insert(targets.end(), cotangents.begin(), cotangents.end());
  const Vars h = moves ? grad({total}, targets, {}, {.retain_graph = true}) : Vars();
  auto second = [&](size_t k) { return moves ? flatten({h[k].value()}) : std::vector<double>(); };

  // along each input: differences of <w, backward(x + t u)>
  for (size_t k = 0; k < wanted.size(); ++k) {
    const size_t i = wanted[k];
    if (d.directions[i].u_norm == 0 || !s.point.kink.empty()) continue;
    const Tensor u = num::scale(d.directions[i].u, 1 / d.directions[i].u_norm);
    const Difference slope = difference(
        [&](double t) {
          const Tensors gt = s.gradients(moved(f.in, i, u, t), d.v);
          double p = 0;
          for (size_t j : wanted) p += dot(flatten({w[j]}), flatten({gt[j]}));
          return std::vector<double>{p};
        },
        kTolerance.second);
    const std::vector<double> hk = second(k);
    const double p = hk.empty() ? 0 : dot(hk, flatten({u})), q = slope.slope[0];
    const double scale = std::max({1.0, norm(hk), std::abs(q)});
    if (!(slope.error[0] <= kTolerance.visible * scale)) {
      r.skip("V8: differences of the backward do not converge, or drown in rounding; dual numbers stand in");
      continue;
    }
    Failure* e = r.expect(kStep, "second derivative = difference of the backward", s.point.inputs[i].name, p, q,
                          beyond(std::abs(p - q), slope.error[0]) / scale, kTolerance.second);
    if (e) e->fd_step = slope.h;
  }

  // J w, all inputs at once
  std::vector<double> jw, want;
  for (size_t k = leaves.size(); moves && k < targets.size(); ++k) {
    const std::vector<double> part = flatten({h[k].value()});
    jw.insert(jw.end(), part.begin(), part.end());
  }
  Tensors recorded_outputs;
  for (size_t k = 0; k < out.size(); ++k)
    recorded_outputs.push_back(out[k].requires_grad() ? f.out[k] : Tensor::zeros({0}, DType::i64));
  for (size_t i : wanted) {
    const std::vector<double> part = directional(s.point, f.in, recorded_outputs, i, w[i]);
    want.resize(part.size(), 0.0);
    for (size_t j = 0; j < part.size(); ++j) want[j] += part[j];
  }
  jw.resize(want.size(), 0.0);
  const Shape flat{static_cast<int64_t>(want.size())};
  double worst = 0, largest = 1;
  for (size_t j = 0; j < want.size(); ++j) {
    worst = std::max(worst, std::abs(jw[j] - want[j]));
    largest = std::max(largest, std::abs(want[j]));
  }
  r.report().jvp_error = std::max(r.report().jvp_error, worst / largest);
  r.expect_close(kStep, "J w by double backward = J w by dual numbers", "", Tensor::of(std::move(jw), flat),
                 Tensor::of(std::move(want), flat), kTolerance.exact);
}

}  // namespace bg::verifier
