// What the boosted node must be beyond agreeing with its reference: the theory of the paper, and its borders.
#include <cmath>

#include "autograd/engine.h"
#include "autograd/ops/boosted_attention.h"
#include "autograd/ops/softmax.h"
#include "tests/match.h"
#include "tests/support.h"

using namespace bg;
using bg::test::distance;

namespace {

// A layer's inputs by name, drawn at unit gain.
struct Layer {
  AttentionLayerArgs args;
  AttentionLayout at;
  Vars in;

  Layer(AttentionLayerArgs a, int64_t B, int64_t T, int64_t d, uint64_t seed = 1, DType dtype = DType::f64)
      : args(std::move(a)), at(attention_layout(args)), in(at.inputs.size()) {
    Rng r(seed);
    auto put = [&](int i, const Shape& s, double stddev) {
      if (i >= 0) in[static_cast<size_t>(i)] = Var(Tensor::randn(s, r, dtype, stddev), true);
    };
    const double w = 1 / std::sqrt(static_cast<double>(d));
    put(at.x, {B, T, d}, 1);
    for (auto& m : at.rounds) {
      for (int i : {m.w_q, m.w_k, m.w_v}) put(i, {d, d}, w);
      for (int i : {m.b_q, m.b_k, m.b_v}) put(i, {d}, 0.5);
      put(m.gate, {1}, 1);
      put(m.w_g, {2 * d, d}, w / std::sqrt(2.0));
      put(m.b_g, {d}, 0.5);
    }
    put(at.w_out, {d, d}, w);
    put(at.b_out, {d}, 0.5);
  }
  Var& operator[](int i) { return in[static_cast<size_t>(i)]; }
};

AttentionLayerArgs boosted(AttentionLayerArgs a, int rounds, Gate gate = Gate::linear, Kv kv = Kv::input) {
  a.rounds = rounds;
  a.gate = gate;
  a.kv = kv;
  return a;
}

Tensor eye(int64_t n) {
  Tensor t = Tensor::zeros({n, n}, DType::f64);
  for (int64_t i = 0; i < n; ++i) t.mutable_data<double>("eye")[i * n + i] = 1;
  return t;
}

}  // namespace

TEST_CASE("one round is standard attention, bit for bit, forward and backward, with dropout") {
  for (DType dtype : {DType::f32, DType::f64}) {
    Layer l({.heads = 2, .causal = true, .dropout = 0.2, .masks = {{5, 6}}}, 3, 17, 8, 3, dtype);
    const Var a = boosted_attention(l.in, l.args), b = standard_attention(l.in, l.args);
    CHECK(distance(a.value(), b.value()) == 0);
    Rng r(9);
    const Var v(Tensor::randn(a.shape(), r, dtype));
    const Vars ga = grad({a}, l.in, {v}), gb = grad({b}, l.in, {v});
    for (size_t i = 0; i < ga.size(); ++i) CHECK(distance(ga[i].value(), gb[i].value()) == 0);
  }
}

TEST_CASE("[proposition 3] W_Q = 0, b = 0, W_V = W_out = I, one head, no gate, kv = residual: twicing, (2A - A^2) x") {
  const int64_t T = 5, d = 4;
  Layer l(boosted({.heads = 1, .causal = true, .bias = false}, 2, Gate::none, Kv::residual), 1, T, d);
  for (auto& m : l.at.rounds) {
    l[m.w_q].value().fill(0);
    l[m.w_v].value().copy_from(eye(d));
  }
  l[l.at.w_out].value().copy_from(eye(d));
  const Tensor y = boosted_attention(l.in, l.args).value(), x = l[0].value();
  Tensor a = Tensor::zeros({T, T}, DType::f64);  // zero queries: every token averages what it sees
  for (int64_t i = 0; i < T; ++i)
    for (int64_t j = 0; j <= i; ++j) a.mutable_data<double>("a")[i * T + j] = 1.0 / static_cast<double>(i + 1);
  const Tensor two_a_minus = num::sub(num::scale(a, 2), num::matmul(a, a));
  CHECK(distance(y.reshape({T, d}), num::matmul(two_a_minus, x.reshape({T, d}))) < 1e-14);
}

