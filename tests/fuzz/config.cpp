// An input is the part `options` of a config.json, or `+` and a JSON merge patch (RFC 7396) on one that is good.
#include "core/io/json.h"
#include "models/trainer.h"
#include "tests/fuzz/fuzz.h"

using namespace bg;

void read_input(std::string_view input) {
  const auto options = fuzz::value_or_refusal(input, [&] {
    nlohmann::json j = TrainOptions().to_json();
    if (input.starts_with('+'))
      j.merge_patch(parse_json_or_null(input.substr(1)));
    else
      j = parse_json(input, "run", "config.json");
    const TrainOptions o = TrainOptions::from_json(j);
    o.validate();
    return o;
  });
  if (!options) return;
  const std::string written = options->to_json().dump();
  const TrainOptions again = TrainOptions::from_json(parse_json(written, "run", "again"));
  fuzz::require(again.model == options->model && again.to_json().dump() == written, "the same options");
}
