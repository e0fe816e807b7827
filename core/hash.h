// A 64-bit checksum and fingerprint (FNV-1a). It finds damage and change, not malice.
#pragma once

#include <cstdint>
#include <string_view>

namespace bg {

/// FNV-1a (Fowler, Noll, Vo) of the bytes. Pass an earlier result as `state` to continue it over several pieces.
inline uint64_t hash_bytes(std::string_view bytes, uint64_t state = 0xcbf29ce484222325) {
  for (const char c : bytes) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return state;
}

}  // namespace bg
