// Softmax, norms and cross-entropy: exact values, extreme inputs, errors, independence of the number of threads.
#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/softmax.h"
#include "tests/autograd/fused_support.h"
#include "tests/match.h"

using namespace bg;
using bg::test::check_same_bits_for_threads;

namespace {
constexpr double kInf = std::numeric_limits<double>::infinity();
Tensor ids(std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); }
}  // namespace

TEST_CASE("softmax over any dimension") {
  const Var x(Tensor::of({0, std::log(2), std::log(5), 1, 1, 1}, {2, 3}), true);
  const Tensor y = softmax(x).value();
  for (int j = 0; j < 3; ++j) {
    CHECK(close(y.at({0, j}), std::vector<double>{0.125, 0.25, 0.625}[j], 1e-15));
    CHECK(close(y.at({1, j}), 1.0 / 3, 1e-15));
  }
  const Var columns = softmax(transpose(x, 0, 1), 0);
  CHECK(columns.shape() == Shape{3, 2});
  CHECK(num::max_abs(num::sub(columns.value().transpose(0, 1), y)) == 0);
  Rng r(1);
  const Tensor v = normal(r, {2, 3});
  const Tensor direct = grad({softmax(x)}, {x}, {Var(v)})[0].value();
  const Tensor through = grad({softmax(transpose(x, 0, 1), 0)}, {x}, {Var(v.transpose(0, 1))})[0].value();
  CHECK(num::max_abs(num::sub(direct, through)) == 0);
  CHECK(close(log_softmax(x, 1).value().at({0, 2}), std::log(0.625), 1e-15));
  CHECK_THROWS_WITH(softmax(x, 2), Contains("[softmax] dimension out of range: got 2"));
  CHECK_THROWS_WITH(log_softmax(Var(Tensor::scalar(1))), Contains("[log_softmax]"));
}

TEST_CASE("[R22] a row of -infinity alone has softmax 0 and gradient 0, a masked element has gradient 0") {
  const Var x(Tensor::of({-kInf, -kInf, -kInf, 0, -kInf, 0}, {2, 3}), true);
  const Var v(Tensor::of({1, -2, 3, 1, 5, 3}, {2, 3}));
  for (DType dtype : {DType::f64, DType::f32}) {
    const Var xt(x.value().to(dtype), true);
    const Var y = softmax(xt);
    CHECK(y.value().to_vector<double>() == std::vector<double>{0, 0, 0, 0.5, 0, 0.5});
    const Var vt(v.value().to(dtype));
    CHECK(grad({y}, {xt}, {vt})[0].value().to_vector<double>() == std::vector<double>{0, 0, 0, -0.5, 0, 0.5});
  }
  const Var g = grad({softmax(x)}, {x}, {v}, {.create_graph = true})[0];
  CHECK(g.value().to_vector<double>() == std::vector<double>{0, 0, 0, -0.5, 0, 0.5});
  const Tensor h = grad({sum(g * g)}, {x})[0].value();
  CHECK(num::first_non_finite(h) == -1);
  CHECK(h.flat(0) == 0);

  const Var y = log_softmax(x);
  CHECK(y.value().flat(0) == -kInf);
  CHECK(close(y.value().flat(3), -std::log(2), 1e-15));
  const Var dy(Tensor::of({1, -2, 3, 1, 0, 3}, {2, 3}));
  CHECK(grad({y}, {x}, {dy})[0].value().to_vector<double>() == std::vector<double>{0, 0, 0, -1, 0, 1});
}

TEST_CASE("softmax of huge logits does not overflow") {
  const Var x(Tensor::of({1000, 1000, -1000}, {3}).to(DType::f32));
  CHECK(softmax(x).value().to_vector<double>() == std::vector<double>{0.5, 0.5, 0});
  CHECK(close(log_softmax(x).value().flat(2), -2000 - std::log(2), 1e-7));
}

