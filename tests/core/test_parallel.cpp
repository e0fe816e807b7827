// core/parallel.h: both backends (BG_PARALLEL) have to pass.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <thread>

#include "core/error.h"
#include "core/parallel.h"
#include "tests/catch.h"

namespace {

void pause_for_the_others() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

int64_t sum_to(int64_t n) {
  return bg::parallel_sum<int64_t>(n, 7, [](int64_t b, int64_t e) {
    int64_t s = 0;
    for (int64_t i = b; i < e; ++i) s += i;
    return s;
  });
}

}  // namespace

TEST_CASE("parallel_for covers every item once on the asked number of workers") {
  for (int threads : {1, 2, 4, 9}) {
    bg::set_num_threads(threads);
    CHECK(bg::num_threads() == threads);
    const bg::GatherWorkers gather;
    bg::reset_distinct_workers();
    std::vector<int> hits(1000);
    bg::parallel_for(1000, 10, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) ++hits[i];
    });
    for (int h : hits) REQUIRE(h == 1);
    CHECK(bg::distinct_workers() == threads);
  }
}

TEST_CASE("gathered workers: no more than there are chunks, and an error ends the work") {
  const bg::GatherWorkers gather;
  for (int threads : {2, 4}) {
    bg::set_num_threads(threads);
    for (int64_t chunks : {2, 3, 4, 5}) {
      bg::reset_distinct_workers();
      bg::parallel_for(chunks, 1, [](int64_t, int64_t) {});
      REQUIRE(bg::distinct_workers() == std::min<int64_t>(threads, chunks));
      REQUIRE_THROWS_AS(bg::parallel_for(chunks, 1, [](int64_t, int64_t) { throw std::runtime_error("x"); }),
                        std::runtime_error);
    }
  }
}

TEST_CASE("gathered workers meet again between chunks: no chunk begins while one of the round before it runs") {
  const bg::GatherWorkers gather;
  for (int threads : {2, 4}) {
    bg::set_num_threads(threads);
    for (int64_t chunks : {2, 5, 16, 500}) {
      std::atomic<int64_t> begun{0}, done{0}, early{0}, total{0};
      std::vector<int64_t> by_worker(threads);
      bg::parallel_for(chunks, 1, [&](int64_t, int64_t) {
        const int64_t met = std::min<int64_t>(chunks, 8 * threads), before = begun++;
        if (before < met) {
          early += done < before / threads * threads;
          ++by_worker[bg::worker_index()];
        }
        bg::parallel_for(3, 1, [&](int64_t, int64_t) { ++total; });  // nested: nobody is waited for
        ++done;
      });
      REQUIRE(early == 0);
      REQUIRE(total == 3 * chunks);
      if (chunks == 16)
        for (int64_t n : by_worker) REQUIRE(n == 16 / threads);
    }
  }
}

TEST_CASE("gathered workers: callers that hold each other's workers go on in the end") {
  const bg::GatherWorkers gather;
  bg::set_num_threads(3);
  std::vector<int64_t> results(3);
  std::vector<std::thread> callers;
  for (auto& r : results)
    callers.emplace_back([&r] {
      for (int i = 0; i < 50; ++i) r += sum_to(1001);
    });
  for (auto& c : callers) c.join();
  for (int64_t r : results) CHECK(r == 50 * 500500);
}

