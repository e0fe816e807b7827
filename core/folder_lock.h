// One writer a folder: two processes that train into the same run would overwrite each other's files.
#pragma once

#include <filesystem>

namespace bg {

/// Holds a folder for this object until it goes, or the process ends in whatever way. Throws Error when another one
/// holds it. Nothing is left on the disk. Where the file system knows no locks, nothing is locked.
class FolderLock {
 public:
  explicit FolderLock(const std::filesystem::path& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

 private:
  int fd_ = -1;
};

}  // namespace bg
