// The engine: accumulation, retain_graph, grad(), hooks, versions, deep graphs, checkpointing, anomaly mode.
#include "autograd/checkpoint.h"
#include "autograd/engine.h"
#include "autograd/jvp.h"
#include "autograd/ops/boosted_attention.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/select.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {
Var leaf(std::initializer_list<double> values) {
  return Var(Tensor::of(values, {static_cast<int64_t>(values.size())}), true);
}
}  // namespace

TEST_CASE("a diamond adds both paths") {
  Var x = leaf({3});
  const Var y = x * x + x;
  sum(y * y).backward();  // (x^2 + x)^2 -> 2 (x^2 + x)(2x + 1)
  CHECK(x.grad().flat(0) == 2.0 * 12 * 7);
}

TEST_CASE("[R13] backward twice with retain_graph doubles the leaf's gradient exactly, without it fails") {
  Var x = leaf({2, -1});
  const Var y = sum(x * x * x);
  y.backward({}, true);
  CHECK(x.grad().flat(0) == 12);
  y.backward();
  CHECK(x.grad().flat(0) == 24);
  CHECK_THROWS_WITH(y.backward(), Contains("saved for backward are gone") && Contains("retain_graph"));
}

TEST_CASE("[R17] two micro-batches accumulate to the whole batch's gradient") {
  Rng r(1);
  Var w(Tensor::randn({4, 3}, r, DType::f64), true);
  const Tensor x = Tensor::randn({6, 4}, r, DType::f64);
  auto loss = [&](const Tensor& rows) {
    const Var y = matmul(Var(rows), w);
    return sum(y * y);
  };
  loss(x).backward();
  const Tensor whole = w.grad().clone();
  w.zero_grad();
  loss(x.slice(0, 0, 2)).backward();
  loss(x.slice(0, 2, 6)).backward();
  CHECK(num::max_abs(num::sub(w.grad(), whole)) < 1e-12);
}

TEST_CASE("grad() differentiates again and touches no .grad") {
  Var x = leaf({2});
  const Var y = sum(x * x * x);
  const Var g = grad({y}, {x}, {}, {.create_graph = true})[0];
  CHECK(g.value().flat(0) == 12);
  const Var h = grad({sum(g)}, {x}, {}, {.create_graph = true})[0];
  CHECK(h.value().flat(0) == 12);
  CHECK(grad({sum(h)}, {x})[0].value().flat(0) == 6);
  CHECK(!x.grad().defined());
}

TEST_CASE("grad() of an interior value counts only paths from it") {
  Var x = leaf({3});
  const Var h = x * x, y = h * x;
  CHECK(grad({sum(y)}, {h}, {}, {.retain_graph = true})[0].value().flat(0) == 3);
  CHECK(grad({sum(y)}, {x})[0].value().flat(0) == 27);
}

TEST_CASE("no_grad records nothing, detach cuts") {
  Var x = leaf({3});
  {
    NoGrad off;
    CHECK(!(x * x).requires_grad());
  }
  sum(x.detach() * x).backward();
  CHECK(x.grad().flat(0) == 3);
}

TEST_CASE("hooks see the complete gradient once and may replace it") {
  Var x = leaf({1});
  const Var h = x * 2;
  int calls = 0;
  double seen = 0;
  Var(h).add_hook([&](const Tensor& g) {
    ++calls;
    seen = g.flat(0);
    return num::scale(g, 10);
  });
  sum(h * 3 + h * 4).backward();
  CHECK(calls == 1);
  CHECK(seen == 7);
  CHECK(x.grad().flat(0) == 140);
}

TEST_CASE("[R10] [R11] writing to a saved tensor, or to the base of a saved view, is found and named") {
  Rng r(1);
  Var x = leaf({1, 2});
  Var y = x * x;
  Var z = sum(y * y);
  y.value().fill(0, "zap");
  CHECK_THROWS_WITH(z.backward(), Contains("[mul]") && Contains("zap") && Contains("(2,)") && Contains("version"));
  Tensor base = Tensor::randn({4, 2}, r, DType::f64);
  const Var row(base.slice(0, 1, 2));
  Var w = leaf({1, 2});
  const Var q = sum(row * w);
  base.fill(0, "overwrite");
  CHECK_THROWS_WITH(q.backward(), Contains("overwrite"));
}