TEST_CASE("ChunkOrder: all chunks on the calling thread, in reverse or in an order drawn from the seed") {
  bg::set_num_threads(4);
  const auto thread = std::this_thread::get_id();
  auto order_of = [&](int64_t n) {
    std::vector<int64_t> order;
    bg::parallel_for(n, 1, [&](int64_t b, int64_t) {
      REQUIRE(std::this_thread::get_id() == thread);
      REQUIRE(bg::worker_index() == 0);
      order.push_back(b);
    });
    return order;
  };
  auto shuffled = [&](uint64_t seed, int64_t n) {
    const bg::ChunkOrder other(seed);
    return order_of(n);
  };
  CHECK(shuffled(0, 5) == std::vector<int64_t>{4, 3, 2, 1, 0});
  CHECK(shuffled(0, 1) == std::vector<int64_t>{0});
  const auto one = shuffled(1, 20), two = shuffled(2, 20);
  CHECK(one == shuffled(1, 20));
  CHECK(one != two);
  for (auto order : {one, two}) {
    CHECK_FALSE(std::is_sorted(order.begin(), order.end()));
    CHECK_FALSE(std::is_sorted(order.rbegin(), order.rend()));
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < 20; ++i) REQUIRE(order[i] == i);
  }

  const bg::GatherWorkers without_effect;
  const bg::ChunkOrder reversed(0);
  {
    const bg::ChunkOrder inner(1);
    CHECK(order_of(20) == one);
  }
  CHECK(order_of(3) == std::vector<int64_t>{2, 1, 0});
  CHECK(sum_to(1001) == 500500);
}

TEST_CASE("ChunkOrder: nested work is reordered, too, and errors reach the caller") {
  bg::set_num_threads(4);
  std::vector<int64_t> order;
  {
    const bg::ChunkOrder reversed(0);
    bg::parallel_for(2, 1, [&](int64_t outer, int64_t) {
      bg::parallel_for(2, 1, [&](int64_t inner, int64_t) { order.push_back(10 * outer + inner); });
    });
    CHECK_THROWS_AS(bg::parallel_for(3, 1, [](int64_t, int64_t) { throw std::runtime_error("x"); }),
                    std::runtime_error);
  }
  CHECK(order == std::vector<int64_t>{11, 10, 1, 0});
}

TEST_CASE("[R30] parallel_sum has the same bits for 1, 2 and 4 threads") {
  std::vector<double> results;
  for (int threads : {1, 2, 4}) {
    bg::set_num_threads(threads);
    results.push_back(bg::parallel_sum<double>(100003, 1000, [](int64_t b, int64_t e) {
      double s = 0;
      for (int64_t i = b; i < e; ++i) s += 1.0 / (1 + i);
      return s;
    }));
  }
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
}

TEST_CASE("FineChunks: single items, each sum still in the order of the items") {
  bg::set_num_threads(4);
  std::vector<int64_t> sizes(10);
  const double fine = [&] {
    const bg::FineChunks cut;
    const bg::GatherWorkers gather;
    bg::reset_distinct_workers();
    bg::parallel_for(10, 100, [&](int64_t b, int64_t e) { sizes[b] = e - b; });
    CHECK(bg::distinct_workers() == 4);
    return bg::parallel_sum<double>(10, 4, [](int64_t b, int64_t e) { return e - b == 1 ? 1.0 / (1 + b) : NAN; });
  }();
  CHECK(sizes == std::vector<int64_t>(10, 1));
  double expected = 0;
  for (int i = 0; i < 10; ++i) expected += 1.0 / (1 + i);
  CHECK(fine == expected);
  CHECK(bg::chunk_size(100) == 100);
  CHECK(bg::chunk_size(-1) == 1);
}

TEST_CASE("parallel_for: odd sizes") {
  bg::set_num_threads(4);
  int calls = 0;
  bg::parallel_for(0, 10, [&](int64_t, int64_t) { ++calls; });
  bg::parallel_for(-3, 10, [&](int64_t, int64_t) { ++calls; });
  CHECK(calls == 0);
  bg::parallel_for(5, 10, [&](int64_t b, int64_t e) { calls += b == 0 && e == 5; });
  CHECK(calls == 1);
  std::vector<int> hits(23);
  bg::parallel_for(23, 0, [&](int64_t b, int64_t e) { hits[b] += e - b == 1; });  // a grain below 1 counts as 1
  CHECK(std::count(hits.begin(), hits.end(), 1) == 23);
  CHECK(sum_to(0) == 0);
  CHECK(sum_to(1001) == 500500);
}

