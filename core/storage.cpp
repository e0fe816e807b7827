#include "core/storage.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "core/error.h"

namespace bg {
namespace {

// Best fit among the freed blocks: deterministic, and at most a quarter larger than asked.
class BlockCache {
 public:
  std::byte* take(size_t bytes, size_t& capacity) {
    std::lock_guard lock(mutex_);
    auto it = free_.lower_bound(bytes);
    std::byte* block = nullptr;
    if (it != free_.end() && it->first <= bytes + bytes / 4) {
      capacity = it->first;
      block = it->second;
      stats_.cached_bytes -= capacity;
      free_.erase(it);
    } else {
      capacity = bytes;
      trim(bytes);
      block = static_cast<std::byte*>(std::aligned_alloc(Storage::kAlignment, capacity));
      if (!block)
        fail("storage", "out of memory", str(bytes, " more bytes with ", stats_.live_bytes, " in use"), "free memory",
             "a smaller batch or sequence");
      ++stats_.system_allocations;
    }
    stats_.live_bytes += capacity;
    stats_.peak_bytes = std::max(stats_.peak_bytes, stats_.live_bytes);
    high_water_ = std::max(high_water_, stats_.live_bytes);
    return block;
  }

  void give(std::byte* block, size_t capacity) {
    std::lock_guard lock(mutex_);
    stats_.live_bytes -= capacity;
    stats_.cached_bytes += capacity;
    free_.emplace(capacity, block);
  }

  void release() {
    std::lock_guard lock(mutex_);
    for (auto& [size, block] : free_) std::free(block);
    free_.clear();
    stats_.cached_bytes = 0;
  }

  MemoryStats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.peak_bytes = stats_.live_bytes;
  }

 private:
  // Before new bytes come from the system, give back cached ones that would lift the total over the high-water mark.
  void trim(size_t incoming) {
    while (!free_.empty() && stats_.live_bytes + stats_.cached_bytes + incoming > high_water_) {
      auto it = std::prev(free_.end());
      stats_.cached_bytes -= it->first;
      std::free(it->second);
      free_.erase(it);
    }
  }

  std::mutex mutex_;
  std::multimap<size_t, std::byte*> free_;
  MemoryStats stats_;
  size_t high_water_ = 0;
};

BlockCache& cache() {
  static auto* c = new BlockCache;  // never destroyed: static tensors may outlive any static cache
  return *c;
}

}  // namespace

std::shared_ptr<Storage> Storage::make(size_t bytes) {
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  size_t capacity = 0;
  std::byte* data = cache().take(rounded, capacity);
#ifndef NDEBUG
  std::memset(data, 0xFF, capacity);
#endif
  return std::shared_ptr<Storage>(new Storage(data, bytes, capacity));
}

Storage::~Storage() { cache().give(data_, capacity_); }

MemoryStats memory_stats() { return cache().stats(); }
void reset_peak_bytes() { cache().reset_peak(); }
void release_cached_memory() { cache().release(); }

}  // namespace bg
