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
constexpr int kWriterWait = 3'000, kPipeWait = 60'000;  // milliseconds

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
    if (fd_ < 0)
      fail_with<NoFile>(std::strerror(errno), {}, {}, errno == ENOENT ? "the path of a file that is there" : "");
  }
  ~Reader() { close(fd_); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  std::string read_all() {
    const struct stat info = state();
    if (S_ISFIFO(info.st_mode) && kind_ == FileKind::text) return read_pipe();
    const std::size_t size = size_of_file(info);
    check_size(size, largest(kind_));
    std::string content = read_whole(size);
    const struct stat after = state();
    const bool same = after.st_size == info.st_size && after.st_mtim.tv_sec == info.st_mtim.tv_sec &&
                      after.st_mtim.tv_nsec == info.st_mtim.tv_nsec;
    if (!same && kind_ != FileKind::log) fail_changed(static_cast<std::size_t>(after.st_size), size);
    return content;
  }

  FileBegin read_begin(std::size_t most) {
    const std::size_t size = size_of_file(state());
    return {read_whole(std::min(size, most)), size};
  }

 private:
  struct stat state() const {
    struct stat info = {};
    if (fstat(fd_, &info) != 0) fail_with(std::strerror(errno));
    return info;
  }

  std::size_t size_of_file(const struct stat& info) const {
    if (!S_ISREG(info.st_mode))
      fail_with<NoFile>(str("it is ", kind_name(info.st_mode)), {}, "a file", "the name of a file");
    return static_cast<std::size_t>(info.st_size);
  }

  std::string read_whole(std::size_t size) {
    std::string content(size, '\0');
    for (std::size_t done = 0, n = 0; done < size; done += n) {
      n = read_some(content.data() + done, size - done);
      if (n == 0) fail_changed(done, size);
    }
    return content;
  }

  // A pipe into which nobody writes would keep us waiting for ever; of a writer who is slow, read() says "not yet".
  std::string read_pipe() {
    std::string content, block(kMiB, '\0');
    bool has_writer = false;
    while (true) {
      pollfd ready{fd_, POLLIN, 0};
      const int n = poll(&ready, 1, has_writer ? kPipeWait : kWriterWait);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_with(std::strerror(errno));
      if (n == 0 && has_writer) fail_with("nothing came through this pipe for a minute", {}, {}, "a file");
      const ssize_t got = read(fd_, block.data(), block.size());
      if (got < 0 && errno != EAGAIN) fail_with(std::strerror(errno));
      if (got == 0 && n == 0)
        fail_with<NoFile>("no program writes into this pipe", {}, {}, "start the one that does first, or a file");
      if (got == 0) return content;
      has_writer = true;
      if (got < 0) continue;
      content.append(block, 0, static_cast<std::size_t>(got));
      check_size(content.size(), std::min(kGiB, machine_bytes()));
    }
  }

  std::size_t read_some(char* to, std::size_t bytes) {
    while (true) {
      const ssize_t n = read(fd_, to, bytes);
      if (n >= 0) return static_cast<std::size_t>(n);
      if (errno != EINTR) fail_with(std::strerror(errno));
    }
  }

  void check_size(std::size_t size, std::size_t most) const {
    if (size > most) fail_with("it is too large", str(size, " bytes or more"), str("at most ", most));
  }
  [[noreturn]] void fail_changed(std::size_t now, std::size_t before) const {
    fail_with("it changed while it was read", str(now, " bytes"), str("the ", before, " of before"),
              "again, once nobody writes to it");
  }
  template <class E = UnreadableFile>
  [[noreturn]] void fail_with(std::string_view reason, std::string_view got = {}, std::string_view expected = {},
                              std::string_view hint = {}) const {
    fail<E>("file", str("cannot read ", path_.string(), ": ", reason), got, expected, hint);
  }

  const fs::path& path_;
  FileKind kind_;
  int fd_ = -1;
};

}  // namespace

std::string read_file(const fs::path& path, FileKind kind) { return Reader(path, kind).read_all(); }

std::string read_named_file(const fs::path& path, FileKind kind) try {
  return read_file(path, kind);
} catch (const NoFile& e) {
  throw UsageError(e.what());
}

FileBegin read_file_begin(const fs::path& path, std::size_t most) {
  return Reader(path, FileKind::data).read_begin(most);
}

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
