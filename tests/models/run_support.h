// Run folders and trainings of no time, for tests.
#pragma once

#include "models/trainer.h"
#include "tests/support.h"

namespace bg::test {

/// A run folder that does not exist yet, and vanishes with the test.
struct Scratch : TemporaryPath {
  Scratch() : TemporaryPath("run") {}
};

/// A boosted model of two small layers on the built-in text.
inline TrainOptions small_run(int64_t steps) {
  TrainOptions o;
  o.data = "builtin:";
  o.model.model = nn::AttentionKind::boosted;
  o.model.d_model = 16;
  o.model.layers = 2;
  o.model.heads = 2;
  o.model.seq_len = 16;
  o.model.dropout = 0.2;
  o.batch_size = 4;
  o.steps = steps;
  o.lr = 1e-2;
  o.warmup = 2;
  o.save_every = 4;
  o.eval_every = 1000;
  return o;
}

}  // namespace bg::test