TEST_CASE("[R9] a gradient handed to two inputs is not changed through either") {
  Var a = leaf({1}), b = leaf({1});
  sum(a + b).backward();
  const Tensor before = b.grad().clone();
  Tensor ga = a.grad();
  sum(a * 5).backward();
  CHECK(b.grad().flat(0) == before.flat(0));
  CHECK(ga.flat(0) == 1);  // a handle taken earlier keeps its numbers
  CHECK(a.grad().flat(0) == 6);
}

TEST_CASE("[R14] live bytes return to where they were after create_graph") {
  const size_t before = memory_stats().live_bytes;
  {
    Rng r(2);
    Var x(Tensor::randn({16, 16}, r, DType::f64), true);
    const Var g = grad({sum(matmul(x, x) * x)}, {x}, {}, {.create_graph = true})[0];
    sum(g * g).backward();
  }
  CHECK(memory_stats().live_bytes == before);
}

TEST_CASE("[R15] broadcast gradients have the input's shape") {
  for (const auto& [sa, sb] : broadcast_pairs()) {
    Rng r(3);
    Var a(normal(r, sa), true), b(normal(r, sb), true);
    sum(a * b).backward();
    CHECK(a.grad().shape() == sa);
    CHECK(b.grad().shape() == sb);
  }
  Var a(Tensor::zeros({0, 3}, DType::f64), true), b(Tensor::zeros({3}, DType::f64), true);
  sum(a + b).backward();
  CHECK(a.grad().shape() == Shape{0, 3});
  CHECK(b.grad().flat(0) == 0);
}

TEST_CASE("[R19] looking at values changes no gradient") {
  Var x = leaf({1, 2});
  const Var y = x * x;
  (void)y.value().to_string();
  const Var z = sum(y);
  (void)z.item();
  z.backward();
  CHECK(x.grad().flat(1) == 4);
}

TEST_CASE("[R39] anomaly mode names op, scope and first bad index, forward and backward") {
  AnomalyMode on;
  Scope block("blocks.3"), part("attn");
  Var x = leaf({1, 0});
  const Var zero(Tensor::zeros({2}, DType::f64));
  CHECK_THROWS_WITH(x / zero, Contains("[div] output 0 is not finite in blocks.3.attn") &&
                                  Contains("inf at (0,) of (2,) from finite inputs (2,), (2,)"));
}

TEST_CASE("[R39] anomaly mode names the first op with a bad value, or who handed it over") {
  const double nan = std::nan("");
  const Var good = leaf({1, 2, 3}), bad = leaf({1, nan, 3});
  SECTION("forward: a bad leaf is named as such, by the op's name for it") {
    const AnomalyMode on;
    const Scope part("blocks.0.mlp");
    CHECK_THROWS_WITH(good * bad,
                      Contains("[mul] input b is already not finite in blocks.0.mlp: got nan at (1,) of (3,) "
                               "(a leaf), expected finite numbers"));
  }
  SECTION("forward: computed before the mode was on") {
    const Var root = [] {
      const Scope early("early");
      return sqrt(leaf({4, -1}));
    }();
    const AnomalyMode on;
    CHECK_THROWS_WITH(exp(root), Contains("[exp] input x is already not finite") && Contains("at (1,) of (2,)") &&
                                     Contains("(computed by sqrt in early)"));
  }
  SECTION("forward: a bad value that cannot be seen in the result is nobody's fault") {
    const AnomalyMode on;
    CHECK_NOTHROW(where(Tensor::of<int32_t>({0, 1, 0}, {3}), good, bad));
  }
  SECTION("backward: the op's own doing") {
    const Var zero = leaf({0, 1});
    const Var y = sum(sqrt(zero));
    const AnomalyMode on;
    CHECK_THROWS_WITH(y.backward(), Contains("[sqrt] gradient of x is not finite: got inf at (0,) of (2,)"));
  }
  SECTION("backward: a saved leaf") {
    const Var y = sum(good * bad);
    const AnomalyMode on;
    CHECK_THROWS_WITH(y.backward(),
                      Contains("[mul] gradient of a is not finite: got nan at (1,) of (3,)") &&
                          Contains("look at its saved input b (a leaf), not finite: nan at (1,) of (3,)"));
  }
  SECTION("backward: the cotangent, a hook, a sum") {
    Var y = exp(good);
    const Var two = y + y;
    const AnomalyMode on;
    CHECK_THROWS_WITH(y.backward(Tensor::of<double>({0, 0, nan}, {3}), true),
                      Contains("[backward] the cotangent that was handed in is not finite: got nan at (2,) of (3,)"));
    CHECK_THROWS_WITH(two.backward(Tensor::of<double>({0, 1e308, 0}, {3}), true),
                      Contains("[exp] the sum of the gradients of output 0 is not finite: got inf at (1,) of (3,)"));
    y.add_hook([&](const Tensor& g) { return num::scale(g, nan); });
    CHECK_THROWS_WITH(sum(y).backward(), Contains("[exp] the gradient that a hook returned is not finite"));
  }
}

