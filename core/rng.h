// Random numbers without hidden state: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011) turns (seed, stream, position) into bits, so any element of any sequence can be had on its own, in any
// order, on any thread, and again later. Dropout masks are such sequences and are never stored.
#pragma once

#include <array>
#include <cstdint>

namespace bg {

/// One Philox4x32-10 block: 128 random bits of (counter, key).
std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key);

/// Names one dropout mask of any length.
struct MaskKey {
  uint64_t seed = 0, stream = 0;
  bool operator==(const MaskKey&) const = default;
};

/// Whether element `index` of the mask is kept under drop probability p: uniform u32 of (key, index) >= p * 2^32.
/// Throws when p is not in [0, 1].
bool mask_keep(MaskKey key, uint64_t index, double p);

/// out[i] = 1 / (1 - p) where mask_keep(key, first_index + i, p), else 0. Serial and vectorised; first_index may have
/// any value. At p = 1 everything is 0. Throws when p is not in [0, 1].
template <class T>
void mask_scale(MaskKey key, uint64_t first_index, int64_t n, double p, T* out);

/// A sequence of random numbers: a value that is copied, compared and saved as (seed, stream, offset).
class Rng {
 public:
  explicit Rng(uint64_t seed, uint64_t stream = 0, uint64_t offset = 0)
      : seed_(seed), stream_(stream), offset_(offset) {}

  uint64_t seed() const { return seed_; }
  uint64_t stream() const { return stream_; }
  uint64_t offset() const { return offset_; }  ///< 32-bit words drawn so far

  uint32_t next_u32();
  uint64_t next_u64();
  uint64_t below(uint64_t n);  ///< unbiased in [0, n); throws when n is 0
  double uniform();            ///< 53 bits in [0, 1)
  double normal();             ///< mean 0, variance 1; Box-Muller, four words a call, nothing kept between calls
  MaskKey next_mask();         ///< a fresh key for one dropout site

  /// An independent sequence from offset 0. It depends on the seed, this stream and `stream` but not on what was drawn,
  /// and nested forks differ: fork(1).fork(2), fork(2).fork(1) and fork(2) are three sequences.
  Rng fork(uint64_t stream) const;

  bool operator==(const Rng& o) const { return seed_ == o.seed_ && stream_ == o.stream_ && offset_ == o.offset_; }

 private:
  uint64_t seed_, stream_, offset_;
  // The block that the offset points into, to make four words from one; derived from the three values above.
  std::array<uint32_t, 4> block_{};
  uint64_t block_index_ = ~uint64_t{0};
};

}  // namespace bg
