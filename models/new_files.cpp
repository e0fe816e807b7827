#include "models/new_files.h"

#include <sys/stat.h>

namespace bg {

namespace fs = std::filesystem;

NewFiles::Identity NewFiles::identity(const fs::path& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return {};
  return {info.st_dev, info.st_ino};
}

void NewFiles::add_folder(const fs::path& folder) {
  std::vector<New> missing;
  for (fs::path p = folder; !p.empty() && identity(p) == Identity(); p = p.parent_path())
    missing.push_back({p, {}, {}});
  new_.insert(new_.end(), missing.rbegin(), missing.rend());
}

void NewFiles::add_files(const fs::path& folder, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (identity(folder / name) == Identity()) new_.push_back({folder / name, folder, identity(folder)});
}

NewFiles::~NewFiles() {
  std::error_code ignored;
  for (auto n = new_.rbegin(); n != new_.rend(); ++n)
    if (n->inside.empty() || identity(n->inside) == n->identity) fs::remove(n->path, ignored);
}

}  // namespace bg
