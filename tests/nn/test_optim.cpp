// Optimizers against five steps worked out in double, clipping, state.
#include <cmath>
#include <limits>

#include "autograd/ops/reduce.h"
#include "autograd/ops/unary.h"
#include "core/norm.h"
#include "core/parallel.h"
#include "core/tensor_ops.h"
#include "nn/attention.h"
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
  check_path(five_steps<AdamW>(AdamWOptions{.weight_decay = 0.1}),
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
  AdamW optimizer(p, {.weight_decay = 0.1});
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

TEST_CASE("Optimizer: each parameter counts its own updates, as in PyTorch") {
  for (const bool decoupled : {false, true}) {
    const NamedParameters late = one("late", Tensor::of({1}, {1})), early = one("early", Tensor::of({1}, {1}));
    Adam optimizer({late[0], early[0]}, {.decoupled = decoupled});
    Var first = early[0].var, second = late[0].var;
    for (int i = 0; i < 1000; ++i) {
      first.set_grad(Tensor::of({0.5}, {1}));
      optimizer.step(1e-3);
    }
    second.set_grad(Tensor::of({0.5}, {1}));
    optimizer.step(1e-3);
    CHECK(close(1 - second.value().item(), 1e-3, 1e-6));  // the first update moves by the learning rate
    CHECK(optimizer.steps() == 1001);
    const StateDict state = optimizer.state_dict();
    CHECK(state.at("steps.late").item() == 1);
    CHECK(state.at("steps.early").item() == 1001);
    CHECK(state.at("steps").item() == 1001);

    // and goes on with that count after a round trip
    const NamedParameters late2 = one("late", second.value().clone()), early2 = one("early", first.value().clone());
    Adam resumed({late2[0], early2[0]}, {.decoupled = decoupled});
    resumed.load_state_dict(state);
    for (const NamedParameters& ps : {late, late2}) Var(ps[0].var).set_grad(Tensor::of({-0.25}, {1}));
    first.zero_grad();
    optimizer.step(1e-3);
    resumed.step(1e-3);
    CHECK(late[0].var.value().item() == late2[0].var.value().item());
    CHECK(resumed.state_dict().at("steps.late").item() == 2);
    CHECK(resumed.state_dict().at("steps.early").item() == 1001);
  }
}

TEST_CASE("Optimizer: a state of an older version, with one count for all, goes on with the same bits") {
  NamedParameters a = random_parameters(6), b = random_parameters(6);
  AdamW unbroken(a), resumed(b);
  for (int i = 0; i < 3; ++i) unbroken.step(0.01);
  StateDict old = unbroken.state_dict();
  for (const NamedParameter& p : a) old.erase("steps." + p.path);
  for (size_t i = 0; i < a.size(); ++i) b[i].var.value().copy_from(a[i].var.value());
  resumed.load_state_dict(old);
  CHECK(resumed.state_dict().at("steps.big").item() == 3);
  unbroken.step(0.01);
  resumed.step(0.01);
  for (size_t i = 0; i < a.size(); ++i)
    CHECK(a[i].var.value().to_vector<double>() == b[i].var.value().to_vector<double>());

  StateDict partial = unbroken.state_dict();
  partial.erase("steps.small");
  CHECK_THROWS_WITH(resumed.load_state_dict(partial), Contains("missing steps.small"));
  StateDict negative = unbroken.state_dict();
  negative["steps.small"] = Tensor::of<int64_t>({-1}, {1});
  CHECK_THROWS_WITH(resumed.load_state_dict(negative), Contains("bad count steps.small: got -1"));
  CHECK(resumed.steps() == 4);
}

TEST_CASE("Optimizer: weight decay by the rank of a parameter, or any other rule") {
  auto decayed = [](auto make) {  // which of the three shrinks, by how much, at learning rate 0.5 and no gradient
    NamedParameters ps{{"w", Var(Tensor::full({2, 2}, 1), true)},
                       {"b", Var(Tensor::full({2}, 1), true)},
                       {"gamma", Var(Tensor::full({1}, 1), true)}};
    for (NamedParameter& p : ps) p.var.set_grad(Tensor::zeros(p.var.shape()));
    make(ps)->step(0.5);
    std::vector<double> values;
    for (const NamedParameter& p : ps) values.push_back(p.var.value().flat(0));
    return values;
  };
  auto adamw = [&](DecayRule rule) {
    return decayed([rule](const NamedParameters& ps) {
      return std::make_unique<AdamW>(ps, AdamWOptions{.weight_decay = 0.5, .decays = rule});
    });
  };
  CHECK(adamw(decay_all) == std::vector<double>{0.75, 0.75, 0.75});
  CHECK(adamw(decay_matrices) == std::vector<double>{0.75, 1, 1});
  CHECK(adamw([](const NamedParameter& p) { return p.path == "gamma"; }) == std::vector<double>{1, 1, 0.75});
  CHECK(decayed([](const NamedParameters& ps) {
          return std::make_unique<Sgd>(ps, SgdOptions{.weight_decay = 0.5, .decays = decay_matrices});
        }) == std::vector<double>{0.75, 1, 1});
}

TEST_CASE("Optimizer: the key bias of attention decays like every parameter, though its gradient is zero") {
  Rng rng(4);
  nn::SelfAttention layer({.d = 4, .heads = 2}, Init::uniform_fan_in(rng));
  const double before = layer.state_dict().at("rounds.0.b_k").flat(0);
  AdamW optimizer(layer.parameters(), {.weight_decay = 0.1});
  for (int i = 0; i < 20; ++i) {
    sum(square(layer.forward(Var(Tensor::randn({2, 3, 4}, rng)), {}))).backward();
    optimizer.step(1e-2);
    optimizer.zero_grad();
  }
  CHECK(before != 0);
  CHECK(close(layer.state_dict().at("rounds.0.b_k").flat(0), before * std::pow(1 - 1e-3, 20), 1e-5));
}

TEST_CASE("Optimizer: impossible arguments") {
  const NamedParameters p = one("p", Tensor::of({1}, {1}));
  CHECK_THROWS_WITH(Sgd({p[0], p[0]}), Contains("parameter given twice: got p"));
  CHECK_THROWS_WITH(Sgd({{"x", Var(Tensor::zeros({1}))}}), Contains("x cannot be updated"));
  CHECK_THROWS_AS(Adam(p, {.beta1 = 1}), UsageError);
  CHECK_THROWS_AS(Adam(p, {.eps = 0}), UsageError);
  CHECK_THROWS_AS(Sgd(p, {.momentum = -0.1}), UsageError);
  CHECK_THROWS_AS(AdamW(p, {.weight_decay = -1}), UsageError);
  CHECK_THROWS_WITH(AdamW(p, {.decays = {}}), Contains("no rule for weight decay: got an empty function"));
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

TEST_CASE("Clipping: norms whose squares leave the range of f64") {
  auto clipped = [](std::vector<double> values, DType dtype, double max_norm) {
    const auto n = static_cast<int64_t>(values.size());
    NamedParameters ps;
    for (int64_t i = 0; i < n; ++i) {  // a parameter each
      Var v(Tensor::zeros({1}, dtype), true);
      v.set_grad(Tensor::of<double>({values[static_cast<size_t>(i)]}, {1}).to(dtype));
      ps.push_back({str("p", i), v});
    }
    std::vector<double> all{clip_grad_norm(ps, max_norm)};
    for (const NamedParameter& p : ps) all.push_back(p.var.grad().item());
    return all;
  };
  auto check = [](const std::vector<double>& got, const std::vector<double>& want, double rtol) {
    for (size_t i = 0; i < want.size(); ++i) {
      INFO(i << ": got " << got[i] << ", expected " << want[i]);
      CHECK(close(got[i], want[i], rtol));
    }
  };
  check(clipped({3e200, 4e200}, DType::f64, 1), {5e200, 0.6, 0.8}, 1e-15);
  check(clipped({3e-200, 4e-200}, DType::f64, 1), {5e-200, 3e-200, 4e-200}, 1e-15);
  check(clipped({3e-200, 4e-200}, DType::f64, 1e-200), {5e-200, 0.6e-200, 0.8e-200}, 1e-15);
  check(clipped({3e-320, 4e-320}, DType::f64, 1), {5e-320, 3e-320, 4e-320}, 1e-3);  // few digits are left there
  check(clipped({0.9e308, 1.2e308}, DType::f64, 1), {1.5e308, 0.6, 0.8}, 1e-14);
  check(clipped({3e38, 3e38}, DType::f32, 1), {3e38 * std::sqrt(2), std::sqrt(0.5), std::sqrt(0.5)}, 1e-7);
  // max_norm / norm is no normal number, or 0
  check(clipped({3e200, 4e200}, DType::f64, 5e-120), {5e200, 3e-120, 4e-120}, 1e-14);
  check(clipped({3e300, 4e300}, DType::f64, 5e-100), {5e300, 3e-100, 4e-100}, 1e-14);
  check(clipped({0, 0}, DType::f64, 1), {0, 0, 0}, 0);
  CHECK_THROWS_WITH(clipped({1.7e308, 1.7e308}, DType::f64, 1), Contains("the norm of the gradients is beyond f64"));

  CHECK(close(norm2(std::vector<double>{3e200, -4e200}), 5e200, 1e-15));
  CHECK(close(norm2(std::vector<double>{3e-200, -4e-200}), 5e-200, 1e-15));
  CHECK(norm2(std::vector<double>{3, -4}) == 5);
  CHECK(norm2({}) == 0);
  CHECK(std::isnan(norm2(std::vector<double>{1, std::nan(""), 1e200})));
  CHECK(std::isinf(norm2(std::vector<double>{1, -std::numeric_limits<double>::infinity()})));
}

TEST_CASE("Schedule: the first, the last and the next update of a warm-up") {
  for (const auto kind : {Schedule::Kind::constant, Schedule::Kind::linear, Schedule::Kind::cosine}) {
    const Schedule s{.kind = kind, .peak = 0.5, .warmup = 10, .total = 100};
    CHECK(s.at(0) == 0);  // as the paper's script has it: the first update changes nothing
    CHECK(close(s.at(9), 0.45, 1e-15));
    CHECK(s.at(10) == 0.5);
    CHECK(s.at(11) <= 0.5);
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
