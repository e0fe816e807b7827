// Storage: an aligned, counted block of bytes that tensors share. It knows neither dtype nor shape.
//
// Freed blocks are kept for reuse, so a steady training step takes nothing from the system. The blocks kept never make
// the total exceed the largest number of bytes that were live at once by more than an eighth.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace bg {

class Storage {
 public:
  static constexpr size_t kAlignment = 64;

  /// Uninitialised bytes (all-ones in debug builds: NaN as floats).
  static std::shared_ptr<Storage> make(size_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  /// Counts writes; a saved tensor whose count has moved must not be used (autograd checks this).
  uint64_t version() const { return version_; }
  /// The op that wrote last; `writer` must outlive the storage (op names are string literals).
  std::string_view last_writer() const { return last_writer_; }
  void mark_written(std::string_view writer) {
    ++version_;
    last_writer_ = writer;
  }

 private:
  explicit Storage(size_t bytes) : bytes_(bytes) {}
  std::byte* data_ = nullptr;
  size_t bytes_, capacity_ = 0;
  uint64_t version_ = 0;
  std::string_view last_writer_ = "creation";
};

struct MemoryStats {
  size_t live_bytes = 0;          ///< in blocks that some tensor holds
  size_t peak_bytes = 0;          ///< largest live_bytes since the start or reset_peak_bytes()
  size_t cached_bytes = 0;        ///< in freed blocks kept for reuse
  size_t system_allocations = 0;  ///< blocks ever taken from the system
};
MemoryStats memory_stats();
void reset_peak_bytes();
void release_cached_memory();

/// For tests: while one lives, the n-th allocation from now on (1 is the next, those from the cache count too) fails as
/// when memory has run out. One at a time.
class FailAllocation {
 public:
  explicit FailAllocation(int64_t n);
  ~FailAllocation();
  FailAllocation(const FailAllocation&) = delete;
  FailAllocation& operator=(const FailAllocation&) = delete;
  bool happened() const;
};

}  // namespace bg
