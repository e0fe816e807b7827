// Linear, embedding, dropout and the fused output projection: exact values, errors, independence of threads and chunks.
#include <cmath>

#include "autograd/checkpoint.h"
#include "autograd/engine.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/linear.h"
#include "tests/autograd/fused_support.h"
#include "tests/match.h"

using namespace bg;
using bg::test::all_values;
using bg::test::check_same_bits_for_threads;
using bg::test::distance;

namespace {
Tensor ids(std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); }
Tensor random_ids(Rng& r, int64_t n, uint64_t below) {
  std::vector<int64_t> v(static_cast<size_t>(n));
  for (int64_t& i : v) i = static_cast<int64_t>(r.below(below));
  return ids(v, {n});
}
}  // namespace

TEST_CASE("linear: known values and gradients") {
  const Var x(Tensor::of({1, 2, 3, 4}, {2, 2}), true), w(Tensor::of({1, 0, 2, 0, 1, 3}, {2, 3}), true);
  const Var b(Tensor::of({10, 20, 30}, {3}), true);
  const Var y = linear(x, w, b);
  CHECK(y.value().to_vector<double>() == std::vector<double>{11, 22, 38, 13, 24, 48});
  CHECK(linear(x, w).value().to_vector<double>() == std::vector<double>{1, 2, 8, 3, 4, 18});
  const Vars g = grad({y}, {x, w, b}, {Var(Tensor::of({1, 0, 0, 0, 1, 1}, {2, 3}))});
  CHECK(g[0].value().to_vector<double>() == std::vector<double>{1, 0, 2, 4});
  CHECK(g[1].value().to_vector<double>() == std::vector<double>{1, 3, 3, 2, 4, 4});
  CHECK(g[2].value().to_vector<double>() == std::vector<double>{1, 1, 1});
}

TEST_CASE("linear takes transposed and sliced inputs and any leading dimensions") {
  Rng r(1);
  const Tensor x = normal(r, {4, 6}), w = normal(r, {3, 6}), b = normal(r, {6});
  const Tensor strided = x.slice(1, 0, 6, 2);  // (4, 3)
  const Tensor plain = linear(Var(strided.clone()), Var(w), Var(b)).value();
  CHECK(distance(linear(Var(strided), Var(w), Var(b)).value(), plain) < 1e-14);
  CHECK(distance(linear(Var(strided), Var(w.transpose(0, 1).clone().transpose(0, 1)), Var(b)).value(), plain) < 1e-14);
  CHECK(distance(linear(Var(strided.reshape({2, 1, 2, 3})), Var(w), Var(b)).value(), plain.reshape({2, 1, 2, 6})) <
        1e-14);
  CHECK(distance(linear(Var(strided.select(0, 2)), Var(w), Var(b)).value(), plain.select(0, 2)) < 1e-14);
}

TEST_CASE("linear on no rows and on no inputs") {
  const Var x(Tensor::zeros({0, 3}), true), w(Tensor::full({3, 2}, 1), true), b(Tensor::full({2}, 1), true);
  const Var y = linear(x, w, b);
  CHECK(y.shape() == Shape{0, 2});
  sum(y).backward();
  CHECK(num::max_abs(w.grad()) == 0);
  CHECK(num::max_abs(b.grad()) == 0);
  const Var none = linear(Var(Tensor::zeros({2, 0})), Var(Tensor::zeros({0, 2})), b);
  CHECK(none.value().to_vector<double>() == std::vector<double>{1, 1, 1, 1});
}

TEST_CASE("linear says what is wrong") {
  const Var x(Tensor::zeros({2, 3}));
  CHECK_THROWS_WITH(linear(x, Var(Tensor::zeros({4, 5}))),
                    Contains("[linear] inner sizes differ: got x is (2, 3), W is (4, 5)") && Contains("transpose(W)"));
  CHECK_THROWS_WITH(linear(x, Var(Tensor::zeros({3}))), Contains("W is not a matrix: got (3,)"));
  CHECK_THROWS_WITH(linear(x, Var(Tensor::zeros({3, 5})), Var(Tensor::zeros({4}))),
                    Contains("bias of a wrong shape: got (4,), expected (5,)"));
  CHECK_THROWS_WITH(linear(x, Var(Tensor::zeros({3, 5}, DType::f64))), Contains("[linear] dtypes differ"));
}

TEST_CASE("[R31] embedding: every occurrence of an id adds to its row") {
  const Var table(Tensor::of({1, 2, 3, 4, 5, 6}, {3, 2}), true);
  const Var y = embedding(ids({2, 2, 2, 0}, {2, 2}), table);
  CHECK(y.shape() == Shape{2, 2, 2});
  CHECK(y.value().to_vector<double>() == std::vector<double>{5, 6, 5, 6, 5, 6, 1, 2});
  const Tensor v = Tensor::of({1, 10, 2, 20, 3, 30, 4, 40}, {2, 2, 2});
  CHECK(grad({y}, {table}, {Var(v)})[0].value().to_vector<double>() == std::vector<double>{4, 40, 0, 0, 6, 60});

  constexpr int64_t kMany = 10000;  // all ids equal: the sum is exact in f32
  const Var one(Tensor::zeros({4, 3}), true);
  sum(embedding(Tensor::full({kMany}, 1, DType::i64), one)).backward();
  CHECK(one.grad().at({1, 2}) == kMany);
  CHECK(one.grad().at({0, 0}) == 0);
}

