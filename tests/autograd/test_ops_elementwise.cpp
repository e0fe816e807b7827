// Element-wise ops and selection at the points where the verifier does not look: kinks, borders, ties, infinities, NaN,
// empty tensors, and errors.
#include <limits>

#include "autograd/engine.h"
#include "autograd/ops/all.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();

Var leaf(std::initializer_list<double> values, DType dtype = DType::f64) {
  return Var(Tensor::of(values, {static_cast<int64_t>(values.size())}, dtype), true);
}

using Values = std::vector<double>;

// Gradient of <cotangent, y>; the cotangent's elements differ, so that no mix-up goes unseen.
Values gradient(const Var& y, const Var& x, Values cotangent) {
  return grad({y}, {x}, {Var(Tensor::of(std::move(cotangent), y.shape()).to(y.dtype()))}, {.retain_graph = true})[0]
      .value()
      .to_vector<double>();
}

Values values(const Var& x) { return x.value().to_vector<double>(); }

}  // namespace

TEST_CASE("[R24] conventions at kinks: relu'(0) = 0, abs'(0) = 0, clamp passes at its borders") {
  const Var x = leaf({-1, 0, 2});
  CHECK(values(relu(x)) == Values{0, 0, 2});
  CHECK(gradient(relu(x), x, {3, 5, 7}) == Values{0, 0, 7});
  CHECK(gradient(abs(x), x, {3, 5, 7}) == Values{-3, 0, 7});
  CHECK(values(clamp(x, -1, 0)) == Values{-1, 0, 0});
  CHECK(gradient(clamp(x, -1, 0), x, {3, 5, 7}) == Values{3, 5, 0});
}

TEST_CASE("[R24] the same conventions hold when a graph of the gradient is recorded") {
  const Var x = leaf({-1, 0, 2});
  const Vars dy{Var(Tensor::of({3, 5, 7}, {3}))};
  CHECK(values(grad({relu(x)}, {x}, dy, {.create_graph = true})[0]) == Values{0, 0, 7});
  CHECK(values(grad({abs(x)}, {x}, dy, {.create_graph = true})[0]) == Values{-3, 0, 7});
  CHECK(values(grad({clamp(x, -1, 0)}, {x}, dy, {.create_graph = true})[0]) == Values{3, 5, 0});
}

TEST_CASE("an infinite cotangent does not become NaN where a kinked op has gradient 0") {
  const Var x = leaf({-1, 0, 2});
  CHECK(gradient(relu(x), x, {kInf, kInf, 1}) == Values{0, 0, 1});
  CHECK(gradient(clamp(x, -0.5, 1), x, {kInf, 1, kInf}) == Values{0, 1, 0});
  CHECK(gradient(abs(x), x, {1, kInf, kInf}) == Values{-1, 0, kInf});
}

TEST_CASE("[R24] maximum and minimum give a tie's gradient to the first input") {
  const Var a = leaf({1, 2, 3}), b = leaf({1, 5, -3});
  CHECK(values(maximum(a, b)) == Values{1, 5, 3});
  CHECK(gradient(maximum(a, b), a, {3, 5, 7}) == Values{3, 0, 7});
  CHECK(gradient(maximum(a, b), b, {3, 5, 7}) == Values{0, 5, 0});
  CHECK(values(minimum(a, b)) == Values{1, 2, -3});
  CHECK(gradient(minimum(a, b), a, {3, 5, 7}) == Values{3, 5, 0});
  CHECK(gradient(minimum(a, b), b, {3, 5, 7}) == Values{0, 0, 7});
}

TEST_CASE("NaN goes through maximum, minimum, relu, abs and clamp") {
  const Var x = leaf({kNaN}), one = leaf({1});
  CHECK(std::isnan(maximum(x, one).item()));
  CHECK(std::isnan(maximum(one, x).item()));
  CHECK(std::isnan(minimum(x, one).item()));
  CHECK(std::isnan(minimum(one, x).item()));
  CHECK(std::isnan(relu(x).item()));
  CHECK(std::isnan(abs(x).item()));
  CHECK(std::isnan(clamp(x, 0, 1).item()));
}

