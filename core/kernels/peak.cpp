// Peak measurements; the inner loops are compiled once per instruction set and chosen at run time.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/peak.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/cache_control.h>
#include <hwy/highway.h>

#include <cstdint>

HWY_BEFORE_NAMESPACE();
namespace bg {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// Twelve chains hide a latency of up to six cycles at two multiply-adds a cycle and still fit, with both constants, in
// the sixteen registers of the poorest target. x -> 0.5 x + 0.5 stays at 1, so no denormals and no overflow appear.
template <class T>
T fma_chains(int64_t rounds) {
  const hn::ScalableTag<T> d;
  const auto scale = hn::Set(d, T(0.5)), shift = hn::Set(d, T(0.5));
  // Different starts: equal chains could be computed once.
  auto a0 = hn::Iota(d, T(0)), a1 = hn::Iota(d, T(1)), a2 = hn::Iota(d, T(2)), a3 = hn::Iota(d, T(3));
  auto a4 = hn::Iota(d, T(4)), a5 = hn::Iota(d, T(5)), a6 = hn::Iota(d, T(6)), a7 = hn::Iota(d, T(7));
  auto a8 = hn::Iota(d, T(8)), a9 = hn::Iota(d, T(9)), a10 = hn::Iota(d, T(10)), a11 = hn::Iota(d, T(11));
  for (int64_t i = 0; i < rounds; ++i) {
    a0 = hn::MulAdd(a0, scale, shift);
    a1 = hn::MulAdd(a1, scale, shift);
    a2 = hn::MulAdd(a2, scale, shift);
    a3 = hn::MulAdd(a3, scale, shift);
    a4 = hn::MulAdd(a4, scale, shift);
    a5 = hn::MulAdd(a5, scale, shift);
    a6 = hn::MulAdd(a6, scale, shift);
    a7 = hn::MulAdd(a7, scale, shift);
    a8 = hn::MulAdd(a8, scale, shift);
    a9 = hn::MulAdd(a9, scale, shift);
    a10 = hn::MulAdd(a10, scale, shift);
    a11 = hn::MulAdd(a11, scale, shift);
  }
  const auto sum =
      hn::Add(hn::Add(hn::Add(a0, a1), hn::Add(a2, a3)),
              hn::Add(hn::Add(hn::Add(a4, a5), hn::Add(a6, a7)), hn::Add(hn::Add(a8, a9), hn::Add(a10, a11))));
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

float fma_f32(int64_t rounds) { return fma_chains<float>(rounds); }
double fma_f64(int64_t rounds) { return fma_chains<double>(rounds); }
int64_t flops_per_round_f32() { return 12 * 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<float>())); }
int64_t flops_per_round_f64() { return 12 * 2 * static_cast<int64_t>(hn::Lanes(hn::ScalableTag<double>())); }

void copy(const float* from, float* to, int64_t n) {
  const hn::ScalableTag<float> d;
  const int64_t lanes = hn::Lanes(d);
  for (int64_t i = 0; i < n; i += lanes) hn::Stream(hn::Load(d, from + i), d, to + i);
  hwy::FlushStream();
}

}  // namespace HWY_NAMESPACE
}  // namespace bg
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <chrono>

#include "core/error.h"
#include "core/kernels/peak.h"
#include "core/parallel.h"

namespace bg {
namespace {

HWY_EXPORT(fma_f32);
HWY_EXPORT(fma_f64);
HWY_EXPORT(flops_per_round_f32);
HWY_EXPORT(flops_per_round_f64);
HWY_EXPORT(copy);

// Units of work per second of `threads` workers: runs passes of chunk(0) .. chunk(chunks - 1) until the time is over.
// The first pass, which wakes the workers and touches the memory, is not counted.
template <class F>
double chunks_per_second(int threads, double seconds, int64_t chunks, F&& chunk) {
  BG_CHECK(threads >= 1, "peak", "bad number of threads", str(threads), "at least 1");
  BG_CHECK(seconds > 0, "peak", "bad duration", str(seconds, " s"), "more than 0");
  struct Threads {
    explicit Threads(int n) : before(num_threads()) { set_num_threads(n); }
    ~Threads() { set_num_threads(before); }
    int before;
  } scope(threads);
  auto pass = [&] {
    parallel_for(chunks, 1, [&](int64_t begin, int64_t end) {
      for (int64_t c = begin; c < end; ++c) chunk(c);
    });
  };
  pass();
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  int64_t done = 0;
  double elapsed = 0;
  while (elapsed < seconds) {
    pass();
    done += chunks;
    elapsed = std::chrono::duration<double>(Clock::now() - start).count();
  }
  return static_cast<double>(done) / elapsed;
}

// A chunk of 20,000 rounds takes some 60 microseconds: short against a pass, so that the workers end together.
constexpr int64_t kRounds = 20000;
constexpr int64_t kChunksPerThread = 64;

}  // namespace

double fma_peak_gflops(int threads, double seconds) {
  const double chunks = chunks_per_second(threads, seconds, kChunksPerThread * threads, [](int64_t) {
    [[maybe_unused]] volatile float sink = HWY_DYNAMIC_DISPATCH(fma_f32)(kRounds);
  });
  return chunks * kRounds * HWY_DYNAMIC_DISPATCH(flops_per_round_f32)() * 1e-9;
}

double fma_peak_gflops_f64(int threads, double seconds) {
  const double chunks = chunks_per_second(threads, seconds, kChunksPerThread * threads, [](int64_t) {
    [[maybe_unused]] volatile double sink = HWY_DYNAMIC_DISPATCH(fma_f64)(kRounds);
  });
  return chunks * kRounds * HWY_DYNAMIC_DISPATCH(flops_per_round_f64)() * 1e-9;
}

constexpr int64_t kCopyChunk = int64_t{1} << 18, kCopyChunks = 128;  // 1 MiB pieces

struct CopyPeak::Buffers {
  hwy::AlignedFreeUniquePtr<float[]> from = hwy::AllocateAligned<float>(kCopyChunk * kCopyChunks),
                                     to = hwy::AllocateAligned<float>(kCopyChunk * kCopyChunks);
};

CopyPeak::CopyPeak() : buffers_(std::make_unique<Buffers>()) {
  BG_CHECK(buffers_->from && buffers_->to, "peak", "no memory for the copy", "", "256 MiB");
  std::fill_n(buffers_->from.get(), kCopyChunk * kCopyChunks, 1.0f);
}
CopyPeak::~CopyPeak() = default;

double CopyPeak::gbytes(int threads, double seconds) {
  const double chunks = chunks_per_second(threads, seconds, kCopyChunks, [&](int64_t c) {
    HWY_DYNAMIC_DISPATCH(copy)(buffers_->from.get() + c * kCopyChunk, buffers_->to.get() + c * kCopyChunk, kCopyChunk);
  });
  return chunks * 2 * kCopyChunk * sizeof(float) * 1e-9;
}

}  // namespace bg
#endif  // HWY_ONCE
