// A whole training step of a language model on the same random tokens each time: forward, backward, clipping at norm 1,
// AdamW. Dropout as the model says.
#pragma once

#include "examples/boostgrad/bench/cases.h"
#include "models/transformer.h"
#include "nn/optim.h"

namespace bg::bench {

/// Seconds of a step's phases, and its loss.
struct StepTimes {
  double forward = 0, backward = 0, clip = 0, update = 0;
  double loss = 0;
  double total() const { return forward + backward + clip + update; }
};

class TrainStep {
 public:
  /// Throws what the model throws, and Error when it cannot fit into memory.
  TrainStep(const TransformerConfig& config, int64_t batch_size);

  /// Its phases are phases of the profile, too, if there is one.
  StepTimes run();

  const Transformer& model() const { return model_; }
  int64_t tokens() const { return batch_size_ * model_.config().seq_len; }
  double flops() const;  ///< as models/flops.h counts

  /// The weights as they are, by path, and the tokens as "inputs" and "targets": what another program needs to take the
  /// same steps.
  StateDict snapshot() const;

 private:
  Tensor draw();  // (batch, seq_len) tokens

  int64_t batch_size_;
  Rng rng_{1};
  Transformer model_;
  NamedParameters parameters_;
  AdamW optimizer_;
  Tensor inputs_, targets_;
};

/// A step as a case.
Case step_case(const TransformerConfig& config, int64_t batch_size);

}  // namespace bg::bench
