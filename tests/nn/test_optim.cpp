// Optimizers against five steps worked out in double, clipping, state.
#include <cmath>
#include <limits>

#include "core/parallel.h"
#include "core/tensor_ops.h"
#include "nn/optim.h"
#include "nn/schedule.h"
#include "tests/match.h"

using namespace bg;

namespace {

NamedParameters one(const std::string& path, const Tensor& value) { return {{path, Var(value, true)}}; }

/// Five steps on p = 1 with fixed gradients and learning rate 0.1.
template <class O, class... A>
std::vector<double> five_steps(A&&... options) {
  const NamedParameters p = one("p", Tensor::of({1}, {1}));
  O optimizer(p, std::forward<A>(options)...);
  std::vector<double> path;
  for (const double g : {0.5, -1.0, 0.25, 2.0, -0.125}) {
    Var var = p[0].var;
    var.set_grad(Tensor::of({g}, {1}));
    optimizer.step(0.1);
    path.push_back(p[0].var.value().item());
  }
  return path;
}

void check_path(const std::vector<double>& got, const std::vector<double>& want) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("step " << i + 1 << ": got " << got[i] << ", expected " << want[i]);
    CHECK(close(got[i], want[i], 1e-13));
  }
}

NamedParameters random_parameters(uint64_t seed, DType dtype = DType::f32) {
  Rng rng(seed);
  NamedParameters ps;
  for (const auto& [path, shape] : {std::pair<const char*, Shape>{"big", {300, 400}}, {"small", {7}}}) {
    Var v(Tensor::randn(shape, rng, dtype), true);
    v.set_grad(Tensor::randn(shape, rng, dtype));
    ps.push_back({path, v});
  }
  return ps;
}

}  // namespace

TEST_CASE("Optimizers: five steps worked out in double [R37]") {
  check_path(five_steps<AdamW>(0.1),
             {0.890000002, 0.917710354220565, 0.92220231677677, 0.868102085504952, 0.824500733959952});
  check_path(five_steps<Adam>(),
             {0.900000002, 0.936610354240565, 0.950279420338976, 0.905401212234925, 0.870480881544975});
  check_path(five_steps<Adam>(AdamOptions{.weight_decay = 0.1}),
             {0.900000001666667, 0.925263519445606, 0.924730574268709, 0.873504063430087, 0.831073365513104});
  check_path(five_steps<Sgd>(), {0.95, 1.05, 1.025, 0.825, 0.8375});
  check_path(five_steps<Sgd>(SgdOptions{.momentum = 0.9, .weight_decay = 0.1}),
             {0.94, 0.9766, 0.974774, 0.76338286, 0.5779970054});
}

TEST_CASE("AdamW: at learning rate 0 nothing moves but the moments") {
  const NamedParameters p = one("p", Tensor::of({1}, {1}));
  AdamW optimizer(p, 0.1);
  Var var = p[0].var;
  var.set_grad(Tensor::of({1}, {1}));
  optimizer.step(0);
  CHECK(p[0].var.value().item() == 1);
  CHECK(close(optimizer.state_dict().at("m.p").item(), 0.1, 1e-15));
}

TEST_CASE("Optimizer: a parameter without a gradient is left alone") {
  NamedParameters ps = random_parameters(1);
  ps[1].var.zero_grad();
  const std::vector<double> before = ps[1].var.value().to_vector<double>();
  AdamW optimizer(ps);
  optimizer.step(0.1);
  CHECK(ps[1].var.value().to_vector<double>() == before);
  CHECK(num::max_abs(optimizer.state_dict().at("v.small")) == 0);
}

TEST_CASE("Optimizer: f32 follows f64, and bits do not depend on the number of threads") {
  auto trained = [](DType dtype, int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    const NamedParameters ps = random_parameters(5, dtype);
    AdamW optimizer(ps);
    const GatherWorkers gather;
    reset_distinct_workers();
    double norm = 0;
    for (int i = 0; i < 3; ++i) {
      norm = clip_grad_norm(ps, 1 + i);
      optimizer.step(1e-2);
    }
    const int workers = distinct_workers();
    set_num_threads(before);
    std::vector<double> all{norm};
    for (const auto& p : ps)
      for (double x : p.var.value().to_vector<double>()) all.push_back(x);
    return std::pair(all, workers);
  };
  const auto [one, w1] = trained(DType::f32, 1);
  const auto [two, w2] = trained(DType::f32, 2);
  CHECK(one == two);
  CHECK(w1 == 1);
  CHECK(w2 == 2);
  const auto [exact, w] = trained(DType::f64, 2);
  double worst = 0;
  for (size_t i = 0; i < one.size(); ++i) worst = std::max(worst, std::abs(one[i] - exact[i]));
  CHECK(worst < 1e-4);
}

