// Blocks of memory: reused, split and joined, never held much beyond what was needed at once.
#include <map>
#include <vector>

#include "core/error.h"
#include "core/rng.h"
#include "core/storage.h"
#include "tests/match.h"

using namespace bg;

namespace {
constexpr size_t kMega = size_t{1} << 20;
}

TEST_CASE("storage: the same requests again take nothing from the system") {
  release_cached_memory();
  auto step = [] {
    std::vector<std::shared_ptr<Storage>> held;
    for (size_t bytes : {size_t{100}, size_t{5000}, 3 * kMega, 8 * kMega, size_t{100}, kMega + 1})
      held.push_back(Storage::make(bytes));
  };
  step();
  const size_t before = memory_stats().system_allocations;
  step();
  CHECK(memory_stats().system_allocations == before);
}

TEST_CASE("storage: what small blocks leave behind serves a large one, and the other way round") {
  release_cached_memory();
  auto whole = Storage::make(8 * kMega);
  std::byte* first = whole->data();
  whole.reset();
  const size_t before = memory_stats().system_allocations;
  std::vector<std::shared_ptr<Storage>> parts;
  for (int i = 0; i < 4; ++i) parts.push_back(Storage::make(2 * kMega));
  CHECK(memory_stats().system_allocations == before);
  for (int i : {1, 3, 0, 2}) parts[static_cast<size_t>(i)].reset();  // joined in any order
  whole = Storage::make(8 * kMega);
  CHECK(memory_stats().system_allocations == before);
  CHECK(whole->data() == first);
}

TEST_CASE("storage: blocks never overlap, are aligned and keep their bytes, and the accounts are right") {
  release_cached_memory();
  Rng rng(1);
  struct Block {
    std::shared_ptr<Storage> storage;
    std::byte mark;
  };
  std::vector<Block> held;
  const size_t live_before = memory_stats().live_bytes;
  for (int i = 0; i < 600; ++i) {
    if (!held.empty() && rng.below(5) < 2) {
      const size_t at = rng.below(held.size());
      for (size_t k : {size_t{0}, held[at].storage->bytes() / 2, held[at].storage->bytes() - 1})
        REQUIRE(held[at].storage->data()[k] == held[at].mark);
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(at));
    } else if (held.size() < 40) {
      const size_t bytes = rng.below(2) ? 1 + rng.below(4096) : kMega / 2 + rng.below(4 * kMega);
      held.push_back({Storage::make(bytes), static_cast<std::byte>(i)});
      std::byte* p = held.back().storage->data();
      REQUIRE(reinterpret_cast<uintptr_t>(p) % Storage::kAlignment == 0);
      std::fill(p, p + bytes, static_cast<std::byte>(i));
    }
    std::map<const std::byte*, size_t> spans;
    for (const Block& b : held) spans[b.storage->data()] = b.storage->bytes();
    const std::byte* end = nullptr;
    for (const auto& [p, bytes] : spans) {
      REQUIRE(p >= end);
      end = p + bytes;
    }
    const MemoryStats s = memory_stats();
    REQUIRE(s.live_bytes + s.cached_bytes <= s.peak_bytes + s.peak_bytes / 8 + 8 * kMega);
  }
  held.clear();
  CHECK(memory_stats().live_bytes == live_before);
  release_cached_memory();
  CHECK(memory_stats().cached_bytes == 0);
}

TEST_CASE("storage: sizes that no machine has are refused and do not wrap to small ones") {
  for (size_t bytes : {~size_t{0}, ~size_t{0} / 2 + 1, ~size_t{0} - 63}) CHECK_THROWS_AS(Storage::make(bytes), Error);
}

TEST_CASE("storage: an allocation fails when a test wants it to, from the cache too") {
  const size_t live = memory_stats().live_bytes;
  for (const int64_t n : {1, 3}) {
    const FailAllocation failure(n);
    for (int64_t i = 1; i < n; ++i) CHECK_NOTHROW(Storage::make(100));
    CHECK(!failure.happened());
    CHECK_THROWS_WITH(Storage::make(100), Contains("[storage] out of memory"));
    CHECK(failure.happened());
    CHECK_NOTHROW(Storage::make(100));  // once
  }
  { const FailAllocation not_reached(2); }
  CHECK_NOTHROW(Storage::make(100));
  CHECK_NOTHROW(Storage::make(100));
  CHECK_THROWS_AS(FailAllocation(0), Error);
  CHECK(memory_stats().live_bytes == live);
}
