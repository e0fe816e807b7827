#include "tests/verifiers/strangers.h"
#include "tests/verifiers/strangers_a.h"

namespace bg::strangers {
std::vector<Pair> group_a() { return pairs_of(strangers_a::GroupA()); }
}  // namespace bg::strangers
