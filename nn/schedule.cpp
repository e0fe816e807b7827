#include "nn/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "core/error.h"

namespace bg {

double Schedule::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step) / static_cast<double>(warmup);
  if (kind == Kind::constant) return peak;
  const double span = static_cast<double>(std::max<int64_t>(total - warmup, 1));
  const double f = std::min(1.0, static_cast<double>(step - warmup) / span);
  const double left = kind == Kind::linear ? 1 - f : (1 + std::cos(std::numbers::pi * f)) / 2;
  return min + (peak - min) * left;
}

void Schedule::validate() const {
  if (!(std::isfinite(peak) && peak > 0))
    fail<UsageError>("schedule", "bad learning rate", str(peak), "a positive number");
  if (!(min >= 0 && min <= peak))
    fail<UsageError>("schedule", "bad minimum learning rate", str(min), str("between 0 and the learning rate ", peak));
  if (warmup < 0) fail<UsageError>("schedule", "negative warm-up", str(warmup), "0 or more steps");
  if (kind != Kind::constant && warmup >= total)
    fail<UsageError>("schedule", "the warm-up leaves no step to decay in", str(warmup, " of ", total, " steps"),
                     str("below ", total), "a shorter warm-up or more steps");
}

}  // namespace bg
