// What the machine has.
#pragma once

#include <cstddef>

namespace bg {

/// Bytes of memory that this process can have at most: the machine's, or fewer by the limit of its address space
/// (ulimit -v).
std::size_t machine_bytes();

}  // namespace bg
