// Learning-rate schedules: pure functions of the step, so that resuming a run needs no state but the step's number.
#pragma once

#include <cstdint>

#include "core/enum_names.h"

namespace bg {

/// Step s is the s-th update, counted from 0. For s < warmup the rate is peak * s / warmup: with a warm-up it is 0 at
/// step 0, so that the first update changes no parameter (the paper's convention; others begin at peak / warmup), and
/// `peak` at step `warmup`; without one it is `peak` at step 0. Afterwards, with f = (s - warmup) / (total - warmup) in
/// [0, 1]:
///
///   constant   peak
///   linear     min + (peak - min) (1 - f)
///   cosine     min + (peak - min) (1 + cos(pi f)) / 2
///
/// From step `total` on it stays at f = 1. The last of `total` updates is step total - 1, just short of f = 1.
struct Schedule {
  enum class Kind { constant, linear, cosine };

  Kind kind = Kind::cosine;
  double peak = 3e-4, min = 0;
  int64_t warmup = 0, total = 1;

  double at(int64_t step) const;
  /// Throws UsageError unless 0 <= min <= peak, peak is finite and positive, 0 <= warmup, and warmup < total where the
  /// kind decays.
  void validate() const;
};

inline constexpr EnumNames<Schedule::Kind, 3> kScheduleNames{"schedule", {"constant", "linear", "cosine"}};

}  // namespace bg
