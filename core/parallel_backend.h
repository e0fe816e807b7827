// What a backend of core/parallel.h has to do, once: parallel_tbb.cpp does it with oneTBB, parallel_std.cpp with
// std::thread (for ThreadSanitizer, which cannot look into the distributions' oneTBB). CMake's BG_PARALLEL chooses.
#pragma once

#include <memory>

#include "core/parallel.h"

namespace bg::detail {

/// Runs a chunk as the worker of the given index.
void run_chunk_as(int worker, int64_t chunk, ChunkFn f);

/// A fixed number of workers, two or more, also where the machine has fewer cores.
class Workers {
 public:
  explicit Workers(int n);
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  int count() const { return count_; }

  /// run_chunk_as(worker, c, f) for all c in [0, chunks), in any order, no two at a time with the same worker index;
  /// the calling thread takes part. Once a chunk has thrown, those not begun are dropped and the first error is
  /// rethrown. Several threads may call at a time.
  void run(int64_t chunks, ChunkFn f);

 private:
  int count_;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace bg::detail
