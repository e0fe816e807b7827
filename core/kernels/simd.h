// Which instruction set the kernels run on. It is chosen at run time; bits may differ between instruction sets, so runs
// record its name.
#pragma once

#include <string>
#include <vector>

namespace bg {

/// Name of the instruction set in use, such as "AVX2".
std::string simd_target();

/// Every instruction set that was compiled in and that this machine has, best first.
std::vector<std::string> simd_targets();

/// Uses one of simd_targets() from now on, in place of the best; throws UsageError for any other name. For tests and
/// for repeating the bits of a lesser machine; not while kernels are running.
void use_simd_target(const std::string& name);

}  // namespace bg
