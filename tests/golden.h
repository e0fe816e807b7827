// What tests compare with the arrays of tests/golden.
#pragma once

#include <filesystem>
#include <map>

#include "core/tensor_ops.h"
#include "tests/catch.h"

namespace bg::test {

inline std::filesystem::path golden_folder() { return BG_GOLDEN_FOLDER; }

/// Largest difference in units of max(1, max |want|); shapes must agree.
inline double difference(const Tensor& got, const Tensor& want) {
  REQUIRE(got.shape() == want.shape());
  return num::max_abs(num::sub(got, want)) / std::max(1.0, num::max_abs(want));
}

/// Each by its name against its part of `golden`, which has one after the other by rising name.
inline void check_gradients(const std::map<std::string, Tensor>& gradients, const Tensor& golden) {
  int64_t at = 0;
  for (const auto& [name, g] : gradients) {
    REQUIRE(at + g.numel() <= golden.numel());
    INFO(name);
    CHECK(difference(g, golden.slice(0, at, at + g.numel()).reshape(g.shape())) < 1e-12);
    at += g.numel();
  }
  CHECK(at == golden.numel());
}

}  // namespace bg::test
