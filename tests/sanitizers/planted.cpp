// Bugs on purpose, one per sanitizer: planted race|overflow|leak|undefined. ctest requires each to be reported.
#include <cstdio>
#include <limits>
#include <string>

#include "core/parallel.h"

namespace {

int g_counter = 0;

void race() {
  bg::set_num_threads(2);
  const bg::GatherWorkers gather;  // both workers do run
  bg::parallel_for(1000, 1, [](int64_t, int64_t) { ++g_counter; });
}

int past_the_end(int n) {
  int* p = new int[static_cast<size_t>(n)]();
  const int x = p[n];
  delete[] p;
  return x;
}

int overflow(int n) { return std::numeric_limits<int>::max() - 1 + n; }

}  // namespace

int main(int argc, char** argv) {
  const std::string bug = argc > 1 ? argv[1] : "";
  int result = argc;
  if (bug == "race") race(), result = g_counter;
  if (bug == "overflow") result = past_the_end(argc + 3);
  if (bug == "leak") std::printf("%p\n", static_cast<void*>(new int[100]));
  if (bug == "undefined") result = overflow(argc);
  std::printf("%s was not reported (%d)\n", bug.c_str(), result);
}
