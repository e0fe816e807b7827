// Masks: many Philox4x32-10 counters side by side (the scalar form is in core/rng.cpp), and their application.
#include "core/kernels/dropout.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/dropout.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "core/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {

// Words 4 first ... 4 (first + counters) - 1 of the mask, for a number of counters that is a multiple of 16.
#if HWY_TARGET == HWY_SCALAR
void philox_words(MaskKey key, uint64_t first, int64_t counters, uint32_t* out) {
  const auto low = [](uint64_t x) { return static_cast<uint32_t>(x); };
  for (uint64_t c = first; c < first + static_cast<uint64_t>(counters); ++c, out += 4) {
    const auto block = philox4x32({low(c), low(c >> 32), low(key.stream), low(key.stream >> 32)},
                                  {low(key.seed), low(key.seed >> 32)});
    std::copy(block.begin(), block.end(), out);
  }
}
#else
void philox_words(MaskKey key, uint64_t first, int64_t counters, uint32_t* out) {
  const hn::ScalableTag<uint32_t> d32;
  const hn::Repartition<uint64_t, decltype(d32)> d;
  using V = hn::Vec<decltype(d)>;
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  const auto low_half = hn::Set(d, 0xffffffff);
  const auto multiply = [&](V a, uint32_t by) BG_LANES {  // 32 x 32 -> 64 bits of the low halves
    return hn::BitCast(d, hn::MulEven(hn::BitCast(d32, a), hn::Set(d32, by)));
  };
  constexpr int kRounds = 10;
  uint64_t k0[kRounds], k1[kRounds];
  for (uint32_t i = 0; i < kRounds; ++i) {
    k0[i] = static_cast<uint32_t>(key.seed) + i * 0x9E3779B9;
    k1[i] = static_cast<uint32_t>(key.seed >> 32) + i * 0xBB67AE85;
  }
  for (int64_t i = 0; i < counters; i += step) {
    // One counter per 64-bit lane, its four words in the low halves of four vectors. The high halves may hold anything:
    // the products do not read them.
    const V index = hn::Add(hn::Set(d, first + static_cast<uint64_t>(i)), hn::Iota(d, 0));
    V c0 = index, c1 = hn::ShiftRight<32>(index);
    V c2 = hn::Set(d, key.stream), c3 = hn::Set(d, key.stream >> 32);
    HWY_UNROLL(10)
    for (int round = 0; round < kRounds; ++round) {
      const V a = multiply(c0, 0xD2511F53), b = multiply(c2, 0xCD9E8D57);
      c0 = hn::Xor3(hn::ShiftRight<32>(b), c1, hn::Set(d, k0[round]));
      c2 = hn::Xor3(hn::ShiftRight<32>(a), c3, hn::Set(d, k1[round]));
      c1 = b;
      c3 = a;
    }
    const V first_pair = hn::Or(hn::And(c0, low_half), hn::ShiftLeft<32>(c1));
    const V second_pair = hn::Or(hn::And(c2, low_half), hn::ShiftLeft<32>(c3));
    hn::StoreInterleaved2(first_pair, second_pair, d, reinterpret_cast<uint64_t*>(out + 4 * i));
  }
}

#endif

// y[i] = x[i] * scale where the word of first_index + i reaches the threshold, else 0; a null x stands for ones.
template <class T>
void apply_mask(const T* x, MaskKey key, uint64_t first_index, uint32_t threshold, T scale, T* y, int64_t n) {
  constexpr int64_t kCounters = 256;
  uint32_t words[4 * kCounters];
  for (int64_t i = 0; i < n;) {
    const uint64_t index = first_index + static_cast<uint64_t>(i);
    const int64_t skip = static_cast<int64_t>(index % 4), count = std::min(n - i, 4 * kCounters - skip);
    philox_words(key, index / 4, (skip + count + 63) / 64 * 16, words);
    const uint32_t* w = words + skip;
    T* out = y + i;
    // Simple enough for the compiler to vectorise for this instruction set.
    if (x != nullptr) {
      const T* in = x + i;
      for (int64_t j = 0; j < count; ++j) {
        const T kept = in[j] * scale;
        out[j] = w[j] >= threshold ? kept : T(0);
      }
    } else {
      for (int64_t j = 0; j < count; ++j) out[j] = w[j] >= threshold ? scale : T(0);
    }
    i += count;
  }
}

void apply_mask_f32(const float* x, MaskKey key, uint64_t first, uint32_t threshold, float scale, float* y, int64_t n) {
  apply_mask(x, key, first, threshold, scale, y, n);
}
void apply_mask_f64(const double* x, MaskKey key, uint64_t first, uint32_t threshold, double scale, double* y,
                    int64_t n) {
  apply_mask(x, key, first, threshold, scale, y, n);
}

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bg {
namespace kernels {
namespace {

HWY_EXPORT(apply_mask_f32);
HWY_EXPORT(apply_mask_f64);

template <class T>
void masked(const T* x, MaskKey key, uint64_t first_index, double p, T* y, int64_t n) {
  BG_CHECK(p >= 0 && p <= 1, "dropout", "bad drop probability", str(p), "a number in [0, 1]");
  const double threshold = std::ceil(p * 4294967296.0);  // u >= p 2^32 and u >= ceil(p 2^32) are the same for integers
  if (threshold > 4294967295.0) {
    std::fill_n(y, n, T(0));
    return;
  }
  const auto apply = [&] {
    if constexpr (sizeof(T) == 4) {
      return HWY_DYNAMIC_DISPATCH(apply_mask_f32);
    } else {
      return HWY_DYNAMIC_DISPATCH(apply_mask_f64);
    }
  }();
  apply(x, key, first_index, static_cast<uint32_t>(threshold), T(1 / (1 - p)), y, n);
}

}  // namespace

template <class T>
void dropout(const T* x, MaskKey key, double p, T* y, int64_t n) {
  parallel_for(n, 16384, [&](int64_t b, int64_t e) { masked(x + b, key, static_cast<uint64_t>(b), p, y + b, e - b); });
}

template void dropout(const float*, MaskKey, double, float*, int64_t);
template void dropout(const double*, MaskKey, double, double*, int64_t);

}  // namespace kernels

// Declared in core/rng.h beside its scalar definition; vector code stays in this folder.
template <class T>
void mask_scale(MaskKey key, uint64_t first_index, int64_t n, double p, T* out) {
  kernels::masked<T>(nullptr, key, first_index, p, out, n);
}
template void mask_scale(MaskKey, uint64_t, int64_t, double, float*);
template void mask_scale(MaskKey, uint64_t, int64_t, double, double*);

}  // namespace bg
#endif  // HWY_ONCE
