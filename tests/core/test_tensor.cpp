// Tensors themselves: making, asking, views, copies and conversions, and what each refuses.
#include <cmath>
#include <limits>

#include "core/rng.h"
#include "core/tensor.h"
#include "core/tensor_ops.h"
#include "tests/match.h"

using namespace bg;

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr DType kDTypes[] = {DType::f32, DType::f64, DType::i32, DType::i64, DType::bf16};

using Ints = std::vector<int64_t>;
Ints ints(const Tensor& t) { return t.to_vector<int64_t>(); }

// 0 ... n - 1 in a shape.
Tensor counting(const Shape& shape, DType dtype = DType::f32) {
  return Tensor::arange(shape.numel(), dtype).reshape(shape);
}

}  // namespace

// -- Making -----------------------------------------------------------------------------------------------------------

TEST_CASE("tensor: made of every dtype") {
  for (const DType t : kDTypes) {
    INFO(t);
    CHECK(ints(Tensor::zeros({2, 2}, t)) == Ints{0, 0, 0, 0});
    CHECK(ints(Tensor::full({3}, -7, t)) == Ints{-7, -7, -7});
    CHECK(ints(Tensor::arange(4, t)) == Ints{0, 1, 2, 3});
    CHECK(Tensor::scalar(5, t).item() == 5);
    CHECK(Tensor::empty({2, 3}, t).strides() == Shape{3, 1});
    CHECK(Tensor::arange(0, t).numel() == 0);
  }
  CHECK(Tensor::of(std::vector<float>{1, 2, 3, 4}, {2, 2}).at({1, 0}) == 3);
  CHECK_THROWS_WITH(Tensor::of({1, 2, 3}, {2, 2}), Contains("[tensor] number of values does not fit the shape"));
}

TEST_CASE("tensor: sizes that no tensor can have are refused by whatever makes one") {
  Rng r(1);
  const int64_t huge = int64_t{1} << 61;
  for (const Shape& s : {Shape{-1, 3}, Shape{3, -1}}) {
    CHECK_THROWS_WITH(Tensor::empty(s), Contains("negative size"));
    CHECK_THROWS_WITH(Tensor::zeros(s), Contains("negative size"));
    CHECK_THROWS_WITH(Tensor::full(s, 1), Contains("negative size"));
    CHECK_THROWS_WITH(Tensor::randn(s, r), Contains("negative size"));
    CHECK_THROWS_WITH(Tensor::rand(s, r, 0, 1), Contains("negative size"));
    CHECK_THROWS_WITH(Tensor::of({1, 2, 3}, s), Contains("negative size"));
  }
  for (const Shape& s : {Shape{huge}, Shape{int64_t{1} << 32, int64_t{1} << 32}}) {
    CHECK_THROWS_WITH(Tensor::empty(s), Contains("too many elements"));
    CHECK_THROWS_WITH(Tensor::randn(s, r), Contains("too many elements"));
    CHECK_THROWS_WITH(Tensor::rand(s, r, 0, 1), Contains("too many elements"));
    CHECK_THROWS_WITH(Tensor::of({1, 2, 3}, s), Contains("too many elements"));
  }
  CHECK_THROWS_WITH(Tensor::arange(huge), Contains("too many elements"));
  CHECK_THROWS_WITH(Tensor::arange(-1), Contains("[arange] negative count"));
  // More than any machine has, though it could be counted.
  CHECK_THROWS_WITH(Tensor::arange(int64_t{1} << 58), Contains("[storage] out of memory"));
  CHECK_THROWS_WITH(Tensor::randn({int64_t{1} << 58}, r), Contains("[storage] out of memory"));
  CHECK(r == Rng(1));  // nothing drawn for what was not made
}

TEST_CASE("tensor: arange ends where a dtype no longer has every whole number") {
  CHECK(Tensor::arange(257, DType::bf16).flat(256) == 256);
  CHECK_THROWS_WITH(Tensor::arange(258, DType::bf16), Contains("[arange] bf16 does not have every whole number"));
  CHECK(Tensor::arange((1 << 24) + 1, DType::f32).flat(1 << 24) == 1 << 24);
  CHECK_THROWS_WITH(Tensor::arange((1 << 24) + 2, DType::f32), Contains("[arange] f32 does not have"));
  CHECK_THROWS_WITH(Tensor::arange((int64_t{1} << 31) + 1, DType::i32), Contains("[arange] i32 does not have"));
  CHECK_THROWS_WITH(Tensor::arange((int64_t{1} << 53) + 2, DType::f64), Contains("[arange] f64 does not have"));
}

