// Parallel work on std::thread: every hand-over is a mutex that ThreadSanitizer sees.
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/parallel_backend.h"

namespace bg::detail {

struct Workers::Impl {
  // One call of run(). Lives on the caller's stack: the caller waits until no worker is inside.
  struct Job {
    Job(int64_t n, ChunkFn fn) : chunks(n), f(fn) {}
    const int64_t chunks;
    const ChunkFn f;
    std::atomic<int64_t> next{0};
    int inside = 0;            // workers that took this job and have not left it; guarded by mutex
    std::exception_ptr error;  // the first; guarded by mutex
  };

  std::mutex callers;  // one job at a time
  std::mutex mutex;
  std::condition_variable wake, left;
  Job* job = nullptr;  // guarded by mutex
  bool stop = false;   // guarded by mutex
  std::vector<std::thread> threads;

  void take_chunks(Job& j, int worker) {
    for (int64_t c; (c = j.next.fetch_add(1, std::memory_order_relaxed)) < j.chunks;) {
      try {
        run_chunk_as(worker, c, j.f);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!j.error) j.error = std::current_exception();
        j.next.store(j.chunks, std::memory_order_relaxed);  // nobody begins another chunk
      }
    }
  }

  void work(int worker) {
    std::unique_lock lock(mutex);
    while (true) {
      wake.wait(lock, [&] { return stop || job; });
      if (stop) return;
      Job& j = *job;
      ++j.inside;
      lock.unlock();
      take_chunks(j, worker);
      lock.lock();
      if (job == &j) job = nullptr;  // nothing is left to take; later wakers need not look
      if (--j.inside == 0) left.notify_all();
    }
  }
};

Workers::Workers(int n) : count_(n), impl_(std::make_unique<Impl>()) {
  for (int i = 1; i < n; ++i) impl_->threads.emplace_back([impl = impl_.get(), i] { impl->work(i); });
}

Workers::~Workers() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stop = true;
  }
  impl_->wake.notify_all();
  for (auto& t : impl_->threads) t.join();
}

void Workers::run(int64_t chunks, ChunkFn f) {
  std::lock_guard one_caller(impl_->callers);
  Impl::Job job(chunks, f);
  {
    std::lock_guard lock(impl_->mutex);
    impl_->job = &job;
  }
  impl_->wake.notify_all();
  impl_->take_chunks(job, 0);
  std::unique_lock lock(impl_->mutex);
  impl_->job = nullptr;
  impl_->left.wait(lock, [&] { return job.inside == 0; });
  if (job.error) std::rethrow_exception(job.error);
}

}  // namespace bg::detail