TEST_CASE("layer_norm and rms_norm: known values, optional parameters") {
  const Var x(Tensor::of({1, 3, -1, 1}, {2, 2}));
  const Var gamma(Tensor::of({2, 10}, {2})), beta(Tensor::of({0.5, -1}, {2}));
  CHECK(layer_norm(x, {}, {}, 0).value().to_vector<double>() == std::vector<double>{-1, 1, -1, 1});
  CHECK(layer_norm(x, gamma, {}, 0).value().to_vector<double>() == std::vector<double>{-2, 10, -2, 10});
  CHECK(layer_norm(x, gamma, beta, 0).value().to_vector<double>() == std::vector<double>{-1.5, 9, -1.5, 9});
  CHECK(layer_norm(x, {}, {}, 3).value().to_vector<double>() == std::vector<double>{-0.5, 0.5, -0.5, 0.5});
  const Tensor y = rms_norm(x, gamma, 0).value();
  CHECK(close(y.at({0, 0}), 2 / std::sqrt(5), 1e-15));
  CHECK(close(y.at({1, 1}), 10, 1e-15));
  // a constant row: finite thanks to eps, and zero
  const Var flat(Tensor::full({1, 4}, 7, DType::f64), true);
  CHECK(num::max_abs(layer_norm(flat).value()) == 0);
  CHECK(num::first_non_finite(grad({layer_norm(flat)}, {flat}, {Var(Tensor::of({1, 2, 3, 4}, {1, 4}))})[0].value()) ==
        -1);
}

TEST_CASE("[R26] layer_norm of a large mean and a small spread") {
  constexpr int kWidth = 512;
  Rng r(5);
  const Tensor x = Tensor::randn({1, kWidth}, r, DType::f64, 1e-3, 1e4);
  const Tensor v = normal(r, {1, kWidth});
  const double eps = 1e-12;
  long double mean = 0, variance = 0, g_mean = 0, gh_mean = 0;
  for (int j = 0; j < kWidth; ++j) mean += static_cast<long double>(x.flat(j)) / kWidth;
  for (int j = 0; j < kWidth; ++j) variance += (x.flat(j) - mean) * (x.flat(j) - mean) / kWidth;
  const long double rstd = 1 / std::sqrt(variance + eps);
  auto h = [&](int j) { return (x.flat(j) - mean) * rstd; };
  for (int j = 0; j < kWidth; ++j) g_mean += v.flat(j) / static_cast<long double>(kWidth);
  for (int j = 0; j < kWidth; ++j) gh_mean += v.flat(j) * h(j) / kWidth;
  const Var in(x, true);
  const Var y = layer_norm(in, {}, {}, eps);
  const Tensor dx = grad({y}, {in}, {Var(v)})[0].value();
  double worst_y = 0, worst_dx = 0;
  for (int j = 0; j < kWidth; ++j) {
    worst_y = std::max(worst_y, static_cast<double>(std::abs(y.value().flat(j) - h(j))));
    const long double exact = rstd * (v.flat(j) - g_mean - h(j) * gh_mean);
    worst_dx = std::max(worst_dx, static_cast<double>(std::abs(dx.flat(j) - exact) / rstd));
  }
  CHECK(worst_y < 1e-8);
  CHECK(worst_dx < 1e-8);
}

TEST_CASE("norms say what is wrong") {
  const Var x(Tensor::zeros({2, 3})), three(Tensor::zeros({3}));
  CHECK_THROWS_WITH(layer_norm(x, Var(Tensor::zeros({4}))), Contains("[layer_norm] gamma of a wrong shape: got (4,)"));
  CHECK_THROWS_WITH(layer_norm(x, three, Var(Tensor::zeros({1, 3}))), Contains("beta of a wrong shape"));
  CHECK_THROWS_WITH(layer_norm(x, {}, three), Contains("[layer_norm] beta without gamma"));
  CHECK_THROWS_WITH(layer_norm(x, Var(Tensor::zeros({3}, DType::f64))), Contains("dtypes differ"));
  CHECK_THROWS_WITH(layer_norm(x, {}, {}, -1), Contains("bad eps: got -1"));
  CHECK_THROWS_WITH(rms_norm(Var(Tensor::zeros({2, 0}))), Contains("[rms_norm] nothing to normalise over"));
  CHECK_THROWS_WITH(rms_norm(Var(Tensor::zeros({2}, DType::i64))), Contains("not a floating dtype: got i64"));
}

