// The tests' own matcher: it must fail where it should.
#include <limits>

#include "tests/match.h"

TEST_CASE("[R40] close: explicit tolerances, nothing is near zero by itself, NaN fails") {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  CHECK(close(1.0, 1.0 + 1e-12, 1e-11));
  CHECK_FALSE(close(1.0, 1.0 + 1e-10, 1e-11));
  CHECK_FALSE(close(1e-300, 0, 1e-3));  // relative to zero: only zero is near it
  CHECK(close(0, 0, 0));
  CHECK(close(1e-13, 0, 0, 1e-12));
  CHECK_FALSE(close(nan, 1, 1e9, 1e9));
  CHECK_FALSE(close(1, nan, 1e9, 1e9));
  CHECK_FALSE(close(nan, nan, 1e9, 1e9));
  CHECK_FALSE(close(inf, 1, 1e-3));
}
