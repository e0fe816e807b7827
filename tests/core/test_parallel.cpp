#include "core/parallel.h"

#include <chrono>
#include <thread>

#include "tests/catch.h"

TEST_CASE("parallel_for covers every item once on the asked number of workers") {
  for (int threads : {1, 2, 4}) {
    bg::set_num_threads(threads);
    bg::reset_distinct_workers();
    std::vector<int> hits(1000);
    bg::parallel_for(1000, 10, [&](int64_t b, int64_t e) {
      for (int64_t i = b; i < e; ++i) ++hits[i];
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    for (int h : hits) REQUIRE(h == 1);
    CHECK(bg::distinct_workers() == threads);
  }
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
