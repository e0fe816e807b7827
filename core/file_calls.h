// The system calls that change files: everything that Boostgrad writes goes through these (core/atomic_file.h). Tests
// make one of them fail as a full disk or a broken one would.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace bg::file_calls {

/// As the system's calls of these names: -1 with errno set on failure.
int open_to_write(const char* path, int flags);
ssize_t write(int fd, const void* data, std::size_t bytes);
int fsync(int fd);
int close(int fd);
int rename(const char* from, const char* to);
int mkdir(const char* path);

/// A failure that a test plants.
struct Fault {
  int64_t at = 0;        ///< which call from now on, from 1
  int error = 0;         ///< the errno; 0: it is a write that writes half of its bytes, and no failure otherwise
  bool lasting = false;  ///< all calls after it fail as well
};
/// Plants a fault, or none, and counts calls from 0 again.
void plant(std::optional<Fault> fault);
/// Calls since then.
int64_t count();

}  // namespace bg::file_calls
