#include "examples/boostgrad/bench/train_step.h"

#include "autograd/engine.h"
#include "autograd/profile.h"
#include "examples/boostgrad/bench/measure.h"
#include "models/flops.h"
#include "models/footprint.h"

namespace bg::bench {
namespace {

const TransformerConfig& checked(const TransformerConfig& c, int64_t batch_size) {
  if (batch_size < 1) fail<UsageError>("bench", "bad --batch-size", str(batch_size), "1 or more");
  c.validate();
  check_memory("bench", c, static_cast<double>(batch_size) * static_cast<double>(c.seq_len));
  return c;
}

}  // namespace

TrainStep::TrainStep(const TransformerConfig& config, int64_t batch_size)
    : batch_size_(batch_size),
      model_(checked(config, batch_size), rng_),
      parameters_(model_.parameters()),
      optimizer_(parameters_),
      inputs_(draw()),
      targets_(draw()) {}

Tensor TrainStep::draw() {
  std::vector<int64_t> ids(static_cast<size_t>(tokens()));
  for (int64_t& id : ids) id = static_cast<int64_t>(rng_.below(static_cast<uint64_t>(model_.config().vocab)));
  return Tensor::of(ids, {batch_size_, model_.config().seq_len});
}

double TrainStep::flops() const { return flops_per_token(model_.config()) * static_cast<double>(tokens()); }

StateDict TrainStep::snapshot() const {
  StateDict all = model_.state_dict();
  all["inputs"] = inputs_;
  all["targets"] = targets_;
  return all;
}

StepTimes TrainStep::run() {
  StepTimes t;
  auto phase = [](const char* name, double& seconds, auto&& work) {
    const ProfileSpan span(name, Profile::Kind::phase);
    const double start = seconds_now();
    work();
    seconds = seconds_now() - start;
  };
  Var loss;
  phase("forward", t.forward, [&] { loss = model_.loss(inputs_, targets_, {.rng = &rng_}); });
  phase("backward", t.backward, [&] { loss.backward(); });
  phase("clip", t.clip, [&] { clip_grad_norm(parameters_, 1); });
  phase("update", t.update, [&] {
    optimizer_.step(1e-4);
    model_.zero_grad();
  });
  t.loss = loss.item();
  return t;
}

Case step_case(const TransformerConfig& config, int64_t batch_size) {
  Case c{str(nn::kAttentionNames.name(config.model), " model"), str("batch ", batch_size, " x ", config.seq_len),
         "step"};
  c.work = flops_per_token(config) * static_cast<double>(batch_size * config.seq_len);
  c.prepare = [=] {
    auto step = std::make_shared<TrainStep>(config, batch_size);
    return [step] {
      step->run();
      return Vars{};
    };
  };
  return c;
}

}  // namespace bg::bench
