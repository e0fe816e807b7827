// The yardsticks: plausible numbers, and the pool left as it was.
#include "core/error.h"
#include "core/kernels/peak.h"
#include "core/parallel.h"
#include "tests/catch.h"

TEST_CASE("the peaks are positive, double is about half of float, and the pool is left as it was") {
  bg::set_num_threads(2);
  const double f32 = bg::fma_peak_gflops(1, 0.02), f64 = bg::fma_peak_gflops_f64(1, 0.02);
  INFO("f32 " << f32 << " f64 " << f64 << " GFLOP/s");
  CHECK(f64 > 0);
  CHECK(f32 > 1.2 * f64);  // 2 on a quiet machine
  CHECK(f32 < 2.8 * f64);
  CHECK(bg::copy_peak_gbytes(2, 0.02) > 0);
  CHECK(bg::num_threads() == 2);
}

TEST_CASE("the peak measurement says what is wrong with its arguments") {
  CHECK_THROWS_AS(bg::fma_peak_gflops(0, 0.1), bg::Error);
  CHECK_THROWS_AS(bg::fma_peak_gflops(1, 0), bg::Error);
}