TEST_CASE(
    "[proposition 2] the residual is minus the gradient of |x - F|^2 / 2, a scalar gate is Friedman's shrinkage") {
  Layer l(boosted({.heads = 2, .project_out = false}, 2, Gate::scalar), 2, 4, 6, 4);
  Layer first({.heads = 2, .project_out = false}, 2, 4, 6, 4);
  first.in = Vars(l.in.begin(), l.in.begin() + static_cast<int>(first.in.size()));
  const Var f0 = boosted_attention(first.in, first.args);
  const Var f(f0.value(), true), x(l[0].value());
  const Var gap = x - f;
  const Tensor gradient = grad({sum(gap * gap) * 0.5}, {f})[0].value();
  const Tensor r = num::sub(x.value(), f0.value());
  CHECK(distance(r, num::scale(gradient, -1)) == 0);
  // F_1 = F_0 + sigmoid(a) * (a step fitted to r): the step is attention from r over x with round 1's projections
  const auto& m = l.at.rounds[1];
  Vars step{Var(r), l[0], l[m.w_q], l[m.w_k], l[m.w_v], l[m.b_q], l[m.b_k], l[m.b_v]};
  const Var h = boosted_attention(step, {.heads = 2, .memory = true, .project_out = false});
  const double shrink = 1 / (1 + std::exp(-l[m.gate].value().flat(0)));
  CHECK(distance(boosted_attention(l.in, l.args).value(), num::add(f0.value(), num::scale(h.value(), shrink))) < 1e-14);
}

TEST_CASE("[proposition 1] one softmax step stays in the hull of the patterns and erases what is orthogonal to them") {
  Rng r(2);
  const int64_t K = 3, d = 5;
  const Tensor patterns = Tensor::randn({1, K, d}, r, DType::f64), query = Tensor::randn({1, 1, d}, r, DType::f64);
  auto step = [&](const Tensor& q) {
    return attention(Var(q), Var(patterns), Var(patterns), {.heads = 1, .scale = 1.7}).value();
  };
  const Tensor t = step(query);
  // (a) in the hull: the weights that softmax gives are non-negative, sum to 1 and reproduce t
  std::vector<double> w;
  double z = 0;
  for (int64_t k = 0; k < K; ++k) {
    double s = 0;
    for (int64_t i = 0; i < d; ++i) s += 1.7 * query.at({0, 0, i}) * patterns.at({0, k, i});
    w.push_back(std::exp(s));
    z += w.back();
  }
  for (int64_t i = 0; i < d; ++i) {
    double hull = 0;
    for (int64_t k = 0; k < K; ++k) hull += w[static_cast<size_t>(k)] / z * patterns.at({0, k, i});
    CHECK(close(t.at({0, 0, i}), hull, 0, 1e-13));
  }
  // (b) add a component orthogonal to every pattern (Gram-Schmidt): nothing changes
  std::vector<std::vector<double>> basis;
  auto orthogonalise = [&](std::vector<double> v) {
    for (const auto& b : basis) {
      double p = 0;
      for (int64_t i = 0; i < d; ++i) p += v[static_cast<size_t>(i)] * b[static_cast<size_t>(i)];
      for (int64_t i = 0; i < d; ++i) v[static_cast<size_t>(i)] -= p * b[static_cast<size_t>(i)];
    }
    double n = 0;
    for (double c : v) n += c * c;
    for (double& c : v) c /= std::sqrt(n);
    return v;
  };
  for (int64_t k = 0; k < K; ++k) basis.push_back(orthogonalise(patterns.select(1, k).to_vector<double>()));
  const std::vector<double> off = orthogonalise(Tensor::randn({d}, r, DType::f64).to_vector<double>());
  const Tensor shifted = num::add(query, num::scale(Tensor::of(off, {1, 1, d}), 3));
  CHECK(distance(step(shifted), t) < 1e-13);
}

TEST_CASE("the key bias gets exactly zero, and the truth is below 1e-12 of the scale") {
  Layer l(boosted({.heads = 2, .causal = true}, 3), 2, 6, 8, 5);
  Rng r(3);
  const Var y = boosted_attention(l.in, l.args);
  const Var v(Tensor::randn(y.shape(), r, DType::f64));
  const Vars by_hand = grad({y}, l.in, {v});
  const Vars composed = grad({BoostedAttention::compose(l.in, l.args)[0]}, l.in, {v});
  for (auto& m : l.at.rounds) {
    CHECK(num::max_abs(by_hand[static_cast<size_t>(m.b_k)].value()) == 0);
    const double scale = num::max_abs(composed[static_cast<size_t>(m.b_q)].value());
    CHECK(num::max_abs(composed[static_cast<size_t>(m.b_k)].value()) < 1e-12 * std::max(1.0, scale));
  }
}

TEST_CASE("[R22] fully masked rows give zero output and zero gradient through the core, and no NaN in a layer") {
  Rng r(4);
  Vars q{Var(Tensor::randn({2, 3, 4}, r, DType::f64), true), Var(Tensor::randn({2, 3, 4}, r, DType::f64), true),
         Var(Tensor::randn({2, 3, 4}, r, DType::f64), true), Var(Tensor::of(std::vector<int64_t>{0, 2}, {2}))};
  const Var o = apply<Attention>({.heads = 2, .lengths = true}, q)[0];
  CHECK(num::max_abs(o.value().select(0, 0)) == 0);
  const Vars g = grad({sum(o * o)}, {q[0], q[1], q[2]});
  for (const Var& x : g) CHECK(num::max_abs(x.value().select(0, 0)) == 0);
  CHECK(num::max_abs(g[2].value().select(0, 1)) > 0);
}

