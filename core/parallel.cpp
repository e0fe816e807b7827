#include "core/parallel.h"

#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>

#include "core/error.h"

namespace bg {
namespace {

constexpr int kMaxThreads = 1024;

std::atomic<bool> g_seen[kMaxThreads];

// An explicit arena gives the asked number of workers even where the machine has fewer cores; the global limit must
// allow them too.
struct Pool {
  explicit Pool(int n)
      : threads(n), limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(n)), arena(n) {}
  int threads;
  tbb::global_control limit;
  tbb::task_arena arena;
};

std::mutex g_mutex;
std::shared_ptr<Pool> g_pool;

std::shared_ptr<Pool> pool() {
  std::lock_guard lock(g_mutex);
  if (!g_pool) g_pool = std::make_shared<Pool>(std::max(1u, std::thread::hardware_concurrency()));
  return g_pool;
}

thread_local bool t_inside = false;

}  // namespace

int num_threads() { return pool()->threads; }

void set_num_threads(int n) {
  BG_CHECK(n >= 1 && n <= kMaxThreads, "threads", "bad number of threads", str(n), str("1 to ", kMaxThreads));
  std::lock_guard lock(g_mutex);
  if (g_pool && g_pool->threads == n) return;
  g_pool.reset();
  g_pool = std::make_shared<Pool>(n);
}

int worker_index() {
  if (!t_inside) return 0;
  const int i = tbb::this_task_arena::current_thread_index();
  return i < 0 ? 0 : i;
}

int distinct_workers() {
  int n = 0;
  for (const auto& s : g_seen) n += s.load(std::memory_order_relaxed);
  return n;
}

void reset_distinct_workers() {
  for (auto& s : g_seen) s.store(false, std::memory_order_relaxed);
}

namespace detail {

void run_chunks(int64_t chunks, ChunkFn f) {
  auto body = [&](int64_t c) {
    const bool was = t_inside;
    t_inside = true;
    struct Restore {
      bool was;
      ~Restore() { t_inside = was; }
    } restore{was};
    g_seen[worker_index()].store(true, std::memory_order_relaxed);
    f(c);
  };
  if (t_inside) {  // nested: stay on this worker, so that scratch per worker stays private
    for (int64_t c = 0; c < chunks; ++c) f(c);
    return;
  }
  auto p = pool();
  p->arena.execute([&] {
    tbb::parallel_for(int64_t{0}, chunks, body, tbb::simple_partitioner());
  });
}

}  // namespace detail
}  // namespace bg
