// Parallel work on oneTBB.
#include <oneapi/tbb/global_control.h>
#include <oneapi/tbb/parallel_for.h>
#include <oneapi/tbb/task_arena.h>

#include "core/parallel_backend.h"

namespace bg::detail {

// oneTBB sizes itself by the cores. An arena of its own gives the asked number of workers even where there are fewer,
// once the global limit (the smallest of all that are alive) allows them.
struct Workers::Impl {
  explicit Impl(int n) : limit(tbb::global_control::max_allowed_parallelism, static_cast<size_t>(n)), arena(n) {}
  tbb::global_control limit;
  tbb::task_arena arena;
};

Workers::Workers(int n) : count_(n), impl_(std::make_unique<Impl>(n)) {}
Workers::~Workers() = default;

void Workers::run(int64_t chunks, ChunkFn f) {
  impl_->arena.execute([&] {
    tbb::parallel_for(
        int64_t{0}, chunks,
        [&](int64_t chunk) { run_chunk_as(tbb::this_task_arena::current_thread_index(), chunk, f); },
        tbb::simple_partitioner());
  });
}

}  // namespace bg::detail