TEST_CASE("cross_entropy: known values and reductions") {
  const Var x(Tensor::of({0, 0, std::log(2), 0, 0, 0}, {2, 3}), true);
  const double first = std::log(2), second = std::log(3);  // targets of probability 1/2 and 1/3
  const Tensor t = ids({2, 0}, {2});
  CHECK(close(cross_entropy(x, t).item(), (first + second) / 2, 1e-15));
  CHECK(close(cross_entropy(x, t, {.reduction = Reduction::sum}).item(), first + second, 1e-15));
  const Var rows = cross_entropy(x, t, {.reduction = Reduction::none});
  CHECK(close(rows.value().at({0}), first, 1e-15));
  CHECK(close(rows.value().at({1}), second, 1e-15));
  CHECK(close(cross_entropy(x, ids({2, -100}, {2})).item(), first, 1e-15));
  CHECK(close(cross_entropy(x, ids({7, 0}, {2}), {.ignore_index = 7}).item(), second, 1e-15));
  const Tensor g = grad({cross_entropy(x, ids({2, -100}, {2}))}, {x})[0].value();
  const std::vector<double> expected{0.25, 0.25, -0.5, 0, 0, 0};
  for (int i = 0; i < 6; ++i) CHECK(close(g.flat(i), expected[i], 1e-15));
}

TEST_CASE("[R25] all targets ignored: loss 0 and gradient 0") {
  Rng r(2);
  const Tensor t = ids({-100, -100}, {2});
  const Var x(normal(r, {2, 3}), true), w(normal(r, {5, 3}), true);
  CHECK(cross_entropy(x, t).item() == 0);
  CHECK(num::max_abs(grad({cross_entropy(x, t)}, {x})[0].value()) == 0);
  const Vars g = grad({linear_cross_entropy(x, w, t)}, {x, w});
  CHECK(linear_cross_entropy(x, w, t).item() == 0);
  CHECK(num::max_abs(g[0].value()) == 0);
  CHECK(num::max_abs(g[1].value()) == 0);
  const LossSum s = linear_cross_entropy_sum(x.value(), w.value(), t);
  CHECK(s.count == 0);
  CHECK(s.sum == 0);
}

TEST_CASE("[R25] a target out of range throws with position and value") {
  Rng r(3);
  const Var x(normal(r, {2, 2, 3})), w(normal(r, {5, 3}));
  CHECK_THROWS_WITH(cross_entropy(x, ids({0, 1, 3, 0}, {2, 2})),
                    Contains("[cross_entropy] target out of range: got 3 at position (1, 0)") &&
                        Contains("expected 0 to 2, or -100"));
  CHECK_THROWS_WITH(cross_entropy(x, ids({0, -1, 2, 0}, {2, 2})), Contains("got -1 at position (0, 1)"));
  CHECK_THROWS_WITH(linear_cross_entropy(x, w, ids({0, 1, 2, 5}, {2, 2})),
                    Contains("[linear_cross_entropy] target out of range: got 5 at position (1, 1)"));
  CHECK_THROWS_WITH(cross_entropy(x, ids({0, 1}, {2})), Contains("one target per row") && Contains("(2, 2)"));
  CHECK_THROWS_WITH(cross_entropy(x, Tensor::zeros({2, 2}, DType::f64)),
                    Contains("not an index tensor for the target: got f64"));
}

