// read(2) on a descriptor that was opened without waiting for anybody.
#include "core/read_file.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/machine.h"

namespace bg {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMiB = std::size_t{1} << 20, kGiB = std::size_t{1} << 30;
constexpr int kPipeWait = 60'000;  // milliseconds

std::size_t largest(FileKind kind) {
  switch (kind) {
    case FileKind::settings:
      return 16 * kMiB;
    case FileKind::vocabulary:
      return 256 * kMiB;
    case FileKind::log:
      return 4 * kGiB;
    case FileKind::text:
    case FileKind::data:
      break;
  }
  return machine_bytes();
}

const char* kind_name(mode_t mode) {
  return S_ISDIR(mode) ? "a folder" : S_ISFIFO(mode) ? "a pipe" : S_ISSOCK(mode) ? "a socket" : "a device";
}

class Reader {
 public:
  Reader(const fs::path& path, FileKind kind) : path_(path), kind_(kind) {
    // a pipe without a writer would keep open() waiting, and a terminal could become the process's own
    fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd_ < 0) fail_with(std::strerror(errno));
  }
  ~Reader() { close(fd_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::string read_all() {
    struct stat info = {};
    if (fstat(fd_, &info) != 0) fail_with(std::strerror(errno));
    if (S_ISFIFO(info.st_mode) && kind_ == FileKind::text) return read_pipe();
    if (!S_ISREG(info.st_mode)) fail_with(str("it is ", kind_name(info.st_mode)), {}, "a file", "the name of a file");
    const auto size = static_cast<std::size_t>(info.st_size);
    check_size(size, largest(kind_));
    std::string content(size, '\0');
    std::size_t done = 0;
    while (done < size) {
      const std::size_t n = read_some(content.data() + done, size - done);
      if (n == 0) fail_changed(done, size);
      done += n;
    }
    struct stat after = {};
    if (fstat(fd_, &after) != 0) fail_with(std::strerror(errno));
    const bool same = after.st_size == info.st_size && after.st_mtim.tv_sec == info.st_mtim.tv_sec &&
                      after.st_mtim.tv_nsec == info.st_mtim.tv_nsec;
    if (!same && kind_ != FileKind::log) fail_changed(static_cast<std::size_t>(after.st_size), size);
    return content;
  }

 private:
  std::string read_pipe() {
    std::string content, block(kMiB, '\0');
    while (true) {
      pollfd ready{fd_, POLLIN, 0};
      const int n = poll(&ready, 1, kPipeWait);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_with(std::strerror(errno));
      if (n == 0) fail_with("nothing came through this pipe for a minute", {}, {}, "a file");
      const std::size_t got = read_some(block.data(), block.size());
      if (got == 0) return content;
      content.append(block, 0, got);
      check_size(content.size(), std::min(kGiB, machine_bytes()));
    }
  }

  std::size_t read_some(char* to, std::size_t bytes) {
    while (true) {
      const ssize_t n = read(fd_, to, bytes);
      if (n >= 0) return static_cast<std::size_t>(n);
      if (errno == EAGAIN) {  // another reader of the pipe was faster
        pollfd ready{fd_, POLLIN, 0};
        poll(&ready, 1, kPipeWait);
      } else if (errno != EINTR) {
        fail_with(std::strerror(errno));
      }
    }
  }

  void check_size(std::size_t size, std::size_t most) const {
    if (size > most) fail_with("it is too large", str(size, " bytes or more"), str("at most ", most));
  }
  [[noreturn]] void fail_changed(std::size_t now, std::size_t before) const {
    fail_with("it changed while it was read", str(now, " bytes"), str("the ", before, " of before"),
              "again, once nobody writes to it");
  }
  [[noreturn]] void fail_with(std::string_view reason, std::string_view got = {}, std::string_view expected = {},
                              std::string_view hint = {}) const {
    fail<UnreadableFile>("file", str("cannot read ", path_.string(), ": ", reason), got, expected, hint);
  }

  const fs::path& path_;
  FileKind kind_;
  int fd_ = -1;
};

}  // namespace

std::string read_file(const fs::path& path, FileKind kind) { return Reader(path, kind).read_all(); }

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::status(path, ignored).type() != fs::file_type::not_found;
}

std::vector<fs::path> list_folder(const fs::path& folder) {
  std::vector<fs::path> all;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
    all.push_back(it->path());
  if (error && error != std::errc::no_such_file_or_directory)
    fail<UnreadableFile>("file", str("cannot read the folder ", folder.string(), ": ", error.message()));
  return all;
}

}  // namespace bg
