// A small made-up language, for runs where no real text can be had.
#pragma once

#include <cstdint>
#include <string>

namespace bg {

/// About `bytes` bytes of simple English-like sentences from a fixed grammar; the same for the same seed.
std::string builtin_text(std::size_t bytes, uint64_t seed = 1);

}  // namespace bg
