// Values that are cheap to compute again are not kept: the gradients are the same, the memory is not.
#include "autograd/engine.h"
#include "autograd/op.h"
#include "autograd/ops/all.h"
#include "autograd/profile.h"
#include "core/tensor_ops.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

constexpr int64_t kRows = 4200;  // rows of 128 doubles: more than the 4 MiB from which on values are forgone

Tensor numbers(uint64_t seed, const Shape& shape) {
  Rng r(seed);
  return normal(r, shape);
}

bool equal_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && num::max_abs(num::sub(a, b)) == 0;
}

}  // namespace

TEST_CASE("recipes: gradients are those of kept values, bit for bit") {
  const Var x(numbers(1, {kRows, 128}), true), gamma(numbers(2, {128}), true), beta(numbers(3, {128}), true);
  const Var w(numbers(4, {128, 5}), true);
  auto f = [&](bool keep) {
    Var h = dropout(gelu(layer_norm(x, gamma, beta)), 0.3, {1, 2});
    if (keep) h = Var(h.value(), h.meta());  // the same place in the graph, without the recipe
    const Var y = linear(h, w);
    return grad({sum(y * y)}, {x, gamma, beta, w});
  };
  const Vars lazy = f(false), kept = f(true);
  for (size_t i = 0; i < lazy.size(); ++i) CHECK(equal_bits(lazy[i].value(), kept[i].value()));
}

TEST_CASE("recipes: a chain of cheap ops keeps nothing but its beginning") {
  const Var x(numbers(1, {kRows, 128}), true), w(numbers(2, {128, 4}), true);
  const size_t before = memory_stats().live_bytes;
  const Var y = linear(dropout(silu(rms_norm(x)), 0.1, {1, 2}), w);
  // silu, which saves the norm's output, has its recipe too: nothing as large as x is held
  CHECK(memory_stats().live_bytes - before < kRows * 128 * 8);
  CHECK(static_cast<int64_t>(memory_stats().live_bytes - before) >= y.value().numel() * 8);
}

TEST_CASE("recipes: a long chain of cheap ops is not computed again from its beginning") {
  const Var x(numbers(1, {kRows, 128}), true);
  Var y = x;
  for (int i = 0; i < 40; ++i) {
    y = relu(y);
    REQUIRE(y.recipe()->steps <= 3);
  }
  const Tensor g = grad({sum(y)}, {x})[0].value();
  CHECK(num::max_abs(num::sub(g, Tensor::full(g.shape(), 1, DType::f64))) <= 1);
  const auto ran = [] {  // ops that ran in a backward, computed again or not
    const Var z(numbers(1, {kRows, 128}), true);
    Var h = z;
    for (int i = 0; i < 40; ++i) h = relu(h);
    const Var total = sum(h);
    const Profile profile;
    grad({total}, {z});
    return profile.events().size();
  };
  CHECK(ran() < 40 * 6);
}

TEST_CASE("recipes: a graph alone does not keep what its cheap ops were given") {
  const Var x(numbers(1, {kRows, 128}), true);
  const size_t before = memory_stats().live_bytes;
  const Var y = sum(dropout(x * 2, 0.1, {1, 2}));  // sum saves nothing, dropout redraws its mask
  CHECK(memory_stats().live_bytes - before < kRows * 128 * 8);
}

TEST_CASE("recipes: writes are honoured") {
  Var x(numbers(1, {kRows, 128}), true);
  const Var w(numbers(2, {128, 3}), true);

  SECTION("to the output before it is used: the written value counts") {
    Var h = gelu(x);
    h.value().fill(1);
    const Vars g = grad({sum(linear(h, w))}, {w});
    CHECK(equal_bits(g[0].value(), Tensor::full({128, 3}, kRows, DType::f64)));
  }
  SECTION("to the output after it was used: the used value counts") {
    Var h = gelu(x);
    const Tensor used = h.value().clone();
    const Var y = sum(linear(h, w));
    h.value().fill(1);
    const Tensor expected = num::matmul(used.transpose(0, 1), Tensor::full({kRows, 3}, 1, DType::f64));
    CHECK(num::max_abs(num::sub(grad({y}, {w})[0].value(), expected)) < 1e-9);
  }
  SECTION("to what the output is made of: found") {
    const Var y = sum(linear(gelu(x * 1), w)), z = sum(linear(gelu(x), w));
    CHECK_NOTHROW(grad({y}, {w}));
    x.value().fill(1);
    CHECK_THROWS_WITH(grad({z}, {w}), Contains("gelu") && Contains("changed in place"));
  }
}

TEST_CASE("recipes: second derivatives, repeated and partial backwards") {
  const Var x(numbers(1, {kRows, 128}), true), w(numbers(2, {128, 4}), true);
  auto f = [&](bool keep) {
    Var h = rms_norm(x);
    if (keep) h = Var(h.value(), h.meta());
    return sum(gelu(linear(h, w)));
  };
  auto second = [&](bool keep) {
    const Var g = grad({f(keep)}, {x}, {}, {.create_graph = true})[0];
    return grad({sum(g * g)}, {x, w});
  };
  const Vars lazy = second(false), kept = second(true);
  for (size_t i = 0; i < 2; ++i) CHECK(equal_bits(lazy[i].value(), kept[i].value()));

  const Var h = rms_norm(x), a = sum(linear(h, w)), b = sum(linear(h, w * 2));
  const Tensor first = grad({a}, {w})[0].value();  // releases what the norm has saved
  CHECK(equal_bits(num::scale(first, 2), grad({b}, {w})[0].value()));
}
