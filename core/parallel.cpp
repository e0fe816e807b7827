// What both backends of core/parallel.h share: the pool's life, nesting, worker indices, statistics.
#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/parallel_backend.h"
#include "core/rng.h"

namespace bg {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kOutside = -1;

thread_local int t_worker = kOutside;

std::atomic<bool> g_seen[kMaxThreads];
std::atomic<int> g_fine{0};  // living FineChunks

// What else tests have changed. A bit set and read as a whole, so that ordinary work pays for a single relaxed load.
enum Changed : unsigned { kGather = 1, kOrder = 2 };
std::atomic<unsigned> g_changed{0};
std::atomic<int> g_gathering{0};         // living GatherWorkers
std::atomic<bool> g_nobody_came{false};  // a worker was waited for in vain
std::atomic<uint64_t> g_order_seed{0};

// The number of threads and, from the second thread on, the workers; made at first use.
struct State {
  std::mutex mutex;
  int threads = 0;
  std::shared_ptr<detail::Workers> workers;
  std::shared_ptr<detail::Workers>* parents = nullptr;  // in a forked child: what must not be touched any more
};

State& state() {
  static State s;
  // A forked child has none of its parent's threads and must neither wait for them nor join them: the parent's pool is
  // put aside there for good, and a new one is made at first use.
  static const int handlers = pthread_atfork([] { s.mutex.lock(); }, [] { s.mutex.unlock(); },
                                             [] {
                                               s.parents = new std::shared_ptr(std::move(s.workers));
                                               s.mutex.unlock();
                                             });
  (void)handlers;
  return s;
}

int threads_locked(State& s) {
  if (s.threads == 0) s.threads = std::clamp<int>(std::thread::hardware_concurrency(), 1, kMaxThreads);
  return s.threads;
}

// Null for a single thread.
std::shared_ptr<detail::Workers> workers() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  if (!s.workers && threads_locked(s) > 1) s.workers = std::make_shared<detail::Workers>(s.threads);
  return s.workers;
}

// Where the workers of one piece of parallel work meet. Each arrival is one chunk, `workers` of them make a round; who
// waits takes no other chunk, so the arrivals of a round are as many workers. A round begins in two steps: all arrive,
// and sleep if that takes long; then as many as there are cores see each other awake and start at one moment. Else the
// last to arrive would be done with a small chunk before the others have woken up.
class Gathering {
 public:
  Gathering(int64_t chunks, int64_t workers) : chunks_(std::min(chunks, kRounds * workers)), workers_(workers) {}

  // The chunks that are left go on without meeting.
  bool is_over() const { return arrived_ >= chunks_; }

  void arrive() {
    const int64_t arrival = arrived_++, first = arrival - arrival % workers_;
    const int64_t last = std::min(chunks_, first + workers_);  // of the round's arrivals, and one more
    if (arrival >= last) return;
    if (arrival + 1 == last)
      wake();
    else if (!spin(kSpin, [&] { return arrived_ >= last; }) && !sleep(last))
      return;
    if (++awake_ == first + std::min(last - first, kCores)) {
      start_ = now() + kNotice;
      begun_ = last;
    }
    if (spin(kAwake, [&] { return begun_ >= last; }))
      while (now() < start_.load()) {
      }
  }

  // Nobody waits any more: a chunk has failed, those not begun will not arrive.
  void abandon() {
    const std::lock_guard lock(mutex_);
    abandoned_ = true;
    changed_.notify_all();
  }

 private:
  using Duration = std::chrono::steady_clock::duration;
  static constexpr int64_t kRounds = 8;  // a meeting takes up to 0.1 ms on a busy machine
  static constexpr Duration kPatience = std::chrono::seconds(10), kSpin = std::chrono::microseconds(20),
                            kAwake = std::chrono::microseconds(200), kNotice = std::chrono::nanoseconds(500);
  static inline const int64_t kCores = std::max(1u, std::thread::hardware_concurrency());

  static Duration now() { return std::chrono::steady_clock::now().time_since_epoch(); }

  template <class F>
  static bool spin(Duration limit, F&& done) {
    for (const Duration end = now() + limit; now() < end;)
      if (done()) return true;
    return false;
  }

  void wake() {
    const std::lock_guard lock(mutex_);
    changed_.notify_all();
  }

  bool sleep(int64_t last) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kPatience, [&] { return abandoned_ || arrived_ >= last; })) {
      g_nobody_came = abandoned_ = true;
      changed_.notify_all();
    }
    return arrived_ >= last;
  }

  const int64_t chunks_, workers_;  // chunks_: those before which workers meet
  std::atomic<int64_t> arrived_{0}, awake_{0}, begun_{0};
  std::atomic<Duration> start_{};  // of the round begun last
  std::mutex mutex_;
  std::condition_variable changed_;
  bool abandoned_ = false;  // guarded by mutex_
};