TEST_CASE("[R23] where selects: NaN of the branch not taken does not reach the gradient of the other") {
  const Tensor cond = Tensor::of(std::vector<int32_t>{1, 0, 1}, {3});
  const Var a = leaf({1, kNaN, 3}), b = leaf({kNaN, 2, kInf});
  const Var y = where(cond, a, b);
  CHECK(values(y) == Values{1, 2, 3});
  CHECK(gradient(y, a, {3, kInf, 7}) == Values{3, 0, 7});
  CHECK(gradient(y, b, {kNaN, 5, kInf}) == Values{0, 5, 0});
}

TEST_CASE("[R23] the double where: a branch outside its domain, made harmless") {
  const Var x = leaf({-1, 0, 4});
  const Tensor inside = less(Tensor::scalar(0, DType::f64), x.value());
  const Var zero = Tensor::scalar(0, DType::f64), one = Tensor::scalar(1, DType::f64);
  const Var once = where(inside, log(x), zero);
  CHECK(gradient(once, x, {1, 1, 1})[2] == 0.25);
  CHECK(std::isnan(gradient(once, x, {1, 1, 1})[1]));  // 0 / 0 in log's backward: not where's doing
  const Var twice = where(inside, log(where(inside, x, one)), zero);
  CHECK(values(twice) == Values{0, 0, std::log(4.0)});
  CHECK(gradient(twice, x, {1, 1, 2}) == Values{0, 0, 0.5});
}

TEST_CASE("where takes conditions of any dtype and broadcasts all three") {
  const Var a = leaf({1, 2}), b = Var(Tensor::of({10, 20, 30}, {3, 1}), true);
  for (const DType t : {DType::i32, DType::i64, DType::f32, DType::f64}) {
    const Var y = where(Tensor::of({0, 1}, {2}, DType::f64).to(t), a, b);
    CHECK(values(y) == Values{10, 2, 20, 2, 30, 2});
    CHECK(gradient(y, a, {1, 2, 3, 4, 5, 6}) == Values{0, 12});
    CHECK(gradient(y, b, {1, 2, 3, 4, 5, 6}) == Values{1, 3, 5});
  }
  CHECK_THROWS_WITH(where(Tensor::zeros({2}, DType::bf16), a, a), Contains("[where]") && Contains("bf16"));
  CHECK_THROWS_WITH(where(Tensor::zeros({2}), a, leaf({1, 2}, DType::f32)), Contains("[where]"));
  CHECK_THROWS_WITH(where(Tensor::zeros({3}), a, a), Contains("[where]") && Contains("broadcast"));
}

TEST_CASE("comparisons with NaN are false") {
  const Tensor x = Tensor::of({1, kNaN, 3}, {3});
  CHECK(less(x, 2).to_vector<double>() == Values{1, 0, 0});
  CHECK(less_equal(x, 1).to_vector<double>() == Values{1, 0, 0});
  CHECK(equal(x, 3).to_vector<double>() == Values{0, 0, 1});
  CHECK(equal(x, kNaN).to_vector<double>() == Values{0, 0, 0});
  CHECK(less(x, Tensor::of({5, 5}, {2, 1})).shape() == Shape{2, 3});
}

TEST_CASE("pow: exponents 0, 1 and 2 at 0, negative bases") {
  const Var x = leaf({0, -2});
  CHECK(values(pow(x, 0)) == Values{1, 1});
  CHECK(gradient(pow(x, 0), x, {3, 5}) == Values{0, 0});
  CHECK(gradient(pow(x, 1), x, {3, 5}) == Values{3, 5});
  CHECK(gradient(pow(x, 2), x, {3, 5}) == Values{0, -20});
  CHECK(values(pow(x, 3)) == Values{0, -8});
  CHECK(std::isnan(values(pow(x, 0.5))[1]));
}

TEST_CASE("clamp refuses an empty interval, infinite borders are open") {
  const Var x = leaf({-1e300, 5});
  CHECK_THROWS_WITH(clamp(x, 1, 0), Contains("[clamp]") && Contains("[1, 0]") && Contains("lo <= hi"));
  CHECK_THROWS_WITH(clamp(x, kNaN, 0), Contains("[clamp]"));
  CHECK(values(clamp(x, -kInf, kInf)) == values(x));
}

