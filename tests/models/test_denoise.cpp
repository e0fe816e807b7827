// The synthetic task: what is drawn, what the losses are, that fixed points are trained where they can be, and that
// nothing depends on threads.
#include <cmath>

#include "autograd/engine.h"
#include "autograd/ops/reduce.h"
#include "core/parallel.h"
#include "models/denoise/iterate.h"
#include "models/denoise/model.h"
#include "models/denoise/routing.h"
#include "models/denoise/study.h"
#include "nn/gradcheck.h"
#include "tests/match.h"
#include "tests/support.h"

using namespace bg;
using namespace bg::denoise;
using bg::test::distance;

namespace {

Batch in_f64(Batch b) { return {b.queries.to(DType::f64), b.targets.to(DType::f64), b.ids}; }

}  // namespace

TEST_CASE("denoise: patterns have length 1, queries are patterns in normal noise, the nearest pattern answers") {
  const Task task({64, 16, 0.5}, Rng(42));
  for (int64_t k = 0; k < 16; ++k) {
    const Tensor row = task.patterns().slice(0, k, k + 1);
    CHECK(close(num::dot(row, row), 1, 0, 1e-6));
  }
  Rng rng(1);
  const Batch b = task.draw(5000, rng);
  CHECK(task.accuracy(b.targets, b.ids) == 100);
  const Tensor noise = num::scale(num::sub(b.queries, b.targets), 2);  // 1 / sigma
  const Tensor square = num::mul(noise, noise);
  const double n = static_cast<double>(noise.numel());
  CHECK(close(num::sum(noise).item() / n, 0, 0, 0.01));
  CHECK(close(num::sum(square).item() / n, 1, 0, 0.01));
  CHECK(close(num::dot(square, square) / n, 3, 0, 0.06));  // a normal distribution's fourth moment
  CHECK(close(num::dot(noise.slice(1, 0, 63), noise.slice(1, 1, 64)) / n, 0, 0, 0.01));  // pairs are independent
  std::vector<int64_t> count(16, 0);
  for (int64_t i = 0; i < 5000; ++i) ++count[static_cast<size_t>(b.ids.data<int64_t>()[i])];
  for (int64_t c : count) CHECK(std::abs(c - 313) < 80);
  CHECK(close(task.accuracy(b.queries, b.ids), 58, 0, 4));  // the best possible; the paper's later version: 58.1
  CHECK(distance(task.draw(5, rng).queries, task.draw(5, rng).queries) > 0);
  CHECK_THROWS_WITH(Task({0, 4, 0.5}, Rng(1)), Contains("bad size"));
}

TEST_CASE("denoise: more rounds start from the same first round, and one round is softmax attention") {
  const Task task({16, 4, 0.5}, Rng(42));
  Rng rng(2);
  const Batch b = task.draw(6, rng);
  const Retriever one(16, 1, Gate::none, Rng(7)), two(16, 2, Gate::mlp, Rng(7));
  const StateDict a = one.state_dict(), c = two.state_dict();
  for (const auto& [path, value] : a) CHECK(distance(value, c.at(path)) == 0);
  CHECK(close(a.at("rounds.0.log_scale").item(), std::log(2.0), 0, 1e-6));
  CHECK(num::max_abs(a.at("rounds.0.w_q")) <= 0.25);  // 1 / sqrt(16)
  CHECK(num::max_abs(a.at("rounds.0.w_q")) > 0.2);
  CHECK(c.at("rounds.1.w_1").shape() == Shape{33, 32});
  CHECK(num::max_abs(c.at("rounds.1.b_2")) <= 1 / std::sqrt(32.0));
  CHECK(Retriever(16, 2, Gate::scalar, Rng(1)).state_dict().at("rounds.1.gate").item() == 0.5);

  const Tensor p = one.weights(Var(b.queries), task.patterns()).value();
  const Tensor values = num::matmul(task.patterns(), a.at("rounds.0.w_v"));
  CHECK(distance(one.forward(Var(b.queries), task.patterns()).value(), num::matmul(p, values)) < 1e-6);
  CHECK(distance(two.weights(Var(b.queries), task.patterns()).value(), p) == 0);
  CHECK(distance(one.step(task.patterns()).weights(b.queries), p) < 1e-6);
}

TEST_CASE("denoise: the loss is 1 - cosine + half a cross-entropy with weights for logits, and its gradient is right") {
  const Task task({8, 4, 0.5}, Rng(42));
  Rng rng(3);
  const Batch b = task.draw(5, rng);
  Retriever model(8, 2, Gate::mlp, Rng(1));
  const Tensor y = model.forward(Var(b.queries), task.patterns()).value();
  const Tensor p = model.weights(Var(b.queries), task.patterns()).value();
  double want = 0;
  for (int64_t n = 0; n < 5; ++n) {
    double product = 0, size = 0, total = 0;
    for (int64_t i = 0; i < 8; ++i) product += y.at({n, i}) * b.targets.at({n, i}), size += y.at({n, i}) * y.at({n, i});
    for (int64_t k = 0; k < 4; ++k) total += std::exp(p.at({n, k}));
    want += 1 - product / std::sqrt(size) + 0.5 * (std::log(total) - p.at({n, b.ids.data<int64_t>()[n]}));
  }
  CHECK(close(retrieval_loss(model, task, b).item(), want / 5, 1e-5));

  model.to(DType::f64);
  const Batch exact = in_f64(b);
  const Tensor patterns = task.patterns().to(DType::f64);
  const auto report = gradcheck(model, [&] {
    return Vars{cosine_loss(model.forward(Var(exact.queries), patterns), exact.targets) +
                sum(square(model.weights(Var(exact.queries), patterns)))};
  });
  INFO(report.to_string());
  CHECK(report.passed());
}

