#include "examples/boostgrad/process.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace bg {

void prepare_process() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0) continue;
    // The wrong way round, so that writing what cannot be seen stays an error. open() takes the lowest free number.
    if (open("/dev/null", stream == STDIN_FILENO ? O_WRONLY : O_RDONLY) != stream) _exit(EXIT_FAILURE);
  }
  std::signal(SIGCHLD, SIG_DFL);
}

}  // namespace bg

#if defined(__linux__) && defined(__GLIBC__)
namespace {

// OpenBLAS starts a thread for each core when it is loaded, and each of them maps 128 MiB at once. Where a limit on the
// address space (ulimit -v) refuses that, it tries again for ever: even --version would not end. Boostgrad uses BLAS
// with one thread, but says so too late for that, so under such a limit the program starts itself again with the
// variable that OpenBLAS reads. The functions of .preinit_array run before the libraries' own, and the environment is
// not yet setenv()'s to change.
void start_with_one_blas_thread(int, char** arguments, char** environment) {
  constexpr char kName[] = "OPENBLAS_NUM_THREADS=";
  static char one[] = "OPENBLAS_NUM_THREADS=1";
  constexpr int kMostVariables = 4096;
  static char* changed[kMostVariables + 2];
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return;
  int count = 0;
  for (char** entry = environment; *entry; ++entry) {
    if (std::strcmp(*entry, one) == 0 || count == kMostVariables) return;
    if (std::strncmp(*entry, kName, sizeof kName - 1) != 0) changed[count++] = *entry;
  }
  changed[count] = one;
  char path[4096];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
  if (length <= 0) return;
  path[length] = '\0';
  execve(path, arguments, changed);  // goes on here where that fails
}

__attribute__((section(".preinit_array"), used)) void (*const g_before_libraries)(int, char**,
                                                                                  char**) = start_with_one_blas_thread;

}  // namespace
#endif
