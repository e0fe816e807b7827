// Writing with POSIX calls: streams of the standard library can neither fsync nor report errno.
#include "core/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file_calls.h"

namespace bg {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBlock = std::size_t{1} << 20;  // what small writes are collected into

// Past RLIMIT_FSIZE the kernel sends SIGXFSZ, whose default action kills; ignored, write() returns EFBIG instead.
void ignore_file_size_signal() {
  struct sigaction current = {};
  if (sigaction(SIGXFSZ, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) std::signal(SIGXFSZ, SIG_IGN);
}

// The file that a chain of symbolic links ends in, so that writing keeps the links.
fs::path resolve(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return path;
  const fs::path target = fs::weakly_canonical(path, error);
  BG_CHECK(!error, "file", str("cannot write ", path.string(), ": ", error.message()), "", "",
           "give the name of a file");
  return target;
}

// A second writer of the same path in this process must not share the temporary.
fs::path temporary_name(const fs::path& path) {
  static std::atomic<unsigned> serial{0};
  fs::path name = path;
  name += str(".tmp-", getpid(), "-", serial++);
  return name;
}

std::string hint_for(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return "free some disk space, or write elsewhere";
    case EFBIG:
      return "raise the file size limit (ulimit -f)";
    case ENOENT:
      return "create the folder first";
    case EACCES:
    case EPERM:
    case EROFS:
      return "write to a folder that you may change";
    default:
      return {};
  }
}

// Whether a failure is the path's, and so of whoever gave it.
bool is_wrong_path(int error) {
  for (const int of_path : {EEXIST, ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, EACCES, EPERM, EROFS})
    if (error == of_path) return true;
  return false;
}

[[noreturn]] void fail_to(std::string_view action, const fs::path& path, int error) {
  fail("file", str("cannot ", action, " ", path.string(), ": ", std::strerror(error)), "", "", hint_for(error));
}

// A folder, a device or a pipe is no place for a file.
void check_place(const fs::path& path) {
  std::error_code ignored;
  const fs::file_status status = fs::status(path, ignored);
  BG_CHECK(!fs::exists(status) || fs::is_regular_file(status), "file",
           str("cannot write ", path.string(), ": it exists and is not a regular file"), "", "",
           "give the name of a file");
}

// The bytes written: fewer than all, with errno set, where a write fails.
std::size_t write_all(int fd, std::string_view text) {
  std::size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = file_calls::write(fd, text.data() + done, text.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<std::size_t>(n);
  }
  return done;
}

int64_t size_of_open_file(int fd) {
  struct stat info = {};
  return fstat(fd, &info) == 0 ? static_cast<int64_t>(info.st_size) : -1;
}

}  // namespace

bool names_open_file(const fs::path& path, int fd) {
  struct stat named = {}, open_one = {};
  return stat(path.c_str(), &named) == 0 && fstat(fd, &open_one) == 0 && named.st_dev == open_one.st_dev &&
         named.st_ino == open_one.st_ino;
}

AtomicFile::AtomicFile(fs::path path) : path_(std::move(path)) {
  path_ = resolve(path_);
  BG_CHECK(path_.has_filename(), "file", "no file to write", str("'", path_.string(), "'"), "the name of a file");
  check_place(path_);
  ignore_file_size_signal();
  temporary_ = temporary_name(path_);
  fd_ = file_calls::open_to_write(temporary_.c_str(), O_TRUNC);
  if (fd_ < 0) fail_with_errno("create");
}

AtomicFile::~AtomicFile() { discard(); }

void AtomicFile::write(const void* data, std::size_t bytes) {
  check_open();
  const char* from = static_cast<const char*>(data);
  if (buffer_.size() + bytes > kBlock) flush_buffer();
  if (bytes > kBlock) {
    write_out(from, bytes);
  } else {
    buffer_.append(from, bytes);
  }
}

