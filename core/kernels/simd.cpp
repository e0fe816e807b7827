// Names the instruction sets of Google Highway and switches between them.
#include "core/kernels/simd.h"

#include <hwy/highway.h>

#include "core/error.h"

namespace bg {
namespace {

// A lower bit is a better instruction set.
int64_t best(int64_t targets) { return targets & -targets; }

}  // namespace

std::string simd_target() { return hwy::TargetName(best(HWY_TARGETS & hwy::SupportedTargets())); }

std::vector<std::string> simd_targets() {
  static const int64_t all = HWY_TARGETS & hwy::SupportedTargets();  // before any switch: use_simd_target asks first
  std::vector<std::string> names;
  for (int64_t rest = all; rest != 0; rest &= rest - 1) names.emplace_back(hwy::TargetName(best(rest)));
  return names;
}

void use_simd_target(const std::string& name) {
  std::string known;
  for (const std::string& n : simd_targets()) known += (known.empty() ? "" : ", ") + n;
  hwy::SetSupportedTargetsForTest(0);
  for (int64_t rest = HWY_TARGETS & hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    if (name != hwy::TargetName(best(rest))) continue;
    hwy::SetSupportedTargetsForTest(best(rest));
    hwy::GetChosenTarget().Update(best(rest));
    return;
  }
  fail<UsageError>("simd", "no such instruction set here", name, "one of " + known);
}

}  // namespace bg