TEST_CASE("worker indices are below num_threads and never shared at the same time") {
  bg::set_num_threads(4);
  CHECK(bg::worker_index() == 0);
  std::atomic<int> busy[4]{};
  std::atomic<int> clashes{0}, out_of_range{0};
  bg::parallel_for(200, 1, [&](int64_t, int64_t) {
    const int w = bg::worker_index();
    if (w < 0 || w >= 4) return void(++out_of_range);
    if (busy[w].fetch_add(1) != 0) ++clashes;
    pause_for_the_others();
    busy[w].fetch_sub(1);
  });
  CHECK(clashes == 0);
  CHECK(out_of_range == 0);
  CHECK(bg::worker_index() == 0);
}

TEST_CASE("nested parallel work stays on its worker") {
  bg::set_num_threads(4);
  std::atomic<int> strays{0};
  std::atomic<int64_t> total{0};
  bg::parallel_for(40, 1, [&](int64_t, int64_t) {
    const int outer = bg::worker_index();
    const auto thread = std::this_thread::get_id();
    bg::parallel_for(30, 1, [&](int64_t, int64_t) {
      if (bg::worker_index() != outer || std::this_thread::get_id() != thread) ++strays;
      ++total;
    });
    pause_for_the_others();
  });
  CHECK(strays == 0);
  CHECK(total == 1200);
}

TEST_CASE("the first error of parallel work reaches the caller, and the pool works on") {
  for (int threads : {1, 2, 4}) {
    bg::set_num_threads(threads);
    for (int round = 0; round < 20; ++round) {
      std::string what;
      try {
        bg::parallel_for(100, 1, [&](int64_t b, int64_t) {
          if (b % 10 == 3) throw std::runtime_error("chunk failed");
        });
      } catch (const std::runtime_error& e) {
        what = e.what();
      }
      REQUIRE(what == "chunk failed");
      REQUIRE(bg::worker_index() == 0);
      REQUIRE(sum_to(1001) == 500500);
    }
  }
}

TEST_CASE("set_num_threads rejects nonsense and may change between and inside parallel work") {
  CHECK_THROWS_AS(bg::set_num_threads(0), bg::Error);
  CHECK_THROWS_AS(bg::set_num_threads(-2), bg::Error);
  CHECK_THROWS_AS(bg::set_num_threads(1025), bg::Error);
  for (int round = 0; round < 10; ++round) {
    bg::set_num_threads(1 + round % 5);
    REQUIRE(sum_to(1001) == 500500);
  }
  bg::set_num_threads(3);
  std::atomic<int> n{0};
  bg::parallel_for(20, 1, [&](int64_t b, int64_t) {
    if (b == 7) bg::set_num_threads(2);
    ++n;
  });
  CHECK(n == 20);
  CHECK(bg::num_threads() == 2);
  CHECK(sum_to(1001) == 500500);
}

TEST_CASE("several threads may start parallel work at a time") {
  for (int threads : {1, 3}) {
    bg::set_num_threads(threads);
    std::vector<int64_t> results(3);
    std::vector<std::thread> callers;
    for (auto& r : results)
      callers.emplace_back([&r] {
        for (int i = 0; i < 50; ++i) r += sum_to(1001);
      });
    for (auto& c : callers) c.join();
    for (int64_t r : results) CHECK(r == 50 * 500500);
  }
}

#ifndef __SANITIZE_THREAD__  // which ends a forked child that starts a thread
TEST_CASE("a forked child can do parallel work and end") {
  bg::set_num_threads(4);
  REQUIRE(sum_to(1001) == 500500);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) _exit(sum_to(1001) == 500500 ? 0 : 1);
  int status = -1;
  for (int i = 0; i < 1000 && waitpid(child, &status, WNOHANG) == 0; ++i) pause_for_the_others();
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif
