#include "core/io/json.h"
#include "models/run_log.h"
#include "tests/fuzz/fuzz.h"

using namespace bg;

void read_input(std::string_view input) {
  const auto results =
      fuzz::value_or_refusal(input, [&] { return RunResults::from_json(parse_json(input, "run", "results.json")); });
  if (!results) return;
  const std::string written = results->to_json().dump();
  fuzz::require(RunResults::from_json(parse_json(written, "run", "again")).to_json().dump() == written,
                "the same results");
}
