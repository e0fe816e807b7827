// The yardsticks: plausible numbers, and the pool left as it was.
#include "core/error.h"
#include "core/kernels/peak.h"
#include "core/parallel.h"
#include "tests/catch.h"

TEST_CASE("the peaks are positive, double is about half of float, and the pool is left as it was") {
  bg::set_num_threads(2);
  double ratio = 0;  // 2 on a quiet machine; on a busy one some attempts are disturbed
  for (int attempt = 0; attempt < 100 && !(ratio > 1.6 && ratio < 2.4); ++attempt) {
    const double f32 = bg::fma_peak_gflops(1, 0.005), f64 = bg::fma_peak_gflops_f64(1, 0.005);
    CHECK(f64 > 0);
    ratio = f32 / f64;
  }
  CHECK(ratio > 1.6);
  CHECK(ratio < 2.4);
  CHECK(bg::CopyPeak().gbytes(2, 0.02) > 0);
  CHECK(bg::num_threads() == 2);
}

TEST_CASE("the peak measurement says what is wrong with its arguments") {
  CHECK_THROWS_AS(bg::fma_peak_gflops(0, 0.1), bg::Error);
  CHECK_THROWS_AS(bg::fma_peak_gflops(1, 0), bg::Error);
  CHECK_THROWS_AS(bg::CopyPeak().gbytes(1, -1), bg::Error);
}
