// What both backends of core/parallel.h share: the pool's life, nesting, worker indices, statistics.
#include "core/parallel.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/parallel_backend.h"

namespace bg {
namespace {

constexpr int kMaxThreads = 1024;
constexpr int kOutside = -1;

thread_local int t_worker = kOutside;

std::atomic<bool> g_seen[kMaxThreads];
std::atomic<int> g_gathering{0};  // living GatherWorkers
std::atomic<int> g_fine{0};       // living FineChunks

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

// Where the workers of one piece of parallel work wait for each other.
class Gathering {
 public:
  explicit Gathering(size_t wanted) : wanted_(wanted) {}
  void arrive(int worker) {
    std::unique_lock lock(mutex_);
    if (present_.insert(worker).second) changed_.notify_all();
    changed_.wait_for(lock, std::chrono::seconds(10), [&] { return present_.size() >= wanted_; });
  }

 private:
  const size_t wanted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::set<int> present_;
};

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

GatherWorkers::GatherWorkers() { ++g_gathering; }
GatherWorkers::~GatherWorkers() { --g_gathering; }

FineChunks::FineChunks() { ++g_fine; }
FineChunks::~FineChunks() { --g_fine; }

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
  if (t_worker != kOutside) {  // nested: stay on this worker, so that scratch per worker stays private
    for (int64_t c = 0; c < chunks; ++c) f(c);
    return;
  }
  if (const auto pool = workers()) {
    if (g_gathering == 0) return pool->run(chunks, f);
    Gathering gathering(std::min<int64_t>(chunks, pool->count()));
    auto together = [&](int64_t c) {
      gathering.arrive(t_worker);
      f(c);
    };
    return pool->run(chunks, ChunkFn(together));
  }
  for (int64_t c = 0; c < chunks; ++c) run_chunk_as(0, c, f);
}

}  // namespace detail
}  // namespace bg
