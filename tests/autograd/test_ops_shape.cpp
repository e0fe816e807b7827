// Ops that move numbers: exact values, errors, empty parts, repeated indices; max and min with ties.
#include <limits>

#include "autograd/engine.h"
#include "autograd/ops/all.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

using Values = std::vector<double>;

Values values(const Var& x) { return x.value().to_vector<double>(); }
Var counting(const Shape& shape) { return Var(Tensor::arange(shape.numel(), DType::f64).reshape(shape), true); }
Tensor ids(std::vector<int64_t> v, const Shape& shape) { return Tensor::of(std::move(v), shape); }

// Gradient of <c, y> with c = 1, 2, 3, ...
Values gradient(const Var& y, const Var& x) {
  const Tensor c =
      num::add(Tensor::arange(y.shape().numel(), DType::f64).reshape(y.shape()), Tensor::scalar(1, DType::f64));
  return values(grad({y}, {x}, {Var(c)}, {.retain_graph = true})[0]);
}

}  // namespace

TEST_CASE("slice with a step, and its gradient") {
  const Var x = counting({2, 5});
  const Var y = slice(x, -1, 1, 5, 3);
  CHECK(y.shape() == Shape{2, 2});
  CHECK(values(y) == Values{1, 4, 6, 9});
  CHECK(gradient(y, x) == Values{0, 1, 0, 0, 2, 0, 3, 0, 0, 4});
  CHECK(values(select(x, 0, 1)) == Values{5, 6, 7, 8, 9});
  CHECK(slice(x, 1, 2, 2).shape() == Shape{2, 0});
  CHECK(gradient(slice(x, 1, 2, 2), x) == Values(10, 0));
  CHECK_THROWS_WITH(slice(x, 1, 2, 6), Contains("[slice]") && Contains("[2, 6)") && Contains("(2, 5)"));
  CHECK_THROWS_WITH(slice(x, 1, 3, 2), Contains("[slice]"));
  CHECK_THROWS_WITH(slice(x, 1, 0, 2, 0), Contains("step"));
  CHECK_THROWS_WITH(slice(x, 2, 0, 1), Contains("dimension out of range"));
}

TEST_CASE("place and pad put a tensor into zeros") {
  const Var x = counting({2, 2});
  CHECK(values(pad(x, 1, 1, 2)) == Values{0, 0, 1, 0, 0, 0, 2, 3, 0, 0});
  CHECK(values(place(x, 0, 0, 3, 2)) == Values{0, 1, 0, 0, 2, 3});
  CHECK(gradient(pad(x, 1, 1, 2), x) == Values{2, 3, 7, 8});
  CHECK_THROWS_WITH(place(x, 0, 2, 3), Contains("out of bounds"));
  CHECK_THROWS_WITH(pad(x, 0, -1, 0), Contains("[pad] negative size"));
}

TEST_CASE("copies of transposed views: every element, for sizes around the blocks and batches of matrices") {
  for (const Shape& s : {Shape{8, 8}, Shape{31, 33}, Shape{64, 100}, Shape{3, 9, 40}, Shape{2, 2, 33, 8}}) {
    const Tensor x = Tensor::arange(s.numel(), DType::f64).reshape(s);
    const Tensor y = x.transpose(-1, -2).contiguous();
    const int64_t rows = s[s.rank() - 2], columns = s[s.rank() - 1];
    bool all = true;
    for (int64_t i = 0; i < y.numel(); ++i) {
      const int64_t matrix = i / (rows * columns), row = i / rows % columns, column = i % rows;
      all = all && y.flat(i) == static_cast<double>((matrix * rows + column) * columns + row);
    }
    INFO(s);
    CHECK(all);
    Tensor part = Tensor::zeros({s[s.rank() - 1] + 3, s[s.rank() - 2] + 2}, DType::f64);  // into a view
    const Tensor matrix = s.rank() == 2 ? x : x.reshape({-1, rows, columns}).select(0, 1);
    part.slice(0, 1, columns + 1).slice(1, 2, rows + 2).copy_from(matrix.transpose(0, 1));
    CHECK(part.at({1, 2}) == matrix.at({0, 0}));
    CHECK(part.at({columns, rows + 1}) == matrix.at({rows - 1, columns - 1}));
    CHECK(num::sum(part).item() == num::sum(matrix).item());
  }
}

