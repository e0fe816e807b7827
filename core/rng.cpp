// Philox4x32-10 and the sequence built on it.
#include "core/rng.h"

#include <cmath>
#include <numbers>

#include "core/error.h"

namespace bg {
namespace {

constexpr uint32_t lo(uint64_t x) { return static_cast<uint32_t>(x); }
constexpr uint32_t hi(uint64_t x) { return static_cast<uint32_t>(x >> 32); }

std::array<uint32_t, 4> block_at(uint64_t seed, uint64_t stream, uint64_t index) {
  return philox4x32({lo(index), hi(index), lo(stream), hi(stream)}, {lo(seed), hi(seed)});
}

}  // namespace

std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> k) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0];
    const uint64_t b = uint64_t{0xCD9E8D57} * c[2];
    c = {hi(b) ^ c[1] ^ k[0], lo(b), hi(a) ^ c[3] ^ k[1], lo(a)};
    k[0] += 0x9E3779B9;
    k[1] += 0xBB67AE85;
  }
  return c;
}

bool mask_keep(MaskKey key, uint64_t index, double p) {
  BG_CHECK(p >= 0 && p <= 1, "dropout", "bad drop probability", str(p), "a number in [0, 1]");
  return block_at(key.seed, key.stream, index / 4)[index % 4] >= p * 4294967296.0;
}

uint32_t Rng::next_u32() {
  if (block_index_ != offset_ / 4) {
    block_index_ = offset_ / 4;
    block_ = block_at(seed_, stream_, block_index_);
  }
  return block_[offset_++ % 4];
}

uint64_t Rng::next_u64() {
  const uint64_t high = next_u32();
  return high << 32 | next_u32();
}

uint64_t Rng::below(uint64_t n) {
  BG_CHECK(n > 0, "rng", "below(n) has nothing to choose from", "n = 0", "n of at least 1");
  const uint64_t surplus = (0 - n) % n;  // 2^64 mod n: values below it would make small results likelier
  uint64_t x = next_u64();
  while (x < surplus) x = next_u64();
  return x % n;
}

double Rng::uniform() { return static_cast<double>(next_u64() >> 11) * 0x1p-53; }

double Rng::normal() {
  const double radius = std::sqrt(-2 * std::log(1 - uniform()));  // 1 - u is in (0, 1]: never log(0)
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

MaskKey Rng::next_mask() {
  const uint64_t seed = next_u64();
  return {seed, next_u64()};
}

Rng Rng::fork(uint64_t stream) const {
  // Mixing through the generator itself, under a key of its own, so that parent and child streams do not meet.
  const auto mixed = philox4x32({lo(stream), hi(stream), lo(stream_), hi(stream_)}, {0x626F6F73, 0x74677264});
  return Rng(seed_, uint64_t{mixed[0]} << 32 | mixed[1]);
}

}  // namespace bg
