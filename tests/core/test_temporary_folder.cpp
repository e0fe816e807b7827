// Temporary folders: their own, gone afterwards, and an error in the agreed form where none can be made.
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/temporary_folder.h"
#include "tests/match.h"

using namespace bg;
namespace fs = std::filesystem;

TEST_CASE("temporary folders are apart, and vanish with what is in them") {
  fs::path kept;
  {
    const TemporaryFolder a, b;
    kept = a.path();
    CHECK(a.path() != b.path());
    fs::create_directories(a.path() / "below");
    std::ofstream(a.path() / "below" / "file") << "x";
    CHECK(fs::is_directory(kept));
  }
  CHECK(!fs::exists(kept));
}

TEST_CASE("a temporary folder where TMPDIR is no folder") {
  const char* before = std::getenv("TMPDIR");
  const std::optional<std::string> kept = before ? std::optional<std::string>(before) : std::nullopt;
  setenv("TMPDIR", "/nowhere/at/all", 1);
  CHECK_THROWS_WITH(TemporaryFolder(), Contains("[file] cannot make a temporary folder") && Contains("TMPDIR"));
  kept ? setenv("TMPDIR", kept->c_str(), 1) : unsetenv("TMPDIR");
}
