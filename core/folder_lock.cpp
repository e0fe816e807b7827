// flock(2) on the folder itself: the system gives it back even after kill -9.
#include "core/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/atomic_file.h"
#include "core/error.h"

namespace bg {

FolderLock::FolderLock(std::filesystem::path folder)
    : folder_(std::move(folder)), fd_(open(folder_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
  if (fd_ < 0) fail<UsageError>("file", str("cannot open the folder ", folder_.string(), ": ", std::strerror(errno)));
  if (flock(fd_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    close(fd_);
    fail("file", "another process is writing to the folder", folder_.string(), "one writer",
         "another folder, or wait until it ends");
  }
}

void FolderLock::check() const {
  if (!names_open_file(folder_, fd_))
    fail("file", str("the folder ", folder_.string(), " was removed, moved or replaced while this program wrote to it"),
         "", "", "let no other program change it");
}

FolderLock::~FolderLock() { close(fd_); }

}  // namespace bg