void AtomicFile::commit() {
  check_open();
  flush_buffer();
  if (file_calls::fsync(fd_) != 0) fail_with_errno("flush");
  if (file_calls::close(std::exchange(fd_, -1)) != 0) fail_with_errno("close");
  if (file_calls::rename(temporary_.c_str(), path_.c_str()) != 0) fail_with_errno("rename");
  temporary_.clear();

  // The rename itself must survive a power cut. The new content is in place already, so a file system that cannot
  // flush folders is no failure; a disk that fails at it is one.
  const fs::path folder = path_.has_parent_path() ? path_.parent_path() : fs::path(".");
  const int fd = open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  const bool flushed = file_calls::fsync(fd) == 0 || (errno != EIO && errno != ENOSPC && errno != EDQUOT);
  const int error = errno;
  ::close(fd);
  if (!flushed) fail_to("flush the folder of", path_, error);
}

void AtomicFile::write_out(const char* data, std::size_t bytes) {
  if (write_all(fd_, {data, bytes}) < bytes) fail_with_errno("write");
}

void AtomicFile::flush_buffer() {
  write_out(buffer_.data(), buffer_.size());
  buffer_.clear();
}

void AtomicFile::discard() noexcept {
  if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  if (!temporary_.empty()) unlink(temporary_.c_str());
  temporary_.clear();
}

void AtomicFile::fail_with_errno(std::string_view action) {
  const int error = errno;
  discard();
  fail_to(action, path_, error);
}

void AtomicFile::check_open() const {
  BG_CHECK(fd_ >= 0, "file", str(path_.string(), " is no longer open for writing"), "", "",
           "write before commit(), and start again after an error");
}

AppendFile::AppendFile(fs::path path) : path_(std::move(path)) {
  check_place(path_);
  ignore_file_size_signal();
  fd_ = file_calls::open_to_write(path_.c_str(), O_APPEND | O_NONBLOCK);
  if (fd_ < 0) fail_to("open", path_, errno);
  size_ = size_of_open_file(fd_);
}

AppendFile::~AppendFile() { ::close(fd_); }

void AppendFile::check() const {
  if (!names_open_file(path_, fd_))
    fail("file", str(path_.string(), " was removed, moved or replaced while this program wrote to it"), "", "",
         "let no other program change it");
  if (const int64_t size = size_of_open_file(fd_); size != size_)
    fail("file", str(path_.string(), " was cut or written to by another program"), str(size, " bytes"), str(size_),
         "let no other program change it");
}

void AppendFile::append(std::string_view text) {
  check();
  const std::size_t written = write_all(fd_, text);
  size_ += static_cast<int64_t>(written);
  if (written < text.size()) fail_to("write", path_, errno);
}

void AppendFile::flush() {
  if (file_calls::fsync(fd_) != 0) fail_to("flush", path_, errno);
}

void write_file_atomically(const fs::path& path, std::string_view content) {
  AtomicFile file(path);
  file.write(content);
  file.commit();
}

void check_writable(const fs::path& path) try { const AtomicFile probe(path); } catch (const Error& e) {
  throw UsageError(e.what());
}

void make_folders(const fs::path& folder) {
  fs::path so_far;
  for (const fs::path& part : folder) {
    so_far /= part;
    std::error_code ignored;
    if (part.empty() || fs::is_directory(so_far, ignored) || file_calls::mkdir(so_far.c_str()) == 0) continue;
    const int error = errno;
    if (error == EEXIST && fs::is_directory(so_far, ignored)) continue;  // somebody else was faster
    const std::string got = str("'", folder.string(), "' (", std::strerror(error == EEXIST ? ENOTDIR : error), ")");
    if (is_wrong_path(error))
      fail<UsageError>("file", "cannot make the folder", got, "a place to write", hint_for(error));
    fail("file", "cannot make the folder", got, "a place to write", hint_for(error));
  }
}

void remove_stale_temporaries(const fs::path& folder) {
  std::error_code ignored;
  std::vector<fs::path> stale;
  for (fs::recursive_directory_iterator it(folder, ignored), end; !ignored && it != end; it.increment(ignored)) {
    const std::string name = it->path().filename().string();
    const std::size_t mark = name.rfind(".tmp-");
    if (mark == std::string::npos) continue;
    int pid = 0, used = 0;
    unsigned serial = 0;
    const bool ours = std::sscanf(name.c_str() + mark, ".tmp-%d-%u%n", &pid, &serial, &used) == 2 &&
                      mark + static_cast<std::size_t>(used) == name.size();
    if (ours && it->is_regular_file(ignored)) stale.push_back(it->path());
  }
  for (const fs::path& path : stale) fs::remove(path, ignored);
}

}  // namespace bg
