// The advice on weak samples: each weakness is named in a list that has it and in no list that has one sample without
// it, and it fails no op.
#include "autograd/ops/all.h"
#include "autograd/verify/lint.h"
#include "autograd/verify/verify.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

using Advice = std::vector<std::string>;
using Catch::Matchers::StartsWith;

// Args and any inputs: only the samples matter here.
template <class A>
struct Listed {
  static constexpr std::string_view name = "listed";
  using Args = A;
  static std::vector<In> inputs_for(const Args&, size_t n) {
    std::vector<In> in{In{"x"}, In{"w"}};
    in.resize(n, In{"more"});
    return in;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return in;
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) { return in[0]; }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {b.dy()}; }
  static std::vector<Sample<Args>> samples(Rng&) { return {}; }
  static std::vector<Mutant<Tensor, Args>> mutants() { return {}; }
};

template <class O>
Advice advice(std::vector<Sample<typename O::Args>> samples) {
  std::vector<std::unique_ptr<verifier::Point>> points;
  for (auto& s : samples) points.push_back(std::make_unique<verifier::detail::OpPoint<O>>(std::move(s), nullptr));
  return verifier::lint(verifier::make_entry<O>(), points);
}

// Of lists of one op without arguments: each element holds the inputs of one sample.
template <class O = Listed<NoArgs>>
Advice advice_on(const std::vector<Tensors>& inputs) {
  std::vector<Sample<typename O::Args>> samples;
  for (const Tensors& in : inputs) samples.push_back({"", {}, in});
  return advice<O>(std::move(samples));
}

bool names(const Advice& advice, const std::string& text) {
  return std::any_of(advice.begin(), advice.end(), [&](auto& a) { return a.find(text) != std::string::npos; });
}

template <Domain D>
struct Within : Listed<NoArgs> {
  static std::vector<In> inputs_for(const Args&, size_t) { return {In{"x", D}}; }
};

Tensor filled(const Shape& shape, double value) { return Tensor::full(shape, value, DType::f64); }
Tensor ints(std::vector<int64_t> v, const Shape& shape) { return Tensor::of(std::move(v), shape); }

Tensor symmetric(Rng& r, int64_t n) {
  const Tensor x = normal(r, {n, n});
  return num::add(x, x.transpose(0, 1));
}

}  // namespace

TEST_CASE("lint: a good list gets no advice but the size of its largest sample") {
  Rng r(1);
  CHECK(advice_on({{normal(r, {3, 17})}, {normal(r, {2, 3, 5})}, {normal(r, {33})}}) ==
        Advice{"largest sample: 51 elements"});
  CHECK(advice_on({{normal(r, {3, 17}), normal(r, {17, 33})}, {normal(r, {2, 3, 5}), normal(r, {5, 7})}}) ==
        Advice{"largest sample: 612 elements"});
  CHECK(advice_on({}).empty());
}

TEST_CASE("lint: samples of one number, of zeros, and of equal rows") {
  Rng r(1);
  const Tensor good = normal(r, {2, 17});
  const Advice ones = advice_on({{filled({3, 17}, 1)}, {filled({2}, 1)}});
  CHECK_THAT(ones[0], StartsWith("x: every sample is constant (all 1): "));
  CHECK(ones.size() == 2);  // that numbers are positive and matrices symmetric says no more
  CHECK(names(advice_on({{filled({3, 17}, 1)}, {filled({2}, -0.5)}}), "x: every sample is constant: "));
  CHECK(names(advice_on({{filled({3, 17}, 0)}, {filled({2}, 0)}}), "x: every sample is zero: "));
  CHECK(names(advice_on({{normal(r, {17}).expand({3, 17})}, {filled({2}, 1)}}), "x: all rows are equal"));
  for (const char* weakness : {"constant", "zero", "rows"}) {
    CHECK_FALSE(names(advice_on({{filled({3, 17}, 1)}, {good}}), weakness));
    CHECK_FALSE(names(advice_on({{filled({3, 17}, 0)}, {good}}), weakness));
    CHECK_FALSE(names(advice_on({{normal(r, {17}).expand({3, 17})}, {good}}), weakness));
    CHECK_FALSE(names(advice_on({{normal(r, {5})}, {normal(r, {17})}}), weakness));
  }
  // each input for itself
  const Advice second = advice_on({{good, filled({3}, 2)}, {good, filled({17}, 2)}});
  CHECK(names(second, "w: every sample is constant (all 2)"));
  CHECK_FALSE(names(second, "x: "));
}

