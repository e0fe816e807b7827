// Arithmetic on sizes: what is refused, and that nothing overflows on the way.
#include <limits>
#include <sstream>

#include "core/shape.h"
#include "tests/match.h"

using namespace bg;

namespace {
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
}

TEST_CASE("shape: sizes, and changes to them") {
  Shape s{2, 3};
  CHECK(s.rank() == 2);
  CHECK(s.numel() == 6);
  CHECK(s.rows() == 2);
  CHECK(s.back() == 3);
  s.insert(0, 5);
  CHECK(s == Shape{5, 2, 3});
  CHECK(s.rows() == 10);
  s.erase(1);
  CHECK(s == Shape{5, 3});
  CHECK(s.without_last() == Shape{5});
  CHECK(s.with_size(-1, 7, "test") == Shape{5, 7});
  CHECK(Shape::filled(3, 4) == Shape{4, 4, 4});
  CHECK(Shape{}.numel() == 1);
  CHECK(Shape{}.rows() == 1);
  CHECK(Shape{7}.rows() == 1);
  CHECK(Shape{3, 0}.numel() == 0);
  CHECK(!(Shape{3} == Shape{3, 1}));
  CHECK(str(Shape{}, Shape{1}, Shape{1, 2}) == "()(1,)(1, 2)");
}

TEST_CASE("shape: dimensions count from both ends") {
  const Shape s{4, 5, 6};
  CHECK(s.dim(0, "test") == 0);
  CHECK(s.dim(-1, "test") == 2);
  CHECK(s.dim(-3, "test") == 0);
  CHECK_THROWS_WITH(s.dim(3, "test"), Contains("[test] dimension out of range") && Contains("-3 to 2"));
  CHECK_THROWS_WITH(s.dim(-4, "test"), Contains("[test] dimension out of range"));
  CHECK_THROWS_WITH(Shape{}.dim(0, "test"), Contains("a tensor with dimensions"));
}

TEST_CASE("shape: more than eight dimensions are refused") {
  const Shape eight = Shape::filled(8, 1);
  CHECK_THROWS_WITH(Shape::filled(9, 1), Contains("[shape] too many dimensions: got 9, expected at most 8"));
  CHECK_THROWS_AS(Shape(std::vector<int64_t>(9, 1)), Error);
  CHECK_THROWS_AS(Shape(eight).insert(0, 1), Error);
}

TEST_CASE("shape: the number of elements is below 2^59, whatever the sizes are") {
  CHECK(Shape{Shape::kMaxElements}.numel() == Shape::kMaxElements);
  CHECK(Shape({int64_t{1} << 58, 1}).numel() == int64_t{1} << 58);
  for (const Shape& s : {Shape{int64_t{1} << 59}, Shape{int64_t{1} << 32, int64_t{1} << 32}, Shape{kMost, kMost, kMost},
                         Shape{0, int64_t{1} << 30, int64_t{1} << 30}, Shape{int64_t{1} << 61, 0}})
    CHECK_THROWS_WITH(s.numel("test"), Contains("[test] too many elements") && Contains("fewer than 2^59"));
  for (const Shape& s : {Shape{-1}, Shape{3, -1}, Shape{0, -5}, Shape{std::numeric_limits<int64_t>::min()}})
    CHECK_THROWS_WITH(s.numel("test"), Contains("[test] negative size") && Contains(str(s)));
}

TEST_CASE("shape: sizes that are added") {
  CHECK(added_sizes("test", {}) == 0);
  CHECK(added_sizes("test", {1, 0, 4}) == 5);
  CHECK_THROWS_WITH(added_sizes("test", {3, -1}), Contains("[test] negative size"));
  CHECK_THROWS_WITH(added_sizes("test", {kMost, kMost}), Contains("[test] sizes add up to too many"));
  CHECK_THROWS_WITH(added_sizes("test", {Shape::kMaxElements, 1}), Contains("[test] sizes add up to too many"));
}

TEST_CASE("shape: positions of a slice") {
  for (int64_t size = 0; size < 7; ++size)
    for (int64_t begin = 0; begin <= size; ++begin)
      for (int64_t step = 1; step < 9; ++step) {
        int64_t count = 0;
        for (int64_t i = begin; i < size; i += step) ++count;
        CHECK(slice_count(begin, size, step) == count);
      }
  for (const int64_t step : {kMost, kMost - 1, kMost - 2}) {
    CHECK(slice_count(0, 5, step) == 1);
    CHECK(slice_count(5, 5, step) == 0);
  }
  CHECK(slice_count(0, kMost, 1) == kMost);
  CHECK(slice_count(0, kMost, 2) == kMost / 2 + 1);
}

TEST_CASE("shape: strides and positions in row-major order") {
  CHECK(contiguous_strides({2, 3, 4}) == Shape{12, 4, 1});
  CHECK(contiguous_strides({}) == Shape{});
  CHECK(contiguous_strides({2, 0, 4}) == Shape{4, 4, 1});
  CHECK(position_of({2, 3, 4}, 23) == Shape{1, 2, 3});
  CHECK(position_of({2, 3, 4}, 4) == Shape{0, 1, 0});
}

TEST_CASE("shape: broadcasting") {
  CHECK(broadcast_shapes({2, 1}, {3}, "test") == Shape{2, 3});
  CHECK(broadcast_shapes({}, {4, 5}, "test") == Shape{4, 5});
  CHECK(broadcast_shapes({0}, {1}, "test") == Shape{0});
  CHECK_THROWS_WITH(broadcast_shapes({2}, {3}, "test"), Contains("[test] shapes do not broadcast"));
  CHECK_THROWS_WITH(broadcast_shapes({int64_t{1} << 32, 1}, {int64_t{1} << 32}, "test"),
                    Contains("[test] too many elements"));
  CHECK_THROWS_WITH(broadcast_shapes({}, {-3}, "test"), Contains("[test] negative size"));
}

TEST_CASE("shape: a shape with the same number of elements") {
  CHECK(reshaped({2, 6}, {3, -1}) == Shape{3, 4});
  CHECK(reshaped({2, 6}, {12}) == Shape{12});
  CHECK(reshaped({}, {-1}) == Shape{1});
  CHECK(reshaped({0, 3}, {-1, 3}) == Shape{0, 3});
  CHECK(reshaped({0}, {2, 0}) == Shape{2, 0});
  CHECK_THROWS_WITH(reshaped({4}, {-1, -1}), Contains("[reshape] more than one free size"));
  CHECK_THROWS_WITH(reshaped({4}, {3, -1}), Contains("[reshape] sizes do not divide"));
  CHECK_THROWS_WITH(reshaped({0}, {-1, 0}), Contains("[reshape] sizes do not divide"));
  CHECK_THROWS_WITH(reshaped({4}, {5}), Contains("[reshape] number of elements differs"));
  CHECK_THROWS_WITH(reshaped({4}, {-2, -2}), Contains("[reshape] negative size"));
  CHECK_THROWS_WITH(reshaped({0}, {int64_t{1} << 62, 4, -1}), Contains("[reshape] too many elements"));
}