TEST_CASE("checkpoint gives the same gradients and names a parameter that was not listed") {
  Rng r(4);
  Var x(normal(r, {3, 4}), true), w(normal(r, {4, 4}), true);
  auto f = [&](const Vars& in) { return Vars{matmul(in[0], w) * matmul(in[0], w)}; };
  sum(f({x})[0]).backward();
  const Tensor gx = x.grad().clone(), gw = w.grad().clone();
  x.zero_grad(), w.zero_grad();
  sum(checkpoint(f, {x}, {w})[0]).backward();
  CHECK(num::max_abs(num::sub(x.grad(), gx)) == 0);
  CHECK(num::max_abs(num::sub(w.grad(), gw)) == 0);
  CHECK_THROWS_WITH(sum(checkpoint(f, {x})[0]).backward(),
                    Contains("[checkpoint]") && Contains("(b) of matmul") && Contains("(4, 4)"));
  const Var g = grad({sum(checkpoint(f, {x}, {w})[0])}, {x}, {}, {.create_graph = true})[0];
  const Var g2 = grad({sum(f({x})[0])}, {x}, {}, {.create_graph = true})[0];
  CHECK(num::max_abs(num::sub(grad({sum(g * g)}, {w})[0].value(), grad({sum(g2 * g2)}, {w})[0].value())) < 1e-12);
}

TEST_CASE("checkpoint under create_graph: listed parameters get their gradients, forgotten ones are named") {
  Var x = leaf({3}), w = leaf({2});
  auto f = [&](const Vars& in) { return Vars{in[0] * w}; };
  for (const bool graph : {false, true}) {
    const Vars g = grad({checkpoint(f, {x}, {w})[0]}, {x, w}, {}, {.create_graph = graph});
    CHECK(g[0].item() == 2);
    CHECK(g[1].item() == 3);
    CHECK_THROWS_WITH(grad({checkpoint(f, {x})[0]}, {x}, {}, {.create_graph = graph}),
                      Contains("[checkpoint]") && Contains("was not listed") && Contains("(b) of mul"));
  }
  auto through = [](const Vars& in) {
    return checkpoint([b = in[1]](const Vars& a) { return Vars{a[0] * b}; }, {in[0]}, {in[1]});
  };
  const Jvp j = jvp(through, {x.value(), w.value()}, {Tensor::of<double>({1}, {1}), Tensor::of<double>({1}, {1})});
  CHECK(j.tangents[0].item() == 5);
  // second derivatives, one checkpoint in another: d2/dx dw of (x w^2)^2 is 8 x w^3
  auto inner = [&](const Vars& in) { return Vars{checkpoint(f, {in[0]}, {w})[0] * w}; };
  const Var y = checkpoint([&](const Vars& in) { return Vars{square(inner(in)[0])}; }, {x}, {w})[0];
  const Var dx = grad({y}, {x}, {}, {.create_graph = true})[0];
  CHECK(dx.item() == 2 * 3 * 16);
  CHECK(grad({dx}, {w})[0].item() == 8 * 3 * 8);
}

TEST_CASE("checkpoint counts each path once, however its inputs and parameters hang together") {
  for (const bool graph : {false, true}) {
    auto gradients = [&](const Var& y, const Vars& of) {
      std::vector<double> g;
      for (const Var& v : grad({y}, of, {}, {.create_graph = graph})) g.push_back(v.item());
      return g;
    };
    Var x = leaf({3}), w = leaf({2});
    for (const bool twice : {false, true}) {
      const Var h = w * 2;                                              // a parameter that was computed from another
      auto both = [&](const Vars& in) { return Vars{in[0] * w * h}; };  // 2 x w^2
      const Var y = checkpoint(both, {x}, twice ? Vars{h, w, w} : Vars{w, h})[0];
      CHECK(gradients(y, {x, w}) == std::vector<double>{8, 24});
    }
    const Var z = x * w;                                             // an input that was computed from a parameter
    auto product = [&](const Vars& in) { return Vars{in[0] * w}; };  // x w^2
    CHECK(gradients(checkpoint(product, {z}, {w})[0], {x, w}) == std::vector<double>{4, 12});
    auto cube = [&](const Vars& in) { return Vars{in[0] * in[1] * x}; };  // an input given twice, and captured
    CHECK(gradients(checkpoint(cube, {x, x}, {x})[0], {x}) == std::vector<double>{27});
  }
}

