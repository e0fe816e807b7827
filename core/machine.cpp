#include "core/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace bg {

std::size_t machine_bytes() {
  const std::size_t physical =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return physical;
  return std::min(physical, static_cast<std::size_t>(limit.rlim_cur));
}

}  // namespace bg