TEST_CASE("embedding's gradient can be differentiated again, no ids are fine") {
  const Var table(Tensor::of({1, 2, 3, 4}, {2, 2}), true);
  const Var y = embedding(ids({1, 1, 0}, {3}), table);
  const Var g = grad({sum(y * y * y)}, {table}, {}, {.create_graph = true})[0];
  CHECK(g.value().to_vector<double>() == std::vector<double>{3, 12, 54, 96});
  CHECK(grad({sum(g)}, {table})[0].value().to_vector<double>() == std::vector<double>{6, 12, 36, 48});
  const Var none = embedding(ids({}, {0}), table);
  CHECK(none.shape() == Shape{0, 2});
  sum(none).backward();
  CHECK(num::max_abs(table.grad()) == 0);
}

TEST_CASE("embedding names an id out of range by position and value") {
  const Var table(Tensor::zeros({3, 2}));
  CHECK_THROWS_WITH(embedding(ids({0, 1, 2, 3}, {2, 2}), table),
                    Contains("[embedding] id out of range: got 3 at position (1, 1) of (2, 2), expected 0 to 2"));
  CHECK_THROWS_WITH(embedding(ids({-1}, {1}), table), Contains("got -1 at position (0,)"));
  CHECK_THROWS_WITH(embedding(Tensor::zeros({1}), table), Contains("not an index tensor for the id: got f32"));
  CHECK_THROWS_WITH(embedding(ids({0}, {1}), Var(Tensor::zeros({3}))), Contains("table is not a matrix"));
}

TEST_CASE("dropout keeps what mask_keep keeps, in every layout, and its gradient uses the same mask") {
  Rng r(2);
  const MaskKey key{11, 3};
  const Var x(normal(r, {5, 40}), true);
  const Var y = dropout(x, 0.25, key);
  const Tensor g = grad({y}, {x}, {Var(Tensor::full({5, 40}, 3, DType::f64))})[0].value();
  int kept = 0;
  for (int i = 0; i < 200; ++i) {
    const bool keep = mask_keep(key, static_cast<uint64_t>(i), 0.25);
    kept += keep;
    CHECK(close(y.value().flat(i), keep ? x.value().flat(i) / 0.75 : 0, 1e-15));
    CHECK(close(g.flat(i), keep ? 4 : 0, 1e-15));
  }
  CHECK((kept > 120 && kept < 180));
  const Tensor turned = x.value().transpose(0, 1).clone().transpose(0, 1);
  CHECK(distance(dropout(Var(turned), 0.25, key).value(), y.value()) == 0);
  CHECK(dropout(x, 0, key).value().same_storage(x.value()));
  CHECK_THROWS_WITH(dropout(x, 1, key), Contains("[dropout] bad drop probability: got 1, expected 0 or more"));
  CHECK_THROWS_WITH(dropout(x, -0.1, key), Contains("got -0.1"));
  CHECK_THROWS_WITH(dropout(x, std::nan(""), key), Contains("got nan"));
  CHECK(dropout(Var(Tensor::zeros({0, 3})), 0.5, key).shape() == Shape{0, 3});
}

TEST_CASE("[R33] checkpointed gradients through dropout have the bits of plain ones") {
  Rng r(3), masks(9);
  const Var x(Tensor::randn({16, 8}, r), true), w(Tensor::randn({8, 8}, r), true);
  const Rng start = masks;
  auto f = [&](const Vars& in) { return Vars{linear(dropout(linear(in[0], w), 0.5, masks.next_mask()), w)}; };
  sum(f({x})[0]).backward();
  const std::vector<double> plain = all_values({Var(x.grad()), Var(w.grad())});
  x.meta()->grad = {}, w.meta()->grad = {};
  masks = start;
  sum(checkpoint(f, {x}, {w}, &masks)[0]).backward();
  CHECK(all_values({Var(x.grad()), Var(w.grad())}) == plain);
}

