// When results are written past the caches.
#pragma once

#include <hwy/cache_control.h>

#include <cstddef>

namespace bg::kernels {

/// Results of so many bytes will not be in the caches when somebody reads them; results that overwrite their input are
/// there already.
inline bool beyond_caches(size_t bytes, bool in_place = false) { return !in_place && bytes >= (size_t{16} << 20); }

/// After a thread has written past the caches and before others read.
inline void end_stream(bool streamed) {
  if (streamed) hwy::FlushStream();
}

}  // namespace bg::kernels
