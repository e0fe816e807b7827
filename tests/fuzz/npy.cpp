#include "core/io/npy.h"

#include "tests/fuzz/fuzz.h"

using namespace bg;
using Arrays = std::map<std::string, Tensor>;

void read_input(std::string_view input) {
  const auto array = fuzz::value_or_refusal(input, [&] { return parse_npy(input, "x"); });
  if (!array) return;
  fuzz::require_equal(Arrays{{"x", *array}}, Arrays{{"x", parse_npy(npy_bytes(*array), "again")}});
}
