// Text of numbers, curves and tables.
#include <limits>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "tests/catch.h"

using namespace bg;

TEST_CASE("a sparkline goes from the smallest to the largest value, in the room there is") {
  CHECK(sparkline(std::vector<double>{8, 1, 2, 3, 4, 5, 6, 7}, 20) == "█▁▂▃▄▅▆▇");
  CHECK(sparkline(std::vector<double>{8, 8, 1, 1, 4, 5}, 3) == "█▁▅");
  CHECK(sparkline(std::vector<double>{3, 3}, 5) == "▁▁");
  CHECK(sparkline(std::vector<double>{1, 2}, 0).empty());
  CHECK(sparkline({}, 5).empty());
}

TEST_CASE("a table in Markdown is aligned as text") {
  CHECK(markdown_table({{"model", "d", "loss"}, {"a", "128", "1"}, {"wide", "x", "10.5"}}, 2) ==
        "| model | d   | loss |\n|-------|-----|-----:|\n| a     | 128 |    1 |\n| wide  | x   | 10.5 |\n");
  CHECK(markdown_table({}).empty());
}

TEST_CASE("things are counted in English") {
  CHECK(counted(0, "token") == "0 tokens");
  CHECK(counted(1, "token") == "1 token");
  CHECK(counted(2, "token") == "2 tokens");
}

TEST_CASE("an error's sentence keeps the dots of paths") {
  CHECK(error_text("op", "not a run folder", "..", "x/..", "./.") ==
        "[op] not a run folder: got .., expected x/... Try: ./..");
  CHECK(error_text("op", "cannot read the folder runs/.: it is gone.", "[op] a sentence.", "", "once again.") ==
        "[op] cannot read the folder runs/.: it is gone: got [op] a sentence. Try: once again.");
  CHECK(error_text("op", "no such folder ..", "'a b...'", "", "") == "[op] no such folder ..: got 'a b...'.");
  CHECK(error_text("op", "cut", "a b...", "c", "") == "[op] cut: got a b..., expected c.");
}

TEST_CASE("a NaN is printed without its sign") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(number_text(nan) == "nan");
  CHECK(number_text(-nan) == "nan");
  CHECK(number_text(-0.5) == "-0.5");
}
