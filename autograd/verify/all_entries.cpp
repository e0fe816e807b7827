// The only place that instantiates the verifier's view of every op.
#include "autograd/ops/all.h"
#include "autograd/verify/entry.h"

namespace bg::verifier {

const std::vector<Entry>& all_entries() {
  static const std::vector<Entry> entries = [] {
    std::vector<Entry> all;
    AllOps::for_each([&]<class O>() { all.push_back(make_entry<O>()); });
    for (Entry& e : all) e.listed = true;
    return all;
  }();
  return entries;
}

}  // namespace bg::verifier
