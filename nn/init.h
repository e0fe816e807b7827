// How parameters start.
#pragma once

#include "core/tensor.h"

namespace bg {

/// Draws the first values of weights and biases from an Rng that the caller owns.
class Init {
 public:
  /// GPT-2's and the paper's: weights from N(0, stddev), biases 0.
  static Init normal(Rng& rng, double stddev = 0.02) { return Init(rng, stddev); }
  /// The default of PyTorch's Linear: weights and biases from U(-1/sqrt(fan_in), 1/sqrt(fan_in)).
  static Init uniform_fan_in(Rng& rng) { return Init(rng, 0); }

  Tensor weight(const Shape& shape, int64_t fan_in) const;
  Tensor bias(const Shape& shape, int64_t fan_in) const;
  Rng& rng() const { return *rng_; }

 private:
  Init(Rng& rng, double stddev) : rng_(&rng), stddev_(stddev) {}

  Rng* rng_;
  double stddev_;  // 0: uniform by fan-in
};

}  // namespace bg