TEST_CASE("lint: one sign") {
  Rng r(1);
  CHECK(names(advice_on({{positive(r, {3, 17})}, {positive(r, {5})}}), "x: no sample has a negative number"));
  CHECK(names(advice_on({{num::scale(positive(r, {3, 17}), -1)}, {filled({2}, 0)}}),
              "x: no sample has a positive number"));
  CHECK_FALSE(names(advice_on({{positive(r, {3, 17})}, {num::scale(positive(r, {5}), -1)}}), "number"));
  CHECK_FALSE(names(advice_on<Within<Domain::positive>>({{positive(r, {3, 17})}, {positive(r, {5})}}), "number"));
  CHECK_FALSE(names(advice_on<Within<Domain::simplex>>({{positive(r, {3, 17})}, {positive(r, {5})}}), "number"));
}

TEST_CASE("lint: square and symmetric matrices") {
  Rng r(1);
  const Advice weak = advice_on({{symmetric(r, 3)}, {symmetric(r, 17)}});
  CHECK(names(weak, "x: every matrix is symmetric"));
  CHECK(names(weak, "x: every matrix is square"));
  const Advice plain = advice_on({{symmetric(r, 3)}, {normal(r, {2, 17, 17})}});
  CHECK_FALSE(names(plain, "symmetric"));
  CHECK(names(plain, "x: every matrix is square"));
  CHECK_FALSE(names(advice_on({{symmetric(r, 3)}, {normal(r, {2, 17})}}), "every matrix"));
  CHECK_FALSE(names(advice_on<Within<Domain::symmetric>>({{symmetric(r, 3)}, {symmetric(r, 17)}}), "every matrix"));
}

TEST_CASE("lint: sizes of one") {
  Rng r(1);
  const Advice batch = advice_on({{normal(r, {1, 3, 17})}, {normal(r, {1, 5})}, {normal(r, {7})}});
  CHECK(names(batch, "x: the first dimension (batch) is 1 in every sample"));
  CHECK_FALSE(names(batch, "third to last"));
  CHECK_FALSE(names(advice_on({{normal(r, {1, 3, 17})}, {normal(r, {2, 5})}}), "(batch)"));
  CHECK(names(advice_on({{normal(r, {3, 1})}, {normal(r, {2, 4, 1})}}), "x: the last dimension is 1"));
  CHECK(names(advice_on({{normal(r, {3, 1, 5})}, {normal(r, {2, 1, 17})}}), "x: the second to last dimension is 1"));
  CHECK(names(advice_on({{normal(r, {1, 17})}, {normal(r, {5, 1, 3, 5})}}), "x: the third to last dimension is 1"));
  CHECK_FALSE(names(advice_on({{normal(r, {3, 1, 5})}, {normal(r, {2, 3, 1})}}), "dimension is 1"));

  const Advice one = advice_on({{normal(r, {1})}, {normal(r, {1, 1})}, {normal(r, {})}});
  CHECK(names(one, "x: it has one element in every sample"));
  CHECK_FALSE(names(one, "dimension"));
  // a number by nature beside a larger input, if it is not always the same one; not of an op that broadcasts
  const Tensor big = normal(r, {3, 17});
  CHECK(advice_on({{big, filled({1}, 0.5)}, {big, filled({1}, -2)}}).size() == 1);
  CHECK(names(advice_on({{big, filled({1}, 0.5)}, {big, filled({1}, 0.5)}}), "w: it is 0.5 in every sample"));
  CHECK(names(advice_on<Mul>({{big, filled({}, 0.5)}, {big, filled({1}, -2)}}), "b: it has one element"));
}