TEST_CASE("tensor: whole numbers are written with all their digits, and refused where there is no room") {
  const int64_t odd = (int64_t{1} << 53) + 1;
  CHECK(Tensor::full({2}, odd, DType::i64).flat<int64_t>(1) == odd);
  CHECK(Tensor::scalar(kMost, DType::i64).item<int64_t>() == kMost);
  CHECK(Tensor::scalar(std::numeric_limits<int64_t>::min(), DType::i64).item<int64_t>() ==
        std::numeric_limits<int64_t>::min());
  CHECK(Tensor::scalar(size_t{3}, DType::i64).item() == 3);
  CHECK(Tensor::full({1}, true, DType::i32).item() == 1);
  CHECK(Tensor::scalar('a', DType::i64).item() == 97);
  CHECK_THROWS_WITH(Tensor::scalar(~uint64_t{0}, DType::i64), Contains("[tensor] number too large"));
  CHECK_THROWS_WITH(Tensor::scalar(int64_t{1} << 31, DType::i32), Contains("2147483648"));
  for (const double bad : {0.5, std::nan(""), kInfinite, -kInfinite, 1e19}) {
    CHECK_THROWS_WITH(Tensor::full({2}, bad, DType::i64), Contains("[full] the dtype does not have this value"));
    Tensor t = Tensor::full({2}, 7, DType::i32);
    CHECK_THROWS_WITH(t.fill(bad), Contains("[fill] the dtype does not have this value"));
    CHECK(ints(t) == Ints{7, 7});
  }
}

// -- Random numbers ---------------------------------------------------------------------------------------------------

TEST_CASE("tensor: uniform numbers never reach their upper bound") {
  Rng nearly_one(1, 0, 109568476);  // draws 1 - 2^-26 or more
  CHECK(Tensor::rand({1}, nearly_one, 0, 1).item() == 1 - 0x1p-24);
  for (const DType t : {DType::f32, DType::f64, DType::bf16})
    for (const auto& [low, high] : {std::pair{0.0, 1.0}, std::pair{-1.0, 0.0}, std::pair{-3.0, -1.0},
                                    std::pair{1.0, 1.0 + 0x1p-7}, std::pair{-0x1p100, 0x1p-100}}) {
      INFO(t << " [" << low << ", " << high << ")");
      Rng r(2);
      const std::vector<double> x = Tensor::rand({20000}, r, low, high, t).to_vector<double>();
      CHECK(*std::min_element(x.begin(), x.end()) >= low);
      CHECK(*std::max_element(x.begin(), x.end()) < high);
      CHECK(r.offset() == 40000);  // two words each, whatever is drawn
    }
  Rng r(3);
  const Tensor x = Tensor::rand({100000}, r, 2, 4, DType::bf16);
  CHECK(std::abs(num::sum(x.to(DType::f64)).item() / 1e5 - 3) < 5 * 2 / std::sqrt(12.0 * 1e5) + 0x1p-8);
}

TEST_CASE("tensor: uniform numbers of an empty or endless range are refused") {
  Rng r(1);
  const double most = std::numeric_limits<double>::max();
  for (const auto& [low, high] : {std::pair{1.0, 1.0}, std::pair{1.0, 0.0}, std::pair{0.0, std::nan("")},
                                  std::pair{-most, most}, std::pair{0.0, kInfinite}, std::pair{-kInfinite, 0.0}})
    CHECK_THROWS_WITH(Tensor::rand({2}, r, low, high, DType::f64), Contains("[rand] no numbers to choose from"));
  CHECK_THROWS_WITH(Tensor::rand({2}, r, 0, 1e300), Contains("as f32"));                      // no such float
  CHECK_THROWS_WITH(Tensor::rand({2}, r, -3e38, 3e38), Contains("their difference finite"));  // 6e38 is none, either
  CHECK_THROWS_WITH(Tensor::rand({2}, r, -3e38, 3e38, DType::bf16), Contains("as bf16"));
  CHECK(Tensor::rand({2}, r, -3e38, 3e38, DType::f64).numel() == 2);
  CHECK_THROWS_WITH(Tensor::rand({2}, r, 1, 1 + 0x1p-10, DType::bf16), Contains("as bf16"));  // one and the same there
  CHECK_THROWS_WITH(Tensor::rand({2}, r, 0, 9, DType::i64), Contains("[rand] not a floating dtype"));
  CHECK_THROWS_WITH(Tensor::randn({2}, r, DType::i32), Contains("[randn] not a floating dtype"));
}

