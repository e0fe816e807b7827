// Can a gate tell when the iterated output is better than the output of one step?
#pragma once

#include <array>

#include "models/denoise/task.h"

namespace bg::denoise {

/// What a gate sees: both outputs, their difference and its length, the entropy of the first step's weights, or all of
/// it with the cosine of the two outputs.
inline constexpr std::array<std::string_view, 5> kRouteFeatures{"all", "outputs", "difference", "distance", "entropy"};

struct RoutingResult {
  double one_step = 0, fixed_point = 0, best = 0;  ///< accuracies of the outputs; of always choosing right
  std::array<double, kRouteFeatures.size()> accuracy{}, routed{};  ///< of each gate; what it sends to the fixed point
};

/// Trains plain attention (100 Adam steps at 3e-3), iterates it 30 times, and trains a gate on each set of features to
/// tell which output is nearer to the target: MLP 64-32-1, ReLU, dropout 0.1 after the first layer, 200 Adam steps of
/// 512 at 1e-3 on 15,000 queries. The result is for 5,000 others.
RoutingResult run_routing(const Task& task, uint64_t seed);

}  // namespace bg::denoise
