#include "nn/init.h"

#include <cmath>

#include "core/rng.h"

namespace bg {
namespace {

Tensor uniform(const Shape& shape, int64_t fan_in, Rng& rng) {
  BG_CHECK(fan_in > 0, "init", "fan-in must be positive", str(fan_in), "the number of inputs of the layer");
  const double bound = 1 / std::sqrt(static_cast<double>(fan_in));
  return Tensor::rand(shape, rng, -bound, bound);
}

}  // namespace

Tensor Init::weight(const Shape& shape, int64_t fan_in) const {
  return stddev_ > 0 ? Tensor::randn(shape, *rng_, DType::f32, stddev_) : uniform(shape, fan_in, *rng_);
}

Tensor Init::bias(const Shape& shape, int64_t fan_in) const {
  return stddev_ > 0 ? Tensor::zeros(shape) : uniform(shape, fan_in, *rng_);
}

}  // namespace bg
