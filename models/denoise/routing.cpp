#include "models/denoise/routing.h"

#include <cmath>
#include <numeric>

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/reduce.h"
#include "models/denoise/model.h"
#include "nn/layers.h"
#include "nn/optim.h"

namespace bg::denoise {
namespace {

constexpr int64_t kQueries = 20'000, kTrain = 15'000, kBatch = 512;
constexpr int kIterations = 30, kGateSteps = 200;

class RouteGate : public Module {
 public:
  RouteGate(int64_t features, const Init& init)
      : first_(add_child<nn::Linear>("first", features, 64, init)),
        second_(add_child<nn::Linear>("second", 64, 32, init)),
        last_(add_child<nn::Linear>("last", 32, 1, init)),
        drop_(add_child<nn::Dropout>("drop", 0.1)) {}

  /// A logit (n, 1): above 0 for the fixed point.
  Var forward(const Var& x, const Context& context) const {
    return last_.forward(relu(second_.forward(drop_.forward(relu(first_.forward(x)), context))));
  }

 private:
  nn::Linear &first_, &second_, &last_;
  nn::Dropout& drop_;
};

/// Everything about the queries that gates and scores need.
struct Outputs {
  Batch batch;
  Var one, fixed;  // (n, d)
  Var entropy;     // (n, 1)

  Outputs(const Retriever& model, const Task& task, Rng& rng) : batch(task.draw(kQueries, rng)) {
    const NoGrad off;
    const AttentionStep step = model.step(task.patterns());
    const Tensor weights = step.weights(batch.queries);
    one = Var(step.apply(batch.queries));
    const FixedPointArgs further{.max_iterations = kIterations - 1, .tolerance = 1e-7};
    fixed = Var(solve_fixed_point(step, one.value(), further).z);
    const Var p(weights);
    entropy = -sum(p * log(p + 1e-10), {1}, true);
  }

  Tensor features(size_t set) const {
    const NoGrad off;
    const Var difference = fixed - one, distance = sqrt(sum(square(difference), {1}, true) + 1e-20);
    if (kRouteFeatures[set] == "outputs") return concat({one, fixed}, 1).value();
    if (kRouteFeatures[set] == "difference") return concat({difference, distance}, 1).value();
    if (kRouteFeatures[set] == "distance") return distance.value();
    if (kRouteFeatures[set] == "entropy") return entropy.value();
    const Var cosine = sum(one * fixed, {1}, true) / sqrt(sum(square(one), {1}, true) * sum(square(fixed), {1}, true));
    return concat({one, fixed, difference, distance, entropy, cosine}, 1).value();
  }
};

// Of each query: is the fixed point nearer to the target? (n, 1), 0 or 1
Tensor fixed_is_better(const Outputs& o) {
  auto gap = [&](const Var& output) { return num::sum(square(output - Var(o.batch.targets)).value(), {1}); };
  const Tensor one = gap(o.one), fixed = gap(o.fixed);
  Tensor better = Tensor::empty({kQueries, 1});
  float* y = better.mutable_data<float>("denoise");
  for (int64_t n = 0; n < kQueries; ++n) y[n] = fixed.data<float>()[n] < one.data<float>()[n];
  return better;
}

// -(y log sigmoid(x) + (1 - y) log(1 - sigmoid(x))), mean over rows.
Var binary_cross_entropy(const Var& x, const Tensor& y) { return mean(relu(x) - x * Var(y) + log1p(exp(-abs(x)))); }

// A gate's logits for the queries that it was not trained on.
Tensor held_out_logits(const Tensor& x, const Tensor& better, Rng rng) {
  RouteGate gate(x.size(1), Init::uniform_fan_in(rng));
  const NamedParameters parameters = gate.parameters();
  Adam adam(parameters);
  std::vector<int64_t> order(kTrain);
  std::iota(order.begin(), order.end(), int64_t{0});
  for (int step = 0; step < kGateSteps; ++step) {
    for (int64_t i = 0; i < kBatch; ++i)  // the first of a fresh shuffle
      std::swap(order[static_cast<size_t>(i)],
                order[static_cast<size_t>(i) + rng.below(static_cast<uint64_t>(kTrain - i))]);
    const Tensor chosen = Tensor::of(std::vector<int64_t>(order.begin(), order.begin() + kBatch), {kBatch});
    adam.zero_grad();
    const Var logits = gate.forward(index_select(Var(x), chosen), {&rng});
    binary_cross_entropy(logits, index_select(Var(better), chosen).value()).backward();
    adam.step(1e-3);
  }
  gate.eval();
  const NoGrad off;
  return gate.forward(Var(x.slice(0, kTrain, kQueries).contiguous()), {}).value();
}

}  // namespace

RoutingResult run_routing(const Task& task, uint64_t seed) {
  const Rng root(seed);
  Retriever model(task.setting().d, 1, Gate::none, root.fork(1));
  train(model, task, root.fork(2), {.steps = 100, .cosine = false, .clip = 0},
        [&](const Batch& b) { return retrieval_loss(model, task, b); });
  Rng fresh = root.fork(3);
  const Outputs o(model, task, fresh);
  const Tensor better = fixed_is_better(o);

  const std::vector<int64_t> one = task.answers(o.one.value()), fixed = task.answers(o.fixed.value());
  const int64_t* id = o.batch.ids.data<int64_t>();
  // the percentage of held-out queries for which something holds
  auto share = [&](const std::function<bool(size_t)>& holds) {
    int64_t count = 0;
    for (size_t n = kTrain; n < kQueries; ++n) count += holds(n);
    return 100.0 * static_cast<double>(count) / (kQueries - kTrain);
  };
  RoutingResult r;
  r.one_step = share([&](size_t n) { return one[n] == id[n]; });
  r.fixed_point = share([&](size_t n) { return fixed[n] == id[n]; });
  r.best = share([&](size_t n) { return one[n] == id[n] || fixed[n] == id[n]; });
  for (size_t set = 0; set < kRouteFeatures.size(); ++set) {
    const Tensor logits = held_out_logits(o.features(set), better, root.fork(10 + set));
    auto to_fixed = [x = logits.data<float>()](size_t n) { return x[n - kTrain] > 0; };
    r.routed[set] = share(to_fixed);
    r.accuracy[set] = share([&](size_t n) { return (to_fixed(n) ? fixed[n] : one[n]) == id[n]; });
  }
  return r;
}

}  // namespace bg::denoise
