#include "tests/verifiers/strangers.h"
#include "tests/verifiers/strangers_c.h"

namespace bg::strangers {
std::vector<Pair> group_c() { return pairs_of(strangers_c::GroupC()); }
}  // namespace bg::strangers
