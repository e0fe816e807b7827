// The one door to threads. Work is cut into chunks whose borders depend on the problem alone, never on the number of
// threads, so every result has the same bits for any thread count; sums are combined in chunk order.
#pragma once

#include <cstdint>
#include <functional>
#include <type_traits>
#include <vector>

namespace bg {

/// Threads that parallel work may use (at least 1). Set once by the program (--threads); defaults to the hardware's.
int num_threads();
void set_num_threads(int n);  ///< throws Error when n < 1 or n > 1024

/// Index of the worker that runs the calling code, in [0, num_threads()); 0 outside parallel work. For scratch buffers.
int worker_index();

/// How many distinct workers have run a chunk since the last reset (tests assert that threads were really used).
int distinct_workers();
void reset_distinct_workers();

/// For tests that have to see several threads at work, however busy the machine is. While one lives, parallel work of
/// n chunks begins with eight rounds: min(n, num_threads()) workers meet with a chunk each, start at one moment, on
/// cores of their own as far as there are any, and meet again for their next chunks. Nested work does not meet. After
/// ten seconds in which a worker did not come nobody waits any more, until the last GatherWorkers is gone.
class GatherWorkers {
 public:
  GatherWorkers();
  ~GatherWorkers();
  GatherWorkers(const GatherWorkers&) = delete;
  GatherWorkers& operator=(const GatherWorkers&) = delete;
};

/// For tests of small problems: while one lives, work is cut into chunks of a single item each, so that it is spread
/// over threads at all. The borders still do not depend on the number of threads.
class FineChunks {
 public:
  FineChunks();
  ~FineChunks();
  FineChunks(const FineChunks&) = delete;
  FineChunks& operator=(const FineChunks&) = delete;
};

/// For tests that what a piece of work computes does not depend on who is first: while one lives, all parallel work
/// runs on the thread that calls it, as worker 0, its chunks in an order that depends on the seed and on their number
/// alone; seed 0 is the reverse order. One inside another replaces it (they begin and end on one thread); GatherWorkers
/// have no effect meanwhile.
class ChunkOrder {
 public:
  explicit ChunkOrder(uint64_t seed);
  ~ChunkOrder();
  ChunkOrder(const ChunkOrder&) = delete;
  ChunkOrder& operator=(const ChunkOrder&) = delete;

 private:
  const bool outer_;
  const uint64_t outer_seed_;
};

/// Items per chunk when `grain` are wanted: what parallel_for will do, for those who keep something per chunk.
int64_t chunk_size(int64_t grain);

namespace detail {
// Non-owning reference to a callable: no allocation, no template in the backend.
class ChunkFn {
 public:
  template <class F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, ChunkFn>) explicit ChunkFn(F&& f)
      : object_(const_cast<void*>(static_cast<const void*>(std::addressof(f)))),
        call_([](void* o, int64_t chunk) { (*static_cast<std::remove_reference_t<F>*>(o))(chunk); }) {}
  void operator()(int64_t chunk) const { call_(object_, chunk); }

 private:
  void* object_;
  void (*call_)(void*, int64_t);
};
void run_chunks(int64_t chunks,
                ChunkFn f);  // f(0) ... f(chunks - 1), any order, on any worker; rethrows the first error
}  // namespace detail

/// Calls f(begin, end) for consecutive ranges of at most `grain` items that cover [0, n).
template <class F>
void parallel_for(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return;
  grain = chunk_size(grain);
  const int64_t chunks = (n + grain - 1) / grain;
  if (chunks == 1) return f(int64_t{0}, n);
  auto run = [&](int64_t c) { f(c * grain, (c + 1) * grain < n ? (c + 1) * grain : n); };
  detail::run_chunks(chunks, detail::ChunkFn(run));
}

/// Sum of f(begin, end) over fixed ranges of `grain` items, added in index order.
template <class T, class F>
T parallel_sum(int64_t n, int64_t grain, F&& f) {
  if (n <= 0) return T{};
  grain = chunk_size(grain);
  std::vector<T> part((n + grain - 1) / grain);
  parallel_for(n, grain, [&](int64_t begin, int64_t end) { part[begin / grain] = f(begin, end); });
  T total{};
  for (const T& p : part) total += p;
  return total;
}

}  // namespace bg
