// Time that passes, for rates and durations: no date, and never set back.
#pragma once

#include <chrono>

namespace bg {

/// Seconds since some fixed moment.
inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace bg