TEST_CASE("concat and split are each other's inverse, with empty parts") {
  const Var x = counting({2, 5});
  const Vars parts = split(x, {2, 0, 3}, 1);
  REQUIRE(parts.size() == 3);
  CHECK(values(parts[0]) == Values{0, 1, 5, 6});
  CHECK(parts[1].shape() == Shape{2, 0});
  CHECK(values(concat(parts, -1)) == values(x));
  CHECK(gradient(concat(parts, -1), x) == Values{1, 2, 3, 4, 5, 6, 7, 8, 9, 10});
  CHECK_THROWS_WITH(split(x, {2, 2}, 1), Contains("[split]") && Contains("2 + 2") && Contains("size 5"));
  CHECK_THROWS_WITH(split(x, {7, -2}, 1), Contains("[split]") && Contains("sizes do not fit"));
  CHECK_THROWS_WITH(concat({}, 0), Contains("[concat]") && Contains("nothing to join"));
  CHECK_THROWS_WITH(concat({x, counting({3, 5})}, 1),
                    Contains("[concat]") && Contains("input 1") && Contains("(3, 5)") && Contains("(2, 5)"));
  CHECK_THROWS_WITH(concat({x, Var(Tensor::zeros({2, 5}))}, 1), Contains("f32"));
}

TEST_CASE("an unused output of split counts as zero") {
  const Var x = counting({4});
  const Vars parts = split(x, {1, 3}, 0);
  sum(parts[1] * 2).backward();
  CHECK(x.grad().to_vector<double>() == Values{0, 2, 2, 2});
}

TEST_CASE("one tensor joined twice gets both gradients") {
  const Var x = counting({2});
  CHECK(gradient(concat({x, x}, 0), x) == Values{1 + 3, 2 + 4});
}

TEST_CASE("stack adds a dimension, squeeze and unsqueeze move none of the numbers") {
  const Var a = counting({3}), b = a * 10;
  CHECK(values(stack({a, b}, 0)) == Values{0, 1, 2, 0, 10, 20});
  CHECK(values(stack({a, b}, -1)) == Values{0, 0, 1, 10, 2, 20});
  CHECK(unsqueeze(a, -1).shape() == Shape{3, 1});
  CHECK(squeeze(unsqueeze(a, 0), 0).shape() == Shape{3});
  CHECK_THROWS_WITH(squeeze(a, 0), Contains("[squeeze]"));
  CHECK_THROWS_WITH(unsqueeze(a, 3), Contains("[unsqueeze]"));
  CHECK_THROWS_WITH(stack({a, counting({2})}, 0), Contains("[stack]"));
  CHECK_THROWS_WITH(stack({}, 0), Contains("[stack]"));
}

TEST_CASE("[R31] gather along a dimension, indices that repeat add their gradients") {
  const Var x = counting({2, 3});
  const Var y = gather(x, 1, ids({2, 2, 0, 1}, {2, 2}));
  CHECK(values(y) == Values{2, 2, 3, 4});
  CHECK(gradient(y, x) == Values{0, 0, 3, 3, 4, 0});
  const Var rows = index_select(x, ids({1, 1, 1}, {3}));
  CHECK(values(rows) == Values{3, 4, 5, 3, 4, 5, 3, 4, 5});
  CHECK(gradient(rows, x) == Values{0, 0, 0, 1 + 4 + 7, 2 + 5 + 8, 3 + 6 + 9});
  CHECK(index_select(x, ids({}, {0})).shape() == Shape{0, 3});
  CHECK(gradient(index_select(x, ids({}, {0})), x) == Values(6, 0));
}

TEST_CASE("[R31] all-equal indices: every gradient arrives, bit-equal on 1, 2 and 4 threads") {
  Rng r(5);
  constexpr int64_t kRows = 3000, kColumns = 600;
  const Tensor x = Tensor::randn({kRows, kColumns}, r);
  const Tensor ids = Tensor::full({kRows}, 2, DType::i64);
  const int before = num_threads();
  std::vector<Values> results;
  for (const int threads : {1, 2, 4}) {
    set_num_threads(threads);
    results.push_back(num::scatter_add(x, 0, ids, {4, kColumns}).to_vector<double>());
  }
  set_num_threads(before);
  CHECK(results[0] == results[1]);
  CHECK(results[0] == results[2]);
  const Values sums = num::sum(x.to(DType::f64), {0}).to_vector<double>();
  bool all = true;
  for (int64_t c = 0; c < kColumns; ++c)
    all = all && close(results[0][static_cast<size_t>(2 * kColumns + c)], sums[static_cast<size_t>(c)], 0, 1e-2);
  CHECK(all);
}