// Binds the calling thread to the index-th of the cores that it may use, in a ring. Left to themselves, workers that
// wake each other share a core on a busy machine.
class OnCore {
 public:
  explicit OnCore(int index) {
    if (sched_getaffinity(0, sizeof before_, &before_) != 0) return;
    index %= CPU_COUNT(&before_);
    int core = 0;
    while (!CPU_ISSET(core, &before_) || index-- > 0) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    bound_ = sched_setaffinity(0, sizeof one, &one) == 0;
  }
  ~OnCore() {
    if (bound_) sched_setaffinity(0, sizeof before_, &before_);
  }
  OnCore(const OnCore&) = delete;
  OnCore& operator=(const OnCore&) = delete;

 private:
  cpu_set_t before_;
  bool bound_ = false;
};

void run_gathered(detail::Workers& pool, int64_t chunks, detail::ChunkFn f) {
  Gathering gathering(chunks, std::min<int64_t>(chunks, pool.count()));
  auto together = [&](int64_t c) {
    if (gathering.is_over()) return f(c);
    const OnCore apart(t_worker);
    gathering.arrive();
    try {
      f(c);
    } catch (...) {
      gathering.abandon();
      throw;
    }
  };
  pool.run(chunks, detail::ChunkFn(together));
}

// On the calling thread, as worker 0 unless it already is one.
void run_in_order(uint64_t seed, int64_t chunks, detail::ChunkFn f) {
  std::vector<int64_t> order(chunks);
  std::iota(order.rbegin(), order.rend(), int64_t{0});
  Rng rng(seed);
  for (int64_t i = chunks - 1; seed != 0 && i > 0; --i) std::swap(order[i], order[rng.below(i + 1)]);
  for (int64_t c : order) detail::run_chunk_as(worker_index(), c, f);
}

}  // namespace

int num_threads() {
  State& s = state();
  std::lock_guard lock(s.mutex);
  return threads_locked(s);
}

void set_num_threads(int n) {
  BG_CHECK(n >= 1 && n <= kMaxThreads, "threads", "bad number of threads", str(n), str("1 to ", kMaxThreads));
  State& s = state();
  std::shared_ptr<detail::Workers> old;  // ends after the lock is released
  std::lock_guard lock(s.mutex);
  if (s.threads == n) return;
  s.threads = n;
  old.swap(s.workers);
}

int worker_index() { return std::max(t_worker, 0); }

int distinct_workers() {
  int n = 0;
  for (const auto& s : g_seen) n += s.load(std::memory_order_relaxed);
  return n;
}

void reset_distinct_workers() {
  for (auto& s : g_seen) s.store(false, std::memory_order_relaxed);
}

GatherWorkers::GatherWorkers() {
  if (g_gathering++ == 0) g_nobody_came = false;
  g_changed |= kGather;
}
GatherWorkers::~GatherWorkers() {
  if (--g_gathering == 0) g_changed &= ~kGather;
}

FineChunks::FineChunks() { ++g_fine; }
FineChunks::~FineChunks() { --g_fine; }

ChunkOrder::ChunkOrder(uint64_t seed) : outer_((g_changed & kOrder) != 0), outer_seed_(g_order_seed.exchange(seed)) {
  g_changed |= kOrder;
}
ChunkOrder::~ChunkOrder() {
  g_order_seed = outer_seed_;
  if (!outer_) g_changed &= ~kOrder;
}

int64_t chunk_size(int64_t grain) {
  return g_fine.load(std::memory_order_relaxed) > 0 ? 1 : std::max<int64_t>(grain, 1);
}

namespace detail {

void run_chunk_as(int worker, int64_t chunk, ChunkFn f) {
  struct Restore {
    int before = t_worker;
    ~Restore() { t_worker = before; }
  } restore;
  t_worker = worker;
  if (!g_seen[worker].load(std::memory_order_relaxed)) g_seen[worker].store(true, std::memory_order_relaxed);
  f(chunk);
}

void run_chunks(int64_t chunks, ChunkFn f) {
  const unsigned changed = g_changed.load(std::memory_order_relaxed);
  if (changed & kOrder) return run_in_order(g_order_seed, chunks, f);
  if (t_worker != kOutside) {  // nested: stay on this worker, so that scratch per worker stays private
    for (int64_t c = 0; c < chunks; ++c) f(c);
    return;
  }
  if (const auto pool = workers()) {
    if (changed & kGather && !g_nobody_came) return run_gathered(*pool, chunks, f);
    return pool->run(chunks, f);
  }
  for (int64_t c = 0; c < chunks; ++c) run_chunk_as(0, c, f);
}

}  // namespace detail
}  // namespace bg