TEST_CASE("lint: the parts of a list are one input") {
  Rng r(1);
  const Tensor good = normal(r, {3, 17}), one = filled({3, 5}, 1);
  auto concat = [](Tensors in) { return Sample<Concat::Args>("", {0}, std::move(in)); };
  CHECK_FALSE(names(advice<Concat>({concat({good, good}), concat({good, good, one})}), "x"));
  CHECK(names(advice<Concat>({concat({one, one}), concat({one, one, one})}), "x*: every sample is constant"));
  CHECK(names(advice<Concat>({concat({good, one}), concat({good, one})}), "x1: every sample is constant"));
}

TEST_CASE("lint: widths") {
  Rng r(1);
  CHECK(names(advice_on({{normal(r, {3, 8})}, {normal(r, {32})}}), "x: the last dimension is a multiple of 4"));
  CHECK_FALSE(names(advice_on({{normal(r, {3, 8})}, {normal(r, {33})}}), "multiple"));
  CHECK(names(advice_on({{normal(r, {30, 16})}, {normal(r, {5})}}), "longer than a vector of 16 (at most 16)"));
  CHECK_FALSE(names(advice_on({{normal(r, {3, 17})}, {normal(r, {5})}}), "longer"));
}

TEST_CASE("lint: indices that never meet") {
  Rng r(1);
  auto gather = [&](std::vector<int64_t> index) {
    const int64_t n = static_cast<int64_t>(index.size());
    return Sample<Gather::Args>("", {0}, {normal(r, {4, 17}), ints(std::move(index), {n})});
  };
  const char* weakness = "index: no sample repeats a number";
  CHECK(names(advice<Gather>({gather({3, 0, 1}), gather({2, 1})}), weakness));
  CHECK_FALSE(names(advice<Gather>({gather({3, 0, 1}), gather({2, 1, 2})}), weakness));
  CHECK(names(advice<Gather>({gather({1, 1, 1}), gather({1, 1})}), "index: every sample is constant (all 1)"));
  CHECK_FALSE(names(advice<Gather>({gather({3, 0, 3}), gather({2, 1})}), "index: "));  // no sign, no width
}

namespace {
struct Options {
  int count = 1;
  double rate = 0.1;
  std::vector<int> sizes;
};
struct FixedRate : Listed<Options> {
  static constexpr std::array fixed_arguments{2};
};
struct FixedNothing : Listed<Options> {
  static constexpr std::array fixed_arguments{4};
};
struct Opaque {
  explicit Opaque(int v = 0) : value(v) {}
  bool operator==(const Opaque&) const = default;
  int value;
};
}  // namespace

TEST_CASE("lint: arguments that never vary, and one sample") {
  Rng r(1);
  const Tensor x = normal(r, {3, 17});
  const Advice weak = advice<Listed<Options>>({{"", {1, 0.1, {1, 2}}, {x}}, {"", {2, 0.1, {1, 2}}, {x}}});
  CHECK(weak.size() == 3);
  CHECK_THAT(weak[0], StartsWith("argument 2 of 3 (double) is 0.1 in every sample: "));
  CHECK_THAT(weak[1], StartsWith("argument 3 of 3 (std::vector<int>) is [1, 2] in every sample: "));
  CHECK(advice<Listed<Options>>({{"", {1, 0.1, {1}}, {x}}, {"", {2, 0.2, {}}, {x}}}).size() == 1);
  CHECK(names(advice<Listed<Opaque>>({{"", Opaque(2), {x}}, {"", Opaque(2), {x}}}),
              "argument 1 of 1 (Opaque) is the same"));
  CHECK(advice<Listed<Opaque>>({{"", Opaque(2), {x}}, {"", Opaque(3), {x}}}).size() == 1);

  CHECK(advice<FixedRate>({{"", {1, 0.1, {1}}, {x}}, {"", {2, 0.1, {}}, {x}}}).size() == 1);

  const Advice one = advice<Listed<Options>>({{"", {}, {x}}});
  CHECK_THAT(one[0], StartsWith("there is only one sample: "));
  CHECK(one.size() == 5);  // and its three arguments
  CHECK_THROWS_WITH(advice<FixedNothing>({{"", {}, {x}}}), Contains("fixed_arguments names no argument: got 4"));
}

