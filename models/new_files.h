// Files that are to stay only if what they are for comes about.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace bg {

/// What was named and did not exist then is removed again by the destructor, unless keep() was called.
class NewFiles {
 public:
  NewFiles() = default;
  ~NewFiles();
  NewFiles(const NewFiles&) = delete;
  NewFiles& operator=(const NewFiles&) = delete;

  /// A folder, with those above it: removed only when they are empty.
  void add_folder(const std::filesystem::path& folder);
  /// Files and folders below `folder`, which exists: folders before what they hold. Removed only while `folder` is the
  /// same one: under its name may be that of another process by then.
  void add_files(const std::filesystem::path& folder, const std::vector<std::string>& names);
  void keep() { new_.clear(); }

 private:
  using Identity = std::pair<uint64_t, uint64_t>;  // device and inode; zeros: nothing is there
  static Identity identity(const std::filesystem::path& path);

  struct New {
    std::filesystem::path path, inside;
    Identity identity;  // of `inside`
  };
  std::vector<New> new_;  // folders before what they hold
};

}  // namespace bg
