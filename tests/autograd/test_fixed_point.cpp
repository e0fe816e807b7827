// The fixed point of attention: its gradient against the long way round, what it does where nothing converges, and what
// the paper proves of such points.
#include <cmath>

#include "autograd/engine.h"
#include "autograd/ops/fixed_point.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/softmax.h"
#include "tests/match.h"
#include "tests/support.h"

using namespace bg;
using bg::test::distance;

namespace {

// Queries and projected patterns in random directions; log_beta decides how far the step contracts.
struct Memory {
  Vars in;  // start, w_q, keys, values, log_beta

  Memory(int64_t N, int64_t d, int64_t K, double log_beta, uint64_t seed = 1, DType dtype = DType::f64) {
    Rng r(seed);
    const double w = 1 / std::sqrt(static_cast<double>(d));
    for (const auto& [shape, stddev] : {std::pair<Shape, double>{{N, d}, 1}, {{d, d}, w}, {{K, d}, w}, {{K, d}, 1}})
      in.emplace_back(Tensor::randn(shape, r, dtype, stddev), true);
    in.emplace_back(Tensor::full({1}, log_beta, dtype), true);
  }
  AttentionStep step() const { return {in[1].value(), in[2].value(), in[3].value(), in[4].item()}; }
  Var fixed_point(const FixedPointArgs& args) const {
    return attention_fixed_point(in[0], in[1], in[2], in[3], in[4], args);
  }
  Var unrolled(int steps) const {
    const Var a = exp(in[4]) * matmul(in[1], transpose(in[2], 0, 1));
    Var z = in[0];
    for (int i = 0; i < steps; ++i) z = matmul(softmax(matmul(z, a)), in[3]);
    return z;
  }
};

constexpr FixedPointArgs kExact{.max_iterations = 500, .tolerance = 0};

}  // namespace

TEST_CASE("the fixed point's gradient is that of 200 unrolled steps, and that of one step is not") {
  const Memory m(6, 8, 5, -0.5);
  Rng r(2);
  const Var v(Tensor::randn({6, 8}, r, DType::f64));
  const Var implicit = m.fixed_point(kExact), unrolled = m.unrolled(200);
  CHECK(distance(implicit.value(), unrolled.value()) < 1e-12);
  const Vars targets(m.in.begin() + 1, m.in.end());
  const Vars g = grad({implicit}, targets, {v}), want = grad({unrolled}, targets, {v}, {.retain_graph = true});
  const AttentionStep step = m.step();
  const std::vector<double> radius = step.spectral_radius(implicit.value(), r);
  for (double x : radius) CHECK((x > 0.05 && x < 0.9));  // the solve has something to do
  // one step of primitive ops from the fixed point: the gradient that forgets how the point moves
  Memory once = m;
  once.in[0] = Var(implicit.value());
  const Vars one_step = grad({once.unrolled(1)}, targets, {v});
  for (size_t i = 0; i < targets.size(); ++i) {
    CHECK(distance(g[i].value(), want[i].value()) < 1e-8);
    CHECK(distance(one_step[i].value(), want[i].value()) > 1e-4);
  }
  CHECK(num::max_abs(grad({unrolled}, {m.in[0]}, {v})[0].value()) < 1e-12);  // the start's gradient, declared zero
}

TEST_CASE("the fixed point stays where it is, and says how it was reached") {
  const Memory m(4, 6, 5, -1);
  const AttentionStep step = m.step();
  const FixedPoint at = solve_fixed_point(step, m.in[0].value(), {.max_iterations = 200, .tolerance = 1e-10});
  CHECK(at.converged);
  CHECK((at.iterations > 2 && at.iterations < 200));
  CHECK(at.residual <= 1e-10);
  CHECK(at.residuals.size() == 4);
  CHECK(*std::max_element(at.residuals.begin(), at.residuals.end()) == at.residual);
  CHECK(distance(step.apply(at.z), at.z) < 1e-10);
  const FixedPoint early = solve_fixed_point(step, m.in[0].value(), {.max_iterations = 2, .tolerance = 1e-10});
  CHECK(!early.converged);
  CHECK(early.iterations == 2);
  CHECK(early.residual > 1e-10);
}

TEST_CASE("where the iteration has not converged, forward and backward say so, unless told to take what there is") {
  const Memory m(3, 6, 5, -0.5);
  CHECK_THROWS_WITH(m.fixed_point({.max_iterations = 3, .tolerance = 1e-10}),
                    Contains("[attention_fixed_point] the iteration has not converged") &&
                        Contains("after 3 iterations") && Contains("at most 1e-10"));
  const Var last = m.fixed_point({.max_iterations = 3, .tolerance = 1e-10, .must_converge = false});
  CHECK(distance(last.value(), m.unrolled(3).value()) < 1e-14);
  const Vars g = grad({sum(last)}, {m.in[1]}, {}, {.retain_graph = true});  // finite: the first terms of the series
  CHECK(num::first_non_finite(g[0].value()) == -1);
  // a start on the fixed point needs one step; its gradient still needs many
  Memory there = m;
  there.in[0] = Var(m.fixed_point(kExact).value());
  const Var z = there.fixed_point({.max_iterations = 1, .tolerance = 1e-10});
  CHECK_THROWS_WITH(sum(z).backward(), Contains("the gradient's iteration has not converged"));
  CHECK_THROWS_WITH(grad({sum(last)}, {m.in[1]}, {}, {.create_graph = true}),
                    Contains("no second derivative at a point that is not fixed"));
  // a NaN never counts as converged
  Memory bad = m;
  bad.in[3] = Var(Tensor::full({5, 6}, std::nan(""), DType::f64), true);
  CHECK_THROWS_WITH(bad.fixed_point({}), Contains("a residual of nan"));
}