// -- Fields -----------------------------------------------------------------------------------------------------------

namespace {
enum class Colour { red, green };
struct Inner {
  int a = 0;
  float b = 0;
};
struct Mixed {
  Inner inner;
  std::vector<Inner> list;
  Colour colour = Colour::red;
  bool flag = false;
  std::string word;
  std::function<int(int)> call;
  unsigned low : 3 = 0;
};
struct Eleven {
  int a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0, i = 0, j = 0, k = 0;
};
struct Derived : Inner {
  int c = 0;
};
struct WithArray {
  int a[3] = {};
  int b = 0;
};
struct NoDefault {
  Opaque opaque{1};
  int b = 0;
};

template <class A>
std::vector<std::string> texts(const A& a, const A& b) {
  std::vector<std::string> out;
  for (const verifier::Field& f : verifier::compared_fields(a, b))
    out.push_back(f.text + (!f.same ? " ?" : *f.same ? " same" : " differs"));
  return out;
}
using Texts = std::vector<std::string>;
}  // namespace

TEST_CASE("fields: structs are compared field by field") {
  Mixed a, b;
  a.inner = {1, 0.5f};
  b.list = {{1, 2}};
  b.word = "x";
  a.low = b.low = 5;
  CHECK(texts(a, b) == Texts{"{1, 0.5} differs", "[] differs", "0 same", "false same", "\"\" differs", " ?", "5 same"});
  CHECK(texts(b, b)[1] == "[{1, 2}] same");
  CHECK(verifier::compared_fields(a, b)[1].type == "std::vector<Inner>");
  Eleven many, other;
  other.k = 1;
  CHECK(texts(many, other).size() == 11);
  CHECK(texts(many, other)[10] == "0 differs");
  CHECK(texts(NoArgs{}, NoArgs{}).empty());
  CHECK(texts(2.5, 2.5) == Texts{"2.5 same"});
}

TEST_CASE("fields: what cannot be taken apart is one field") {
  CHECK(texts(Derived{}, Derived{}) == Texts{" ?"});
  CHECK(texts(WithArray{}, WithArray{}) == Texts{" ?"});
  CHECK(texts(Opaque(1), Opaque(2)) == Texts{" differs"});
  CHECK(texts(NoDefault{}, NoDefault{}).size() == 1);
}

// -- In the report ----------------------------------------------------------------------------------------------------

namespace {
struct AllOnes : Exp {
  static std::vector<Sample<Args>> samples(Rng&) { return {{"ones", {}, {filled({2, 2}, 1)}}}; }
};
}  // namespace

TEST_CASE("lint: the report carries the advice, and no op fails for it") {
  const OpReport r = verify<AllOnes>();
  INFO(r.to_string());
  CHECK(r.passed());
  CHECK(names(r.advice, "only one sample"));
  CHECK(names(r.advice, "x: every sample is constant (all 1)"));
  CHECK(r.advice.back() == "largest sample: 4 elements");
  CHECK_THAT(r.to_string(), Contains("advice: x: every sample is constant (all 1)"));
  CHECK(verify<AllOnes>({.sample = 0}).advice.empty());  // about a list, not about one of it
}

TEST_CASE("lint: no op of the library has weak samples") {
  for (const verifier::Entry& e : verifier::all_entries()) {
    Rng r(1, 2);
    const Advice found = verifier::lint(e, e.samples(r));
    INFO(e.name);
    CHECK(found.size() == 1);
    CHECK_THAT(found.back(), StartsWith("largest sample: "));
  }
}
