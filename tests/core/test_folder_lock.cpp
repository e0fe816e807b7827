// One writer a folder, and what killed writers leave.
#include <fstream>
#include <optional>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/folder_lock.h"
#include "core/temporary_folder.h"
#include "tests/catch.h"
#include "tests/match.h"

namespace fs = std::filesystem;

TEST_CASE("a folder is locked for one writer, until it goes") {
  const bg::TemporaryFolder own;
  const fs::path folder = own.path() / "lock";
  fs::create_directories(folder);
  std::optional<bg::FolderLock> first(folder);
  CHECK_THROWS_WITH(bg::FolderLock(folder), Contains("another process") && Contains(folder.string()));
  first.reset();
  CHECK_NOTHROW(bg::FolderLock(folder));
  fs::remove_all(folder);
  CHECK_THROWS_WITH(bg::FolderLock(folder), Contains("cannot open the folder"));
}

TEST_CASE("temporaries of killed writers are removed, and nothing else") {
  const bg::TemporaryFolder own;
  const fs::path folder = own.path() / "stale";
  fs::create_directories(folder / "below");
  for (const char* name : {"a.tmp-12-0", "below/b.tmp-3-4", "c.tmp-x-1", "d.tmp-1-2.txt", "tmp-1-2", "e.txt"})
    std::ofstream(folder / name) << "x";
  bg::remove_stale_temporaries(folder);
  CHECK(!fs::exists(folder / "a.tmp-12-0"));
  CHECK(!fs::exists(folder / "below/b.tmp-3-4"));
  for (const char* name : {"c.tmp-x-1", "d.tmp-1-2.txt", "tmp-1-2", "e.txt"}) CHECK(fs::exists(folder / name));
}

TEST_CASE("a folder that is moved, removed or replaced is no longer the locked one") {
  const bg::TemporaryFolder place;
  const fs::path folder = place.path() / "run";
  fs::create_directory(folder);
  const bg::FolderLock lock(folder);
  lock.check();
  fs::rename(folder, place.path() / "moved");
  CHECK_THROWS_WITH(lock.check(), Contains("removed, moved or replaced") && Contains(folder.string()));
  fs::create_directory(folder);
  CHECK_THROWS_WITH(lock.check(), Contains("removed, moved or replaced"));
  const bg::FolderLock other(folder);  // the new one is another writer's
  other.check();
  CHECK_THROWS_AS(lock.check(), bg::Error);
}
