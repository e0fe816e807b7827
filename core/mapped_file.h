// Read-only view of a whole file. Regular files are memory-mapped, so that large texts and token caches cost no copy;
// pipes and the like are read.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string_view>

namespace bg {

/// The bytes of one file. They stay where they are for as long as this object or any copy of it lives.
class MappedFile {
 public:
  /// Throws Error naming the path and the system's reason (missing, a folder, no permission).
  explicit MappedFile(const std::filesystem::path& path);

  std::string_view bytes() const { return {data_.get(), size_}; }

 private:
  std::shared_ptr<const char> data_;  // unmaps or frees
  std::size_t size_ = 0;
};

}  // namespace bg
