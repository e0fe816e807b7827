// The memory-bound ops on tensors of 128 MiB.
#include "tests/bench/google.h"

int main(int argc, char** argv) {
  return bg::bench::run_google_benchmarks(argc, argv, bg::bench::op_cases(int64_t{128} << 20, 256, 16384));
}