// -- Single values and text -------------------------------------------------------------------------------------------

TEST_CASE("tensor: single values are exact or refused") {
  const int64_t odd = (int64_t{1} << 53) + 1;
  const Tensor t = Tensor::of(Ints{odd, odd - 1, -odd, kMost}, {2, 2});
  CHECK(t.flat<int64_t>(0) == odd);
  CHECK(t.at<int64_t>({1, 0}) == -odd);
  CHECK(t.at<int64_t>({1, 1}) == kMost);
  CHECK(t.flat(1) == 0x1p53);
  CHECK_THROWS_WITH(t.flat(0), Contains("9007199254740993 in i64") && Contains("item<int64_t>()"));
  CHECK_THROWS_AS(t.flat(2), Error);
  CHECK_THROWS_AS(t.flat(3), Error);  // 2^63 - 1 rounds to 2^63, which has no way back
  CHECK_THROWS_AS(Tensor::scalar(odd, DType::i64).item(), Error);
  CHECK(Tensor::scalar(odd, DType::i64).item<int64_t>() == odd);
  CHECK(Tensor::scalar(2.5).item() == 2.5);
  CHECK(Tensor::scalar(-3.0, DType::f64).item<int64_t>() == -3);
  for (const double bad : {2.5, std::nan(""), kInfinite, 0x1p63})
    CHECK_THROWS_AS(Tensor::scalar(bad, DType::f64).item<int64_t>(), Error);
  CHECK(Tensor::scalar(-0x1p63, DType::f64).item<int64_t>() == std::numeric_limits<int64_t>::min());
  CHECK(std::isnan(Tensor::scalar(std::nan("")).item()));
  CHECK_THROWS_WITH(t.item(), Contains("[item] not a single value"));
  CHECK_THROWS_WITH(t.flat(4), Contains("index out of range"));
  CHECK_THROWS_WITH(t.flat(-1), Contains("index out of range"));
  CHECK_THROWS_WITH(t.at({0, 2}), Contains("[at] index out of range"));
  CHECK_THROWS_WITH(t.at({0}), Contains("[at] wrong number of indices"));
  CHECK_THROWS_WITH(Tensor().item(), Contains("undefined tensor"));
}

TEST_CASE("tensor: text shows integers whole, and floats with the digits that tell them apart") {
  CHECK(Tensor::of(Ints{123456789, kMost}, {2}).to_string() == "i64 (2,) [123456789, 9223372036854775807]");
  CHECK(Tensor::scalar(-2147483647 - 1, DType::i32).to_string() == "i32 () [-2147483648]");
  CHECK(Tensor::of({1, 0.5, -2, 0.1}, {4}, DType::f32).to_string() == "f32 (4,) [1, 0.5, -2, 0.1]");
  CHECK(Tensor::scalar(1 + 0x1p-52, DType::f64).element_text(0) == "1.0000000000000002");
  CHECK(Tensor::scalar(16777217, DType::f64).element_text(0) == "1.6777217e+07");
  CHECK(Tensor::of({std::nan(""), -std::nan(""), kInfinite, -kInfinite}, {4}).to_string() ==
        "f64 (4,) [nan, nan, inf, -inf]");
  CHECK(Tensor::full({9}, 1).to_string() == "f32 (9,) [1, 1, 1, 1, 1, 1, 1, 1, ...]");
  CHECK(Tensor::zeros({0, 2}).to_string() == "f32 (0, 2) []");
  CHECK(Tensor().to_string() == "undefined");
  CHECK(str(Tensor::scalar(3, DType::bf16)) == "bf16 () [3]");
}

// -- Views ------------------------------------------------------------------------------------------------------------

