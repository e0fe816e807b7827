#include "examples/boostgrad/bench/train_step.h"

#include "autograd/engine.h"
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
      optimizer_(model_.parameters()),
      next_(draw()) {}

TrainStep::Batch TrainStep::draw() {
  const TransformerConfig& c = model_.config();
  auto ids = [&] {
    std::vector<int64_t> v(static_cast<size_t>(tokens()));
    for (int64_t& id : v) id = static_cast<int64_t>(tokens_.below(static_cast<uint64_t>(c.vocab)));
    return Tensor::of(v, {batch_size_, c.seq_len});
  };
  Tensor inputs = ids();
  return {std::move(inputs), ids()};
}

double TrainStep::flops() const { return flops_per_token(model_.config()) * static_cast<double>(tokens()); }

StateDict TrainStep::snapshot() const {
  StateDict all = model_.state_dict();
  all["inputs"] = next_.inputs;
  all["targets"] = next_.targets;
  return all;
}

StepTimes TrainStep::run() {
  StepTimes t;
  const double start = now_seconds();
  const Var loss = model_.loss(next_.inputs, next_.targets, {.rng = &rng_});
  const double forwarded = now_seconds();
  loss.backward();
  const double backwarded = now_seconds();
  clip_grad_norm(model_.parameters(), 1);
  const double clipped = now_seconds();
  optimizer_.step(1e-4);
  model_.zero_grad();
  t.update = now_seconds() - clipped;
  t.forward = forwarded - start;
  t.backward = backwarded - forwarded;
  t.clip = clipped - backwarded;
  t.loss = loss.item();
  next_ = draw();
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
