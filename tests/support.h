// What tests of several folders share: distances between tensors, running under several thread counts, and files that
// vanish with the test.
#pragma once

#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "core/parallel.h"
#include "core/temporary_folder.h"
#include "core/tensor_ops.h"
#include "tests/catch.h"

namespace bg::test {

/// The largest difference between two tensors of one shape and dtype; NaN when there is a NaN.
inline double distance(const Tensor& a, const Tensor& b) { return num::max_abs(num::sub(a, b)); }

template <class T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// Requires that run() (which returns a vector) gives the same bits on 1, 2 and 4 threads, all of them at work.
template <class F>
void check_same_bits_for_threads(F&& run) {
  const int before = num_threads();
  set_num_threads(1);
  const auto one = run();
  for (int threads : {2, 4}) {
    set_num_threads(threads);
    reset_distinct_workers();
    const GatherWorkers gather;
    CHECK(same_bits(one, run()));
    CHECK(distinct_workers() == threads);
  }
  set_num_threads(before);
}

/// A path, of nothing yet, in a folder of its own that vanishes with the test.
struct TemporaryPath {
  explicit TemporaryPath(const std::string& name) : path(folder.path() / name) {}
  TemporaryFolder folder;
  std::filesystem::path path;
};

}  // namespace bg::test