TEST_CASE("linear_cross_entropy agrees with cross_entropy of the product across chunks") {
  struct Size {
    int64_t rows, classes, d;
  };
  // f64: a chunk of 48 rows and one of 27; few rows with a long inner size, which is cut, of either product
  const Size size = GENERATE(Size{75, 70000, 4}, Size{24, 256, 768}, Size{100, 1000, 64});
  Rng r(4);
  const Var h(normal(r, {size.rows, size.d}), true), w(normal(r, {size.classes, size.d}, 0.5), true);
  std::vector<int64_t> t = random_ids(r, size.rows, size.classes).to_vector<int64_t>();
  t[20] = t[size.rows - 1] = kIgnoreIndex;
  const Tensor targets = ids(t, {size.rows});
  for (Reduction reduction : {Reduction::mean, Reduction::sum}) {
    const CrossEntropyArgs args{.reduction = reduction};
    const Var fused = linear_cross_entropy(h, w, targets, args) * 3;
    const Var plain = cross_entropy(matmul(h, transpose(w, 0, 1)), targets, args) * 3;
    CHECK(close(fused.item(), plain.item(), 1e-13));
    const Vars a = grad({fused}, {h, w}), b = grad({plain}, {h, w});
    CHECK(distance(a[0].value(), b[0].value()) < 1e-13 * num::max_abs(b[0].value()));
    CHECK(distance(a[1].value(), b[1].value()) < 1e-13 * num::max_abs(b[1].value()));
  }
  const LossSum s = linear_cross_entropy_sum(h.value(), w.value(), targets);
  CHECK(s.count == size.rows - 2);
  CHECK(
      close(s.sum / static_cast<double>(s.count), cross_entropy(matmul(h, transpose(w, 0, 1)), targets).item(), 1e-13));
}

TEST_CASE("linear_cross_entropy never holds all logits, and without recording makes no gradients") {
  Rng r(5);
  constexpr int64_t kClasses = 16384, kRows = 2048;
  const Var h(Tensor::randn({kRows, 8}, r), true), w(Tensor::randn({kClasses, 8}, r), true);
  const Tensor targets = random_ids(r, kRows, kClasses);
  const size_t before = memory_stats().live_bytes;
  {
    reset_peak_bytes();
    const Var loss = linear_cross_entropy(h, w, targets);
    const size_t gradients = (kRows + kClasses) * 8 * sizeof(float), all_logits = kRows * kClasses * sizeof(float);
    CHECK(memory_stats().peak_bytes - before < all_logits / 3);
    CHECK(memory_stats().live_bytes - before < gradients + (1 << 17));
    NoGrad off;
    const size_t recorded = memory_stats().live_bytes;
    const Var same = linear_cross_entropy(h, w, targets);
    CHECK(memory_stats().live_bytes - recorded < 1 << 12);
    CHECK(same.item() == loss.item());
  }
  CHECK(memory_stats().live_bytes == before);
}

TEST_CASE("linear_cross_entropy: wrong shapes, no rows, second derivatives") {
  Rng r(6);
  const Var h(normal(r, {2, 3}), true), w(normal(r, {5, 3}), true);
  CHECK_THROWS_WITH(linear_cross_entropy(h, transpose(w, 0, 1), ids({0, 1}, {2})),
                    Contains("[linear_cross_entropy] inner sizes differ") && Contains("(3, 5)"));
  CHECK_THROWS_WITH(linear_cross_entropy(h, w, ids({0, 1}, {2}), {.reduction = Reduction::none}),
                    Contains("no reduction"));
  const Var none(Tensor::zeros({0, 3}, DType::f64), true);
  const Var loss = linear_cross_entropy(none, w, ids({}, {0}));
  CHECK(loss.item() == 0);
  CHECK(num::max_abs(grad({loss}, {w})[0].value()) == 0);

  const Tensor t = ids({0, 4}, {2});
  const Var a = grad({linear_cross_entropy(h, w, t)}, {h}, {}, {.create_graph = true})[0];
  const Var b = grad({cross_entropy(matmul(h, transpose(w, 0, 1)), t)}, {h}, {}, {.create_graph = true})[0];
  CHECK(distance(grad({sum(a * a)}, {w})[0].value(), grad({sum(b * b)}, {w})[0].value()) < 1e-13);
}

TEST_CASE("linear, embedding, dropout and linear_cross_entropy give the same bits on 1, 2 and 4 threads") {
  Rng r(7);
  constexpr int64_t kRows = 600, kWidth = 96, kClasses = 1000;
  const Tensor x = Tensor::randn({kRows, kWidth}, r), w = Tensor::randn({kWidth, kWidth}, r, DType::f32, 0.1);
  const Tensor table = Tensor::randn({kClasses, kWidth}, r), bias = Tensor::randn({kWidth}, r);
  const Tensor tokens = random_ids(r, kRows, 7), targets = random_ids(r, kRows, kClasses);
  const Tensor v = Tensor::randn({kRows, kWidth}, r);
  check_same_bits_for_threads([&] {
    const Vars in{Var(x, true), Var(w, true), Var(bias, true)};
    const Var y = linear(in[0], in[1], in[2]);
    const Vars g = grad({y}, in, {Var(v)});
    return all_values({y, g[0], g[1], g[2]});
  });
  check_same_bits_for_threads([&] {
    const Var e(table, true);
    const Var y = embedding(tokens, e);
    return all_values({y, grad({y}, {e}, {Var(v)})[0]});
  });
  check_same_bits_for_threads([&] {
    const Var in(x, true);
    const Var y = dropout(in, 0.3, {1, 2});
    return all_values({y, grad({y}, {in}, {Var(v)})[0]});
  });
  check_same_bits_for_threads([&] {
    const Vars in{Var(x, true), Var(table, true)};
    const Var y = linear_cross_entropy(in[0], in[1], targets);
    const Vars g = grad({y}, in);
    return all_values({y, g[0], g[1]});
  });
}