TEST_CASE("f32 converges to its own rounding when asked for more") {
  const Memory m(5, 8, 6, -1, 3, DType::f32);
  const Var z = m.fixed_point(kExact);
  CHECK(distance(m.step().apply(z.value()), z.value()) < 1e-5);
  sum(z * z).backward();
  CHECK(m.in[1].grad().dtype() == DType::f32);
}

TEST_CASE("the spectral radius is that of the Jacobian") {
  // two patterns +-v and w_q = keys = v along one axis: T(z) = tanh(beta z) in one dimension, T' = beta / cosh^2
  const double beta = 0.7;
  const AttentionStep step(Tensor::of({1}, {1, 1}), Tensor::of({1, -1}, {2, 1}), Tensor::of({1, -1}, {2, 1}),
                           std::log(beta));
  Rng r(1);
  const std::vector<double> radius = step.spectral_radius(Tensor::of({0, 0.5}, {2, 1}), r);
  CHECK(close(radius[0], beta, 0, 1e-12));
  CHECK(close(radius[1], beta / std::pow(std::cosh(beta * 0.5), 2), 0, 1e-12));
  // jvp and vjp are transposes of each other
  const Memory m(4, 6, 5, 0);
  const Tensor p = m.step().weights(m.in[0].value()), u = Tensor::randn({4, 6}, r, DType::f64),
               w = Tensor::randn({4, 6}, r, DType::f64);
  CHECK(close(num::dot(u, m.step().jvp(p, w)), num::dot(m.step().vjp(p, u), w), 1e-12, 0));
  // no dependence at all: one pattern
  const AttentionStep flat(Tensor::of({1}, {1, 1}), Tensor::of({1}, {1, 1}), Tensor::of({1}, {1, 1}), 0);
  CHECK(flat.spectral_radius(Tensor::of({1}, {1, 1}), r)[0] == 0);
}

TEST_CASE("[proposition 1] every fixed point lies in the hull, where contraction holds all queries meet in one") {
  const int64_t K = 4, d = 6;
  Rng r(4);
  const Tensor x = Tensor::randn({K, d}, r, DType::f64, 1 / std::sqrt(static_cast<double>(d)));
  Tensor identity = Tensor::zeros({d, d}, DType::f64);
  for (int64_t i = 0; i < d; ++i) identity.mutable_data<double>("eye")[i * d + i] = 1;
  const Tensor queries = Tensor::randn({8, d}, r, DType::f64, 3);
  auto solve = [&](double beta, const Tensor& from) {
    const AttentionStep step(identity, x, x, std::log(beta));
    const FixedPoint at = solve_fixed_point(step, from, kExact);
    REQUIRE(at.converged);
    // (c) z = P X with the weights P of z itself, which are a point of the simplex
    const Tensor p = step.weights(at.z);
    for (int64_t n = 0; n < p.size(0); ++n) {
      double total = 0;
      for (int64_t k = 0; k < K; ++k) {
        CHECK(p.at({n, k}) >= 0);
        total += p.at({n, k});
      }
      CHECK(close(total, 1, 0, 1e-14));
    }
    CHECK(distance(num::matmul(p, x), at.z) < 1e-12);
    return at.z;
  };
  auto spread = [](const Tensor& z) { return distance(z, z.slice(0, 0, 1).expand(z.shape())); };
  CHECK(spread(solve(0.5, queries)) < 1e-12);  // T contracts everywhere: distinct queries, one point
  CHECK(spread(solve(30, queries)) > 0.1);     // every pattern keeps a region of its own ...
  const Tensor near = num::add(x.slice(0, 0, 1).expand({8, d}), num::scale(queries, 0.02));
  CHECK(spread(solve(30, near)) < 1e-12);  // ... in which distinct queries collapse to the same point
  // the component of a query that is orthogonal to all patterns is erased by the first step
  Tensor off = Tensor::randn({1, d}, r, DType::f64);
  for (int pass = 0; pass < 200; ++pass)  // alternating projections
    for (int64_t k = 0; k < K; ++k) {
      const Tensor row = x.slice(0, k, k + 1);
      off = num::sub(off, num::scale(row, num::dot(off, row) / num::dot(row, row)));
    }
  REQUIRE(num::max_abs(off) > 0.05);
  const Tensor moved = num::add(queries, num::scale(off, 5).expand(queries.shape()));
  CHECK(distance(solve(30, moved), solve(30, queries)) < 1e-11);
}

TEST_CASE("bad inputs of the fixed point say what is wrong") {
  Memory m(3, 6, 5, -1);
  m.in[3] = Var(Tensor::zeros({5, 4}, DType::f64));
  CHECK_THROWS_WITH(m.fixed_point({}), Contains("wrong shape of values") && Contains("(5, 4)") && Contains("(5, 6)"));
  m = Memory(3, 6, 5, -1);
  m.in[4] = Var(Tensor::zeros({2}, DType::f64));
  CHECK_THROWS_WITH(m.fixed_point({}), Contains("log_beta"));
  m = Memory(3, 6, 5, -1);
  m.in[1] = Var(Tensor::zeros({6, 6}));
  CHECK_THROWS_AS(m.fixed_point({}), Error);
  CHECK_THROWS_WITH(Memory(3, 6, 5, -1).fixed_point({.max_iterations = 0}), Contains("bad number of iterations"));
}
