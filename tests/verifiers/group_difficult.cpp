#include "tests/verifiers/difficult.h"
#include "tests/verifiers/strangers.h"
#include "tests/verifiers/weak_samples.h"

namespace bg::strangers {
namespace {
template <class... O>
std::vector<verifier::Entry> entries_of(difficult::Ops<O...>) {
  return {verifier::make_entry<O>()...};
}
}  // namespace

std::vector<Pair> weak_lists() { return pairs_of(weak::WeakLists()); }
std::vector<verifier::Entry> difficult_ops() { return entries_of(difficult::DifficultOps()); }
std::vector<Function> difficult_functions(uint64_t seed) {
  Rng r(seed);
  std::vector<Function> out;
  for (difficult::Function& f : difficult::functions(r))
    out.push_back({std::move(f.name), std::move(f.f), Vars(f.inputs.begin(), f.inputs.end())});
  return out;
}
}  // namespace bg::strangers
