#include "core/file_calls.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

namespace bg::file_calls {
namespace {

std::atomic<int64_t> calls{0};
std::optional<Fault> planted;  // set by a test, while nothing is written

enum class Outcome { works, fails, half };

// Counts one call.
Outcome next_call() {
  const int64_t number = ++calls;
  if (!planted || (planted->lasting ? number < planted->at : number != planted->at)) return Outcome::works;
  if (planted->error == 0) return Outcome::half;
  errno = planted->error;
  return Outcome::fails;
}

bool fails() { return next_call() == Outcome::fails; }

}  // namespace

int open_to_write(const char* path, int flags) {
  return fails() ? -1 : ::open(path, O_WRONLY | O_CREAT | O_CLOEXEC | flags, 0666);
}

ssize_t write(int fd, const void* data, std::size_t bytes) {
  switch (next_call()) {
    case Outcome::fails:
      return -1;
    case Outcome::half:
      bytes = std::max<std::size_t>(1, bytes / 2);
      break;
    case Outcome::works:
      break;
  }
  return ::write(fd, data, bytes);
}

int fsync(int fd) { return fails() ? -1 : ::fsync(fd); }

int close(int fd) {
  if (!fails()) return ::close(fd);
  const int error = errno;
  ::close(fd);  // the descriptor is gone after a failure as well
  errno = error;
  return -1;
}

int rename(const char* from, const char* to) { return fails() ? -1 : std::rename(from, to); }

int mkdir(const char* path) { return fails() ? -1 : ::mkdir(path, 0777); }

void plant(std::optional<Fault> fault) {
  planted = fault;
  calls = 0;
}

int64_t count() { return calls; }

}  // namespace bg::file_calls