TEST_CASE("tensor: views share storage and show the right elements") {
  const Tensor t = counting({2, 3, 4});
  CHECK(t.transpose(0, -1).shape() == Shape{4, 3, 2});
  CHECK(t.transpose(0, 2).at({3, 1, 1}) == 19);
  CHECK(t.permute({2, 0, 1}).shape() == Shape{4, 2, 3});
  CHECK(t.permute({2, 0, 1}).at({3, 1, 2}) == 23);
  CHECK(t.permute({-1, -3, -2}).at({3, 1, 2}) == 23);
  CHECK(ints(t.select(1, 2)) == Ints{8, 9, 10, 11, 20, 21, 22, 23});
  CHECK(ints(t.select(-1, 0)) == Ints{0, 4, 8, 12, 16, 20});
  CHECK(t.unsqueeze(0).shape() == Shape{1, 2, 3, 4});
  CHECK(t.unsqueeze(-1).shape() == Shape{2, 3, 4, 1});
  CHECK(t.unsqueeze(1).squeeze(1).strides() == t.strides());
  CHECK(t.unsqueeze(1).transpose(0, 1).is_contiguous());
  for (const Tensor& view : {t.transpose(0, 1), t.permute({1, 2, 0}), t.select(0, 1), t.slice(2, 1, 3), t.unsqueeze(2),
                             t.reshape({6, 4}), t.expand({5, 2, 3, 4})}) {
    CHECK(view.same_storage(t));
    CHECK(view.storage()->version() == t.storage()->version());
  }
  CHECK(!t.transpose(0, 1).is_contiguous());
  CHECK(t.slice(0, 0, 1).is_contiguous());
  CHECK(!t.slice(1, 0, 2).is_contiguous());
}

TEST_CASE("tensor: views refuse what is not there") {
  const Tensor t = counting({2, 3});
  CHECK_THROWS_WITH(t.transpose(0, 2), Contains("[transpose] dimension out of range"));
  CHECK_THROWS_WITH(t.permute({0}), Contains("[permute] wrong number of dimensions"));
  CHECK_THROWS_WITH(t.permute({0, -2}), Contains("[permute] dimension named twice"));
  CHECK_THROWS_WITH(t.select(0, 2), Contains("[select] index out of range"));
  CHECK_THROWS_WITH(t.select(0, -1), Contains("[select] index out of range"));
  CHECK_THROWS_WITH(t.unsqueeze(3), Contains("[unsqueeze] dimension out of range"));
  CHECK_THROWS_WITH(t.unsqueeze(-4), Contains("[unsqueeze] dimension out of range"));
  CHECK_THROWS_WITH(t.squeeze(0), Contains("[squeeze] size is not 1"));
  CHECK_THROWS_WITH(t.slice(0, 0, 3), Contains("[slice] range out of bounds"));
  CHECK_THROWS_WITH(t.slice(0, -1, 1), Contains("[slice] range out of bounds"));
  CHECK_THROWS_WITH(t.slice(0, 2, 1), Contains("[slice] range out of bounds"));
  CHECK_THROWS_WITH(t.slice(0, 0, kMost), Contains("[slice] range out of bounds"));
  CHECK_THROWS_WITH(t.slice(0, 0, 1, 0), Contains("[slice] bad step"));
  CHECK_THROWS_WITH(t.slice(0, 0, 1, -1), Contains("[slice] bad step"));
}

TEST_CASE("tensor: slices of any step") {
  const Tensor t = Tensor::arange(5);
  CHECK(ints(t.slice(0, 1, 5, 2)) == Ints{1, 3});
  CHECK(ints(t.slice(0, 0, 5, 2)) == Ints{0, 2, 4});
  CHECK(ints(t.slice(0, 0, 5, 2).slice(0, 1, 3)) == Ints{2, 4});
  CHECK(ints(t.slice(0, 3, 3)) == Ints{});
  CHECK(ints(t.slice(0, 5, 5, 3)) == Ints{});
  for (const int64_t step : {kMost, kMost - 1, kMost - 2, int64_t{5}}) {
    CHECK(ints(t.slice(0, 0, 5, step)) == Ints{0});
    CHECK(ints(t.slice(0, 4, 5, step)) == Ints{4});
    CHECK(ints(t.slice(0, 5, 5, step)) == Ints{});
    const Tensor columns = counting({3, 5}).slice(1, 1, 5, step);
    CHECK(ints(columns) == Ints{1, 6, 11});
    CHECK(ints(columns.slice(1, 0, 1, step).unsqueeze(0)) == Ints{1, 6, 11});
  }
}