TEST_CASE("dropout masks of rounds differ, are redrawn alike in backward, and thin the weights by 1 - p on average") {
  Layer l(boosted({.heads = 2, .causal = true, .dropout = 0.25, .masks = {{1, 1}, {1, 2}}}, 2), 2, 8, 8, 6);
  const Tensor once = boosted_attention(l.in, l.args).value(), twice = boosted_attention(l.in, l.args).value();
  CHECK(distance(once, twice) == 0);
  AttentionLayerArgs other = l.args;
  other.masks[1] = {1, 3};
  CHECK(distance(once, boosted_attention(l.in, other).value()) > 0);
}

TEST_CASE("bad layers say what is wrong") {
  Layer l(boosted({.heads = 3}, 2), 1, 3, 8);
  CHECK_THROWS_WITH(boosted_attention(l.in, l.args), Contains("[boosted_attention] heads do not divide the width"));
  Layer k(boosted({.heads = 2}, 2), 1, 3, 8);
  k[k.at.rounds[1].w_g] = Var(Tensor::zeros({8, 8}, DType::f64));
  CHECK_THROWS_WITH(boosted_attention(k.in, k.args),
                    Contains("rounds.1.w_g") && Contains("(8, 8)") && Contains("(16, 8)"));
  Layer n(boosted({.heads = 2}, 2), 1, 3, 8);
  n[0] = Var(Tensor::zeros({3, 8}, DType::f64));
  CHECK_THROWS_WITH(boosted_attention(n.in, n.args), Contains("bad x"));
  Layer p(boosted({.heads = 2, .dropout = 0.5}, 2), 1, 3, 8);
  CHECK_THROWS_WITH(boosted_attention(p.in, p.args), Contains("too few dropout masks"));
}

TEST_CASE("empty batches and sequences pass through") {
  for (auto [B, T] : {std::pair<int64_t, int64_t>{0, 3}, {2, 0}}) {
    Layer l(boosted({.heads = 2}, 2), B, T, 4);
    const Var y = boosted_attention(l.in, l.args);
    CHECK(y.shape() == Shape{B, T, 4});
    sum(y).backward();
    CHECK(num::max_abs(l[l.at.rounds[0].w_q].grad()) == 0);
  }
}

TEST_CASE("attention and twicing as functions: lengths, scale, dropout and entropy as their ops have them") {
  Rng r(31);
  const Var q(Tensor::randn({2, 3, 4}, r, DType::f64), true), k(Tensor::randn({2, 3, 4}, r, DType::f64), true),
      v(Tensor::randn({2, 3, 6}, r, DType::f64), true);
  const Tensor lengths = Tensor::of<int64_t>({2, 3}, {2});
  const MaskKey mask = r.next_mask();
  const AttentionOptions o{.heads = 2, .causal = true, .scale = 0.6, .lengths = lengths, .dropout = 0.25, .mask = mask};
  const Var scale(Tensor::scalar(0.6, DType::f64));
  const Vars want = attn::compose(q, k, v, lengths, 2, true, scale, 0.25, mask);
  const AttentionOutput got = attention_with_entropy(q, k, v, o);
  CHECK(distance(got.output.value(), want[0].value()) < 1e-12);
  CHECK(distance(got.entropy.value(), want[1].value()) < 1e-12);
  CHECK(distance(attention(q, k, v, o).value(), want[0].value()) < 1e-12);
  const Var twice = want[0] + attn::compose(q, k, v - want[0], lengths, 2, true, scale, 0.25, mask)[0];
  CHECK(distance(twicing(q, k, v, o).value(), twice.value()) < 1e-12);
  const Vars cotangents{Var(Tensor::randn({2, 3, 6}, r, DType::f64)), Var(Tensor::randn({2, 3}, r, DType::f64))};
  const Vars g = grad({got.output, got.entropy}, {q, k, v}, cotangents), h = grad(want, {q, k, v}, cotangents);
  for (size_t i = 0; i < 3; ++i) CHECK(distance(g[i].value(), h[i].value()) < 1e-12);
  // without options: one head, every key, 1 / sqrt(d_key)
  const Var plain = matmul(softmax(matmul(q, transpose(k, 1, 2)) * 0.5), v);
  CHECK(distance(attention(q, k, v).value(), plain.value()) < 1e-12);
  CHECK_THROWS_WITH(attention(q, k, v, {.lengths = Tensor::of<int64_t>({2, 4}, {2})}), Contains("length out of range"));
  for (const double length : {1.5, -0.5, 3.4, std::nan("")})
    CHECK_THROWS_WITH(attention(q, k, v, {.lengths = Tensor::of<double>({2, length}, {2})}),
                      Contains("[attention] length out of range") && Contains("a whole number, 0 to 3"));
  CHECK_THROWS_WITH(attention(q, k, v, {.scale = std::nan("")}), Contains("[attention] bad scale"));
}