TEST_CASE("indices out of range name their position and value") {
  const Var x = counting({2, 3});
  CHECK_THROWS_WITH(gather(x, 1, ids({0, 1, 3, 0}, {2, 2})),
                    Contains("[gather]") && Contains("3 at position (1, 0)") && Contains("0 to 2"));
  CHECK_THROWS_WITH(index_select(x, ids({0, -1}, {2})), Contains("-1 at position (1,)"));
  CHECK_THROWS_WITH(scatter_add(x, 0, ids({0, 7}, {2}), {2, 3}), Contains("[scatter_add]") && Contains("7"));
  CHECK_THROWS_WITH(gather(x, 0, Tensor::zeros({2})), Contains("not an index tensor") && Contains("f32"));
  CHECK_THROWS_WITH(gather(x, 1, ids({0, 0, 0}, {3, 1})), Contains("wrong shape") && Contains("(3, 1)"));
  CHECK_THROWS_WITH(index_select(x, ids({0}, {1, 1})), Contains("[index_select]"));
  CHECK_THROWS_WITH(gather(counting({0, 3}), 0, ids({0}, {1})), Contains("empty"));
}

TEST_CASE("[R24] max and min: of equal elements the first takes the gradient") {
  const Var x(Tensor::of({2, 5, 5, 1, 1, 3}, {2, 3}), true);
  CHECK(values(max(x, -1)) == Values{5, 3});
  CHECK(gradient(max(x, -1), x) == Values{0, 1, 0, 0, 0, 2});
  CHECK(values(min(x, 1, true)) == Values{2, 1});
  CHECK(min(x, 1, true).shape() == Shape{2, 1});
  CHECK(gradient(min(x, 1), x) == Values{1, 0, 0, 2, 0, 0});
  CHECK(max(x).item() == 5);
  CHECK(gradient(max(x), x) == Values{0, 1, 0, 0, 0, 0});
  CHECK(gradient(min(x), x) == Values{0, 0, 0, 1, 0, 0});
}

TEST_CASE("max and min: NaN wins, -infinity counts, empty dimensions are errors") {
  const double inf = std::numeric_limits<double>::infinity();
  const Tensor x = Tensor::of({1, NAN, 3, -inf, -inf, -inf}, {2, 3});
  CHECK(std::isnan(max(Var(x), 1).value().flat(0)));
  CHECK(std::isnan(min(Var(x), 1).value().flat(0)));
  CHECK(max(Var(x), 1).value().flat(1) == -inf);
  CHECK(num::argmax(x, 1).to_vector<double>() == Values{1, 0});
  CHECK_THROWS_WITH(max(counting({2, 0}), 1), Contains("no elements"));
  CHECK(max(counting({0, 2}), 1).shape() == Shape{0});
}

TEST_CASE("mean and variance: exact small cases and errors") {
  const Var x(Tensor::of({1, 2, 3, 6}, {2, 2}), true);
  CHECK(mean(x).item() == 3);
  CHECK(values(mean(x, {0})) == Values{2, 4});
  CHECK(mean(x, {1}, true).shape() == Shape{2, 1});
  CHECK(gradient(mean(x, {0}), x) == Values{0.5, 1, 0.5, 1});
  CHECK(variance(x).item() == 3.5);
  CHECK(values(variance(x, {1})) == Values{0.25, 2.25});
  CHECK(values(variance(x, {1}, true)) == Values{0.5, 4.5});
  CHECK(gradient(variance(x), x) == Values{-1, -0.5, 0, 1.5});  // 2 (x - mean) / n
  CHECK_THROWS_WITH(mean(counting({0, 3})), Contains("[mean]") && Contains("(0, 3)"));
  CHECK_THROWS_WITH(variance(x, {}, true) + variance(counting({1}), {}, true), Contains("[variance]"));
}

TEST_CASE("[R26] variance of values with mean 1e4 and spread 1e-3 against long double") {
  Rng r(3);
  const Tensor x = Tensor::randn({1000}, r, DType::f64, 1e-3, 1e4);
  long double total = 0, squares = 0;
  for (const double v : x.to_vector<double>()) total += v;
  const long double m = total / 1000;
  for (const double v : x.to_vector<double>()) squares += (v - m) * (v - m);
  CHECK(close(variance(Var(x)).item(), static_cast<double>(squares / 1000), 1e-8));
}

