// One writer a folder: two processes that train into the same run would overwrite each other's files.
#pragma once

#include <filesystem>

namespace bg {

/// Holds a folder for this object until it goes, or the process ends in whatever way. Throws Error when another one
/// holds it. Nothing is left on the disk. Where the file system knows no locks, nothing is locked.
class FolderLock {
 public:
  explicit FolderLock(std::filesystem::path folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Throws Error when the folder was removed, moved or replaced by another one: what is written under its path would
  /// no longer be protected, and perhaps destroy another process's work. Call it before each write.
  void check() const;

 private:
  std::filesystem::path folder_;
  int fd_ = -1;
};

}  // namespace bg