TEST_CASE("tensor: expanded tensors are read everywhere and written nowhere") {
  const Tensor row = counting({3});
  CHECK(ints(row.expand({2, 3})) == Ints{0, 1, 2, 0, 1, 2});
  CHECK(ints(counting({2, 1}).expand({2, 3})) == Ints{0, 0, 0, 1, 1, 1});
  CHECK_THROWS_WITH(row.expand({4}), Contains("[expand]"));
  CHECK_THROWS_WITH(row.expand({}), Contains("[expand] shape does not expand"));
  CHECK_THROWS_WITH(Tensor::scalar(1).expand({-3}), Contains("[expand] negative size"));
  CHECK_THROWS_WITH(Tensor::scalar(1).expand({int64_t{1} << 32, int64_t{1} << 32}),
                    Contains("[expand] too many elements"));
  CHECK(Tensor::scalar(1).expand({int64_t{1} << 58}).numel() == int64_t{1} << 58);

  Tensor wide = row.expand({2, 3});
  const uint64_t version = row.storage()->version();
  CHECK_THROWS_WITH(wide.fill(7), Contains("[fill] cannot write into an expanded tensor") && Contains("clone()"));
  CHECK_THROWS_WITH(wide.copy_from(Tensor::zeros({2, 3})), Contains("[copy] cannot write into an expanded tensor"));
  CHECK_THROWS_WITH(wide.copy_from(wide), Contains("[copy] cannot write into an expanded tensor"));
  CHECK_THROWS_WITH(num::add_into(wide, Tensor::zeros({2, 3})),
                    Contains("[add_into] cannot write into an expanded tensor"));
  CHECK_THROWS_WITH(wide.mutable_data<float>("raw"), Contains("[raw] cannot write into an expanded tensor"));
  CHECK(ints(row) == Ints{0, 1, 2});
  CHECK(row.storage()->version() == version);
  row.expand({1, 3}).fill(7);  // a place for each element
  CHECK(ints(row) == Ints{7, 7, 7});
}

TEST_CASE("tensor: reshape is a view where strides allow, else a copy") {
  const Tensor t = counting({2, 6});
  CHECK(t.reshape({3, -1}).shape() == Shape{3, 4});
  CHECK(t.reshape({-1}).same_storage(t));
  CHECK(ints(t.transpose(0, 1).reshape({12})) == Ints{0, 6, 1, 7, 2, 8, 3, 9, 4, 10, 5, 11});
  CHECK(!t.transpose(0, 1).reshape({12}).same_storage(t));
  CHECK(Tensor::zeros({0, 3}).reshape({3, 0}).shape() == Shape{3, 0});
  CHECK_THROWS_WITH(t.reshape({5}), Contains("[reshape] number of elements differs"));
  CHECK_THROWS_WITH(t.reshape({-1, 5}), Contains("[reshape] sizes do not divide"));
  CHECK_THROWS_WITH(t.reshape({-3, -4}), Contains("[reshape] negative size"));
}

// -- Copies -----------------------------------------------------------------------------------------------------------

TEST_CASE("tensor: contiguous and clone") {
  const Tensor t = counting({2, 3}), turned = t.transpose(0, 1);
  CHECK(t.contiguous().same_storage(t));
  CHECK(!t.clone().same_storage(t));
  CHECK(turned.contiguous().is_contiguous());
  CHECK(ints(turned.contiguous()) == Ints{0, 3, 1, 4, 2, 5});
  CHECK(ints(turned.clone()) == Ints{0, 3, 1, 4, 2, 5});
  CHECK(turned.clone().is_contiguous());
  CHECK(!Tensor().clone().defined());
  CHECK(!Tensor().contiguous().defined());
}

TEST_CASE("tensor: a copy within one storage reads its source as it was before") {
  Tensor a = Tensor::arange(8, DType::f32);
  a.slice(0, 1, 8).copy_from(a.slice(0, 0, 7));
  CHECK(ints(a) == Ints{0, 0, 1, 2, 3, 4, 5, 6});
  a.slice(0, 0, 7).copy_from(a.slice(0, 1, 8));
  CHECK(ints(a) == Ints{0, 1, 2, 3, 4, 5, 6, 6});

  Tensor square = counting({3, 3});
  square.copy_from(square.transpose(0, 1));
  CHECK(ints(square) == Ints{0, 3, 6, 1, 4, 7, 2, 5, 8});
  square.copy_from(square);
  CHECK(ints(square) == Ints{0, 3, 6, 1, 4, 7, 2, 5, 8});
  square.copy_from(square.select(0, 1).expand({3, 3}));
  CHECK(ints(square) == Ints{1, 4, 7, 1, 4, 7, 1, 4, 7});

  const Tensor large = counting({100, 100});  // blocks of a transposed copy, and several threads
  Tensor turned = large.clone();
  turned.copy_from(turned.transpose(0, 1));
  CHECK(turned.to_vector<float>() == large.transpose(0, 1).to_vector<float>());

  Tensor steps = Tensor::arange(9);
  steps.slice(0, 0, 9, 2).copy_from(steps.slice(0, 4, 9));
  CHECK(ints(steps) == Ints{4, 1, 5, 3, 6, 5, 7, 7, 8});
}

