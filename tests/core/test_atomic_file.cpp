// Atomic file writing: old content survives every failure, and failures name the path and the reason.
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/file_calls.h"
#include "core/io/npy.h"
#include "core/io/safetensors.h"
#include "core/temporary_folder.h"
#include "tests/catch.h"
#include "tests/file_size_limit.h"

namespace fs = std::filesystem;

namespace {

struct Folder {
  bg::TemporaryFolder own;
  fs::path path = own.path();
};

std::string content(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::ptrdiff_t entries(const fs::path& folder) {
  return std::distance(fs::directory_iterator(folder), fs::directory_iterator{});
}

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const bg::Error& e) {
    return e.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("atomic file: the old content stays until commit, then the new one is whole") {
  Folder folder;
  const fs::path path = folder.path / "config.json";
  bg::write_file_atomically(path, "old");
  {
    bg::AtomicFile file(path);
    file.write("new ");
    const std::string large(3 << 20, 'x');
    file.write(large);
    file.write("!");
    CHECK(content(path) == "old");
    CHECK(entries(folder.path) == 2);  // the temporary is beside it
    file.commit();
    CHECK(content(path) == "new " + large + "!");
    CHECK(entries(folder.path) == 1);
    CHECK(contains(message_of([&] { file.write("more"); }), "no longer open"));
  }
  CHECK(content(path).size() == (3u << 20) + 5);
}

TEST_CASE("atomic file: giving up, as an exception does, changes nothing and leaves no temporary") {
  Folder folder;
  const fs::path path = folder.path / "file";
  bg::write_file_atomically(path, "old");
  {
    bg::AtomicFile file(path);
    file.write("half");
  }
  CHECK(content(path) == "old");
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("atomic file: two writers of one path do not disturb each other") {
  Folder folder;
  const fs::path path = folder.path / "file";
  bg::AtomicFile a(path), b(path);
  a.write("from a");
  b.write("from b");
  a.commit();
  CHECK(content(path) == "from a");
  b.commit();
  CHECK(content(path) == "from b");
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("atomic file: a file beyond the size limit is an Error, not the end of the program") {
  Folder folder;
  const fs::path path = folder.path / "large";
  bg::write_file_atomically(path, "old");
  rlimit before = {};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit small = before;
  small.rlim_cur = 1 << 20;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &small) == 0);
  const std::string message = message_of([&] { bg::write_file_atomically(path, std::string(4 << 20, 'x')); });
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  INFO(message);
  CHECK(contains(message, path.string()));
  CHECK(contains(message, "File too large"));
  CHECK(content(path) == "old");
  CHECK(entries(folder.path) == 1);
}

TEST_CASE("atomic file: a full disk is an Error, and the old file stays") {
  Folder folder;
  if (mount("tmpfs", folder.path.c_str(), "tmpfs", 0, "size=256k") != 0) {
    WARN("skipped: mounting a small file system needs more rights");
    return;
  }
  const fs::path path = folder.path / "file";
  bg::write_file_atomically(path, "old");
  const std::string message = message_of([&] { bg::write_file_atomically(path, std::string(1 << 20, 'x')); });
  const std::string kept = content(path);
  const std::ptrdiff_t count = entries(folder.path);
  REQUIRE(umount(folder.path.c_str()) == 0);
  INFO(message);
  CHECK(contains(message, path.string()));
  CHECK(contains(message, "No space left"));
  CHECK(kept == "old");
  CHECK(count == 1);
}

TEST_CASE("atomic file: symbolic links are kept, and folders, devices and missing folders refused") {
  Folder folder;
  bg::write_file_atomically(folder.path / "target", "old");
  fs::create_symlink("target", folder.path / "link");
  bg::write_file_atomically(folder.path / "link", "new");
  CHECK(fs::is_symlink(folder.path / "link"));
  CHECK(content(folder.path / "target") == "new");

  CHECK(contains(message_of([&] { bg::write_file_atomically(folder.path, "x"); }), "not a regular file"));
  CHECK(contains(message_of([&] { bg::write_file_atomically("/dev/full", "x"); }), "not a regular file"));
  const std::string missing = message_of([&] { bg::write_file_atomically(folder.path / "none" / "file", "x"); });
  CHECK(contains(missing, "No such file or directory"));
  CHECK(contains(missing, "create the folder"));
}

TEST_CASE("check_writable: asks without leaving anything") {
  Folder folder;
  const fs::path path = folder.path / "page.html";
  bg::check_writable(path);
  CHECK(entries(folder.path) == 0);
  bg::write_file_atomically(path, "old");
  bg::check_writable(path);
  CHECK(content(path) == "old");
  CHECK_THROWS_AS(bg::check_writable(folder.path), bg::UsageError);
  CHECK_THROWS_AS(bg::check_writable(folder.path / "none" / "page.html"), bg::UsageError);
  CHECK(contains(message_of([&] { bg::check_writable(folder.path / "none" / "page.html"); }), "No such file"));
}

TEST_CASE("append file: pieces at the end, and none once it was removed, moved or replaced") {
  Folder folder;
  const fs::path path = folder.path / "log";
  bg::write_file_atomically(path, "one\n");
  {
    bg::AppendFile log(path);
    log.append("two\n");
    log.flush();
    CHECK(content(path) == "one\ntwo\n");
    fs::rename(path, folder.path / "old");
    CHECK(contains(message_of([&] { log.append("three\n"); }), "removed, moved or replaced"));
    bg::write_file_atomically(path, "another's\n");
    CHECK(contains(message_of([&] { log.append("three\n"); }), "removed, moved or replaced"));
  }
  CHECK(content(path) == "another's\n");
  CHECK(content(folder.path / "old") == "one\ntwo\n");
  CHECK(contains(message_of([&] { bg::AppendFile log("/dev/full"); }), "not a regular file"));
  CHECK(contains(message_of([&] { bg::AppendFile log(folder.path / "none" / "log"); }), "No such file"));
}

TEST_CASE("append file: after a write that failed in its midst, the next one goes on where it ended") {
  Folder folder;
  const fs::path path = folder.path / "log";
  bg::AppendFile log(path);
  {
    const bg::test::FileSizeLimit limit(6);
    CHECK(contains(message_of([&] { log.append("one\ntwo\n"); }), "File too large"));
  }
  log.append("\nthree\n");
  CHECK(content(path) == "one\ntw\nthree\n");
}

TEST_CASE("make_folders: with parents, and what is in the way by name") {
  Folder folder;
  bg::make_folders(folder.path / "a" / "b" / "");
  CHECK(fs::is_directory(folder.path / "a" / "b"));
  bg::make_folders(folder.path / "a" / ".." / "c");
  CHECK(fs::is_directory(folder.path / "c"));
  bg::write_file_atomically(folder.path / "file", "x");
  CHECK(contains(message_of([&] { bg::make_folders(folder.path / "file" / "below"); }), "Not a directory"));
  CHECK(contains(message_of([&] { bg::make_folders(folder.path / "file"); }), "Not a directory"));
}

// Each system call of each writer fails once: a full disk or a broken one leaves the old file and nothing else.
TEST_CASE("a failure of any call leaves the old file, and the error names file and reason") {
  Folder folder;
  const fs::path path = folder.path / "file";
  const bg::Tensor t = bg::Tensor::arange(600'000, bg::DType::f32);  // more than is collected before it is written
  const std::pair<const char*, std::function<void()>> writers[] = {
      {"text", [&] { bg::write_file_atomically(path, std::string(3 << 20, 'x')); }},
      {"npy", [&] { bg::write_npy(path, t); }},
      {"npz",
       [&] {
         bg::write_npz(path, {{"a", t}, {"b", t}});
       }},
      {"safetensors",
       [&] {
         bg::write_safetensors(path, {{{"a", t}, {"b", t}}, {}});
       }},
  };
  for (const auto& [name, write] : writers) {
    INFO(name);
    bg::file_calls::plant({});
    write();
    const int64_t calls = bg::file_calls::count();
    const std::string whole = content(path);
    CHECK(calls >= 6);
    for (const int error : {ENOSPC, EIO})
      for (int64_t at = 1; at <= calls; ++at) {
        bg::write_file_atomically(path, "old");
        bg::file_calls::plant(bg::file_calls::Fault{.at = at, .error = error});
        const std::string message = message_of(write);
        bg::file_calls::plant({});
        INFO(at << ": " << message);
        CHECK(contains(message, "[file] cannot "));
        CHECK(contains(message, path.string() + ": " + std::strerror(error)));
        CHECK(content(path) == (at == calls ? whole : "old"));  // the last is the flush of the folder
        CHECK(entries(folder.path) == 1);
      }
    for (int64_t at = 1; at <= calls; ++at) {  // a write may take a part of the bytes: the rest follows
      bg::write_file_atomically(path, "old");
      bg::file_calls::plant(bg::file_calls::Fault{.at = at});
      write();
      bg::file_calls::plant({});
      CHECK(content(path) == whole);
    }
  }
  bg::file_calls::plant(bg::file_calls::Fault{.at = 2, .error = ENOSPC});
  CHECK(contains(message_of([&] { bg::make_folders(folder.path / "a" / "b"); }), "a/b' (No space left on device)"));
  bg::file_calls::plant({});
}