TEST_CASE("fused ops stay finite with first and second derivatives at +-1000") {
  const Var x = leaf({-1000, -30, 0, 30, 1000});
  auto check = [&](const Var& y, std::string_view op) {
    INFO(op);
    CHECK(num::first_non_finite(y.value()) == -1);
    const Vars dy{Var(Tensor::full({5}, 1.5, DType::f64), true)};
    const Var first = grad({y}, {x}, dy, {.retain_graph = true})[0];
    const Var recorded = grad({y}, {x}, dy, {.create_graph = true})[0];
    CHECK(num::max_abs(num::sub(first.value(), recorded.value())) < 1e-12);
    const Var second = grad({recorded}, {x}, dy)[0];
    CHECK(num::first_non_finite(second.value()) == -1);
  };
  check(tanh(x), "tanh");
  check(sigmoid(x), "sigmoid");
  check(silu(x), "silu");
  check(gelu(x), "gelu");
  check(relu(x), "relu");
  CHECK(gradient(sigmoid(x), x, {1, 1, 1, 1, 1})[2] == 0.25);
}

TEST_CASE("[R27] gelu on [-100, 100]: finite, close to its formula, f32 too") {
  std::vector<double> grid;
  for (int i = -1000; i <= 1000; ++i) grid.push_back(i * 0.1);
  const int64_t n = static_cast<int64_t>(grid.size());
  for (const DType t : {DType::f32, DType::f64}) {
    const Var x(Tensor::of(grid, {n}).to(t), true);
    const Var y = gelu(x);
    const Values got = values(y), slope = gradient(y, x, Values(grid.size(), 1.0)), in = values(x);
    bool good = true;
    for (size_t i = 0; i < grid.size(); ++i) {
      const double v = in[i], cdf = 0.5 * std::erfc(-v / std::numbers::sqrt2);
      const double density = std::exp(-v * v / 2) * std::numbers::inv_sqrtpi / std::numbers::sqrt2;
      const double tolerance = t == DType::f32 ? 1e-6 : 1e-14;
      good = good && close(got[i], v * cdf, tolerance, tolerance) &&
             close(slope[i], cdf + v * density, tolerance, tolerance);
    }
    CHECK(good);
  }
}

TEST_CASE("second derivative of exp is exp, of log -1/x^2, of sin -sin") {
  const Var x = leaf({0.5, 2});
  auto second = [&](const Var& y) {
    const Vars ones{Var(Tensor::full({2}, 1, DType::f64))};
    return values(grad({grad({y}, {x}, ones, {.create_graph = true})[0]}, {x}, ones)[0]);
  };
  CHECK(close(second(exp(x))[1], std::exp(2.0), 1e-14));
  CHECK(close(second(log(x))[0], -4, 1e-14));
  CHECK(close(second(sin(x))[0], -std::sin(0.5), 1e-14));
  CHECK(close(second(tanh(x))[0], -2 * std::tanh(0.5) * (1 - std::pow(std::tanh(0.5), 2)), 1e-13));
}

TEST_CASE("element-wise ops accept empty and non-contiguous tensors, and refuse integers") {
  const Var none(Tensor::zeros({0, 3}, DType::f64), true);
  for (const Var& y : {exp(none), sqrt(none), gelu(none), relu(none), abs(none), clamp(none, 0, 1), pow(none, 2)}) {
    CHECK(y.shape() == Shape{0, 3});
    CHECK(grad({y}, {none}, {Var(Tensor::zeros({0, 3}, DType::f64))})[0].shape() == Shape{0, 3});
  }
  const Tensor base = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
  const Var y = exp(Var(base.transpose(0, 1)));
  CHECK(close(y.value().at({2, 1}), std::exp(6.0), 1e-15));
  CHECK(close(tanh(Var(base.slice(1, 1, 3))).value().at({1, 0}), std::tanh(5.0), 1e-15));
  CHECK_THROWS_WITH(exp(Var(Tensor::arange(3))), Contains("[exp]") && Contains("i64"));
  CHECK_THROWS_WITH(abs(Var(Tensor::arange(3))), Contains("[abs]"));
}
