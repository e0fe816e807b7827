// flock(2) on the folder itself: the system gives it back even after kill -9.
#include "core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/error.h"

namespace bg {

FolderLock::FolderLock(const std::filesystem::path& folder)
    : fd_(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  BG_CHECK(fd_ >= 0, "file", str("cannot open the folder ", folder.string(), ": ", std::strerror(errno)));
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(fd_);
    fail("file", "another process is writing to the folder", folder.string(), "one writer",
         "another folder, or wait until it ends");
  }
}

FolderLock::~FolderLock() { close(fd_); }

}  // namespace bg