TEST_CASE("checkpoint runs a parameter's hook once, on the complete gradient") {
  Var x = leaf({3}), w = leaf({2});
  w.add_hook([](const Tensor& g) { return num::scale(g, 10); });
  sum(checkpoint([&](const Vars& in) { return Vars{in[0] * w}; }, {x}, {w})[0] + w).backward();
  CHECK(w.grad().flat(0) == 40);
}

TEST_CASE("a gradient that an op says is zero gives its leaf zeros, and the leaves behind it") {
  Rng r(5);
  Sample<AttentionLayerArgs> s = attn::layer_sample(r, "", {.heads = 2, .rounds = 2}, {});
  const size_t key_bias = static_cast<size_t>(attention_layout(s.args).rounds[1].b_k);
  const Var half(Tensor::randn(s.inputs[key_bias].shape(), r, DType::f64), true);
  Vars in;
  for (const Tensor& t : s.inputs) in.emplace_back(t, true);
  const Var direct = in[static_cast<size_t>(attention_layout(s.args).rounds[0].b_k)];
  in[key_bias] = half * 2;
  int calls = 0;
  Var(direct).add_hook([&](const Tensor& g) {
    ++calls;
    CHECK(num::max_abs(g) == 0);
    return Tensor();
  });
  sum(square(boosted_attention(in, s.args))).backward();
  for (const Var& zero : {direct, half}) {
    REQUIRE(zero.grad().defined());
    CHECK(zero.grad().shape() == zero.shape());
    CHECK(num::max_abs(zero.grad()) == 0);
  }
  CHECK(calls == 1);
  Var apart = leaf({1});  // what the output does not depend on stays without
  sum(leaf({2}) * 2 + apart.detach()).backward();
  CHECK(!apart.grad().defined());
  // a leaf with another path keeps what came along that
  Var shared(s.inputs[key_bias], true);
  in[key_bias] = shared;
  const Var y = sum(boosted_attention(in, s.args));
  (y + sum(shared * 3)).backward();
  CHECK(shared.grad().flat(0) == 3);
}

TEST_CASE("bad calls say what is wrong") {
  Var x = leaf({1, 2});
  CHECK_THROWS_WITH((x * x).backward(), Contains("cotangent") && Contains("sum()"));
  CHECK_THROWS_WITH(Var(Tensor::zeros({1}, DType::f64)).backward(), Contains("requires a gradient"));
  CHECK_THROWS_WITH(x + Var(Tensor::zeros({3}, DType::f64)), Contains("[add] shapes do not broadcast"));
  CHECK_THROWS_WITH(x + Var(Tensor::zeros({2}, DType::f32)), Contains("dtypes differ"));
  CHECK_THROWS_WITH(matmul(Var(Tensor::zeros({2, 3})), Var(Tensor::zeros({4, 5}))), Contains("inner sizes differ"));
}

TEST_CASE("[R43] a hook sees the gradient once, after all of it has been added up, at leaves and inside") {
  for (const bool interior : {false, true}) {
    const Var x = leaf({3});
    Var y = interior ? x * 2 : x;
    std::vector<double> seen;
    y.add_hook([&](const Tensor& g) {
      seen.push_back(g.flat(0));
      return Tensor();
    });
    const Var loss = sum(y * y + y * 4 + exp(y * 0));  // three uses
    loss.backward({}, true);
    const double all = 2 * y.item() + 4 + 0;
    CHECK(seen == std::vector<double>{all});
    CHECK(x.grad().flat(0) == (interior ? 2 * all : all));
    loss.backward();  // once per backward
    CHECK(seen == std::vector<double>{all, all});
  }
  // what a hook returns takes the gradient's place, for the value itself and for everything before it
  const Var x = leaf({3});
  Var y = x * 2;
  y.add_hook([](const Tensor& g) { return num::scale(g, 10); });
  y.add_hook([](const Tensor& g) { return num::scale(g, 7); });
  sum(y * y).backward();
  CHECK(x.grad().flat(0) == 2 * 70 * 2 * 6);
}