TEST_CASE("Optimizer: state goes round by path, the next step has the same bits") {
  NamedParameters a = random_parameters(2), b = random_parameters(2);
  AdamW first(a);
  first.step(0.01);
  AdamW resumed(b);
  for (size_t i = 0; i < a.size(); ++i) b[i].var.value().copy_from(a[i].var.value());
  resumed.load_state_dict(first.state_dict());
  CHECK(resumed.steps() == 1);
  first.step(0.01);
  resumed.step(0.01);
  for (size_t i = 0; i < a.size(); ++i)
    CHECK(a[i].var.value().to_vector<double>() == b[i].var.value().to_vector<double>());

  StateDict state = first.state_dict();
  state.erase("v.small");
  CHECK_THROWS_WITH(resumed.load_state_dict(state, "optimizer state"),
                    Contains("[optimizer state]") && Contains("missing v.small (7,)"));
  CHECK(resumed.steps() == 2);
}

TEST_CASE("Optimizer: impossible arguments") {
  const NamedParameters p = one("p", Tensor::of({1}, {1}));
  CHECK_THROWS_WITH(Sgd({p[0], p[0]}), Contains("parameter given twice: got p"));
  CHECK_THROWS_WITH(Sgd({{"x", Var(Tensor::zeros({1}))}}), Contains("x cannot be updated"));
  CHECK_THROWS_AS(Adam(p, {.beta1 = 1}), UsageError);
  CHECK_THROWS_AS(Adam(p, {.eps = 0}), UsageError);
  CHECK_THROWS_AS(Sgd(p, {.momentum = -0.1}), UsageError);
  CHECK_THROWS_AS(AdamW(p, -1), UsageError);
  Sgd sgd(p);
  CHECK_THROWS_WITH(sgd.step(std::nan("")), Contains("bad learning rate"));
  CHECK(sgd.steps() == 0);
}

TEST_CASE("Clipping: the norm in double, scaled only above the limit, non-finite named [R35]") {
  NamedParameters ps = random_parameters(3);
  ps[0].var.set_grad(Tensor::full({300, 400}, 3e19));  // squares overflow in f32
  ps[1].var.set_grad(Tensor::full({7}, 1));
  const double norm = std::sqrt(300 * 400.0) * 3e19;
  CHECK(close(grad_norm(ps), norm, 1e-6));
  CHECK(close(clip_grad_norm(ps, 2), norm, 1e-6));
  CHECK(close(grad_norm(ps), 2, 1e-6));
  const std::vector<double> before = ps[0].var.grad().to_vector<double>();
  CHECK(close(clip_grad_norm(ps, 2.1), 2, 1e-6));
  CHECK(ps[0].var.grad().to_vector<double>() == before);

  for (const double bad : {0.0, -1.0, std::nan("")}) CHECK_THROWS_WITH(clip_grad_norm(ps, bad), Contains("max_norm"));
  for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
    Tensor g = Tensor::full({7}, 1);
    g.slice(0, 4, 5).fill(bad);
    ps[1].var.set_grad(g);
    CHECK_THROWS_WITH(clip_grad_norm(ps, 1), Contains("gradient of small is not finite") && Contains("at element 4"));
    CHECK(ps[0].var.grad().to_vector<double>() == before);
  }
}

TEST_CASE("Schedule: warm-up from 0, decay, floor") {
  const Schedule cosine{.kind = Schedule::Kind::cosine, .peak = 1, .min = 0.1, .warmup = 4, .total = 12};
  CHECK(cosine.at(0) == 0);
  CHECK(cosine.at(1) == 0.25);
  CHECK(cosine.at(4) == 1);
  CHECK(close(cosine.at(6), 0.1 + 0.9 * (1 + std::sqrt(0.5)) / 2, 1e-15));
  CHECK(close(cosine.at(8), 0.55, 1e-15));
  CHECK(cosine.at(11) > 0.1);
  CHECK(cosine.at(12) == 0.1);
  CHECK(cosine.at(1000) == 0.1);
  Schedule linear = cosine;
  linear.kind = Schedule::Kind::linear;
  CHECK(close(linear.at(6), 0.775, 1e-15));
  CHECK(linear.at(12) == 0.1);
  const Schedule constant{.kind = Schedule::Kind::constant, .peak = 0.5};
  CHECK(constant.at(0) == 0.5);
  CHECK(constant.at(99) == 0.5);

  CHECK_NOTHROW(cosine.validate());
  CHECK_THROWS_AS((Schedule{.peak = 0}).validate(), UsageError);
  CHECK_THROWS_AS((Schedule{.peak = 1, .min = 2}).validate(), UsageError);
  CHECK_THROWS_AS((Schedule{.warmup = -1}).validate(), UsageError);
  CHECK_THROWS_AS((Schedule{.warmup = 5, .total = 5}).validate(), UsageError);
  CHECK(kScheduleNames.parse(kScheduleNames.name(Schedule::Kind::linear)) == Schedule::Kind::linear);
  CHECK_THROWS_WITH(kScheduleNames.parse("step"),
                    "[schedule] unknown schedule: got 'step', expected constant, linear or cosine.");
}
