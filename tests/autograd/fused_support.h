// What the tests of fused ops share.
#pragma once

#include <vector>

#include "autograd/var.h"
#include "core/parallel.h"
#include "tests/catch.h"

namespace bg::test {

/// All numbers of the values, one after the other.
inline std::vector<double> all_values(const Vars& vars) {
  std::vector<double> all;
  for (const Var& v : vars) {
    const std::vector<double> values = v.value().to_vector<double>();
    all.insert(all.end(), values.begin(), values.end());
  }
  return all;
}

/// Requires that run(), which returns numbers, gives the same on 1, 2 and 4 threads, all of which take part.
template <class F>
void check_same_bits_for_threads(F&& run) {
  const int before = num_threads();
  set_num_threads(1);
  const std::vector<double> one = run();
  for (int threads : {2, 4}) {
    set_num_threads(threads);
    const GatherWorkers gather;
    reset_distinct_workers();
    const std::vector<double> many = run();
    CHECK(distinct_workers() == threads);
    CHECK(many == one);
  }
  set_num_threads(before);
}

}  // namespace bg::test
