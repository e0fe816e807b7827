#include "core/storage.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "core/error.h"

namespace bg {
namespace {

// Blocks from here on are whole pages, straight from the system.
constexpr size_t kLarge = size_t{1} << 20, kPage = 4096;

// Free pages. Neighbours become one range and ranges are split to fit, so that what four small blocks leave serves a
// large one, whichever way it was mapped.
class PageRanges {
 public:
  /// Best fit; null when no range is long enough.
  std::byte* take(size_t bytes) {
    const auto found = by_size_.lower_bound({bytes, nullptr});
    if (found == by_size_.end()) return nullptr;
    const auto [size, p] = *found;
    remove(p, size);
    if (size > bytes) insert(p + bytes, size - bytes);
    return p;
  }

  void give(std::byte* p, size_t size) {
    const auto next = by_address_.lower_bound(p);
    if (next != by_address_.end() && next->first == p + size) {
      const size_t more = next->second;
      remove(next->first, more);
      size += more;
    }
    const auto after = by_address_.lower_bound(p);
    if (after != by_address_.begin()) {
      const auto [before, length] = *std::prev(after);
      if (before + length == p) {
        remove(before, length);
        p = before;
        size += length;
      }
    }
    insert(p, size);
  }

  /// Returns at most `bytes` (whole pages) of the longest range to the system; how many, 0 when nothing is free.
  size_t unmap(size_t bytes) {
    if (by_size_.empty()) return 0;
    const auto [size, p] = *by_size_.rbegin();
    const size_t gone = std::min(size, bytes);
    remove(p, size);
    if (size > gone) insert(p, size - gone);
    munmap(p + size - gone, gone);
    return gone;
  }

 private:
  void insert(std::byte* p, size_t size) {
    by_address_.emplace(p, size);
    by_size_.emplace(size, p);
  }
  void remove(std::byte* p, size_t size) {
    by_address_.erase(p);
    by_size_.erase({size, p});
  }

  std::map<std::byte*, size_t> by_address_;
  std::set<std::pair<size_t, std::byte*>> by_size_;
};

std::byte* map_pages(size_t bytes) {
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return nullptr;
  madvise(p, bytes, MADV_HUGEPAGE);  // fewer faults and lookups; where the system has none, nothing changes
  return static_cast<std::byte*>(p);
}

[[noreturn]] void out_of_memory(size_t bytes, size_t live_bytes) {
  fail("storage", "out of memory", str(bytes, " more bytes with ", live_bytes, " in use"), "free memory",
       "a smaller batch or sequence");
}

// The freed blocks. Small ones are reused by best fit, at most a quarter larger than asked; large ones are page ranges.
class BlockCache {
 public:
  std::byte* take(size_t bytes, size_t& capacity) {
    std::lock_guard lock(mutex_);
    capacity = bytes < kLarge ? bytes : (bytes + kPage - 1) / kPage * kPage;
    std::byte* block = capacity < kLarge ? take_small(capacity) : pages_.take(capacity);
    if (block) {
      stats_.cached_bytes -= capacity;
    } else {
      trim(capacity);
      block = capacity < kLarge ? static_cast<std::byte*>(std::aligned_alloc(Storage::kAlignment, capacity))
                                : map_pages(capacity);
      if (!block) out_of_memory(bytes, stats_.live_bytes);
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
    if (capacity < kLarge)
      small_.emplace(capacity, block);
    else
      pages_.give(block, capacity);
  }

  void release() {
    std::lock_guard lock(mutex_);
    while (drop(stats_.cached_bytes)) {
    }
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
  std::byte* take_small(size_t& capacity) {
    const auto it = small_.lower_bound(capacity);
    if (it == small_.end() || it->first > capacity + capacity / 4) return nullptr;
    capacity = it->first;
    std::byte* block = it->second;
    small_.erase(it);
    return block;
  }

  // Gives cached memory back to the system, about `bytes` of it; false when there is none.
  bool drop(size_t bytes) {
    size_t gone = pages_.unmap((bytes + kPage - 1) / kPage * kPage);
    if (gone == 0 && !small_.empty()) {
      const auto it = std::prev(small_.end());
      gone = it->first;
      std::free(it->second);
      small_.erase(it);
    }
    stats_.cached_bytes -= gone;
    return gone > 0;
  }

  // Before new bytes come from the system, gives back cached ones that would lift the total over the high-water mark by
  // more than an eighth: with no room at all, every step would exchange some blocks for others.
  void trim(size_t incoming) {
    const size_t most = high_water_ + high_water_ / 8;
    for (size_t total = 0; (total = stats_.live_bytes + stats_.cached_bytes + incoming) > most;)
      if (!drop(total - most)) return;
  }

  std::mutex mutex_;
  std::multimap<size_t, std::byte*> small_;
  PageRanges pages_;
  MemoryStats stats_;
  size_t high_water_ = 0;
};

BlockCache& cache() {
  static auto* c = new BlockCache;  // never destroyed: static tensors may outlive any static cache
  return *c;
}

std::atomic<int64_t> allocations_to_failure{0};  // 0: none fails; see FailAllocation

}  // namespace

std::shared_ptr<Storage> Storage::make(size_t bytes) {
  BG_CHECK(bytes <= std::numeric_limits<size_t>::max() / 2, "storage", "more bytes than any machine has", str(bytes),
           "a size below 2^63");  // rounded up, it would wrap to a small one
  const size_t rounded = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  if (allocations_to_failure.load(std::memory_order_relaxed) > 0 && allocations_to_failure.fetch_sub(1) == 1)
    out_of_memory(rounded, memory_stats().live_bytes);
  std::shared_ptr<Storage> block(new Storage(bytes));  // first: nothing is lost where this throws
  block->data_ = cache().take(rounded, block->capacity_);
#ifndef NDEBUG
  std::memset(block->data_, 0xFF, block->capacity_);
#endif
  return block;
}

Storage::~Storage() {
  if (data_ != nullptr) cache().give(data_, capacity_);
}

MemoryStats memory_stats() { return cache().stats(); }
void reset_peak_bytes() { cache().reset_peak(); }
void release_cached_memory() { cache().release(); }

FailAllocation::FailAllocation(int64_t n) {
  BG_CHECK(n >= 1, "storage", "bad number of an allocation to fail", str(n), "1 or more");
  allocations_to_failure = n;
}
FailAllocation::~FailAllocation() { allocations_to_failure = 0; }
bool FailAllocation::happened() const { return allocations_to_failure <= 0; }

}  // namespace bg
