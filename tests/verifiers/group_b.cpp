#include "tests/verifiers/strangers.h"
#include "tests/verifiers/strangers_b.h"

namespace bg::strangers {
std::vector<Pair> group_b() { return pairs_of(strangers_b::GroupB()); }
}  // namespace bg::strangers
