#include "models/denoise/iterate.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops/reduce.h"
#include "autograd/ops/unary.h"
#include "models/denoise/model.h"
#include "nn/init.h"
#include "nn/optim.h"
#include "nn/schedule.h"

namespace bg::denoise {
namespace {

constexpr int64_t kIteratedQueries = 500;

// Rows of z of which no earlier one lies within 1e-3 (in units of its length, from 1 on).
Tensor distinct_rows(const Tensor& z, const std::vector<double>& residuals, double settled) {
  const int64_t d = z.size(1);
  const double* p = z.data<double>();
  std::vector<const double*> found;
  for (int64_t n = 0; n < z.size(0); ++n) {
    if (!(residuals[static_cast<size_t>(n)] <= settled)) continue;
    const double* row = p + n * d;
    const bool known = std::any_of(found.begin(), found.end(), [&](const double* other) {
      double gap = 0, size = 0;
      for (int64_t i = 0; i < d; ++i) gap += (row[i] - other[i]) * (row[i] - other[i]), size += row[i] * row[i];
      return std::sqrt(gap) <= 1e-3 * std::max(1.0, std::sqrt(size));
    });
    if (!known) found.push_back(row);
  }
  Tensor rows = Tensor::empty({static_cast<int64_t>(found.size()), d}, DType::f64);
  double* out = rows.mutable_data<double>("denoise");
  for (const double* row : found) out = std::copy(row, row + d, out);
  return rows;
}

double largest_radius(const AttentionStep& step, const Tensor& points, Rng& rng) {
  const std::vector<double> radius = step.spectral_radius(points, rng);
  return radius.empty() ? std::nan("") : *std::max_element(radius.begin(), radius.end());
}

void look_at_points(const Retriever& model, const Task& task, Rng fresh, IterateResult& result) {
  const Batch b = task.draw(5000, fresh);
  const AttentionStep step = model.step(task.patterns());
  const FixedPoint trained = solve_fixed_point(step, b.queries, kPaperIteration);
  result.residual = trained.residual;
  result.iterations = trained.iterations;
  const AttentionStep exact = step.to(DType::f64);
  const FixedPoint settled = solve_fixed_point(exact, b.queries.slice(0, 0, kIteratedQueries).to(DType::f64),
                                               {.max_iterations = 3000, .tolerance = 1e-10});
  const Tensor points = distinct_rows(settled.z, settled.residuals, 1e-10);
  result.distinct = static_cast<double>(points.size(0));
  result.radius = largest_radius(exact, points, fresh);
}

}  // namespace

IterateResult run_iterate(const Task& task, IterateModel kind, uint64_t seed) {
  const Rng root(seed);
  Retriever model(task.setting().d, 1, Gate::none, root.fork(1));
  auto output = [&](const Batch& b) {
    const Var q(b.queries);
    if (kind == IterateModel::one_step) return model.forward(q, task.patterns());
    if (kind == IterateModel::implicit || !grad_enabled())
      return model.fixed_point(q, task.patterns(), kPaperIteration);
    return model.unrolled(q, task.patterns(), kPaperIteration);
  };
  train(model, task, root.fork(2), {.steps = 120}, [&](const Batch& b) {
    return kind == IterateModel::one_step ? retrieval_loss(model, task, b) : cosine_loss(output(b), b.targets);
  });
  IterateResult result;
  Rng fresh = root.fork(3);
  result.accuracy = accuracy(task, fresh, output);
  if (kind != IterateModel::one_step) look_at_points(model, task, root.fork(4), result);
  return result;
}

namespace {

/// What all sets of patterns share.
class Query : public Module {
 public:
  Query(int64_t d, const Init& init)
      : w_q(register_parameter("w_q", init.weight({d, d}, d))),
        log_beta(register_parameter("log_beta", Tensor::zeros({1}))) {
    to(DType::f64);
  }
  Var &w_q, &log_beta;
};

struct ControlSet {
  Tensor patterns, target;  // (K, d) keys and values; (1, d)
};

}  // namespace

ControlResult run_control(uint64_t seed, bool zeroed) {
  constexpr int64_t kSets = 4, kPatterns = 5, kWidth = 8;
  constexpr FixedPointArgs kExact{.max_iterations = 2000, .tolerance = 1e-10};
  Rng rng = Rng(seed).fork(5);
  std::vector<ControlSet> sets;
  for (int64_t s = 0; s < kSets; ++s) {
    const Tensor patterns = Task({kWidth, kPatterns, 0}, rng.fork(static_cast<uint64_t>(s))).patterns().to(DType::f64);
    std::vector<double> mixture(kPatterns);
    double total = 0;
    for (double& m : mixture) total += m = std::exp(0.25 * rng.normal());
    for (double& m : mixture) m /= total;
    sets.push_back({patterns, num::matmul(Tensor::of(std::move(mixture), {1, kPatterns}), patterns)});
  }
  Query query(kWidth, Init::uniform_fan_in(rng));
  const Var start(Tensor::zeros({1, kWidth}, DType::f64));
  auto loss = [&] {
    Var total;
    for (const ControlSet& s : sets) {
      Var z = attention_fixed_point(start, query.w_q, Var(s.patterns), Var(s.patterns), query.log_beta, kExact);
      if (zeroed && z.requires_grad()) z.add_hook([](const Tensor& g) { return num::scale(g, 0); });
      const Var gap = sum(square(z - Var(s.target)));
      total = total.defined() ? total + gap : gap;
    }
    return total / static_cast<double>(kSets);
  };
  ControlResult result;
  result.loss_before = loss().item();
  constexpr int kSteps = 1000;
  Schedule schedule{.kind = Schedule::Kind::cosine, .peak = 1e-2};
  schedule.total = kSteps;
  Adam adam(query.parameters());
  for (int step = 0; step < kSteps; ++step) {
    adam.zero_grad();
    loss().backward();
    adam.step(schedule.at(step));
  }
  result.loss_after = loss().item();
  for (const ControlSet& s : sets) {
    const AttentionStep step(query.w_q.value(), s.patterns, s.patterns, query.log_beta.item());
    result.radius =
        std::max(result.radius, largest_radius(step, solve_fixed_point(step, start.value(), kExact).z, rng));
  }
  return result;
}

}  // namespace bg::denoise
