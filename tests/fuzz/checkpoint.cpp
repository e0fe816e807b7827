#include "models/checkpoint.h"

#include "tests/fuzz/fuzz.h"

using namespace bg;

void read_input(std::string_view input) {
  const auto checkpoint = fuzz::value_or_refusal(input, [&] { return parse_checkpoint(input, "x"); });
  if (!checkpoint) return;
  const Checkpoint again = parse_checkpoint(checkpoint_bytes(*checkpoint), "again");
  fuzz::require_equal(checkpoint->model, again.model);
  fuzz::require_equal(checkpoint->optimizer, again.optimizer);
  fuzz::require(checkpoint->meta.dump() == again.meta.dump(), "the same metadata");
}