TEST_CASE("[R22] logsumexp: large values, and a row of -infinity with zero gradient") {
  const double inf = std::numeric_limits<double>::infinity();
  const Var x(Tensor::of({1000, 1000, -inf, -inf, -1000, -inf}, {3, 2}), true);
  const Var y = logsumexp(x, -1);
  CHECK(close(values(y)[0], 1000 + std::log(2.0), 1e-15));
  CHECK(values(y)[1] == -inf);
  CHECK(values(y)[2] == -1000);
  const Values g = gradient(y, x);
  CHECK(close(g[0], 0.5, 1e-12));
  CHECK(Values(g.begin() + 2, g.end()) == Values{0, 0, 3, 0});
  for (const DType t : {DType::f32, DType::f64}) {
    CHECK(std::isnan(logsumexp(Var(Tensor::of({1, NAN}, {2}, t)), 0).item()));
    CHECK(std::isnan(logsumexp(Var(Tensor::of({-inf, NAN}, {2}, t)), 0).item()));
    CHECK(logsumexp(Var(Tensor::of({1, inf}, {2}, t)), 0).item() == inf);
    CHECK(close(logsumexp(Var(Tensor::zeros({1000, 3}, t)), 0).value().flat(2), std::log(1000.0), 1e-6));
  }
  CHECK(logsumexp(counting({2, 0}), 1).value().to_vector<double>() == Values{-inf, -inf});
}

TEST_CASE("slices, places and pads of sizes and steps that no tensor has") {
  const int64_t most = std::numeric_limits<int64_t>::max();
  const Var x = counting({5});
  for (const int64_t step : {most, most - 2}) {
    const Var y = slice(x, 0, 0, 5, step);
    CHECK(y.value().to_vector<double>() == std::vector<double>{0});
    CHECK(grad({sum(y)}, {x})[0].value().to_vector<double>() == std::vector<double>{1, 0, 0, 0, 0});
    CHECK(place(y, 0, 2, 4, step).value().to_vector<double>() == std::vector<double>{0, 0, 0, 0});
    CHECK_THROWS_WITH(place(x, 0, 0, 9, step), Contains("[place] range out of bounds"));
  }
  CHECK_THROWS_WITH(place(x, 0, -1, 9), Contains("[place] range out of bounds"));
  CHECK_THROWS_WITH(place(x, 0, 5, 9), Contains("[place] range out of bounds"));
  CHECK_THROWS_WITH(place(x, 0, 0, 9, 0), Contains("[place] range out of bounds"));
  CHECK_THROWS_WITH(place(x, 0, 0, -9), Contains("negative size"));
  CHECK_THROWS_WITH(pad(x, 0, -1, 2), Contains("[pad] negative size"));
  CHECK_THROWS_WITH(pad(x, 0, most, most), Contains("[pad] sizes add up to too many"));
  CHECK_THROWS_WITH(expand(x, {int64_t{1} << 57, 5}), Contains("[expand] too many elements"));
  CHECK_THROWS_WITH(reshape(x, {-5}), Contains("[reshape] negative size"));
  const Var wide = expand(sum(x), {int64_t{1} << 58});
  CHECK_THROWS_WITH(concat({wide, wide}, 0), Contains("too many elements") || Contains("add up to too many"));
}

TEST_CASE("gradients of very many rows that meet in one element keep their digits") {
  const int64_t rows = (int64_t{1} << 24) + (int64_t{1} << 20);
  const Var w(Tensor::scalar(1).reshape({1}), true);
  sum(gather(w, 0, Tensor::zeros({rows}, DType::i64))).backward();
  CHECK(w.grad().item() == 17825792);  // a running float stays at 2^24

  // 0.1 a hundred thousand times, in the two forms of an index.
  const int64_t few = 100000;
  const double expected = few * static_cast<double>(0.1f);
  const Tensor tenth = Tensor::full({few, 2}, 0.1);
  for (const Shape& s : {Shape{few}, Shape{few, 2}}) {
    const Tensor y = num::scatter_add(tenth, 0, Tensor::full(s, 1, DType::i64), {3, 2});
    for (const int64_t i : {0, 1, 4, 5}) CHECK(y.flat(i) == 0);
    for (const int64_t i : {2, 3}) CHECK(close(y.flat(i), expected, 0x1p-24));
  }
}
