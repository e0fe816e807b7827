#include "core/io/npy.h"
#include "tests/fuzz/fuzz.h"

using namespace bg;

void read_input(std::string_view input) {
  const auto arrays = fuzz::value_or_refusal(input, [&] { return parse_npz(input, "x"); });
  if (!arrays || arrays->empty()) return;
  fuzz::require_equal(*arrays, parse_npz(npz_bytes(*arrays, "again"), "again"));
}
