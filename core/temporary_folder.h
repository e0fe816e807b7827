// A folder of one's own that vanishes with the object.
#pragma once

#include <filesystem>

namespace bg {

class TemporaryFolder {
 public:
  /// Made in `place`; empty: where the system keeps temporary files ($TMPDIR). Throws Error when that is no writable
  /// place.
  explicit TemporaryFolder(std::filesystem::path place = {});
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace bg