TEST_CASE("denoise: where the step contracts, implicit and unrolled gradients of the fixed point agree") {
  const Task task({8, 4, 0.5}, Rng(42));
  Rng rng(4);
  const Batch b = in_f64(task.draw(5, rng));
  const Tensor patterns = task.patterns().to(DType::f64);
  Retriever model(8, 1, Gate::none, Rng(1));
  model.to(DType::f64);
  const FixedPointArgs args{.max_iterations = 300, .tolerance = 1e-13};
  Vars parameters = vars_of(model.parameters());
  const Vars implicit = grad({cosine_loss(model.fixed_point(Var(b.queries), patterns, args), b.targets)}, parameters);
  const Vars unrolled = grad({cosine_loss(model.unrolled(Var(b.queries), patterns, args), b.targets)}, parameters);
  for (size_t i = 0; i < parameters.size(); ++i) {
    CHECK(num::max_abs(implicit[i].value()) > 1e-6);
    CHECK(distance(implicit[i].value(), unrolled[i].value()) < 1e-10);
  }
}

TEST_CASE("denoise: positive control - the implicit gradient moves fixed points to targets, without it they stay") {
  if (kThreadSanitizer) return;
  const ControlResult with = run_control(1, false), without = run_control(1, true);
  CHECK(with.loss_before > 0.01);
  CHECK(with.loss_after < 1e-5);
  CHECK((with.radius > 0.2 && with.radius < 1));  // a solve that forgets the Jacobian would be far off
  CHECK(without.loss_before == with.loss_before);
  CHECK(without.loss_after == without.loss_before);
}

TEST_CASE("denoise: one step retrieves, its trained fixed point is one point for all queries: chance") {
  if (kThreadSanitizer) return;
  const Task task({16, 4, 0.5}, Rng(42).fork(0));
  const IterateResult one = run_iterate(task, IterateModel::one_step, 1);
  CHECK(one.accuracy > 65);
  for (IterateModel kind : {IterateModel::implicit, IterateModel::unrolled}) {
    const IterateResult fixed = run_iterate(task, kind, 1);
    CHECK(close(fixed.accuracy, 25, 0, 3));
    CHECK(fixed.distinct >= 1);
    CHECK(fixed.radius < 1);
    CHECK((fixed.iterations >= 1 && fixed.iterations <= 30));
  }
}

TEST_CASE("denoise: a second round improves retrieval, whatever the number of threads, bit for bit") {
  const Task task({32, 8, 0.5}, Rng(42));
  auto scores = [&](int threads) {
    const int before = num_threads();
    set_num_threads(threads);
    std::vector<double> s(2);
    parallel_for(2, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        Retriever model(32, static_cast<int>(i) + 1, Gate::mlp, Rng(1));
        s[static_cast<size_t>(i)] = train_and_score(model, task, Rng(1).fork(2), Rng(1).fork(3));
      }
    });
    set_num_threads(before);
    return s;
  };
  const std::vector<double> one = scores(1), two = scores(2);
  CHECK(one == two);
  CHECK(one[0] > 50);
  CHECK(one[1] > one[0] + 2);
}

TEST_CASE("denoise: routing chooses between two outputs, and cannot be better than always right") {
  if (kThreadSanitizer) return;
  const RoutingResult r = run_routing(Task({16, 4, 0.8}, Rng(42)), 1);
  CHECK(r.one_step > 45);
  CHECK(r.fixed_point < r.one_step);
  CHECK(r.best >= r.one_step);
  for (size_t i = 0; i < kRouteFeatures.size(); ++i) {
    CHECK(r.accuracy[i] <= r.best);
    CHECK(r.accuracy[i] >= 20);
    CHECK((r.routed[i] >= 0 && r.routed[i] <= 100));
  }
}

TEST_CASE("denoise: statistics of a metric, and a bad number of seeds") {
  const Metric m{"accuracy", {1, 2, 6}, {}, {}};
  CHECK(m.spread().mean() == 3);
  CHECK(close(m.spread().sd(), std::sqrt(7.0), 1e-14));
  CHECK(Metric{"accuracy", {4}, {}, {}}.spread().sd() == 0);
  CHECK_THROWS_AS(run_study({.tables = {Table::gates}, .seeds = 0}), UsageError);
}
