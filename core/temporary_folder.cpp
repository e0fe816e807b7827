#include "core/temporary_folder.h"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <system_error>

#include "core/error.h"

namespace bg {

namespace fs = std::filesystem;

TemporaryFolder::TemporaryFolder(fs::path place) {
  std::error_code error;
  if (place.empty()) place = fs::temp_directory_path(error);
  std::string name = (place / "boostgrad-XXXXXX").string();
  if (!error && mkdtemp(name.data()) == nullptr) error.assign(errno, std::generic_category());
  BG_CHECK(!error, "file", "cannot make a temporary folder", error.message(), "a place to write",
           "set TMPDIR to a folder that you may change");
  path_ = name;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace bg