TEST_CASE("cross_entropy stays exact for a sure and a hopeless row") {
  const Var x(Tensor::of({800, 0, 0, 800}, {2, 2}).to(DType::f32), true);
  const Var rows = cross_entropy(x, ids({0, 0}, {2}), {.reduction = Reduction::none});
  CHECK(rows.value().to_vector<double>() == std::vector<double>{0, 800});
}

TEST_CASE("row ops on no rows") {
  const Var x(Tensor::zeros({0, 3}, DType::f64), true), gamma(Tensor::zeros({3}, DType::f64), true);
  CHECK(softmax(x).shape() == Shape{0, 3});
  sum(softmax(x)).backward();
  sum(log_softmax(x)).backward();
  sum(layer_norm(x, gamma, gamma)).backward();
  sum(rms_norm(x, gamma)).backward();
  cross_entropy(x, ids({}, {0})).backward();
  CHECK(x.grad().shape() == Shape{0, 3});
  CHECK(num::max_abs(gamma.grad()) == 0);
  CHECK(cross_entropy(x, ids({}, {0})).item() == 0);
}

TEST_CASE("row ops give the same bits on 1, 2 and 4 threads") {
  Rng r(4);
  const Shape shape{300, 257};
  const Tensor v = Tensor::randn(shape, r), gamma = Tensor::randn({257}, r), beta = Tensor::randn({257}, r);
  const Tensor x = Tensor::randn(shape, r);
  std::vector<int64_t> t(300);
  for (int64_t& c : t) c = static_cast<int64_t>(r.below(257));
  const Tensor targets = ids(t, {300});
  auto two = [&](auto f) {
    check_same_bits_for_threads([&] {
      const Vars in{Var(x, true), Var(gamma, true), Var(beta, true)};
      const Var y = f(in);
      Vars wanted{in[0]};
      for (size_t i = 1; i < 3; ++i) wanted.push_back(in[i]);
      const Vars g = grad({y}, wanted, {Var(y.rank() ? v : Tensor::scalar(1))});
      return bg::test::all_values({y, g[0], g[1], g[2]});
    });
  };
  two([](const Vars& in) { return softmax(in[0]); });
  two([](const Vars& in) { return log_softmax(in[0]); });
  two([](const Vars& in) { return layer_norm(in[0], in[1], in[2]); });
  two([](const Vars& in) { return rms_norm(in[0], in[1]); });
  two([&](const Vars& in) { return cross_entropy(in[0], targets); });
}

TEST_CASE("linear_cross_entropy: so many chunks that their gradients are added in double") {
  // Chunks of 128 rows, 64 of them a sum. All logits are 0, so every probability is 2^-16. One row counts in the last
  // chunk of the first sum and one in each chunk of the second, of terms so small that a float sum would drop each.
  const int64_t chunk = 128, chunks = 128, classes = int64_t{1} << 16;
  const double small = 0.98 * 0x1p-25;
  std::vector<float> h(chunks * chunk);
  std::vector<int64_t> targets(h.size(), -100);
  for (int64_t c = chunks / 2 - 1; c < chunks; ++c) {
    h[c * chunk] = static_cast<float>(c < chunks / 2 ? 1 : small);
    targets[c * chunk] = 5;
  }
  const Var w(Tensor::zeros({classes, 1}), true);
  const Var loss =
      linear_cross_entropy(Var(Tensor::of<float>(h, {chunks * chunk, 1})), w, ids(targets, {chunks * chunk}));
  const Tensor g = grad({loss}, {w})[0].value();
  const double sum = (1 + chunks / 2 * small) / (chunks / 2 + 1), tolerance = 8 * 0x1p-24;
  for (const int64_t c : {int64_t{0}, int64_t{4}, classes - 1}) CHECK(close(g.flat(c), sum / 65536.0, tolerance));
  CHECK(close(g.flat(5), sum / 65536.0 - sum, tolerance));
}