TEST_CASE("tensor: adding within one storage reads its source as it was before") {
  Tensor a = counting({6});
  Tensor to = a.slice(0, 1, 6);
  num::add_into(to, a.slice(0, 0, 5));
  CHECK(ints(a) == Ints{0, 1, 3, 5, 7, 9});
  Tensor square = counting({3, 3});
  num::add_into(square, square.transpose(0, 1));
  CHECK(ints(square) == Ints{0, 4, 8, 4, 8, 12, 8, 12, 16});
  num::add_into(square, square);
  CHECK(ints(square) == Ints{0, 8, 16, 8, 16, 24, 16, 24, 32});
}

TEST_CASE("tensor: views that overlap, and those that do not") {
  const Tensor t = counting({4, 4});
  CHECK(overlaps(t, t.transpose(0, 1)));
  CHECK(overlaps(t.slice(0, 0, 2), t.slice(0, 1, 3)));
  CHECK(!overlaps(t, t));
  CHECK(!overlaps(t.slice(0, 0, 2), t.slice(0, 2, 4)));
  CHECK(!overlaps(t, t.clone()));
  CHECK(!overlaps(t.slice(0, 1, 1), t.slice(0, 0, 0)));
}

TEST_CASE("tensor: copies want equal shapes and move the version") {
  Tensor t = counting({2, 3});
  const uint64_t version = t.storage()->version();
  CHECK_THROWS_WITH(t.copy_from(counting({3, 2})), Contains("[copy] shapes differ"));
  CHECK(t.storage()->version() == version);
  t.copy_from(Tensor::full({2, 3}, 4, DType::i64), "test");
  CHECK(t.storage()->version() == version + 1);
  CHECK(t.storage()->last_writer() == "test");
  CHECK(ints(t) == Ints{4, 4, 4, 4, 4, 4});
  CHECK_THROWS_WITH(t.data<double>(), Contains("[tensor] wrong dtype"));
}

TEST_CASE("tensor: conversions between all dtypes") {
  for (const DType from : kDTypes)
    for (const DType to : kDTypes) {
      INFO(from << " to " << to);
      const Tensor t = Tensor::of({0, 1, -2, 100}, {2, 2}, from).transpose(0, 1).to(to);
      CHECK(t.dtype() == to);
      CHECK(ints(t) == Ints{0, -2, 1, 100});
    }
  const Tensor t = counting({3});
  CHECK(t.to(DType::f32).same_storage(t));
  CHECK(ints(Tensor::of({2.9, -2.9, -0.5}, {3}).to(DType::i32)) == Ints{2, -2, 0});
}

TEST_CASE("tensor: an integer dtype refuses values that it has no room for, and nothing is written") {
  const double below = std::nextafter(0x1p63, 0);
  for (const double bad : {std::nan(""), kInfinite, -kInfinite, 0x1p63, -0x1.0000000000001p63, 1e300}) {
    INFO(bad);
    const Tensor t = Tensor::of({1, bad}, {2});
    CHECK_THROWS_WITH(t.to(DType::i64), Contains("[to] a value does not fit i64") && Contains("expected -92233720368"));
    CHECK_THROWS_AS(t.to(DType::i32), Error);
    CHECK_THROWS_AS(t.to(DType::f32).to(DType::i32), Error);
    Tensor target = Tensor::full({2}, 7, DType::i64);
    CHECK_THROWS_WITH(target.copy_from(t), Contains("[copy] a value does not fit i64"));
    CHECK(ints(target) == Ints{7, 7});
    CHECK_THROWS_AS(t.to_vector<int64_t>(), Error);
  }
  CHECK(Tensor::of({below, -0x1p63}, {2}).to(DType::i64).flat<int64_t>(0) == static_cast<int64_t>(below));
  CHECK(ints(Tensor::of({2147483647.9, -2147483648.9}, {2}).to(DType::i32)) == Ints{2147483647, -2147483648});
  CHECK_THROWS_AS(Tensor::of({2147483648.0}, {1}).to(DType::i32), Error);
  CHECK_THROWS_AS(Tensor::of({-2147483649.0}, {1}).to(DType::i32), Error);
  CHECK_THROWS_WITH(Tensor::of(Ints{int64_t{1} << 31}, {1}).to(DType::i32), Contains("[to] a value does not fit i32"));
  CHECK_THROWS_AS(Tensor::of({3e38}, {1}).to(DType::bf16).to(DType::i64), Error);
}
