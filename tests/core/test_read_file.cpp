// Reading files: all bytes, or one sentence that names the path and the reason; never a wait without an end.
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "core/atomic_file.h"
#include "core/clock.h"
#include "core/io/npy.h"
#include "core/io/safetensors.h"
#include "core/read_file.h"
#include "core/temporary_folder.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;
namespace fs = std::filesystem;

namespace {

constexpr FileKind kKinds[] = {FileKind::settings, FileKind::vocabulary, FileKind::log, FileKind::text, FileKind::data};

// Another program, until the end of the scope.
template <class F>
class Program {
 public:
  explicit Program(F&& body) : pid_(fork()) {
    if (pid_ != 0) return;
    body();
    _exit(0);
  }
  ~Program() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_;
};

}  // namespace

TEST_CASE("read_file gives all bytes of a file, and names what it cannot read") {
  const TemporaryFolder folder;
  const std::string text("a\0b\n", 4);
  write_file_atomically(folder.path() / "file", text);
  write_file_atomically(folder.path() / "empty", "");
  for (const FileKind kind : kKinds) {
    CHECK(read_file(folder.path() / "file", kind) == text);
    CHECK(read_file(folder.path() / "empty", kind).empty());
    CHECK_THROWS_WITH(read_file(folder.path() / "none", kind), Contains("none: No such file"));
    CHECK_THROWS_WITH(read_file(folder.path(), kind), Contains("it is a folder"));
  }
  CHECK_THROWS_AS(read_file(folder.path() / "none", FileKind::data), NoFile);
  CHECK(read_named_file(folder.path() / "file", FileKind::text) == text);
  for (const fs::path& wrong : {folder.path() / "none", folder.path(), fs::path("/dev/zero")})
    CHECK_THROWS_AS(read_named_file(wrong, FileKind::text), UsageError);
}

TEST_CASE("read_file_begin reads no more of a file than is wanted") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "large";  // with a hole: takes no room
  write_file_atomically(path, "begin");
  CHECK(read_file_begin(path, 5).bytes == "begin");
  CHECK(read_file_begin(path, 100).bytes == "begin");
  fs::resize_file(path, uintmax_t{1} << 43);  // more than the machine has
  const FileBegin begin = read_file_begin(path, 6);
  CHECK(begin.bytes == std::string_view("begin\0", 6));
  CHECK(begin.size == size_t{1} << 43);
  CHECK_THROWS_AS(read_file_begin(folder.path(), 6), NoFile);
}

TEST_CASE("what is not a file is refused at once: devices, pipes, sockets, loops of links") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe", socket_path = folder.path() / "socket", loop = folder.path() / "loop";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const int socket_fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(bind(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  fs::create_symlink("loop", loop);
  for (const FileKind kind : kKinds) {
    for (const char* device : {"/dev/zero", "/dev/null", "/dev/urandom"})
      CHECK_THROWS_WITH(read_file(device, kind), Contains("it is a device"));
    if (kind != FileKind::text) CHECK_THROWS_WITH(read_file(pipe, kind), Contains("it is a pipe"));
    CHECK_THROWS_WITH(read_file(socket_path, kind), Contains("cannot read"));
    CHECK_THROWS_WITH(read_file(loop, kind), Contains("symbolic links"));
  }
  close(socket_fd);
  CHECK_THROWS_WITH(read_npy(pipe), Contains("it is a pipe"));
  CHECK_THROWS_WITH(read_npz(pipe), Contains("it is a pipe"));
  CHECK_THROWS_WITH(read_safetensors(pipe), Contains("it is a pipe"));
  CHECK_THROWS_WITH(read_safetensors_header(pipe), Contains("it is a pipe"));
}

TEST_CASE("each kind of file has a largest size") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "large";  // with a hole: takes no room
  const auto of_size = [&](uintmax_t size) {
    std::ofstream(path).flush();
    fs::resize_file(path, size);
  };
  of_size(uintmax_t{16} << 20);
  CHECK(read_file(path, FileKind::settings).size() == 16u << 20);
  of_size((uintmax_t{16} << 20) + 1);
  CHECK_THROWS_WITH(read_file(path, FileKind::settings), Contains("too large: got 16777217 bytes"));
  of_size((uintmax_t{256} << 20) + 1);
  CHECK_THROWS_WITH(read_file(path, FileKind::vocabulary), Contains("too large"));
  of_size((uintmax_t{4} << 30) + 1);
  CHECK_THROWS_WITH(read_file(path, FileKind::log), Contains("too large"));
  of_size(uintmax_t{1} << 43);  // more than the machine has
  CHECK_THROWS_WITH(read_file(path, FileKind::text), Contains("too large"));
  CHECK_THROWS_WITH(read_file(path, FileKind::data), Contains("too large"));
}

TEST_CASE("a text comes through a pipe as well") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const std::string text(3 << 20, 'x');  // more than a pipe holds
  const Program writer([&] {
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = write(ends[1], text.data() + done, std::min<size_t>(text.size() - done, 50000));
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
  });
  close(ends[1]);
  CHECK(read_file(str("/dev/fd/", ends[0]), FileKind::text) == text);
  close(ends[0]);
}

TEST_CASE("a pipe into which nobody writes is refused, a slow writer is not") {
  const TemporaryFolder folder;
  const fs::path pipe = folder.path() / "pipe";
  REQUIRE(mkfifo(pipe.c_str(), 0600) == 0);
  const double start = seconds_now();
  CHECK_THROWS_WITH(read_named_file(pipe, FileKind::text), Contains("pipe: no program writes into this pipe"));
  CHECK(seconds_now() - start < 20);
  const Program writer([&] {
    usleep(200'000);  // after the reader
    const int fd = open(pipe.c_str(), O_WRONLY);
    sleep(4);
    if (write(fd, "late", 4) < 0) _exit(1);
  });
  CHECK(read_file(pipe, FileKind::text) == "late");
}

// A reader that trusted the size, or mapped the file, would give zeros or die here.
TEST_CASE("a file that shrinks or grows while it is read is no silent mixture") {
  const TemporaryFolder folder;
  const fs::path path = folder.path() / "live";
  const std::string whole(32 << 20, 'x');
  write_file_atomically(path, whole);
  const int fd = open(path.c_str(), O_WRONLY);
  const Program other([&] {
    for (int i = 0; ftruncate(fd, i % 2 == 0 ? 1000 : 32 << 20) == 0; ++i) usleep(3000);
  });
  int refused = 0;
  for (const double start = seconds_now(); refused < 3 && seconds_now() < start + 30;) {
    try {
      const size_t size = read_file(path, FileKind::text).size();
      if (size != 1000 && size != whole.size()) FAIL(size);
    } catch (const UnreadableFile& e) {
      ++refused;
      if (std::string(e.what()).find("changed while it was read") == std::string::npos) FAIL(e.what());
    }
  }
  close(fd);
  CHECK(refused > 0);
}
