// What the tests of fused ops share.
#pragma once

#include <vector>

#include "autograd/var.h"
#include "tests/support.h"

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

}  // namespace bg::test
