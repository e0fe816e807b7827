// Memory-mapped files through mmap(2).
#include "core/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>

#include "core/error.h"

namespace bg {
namespace {

[[noreturn]] void fail_to_read(const std::filesystem::path& path, int error) {
  fail("file", str("cannot read ", path.string(), ": ", std::strerror(error)));
}

struct Descriptor {
  int fd;
  ~Descriptor() {
    if (fd >= 0) close(fd);
  }
};

std::string read_all(int fd, const std::filesystem::path& path) {
  std::string content;
  char block[1 << 16];
  for (;;) {
    const ssize_t n = read(fd, block, sizeof block);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_to_read(path, errno);
    if (n == 0) return content;
    content.append(block, static_cast<std::size_t>(n));
  }
}

}  // namespace

MappedFile::MappedFile(const std::filesystem::path& path) {
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (file.fd < 0) fail_to_read(path, errno);
  struct stat info = {};
  if (fstat(file.fd, &info) != 0) fail_to_read(path, errno);
  if (S_ISDIR(info.st_mode)) fail_to_read(path, EISDIR);
  if (S_ISREG(info.st_mode) && info.st_size > 0) {
    const std::size_t size = static_cast<std::size_t>(info.st_size);
    void* mapped = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.fd, 0);
    if (mapped == MAP_FAILED) fail_to_read(path, errno);
    data_ = {static_cast<const char*>(mapped), [mapped, size](const char*) { munmap(mapped, size); }};
    size_ = size;
  } else {  // not a regular file, or one such as /proc/self/stat that claims to be empty
    const auto content = std::make_shared<const std::string>(read_all(file.fd, path));
    data_ = {content, content->data()};
    size_ = content->size();
  }
}

}  // namespace bg
