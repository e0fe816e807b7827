// What an op may declare to the verifier - kinks, conventions, domains, constants, a backward that clips - and
// functions that are no ops. What is declared is verified; what is not is named.
#include "autograd/verify/given.h"
#include "core/elementwise.h"
#include "core/tensor_ops.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

// y = x^2 element by element, as an op that the tests below change in one place.
struct Square {
  static constexpr std::string_view name = "planted_square";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x * x; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return num::mul(in[0], in[0]);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::scale(num::mul(b.dy(), b[0]), 2)}; }
  static std::vector<Sample<Args>> samples(Rng& r) { return {{"(3, 4)", {}, {Tensor::randn({3, 4}, r, DType::f64)}}}; }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"factor forgotten", [](auto& b) { return Tensors{num::mul(b.dy(), b[0])}; }}};
  }
};

template <class F>
Tensor each(const Tensor& x, F f) {
  return dispatch_float("planted", x.dtype(),
                        [&]<class T>() { return map<T, T>("planted", x, [&](T e) { return static_cast<T>(f(e)); }); });
}

struct ForgottenBranch : Square {  // right up to |x| = 3.5, which these samples never reach
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::mul(b.dy(), each(b[0], [](auto x) { return std::abs(x) > 3.5 ? x : 2 * x; }))};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {Tensor::rand({3, 4}, r, -1, 1, DType::f64)}}};
  }
};

struct Clamped : Square {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {each(Square::backward(b)[0], [](auto g) { return std::clamp<decltype(g)>(g, -1e4, 1e4); })};
  }
};

struct Breaks : Square {  // leaves a row at its first zero
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensor g = Square::backward(b)[0];
    const Tensor dy = b.dy().contiguous();
    dispatch_float("planted", g.dtype(), [&]<class T>() {
      T* p = g.mutable_data<T>("planted");
      const int64_t n = g.size(-1);
      for (int64_t row = 0; row < g.numel() / n; ++row)
        for (int64_t j = 0, over = 0; j < n; ++j) {
          over = over || dy.data<T>()[row * n + j] == 0;
          if (over) p[row * n + j] = 0;
        }
    });
    return {g};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {  // too large for the whole Jacobian
    return {{"(10, 9)", {}, {Tensor::randn({10, 9}, r, DType::f64)}}};
  }
};

struct ClampedDeclared : Clamped {
  static constexpr std::string_view nonlinear = "gradients are clamped at 10,000";
};

struct Rough : Square {
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor y = Square::forward(saved, in, a);
    return in[0].dtype() == DType::f32 ? num::scale(y, 1.001) : y;
  }
};

struct Forgotten : Square {  // y = x^2 t
  static inline const std::array inputs{In{"x"}, In{"t", false}};
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S x, S t) { return x * x * t; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::mul(num::mul(in[0], in[0]), in[1]);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::mul(num::scale(num::mul(b.dy(), b[0]), 2), b[1]), Tensor()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {Tensor::randn({3, 4}, r, DType::f64), Tensor::randn({3, 4}, r, DType::f64)}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"t forgotten", [](auto& b) { return Tensors{num::scale(num::mul(b.dy(), b[0]), 2), Tensor()}; }}};
  }
};

struct ByConvention : Forgotten {
  static inline const std::array inputs{In{"x"}, In{"t", false, "targets are data"}};
};

struct Magnitude : Square {
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x < S(0) ? -x : x > S(0) ? x : S(0); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return each(in[0], [](auto x) { return std::abs(x); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::mul(b.dy(), each(b[0], [](auto x) { return static_cast<decltype(x)>((x > 0) - (x < 0)); }))};
  }
  static std::vector<Sample<Args>> samples(Rng&) { return {{"0, 1", {}, {Tensor::of({0, 1, -2}, {3})}}}; }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"sign forgotten", [](auto& b) { return Tensors{b.dy()}; }}};
  }
};

struct MagnitudeDeclared : Magnitude {
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {std::move(Magnitude::samples(r)[0]).at_kink("the slope of |x| at 0 is 0")};
  }
};

struct OtherConvention : MagnitudeDeclared {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::mul(b.dy(), each(b[0], [](auto x) { return static_cast<decltype(x)>(x < 0 ? -1 : 1); }))};
  }
};

struct Round : Square {
  static constexpr std::string_view convention = "straight-through: the gradient of the identity";
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return S(std::nearbyint(static_cast<double>(sc::value(x)))); })};
  }
  template <class S>
  static Arrs<S> gradient_of(const Arrs<S>& in, const Args&) {
    return {in[0]};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    return each(in[0], [](auto x) { return std::nearbyint(x); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {b.dy()}; }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"doubled", [](auto& b) { return Tensors{num::scale(b.dy(), 2)}; }}};
  }
};

struct Doubled : Round {
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::scale(b.dy(), 2)}; }
};

struct Tiny : Square {  // slopes of 1e-4 to 1e-14
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"", {}, {Tensor::of({1e-4, -2e-9, 5e-10, 3e-11, 1e-12, -1e-13, 1e-14}, {7})}}};
  }
};

struct Off : Tiny {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::mul(b.dy(), each(b[0], [](auto x) { return std::abs(x) < 1e-3 ? 2.0001 * x : 2 * x; }))};
  }
};

struct Logarithm : Square {
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::log(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return each(in[0], [](auto x) { return std::log(x); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::div(b.dy(), b[0])}; }
  static std::vector<Sample<Args>> samples(Rng&) { return {{"outside", {}, {Tensor::of({1, -1.5, 2}, {3})}}}; }
};

struct SmoothDeclared : Square {  // the choice of a point on a kink, where there is none
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {std::move(Square::samples(r)[0]).at_kink("the slope of x^2 at 0 is 0")};
  }
};

struct ForgottenValue : ForgottenBranch {  // forward is wrong beyond 3.5, and backward right
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return each(in[0], [](auto x) { return std::abs(x) > 3.5 ? 2 * x : x * x; });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return Square::backward(b); }
};

struct NanAway : ForgottenBranch {
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return each(in[0], [](auto x) { return std::abs(x) > 3.5 ? std::sqrt(-x * x) : x * x; });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return Square::backward(b); }
};

struct FarTail : Square {  // exp, whose f32 branch gives up far below zero
  static constexpr double kFrom = -30;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return sc::exp(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return each(in[0], [](auto x) {
      const bool gives_up = std::is_same_v<decltype(x), float> && x < kFrom;
      return gives_up ? decltype(x)(0) : std::exp(x);
    });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::mul(b.dy(), each(b[0], [](auto x) { return std::exp(x); }))};
  }
  static std::vector<Sample<Args>> samples(Rng&) { return {{"", {}, {Tensor::of({-40, -41, -42}, {3})}}}; }
};

struct IgnoresBatchStride : Square {  // looks at the last two strides before it reads without a copy
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor& x = b[0];
    const Shape& step = x.strides();
    const bool as_is = step[2] == 1 && step[1] == x.size(2) && step[0] >= x.size(1) * x.size(2);
    const Tensor rows = as_is ? x : x.contiguous(), dy = b.dy().contiguous();
    Tensor g = Tensor::empty(x.shape(), x.dtype());
    dispatch_float("planted", x.dtype(), [&]<class T>() {
      for (int64_t k = 0; k < g.numel(); ++k) g.mutable_data<T>("planted")[k] = 2 * dy.data<T>()[k] * rows.data<T>()[k];
    });
    return {g};
  }
  static std::vector<Sample<Args>> samples(Rng& r) { return {{"", {}, {Tensor::randn({2, 4, 3}, r, DType::f64)}}}; }
};

struct Power : Square {  // y = x^p; wrong for p = 3 on matrices, which no sample has
  struct Args {
    int p;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return a.p == 3 ? x * x * x : x * x; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    return each(in[0], [&](auto x) { return a.p == 3 ? x * x * x : x * x; });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const bool wrong = b.args.p == 3 && b[0].rank() == 2;
    return {num::mul(b.dy(), each(b[0], [&](auto x) { return b.args.p == 3 && !wrong ? 3 * x * x : 2 * x; }))};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"square of a matrix", {2}, {Tensor::randn({3, 4}, r, DType::f64)}},
            {"cube of a vector", {3}, {Tensor::randn({5}, r, DType::f64)}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"factor forgotten", [](auto& b) { return Tensors{num::mul(b.dy(), b[0])}; }}};
  }
};

struct NoRest : Forgotten {  // leaves out what is left of a row after whole vectors of 4
  static inline const std::array inputs{In{"x"}, In{"t", false, "data"}};
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensor g = Forgotten::backward(b)[0].contiguous();
    g.slice(-1, g.size(-1) / 4 * 4, g.size(-1)).fill(0);
    return {g, Tensor()};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"", {}, {Tensor::randn({3, 4}, r, DType::f64), Tensor::randn({4}, r, DType::f64)}}};
  }
};

struct Logistic : Square {  // in f32 exp(x) overflows beyond 88
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x < S(0) ? sc::exp(x) / (S(1) + sc::exp(x)) : S(1) / (S(1) + sc::exp(-x)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_output(0, each(in[0], [](auto x) { return std::exp(x) / (1 + std::exp(x)); }));
    return each(in[0], [](auto x) { return std::exp(x) / (1 + std::exp(x)); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::mul(b.dy(), each(b[0], [](auto y) { return y * (1 - y); }))};
  }
};

struct OnColumns : Square {  // y = x^2 table, one number for each column: longer rows would read beyond it
  struct Args {
    std::vector<double> table;
  };
  static double at(const Args& a, int64_t column) {
    BG_CHECK(column < static_cast<int64_t>(a.table.size()), "planted", "no such column", str(column), "one of 4");
    return a.table[static_cast<size_t>(column)];
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y = in[0];
    for (int64_t k = 0; k < y.numel(); ++k) y[k] = y[k] * y[k] * S(at(a, k % y.shape[1]));
    return {y};
  }
  static Tensor weights(const Tensor& x, const Args& a) {
    std::vector<double> w;
    for (int64_t k = 0; k < x.numel(); ++k) w.push_back(at(a, k % x.size(1)));
    return Tensor::of(std::move(w), x.shape()).to(x.dtype());
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    return num::mul(num::mul(in[0], in[0]), weights(in[0], a));
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {num::scale(num::mul(num::mul(b.dy(), b[0]), weights(b[0], b.args)), 2)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {{1, 2, 3, 4}}, {Tensor::randn({3, 4}, r, DType::f64)}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"factor forgotten", [](auto& b) { return Tensors{num::mul(b.dy(), b[0])}; }}};
  }
};

bool says(const OpReport& r, std::string_view text) { return r.to_string().find(text) != std::string::npos; }

}  // namespace

TEST_CASE("an error away from the samples' points is found at moved points") {
  const OpReport r = verify<ForgottenBranch>();
  CHECK(r.wrong());
  CHECK(says(r, "where every number times 4"));
  CHECK(says(r, "declare the Domain of the input"));
  CHECK(verify<Square>().passed());
}

TEST_CASE("a forward that is wrong, or nan, away from the samples' points alone is found there") {
  const OpReport r = verify<ForgottenValue>();
  CHECK(r.failed(Step::V1));
  CHECK(says(r, "where every number times 4: forward = reference"));
  CHECK(says(verify<NanAway>(), "nan"));
  CHECK(verify<NanAway>().failed(Step::V1));
}

TEST_CASE("rows do not grow where the arguments hold a table") {
  const OpReport r = verify<OnColumns>();
  INFO(r.to_string());
  CHECK(r.passed());
  CHECK(r.skipped.count("moved points: forward or reference refuses it") == 0);
}

TEST_CASE("an error that no sample shows is found at other sizes, layouts and arguments") {
  CHECK(says(verify<IgnoresBatchStride>(), "windows (whole rows of a larger tensor)"));
  CHECK(says(verify<Power>(), "where the arguments are those of sample 1"));
  CHECK(says(verify<NoRest>(), "where every dimension of 4 is 5"));
}

TEST_CASE("a clamp on gradients, a skipped zero and a break are not linear in the cotangent") {
  CHECK(says(verify<Clamped>(), "B(2^100 v)"));
  CHECK(says(verify<Breaks>(), "B(part) + B(rest) = B(v)"));
  const OpReport r = verify<ClampedDeclared>();
  INFO(r.to_string());
  CHECK(r.passed());
  CHECK(r.na.at("linearity") == "gradients are clamped at 10,000");
}

TEST_CASE("a forward that is wrong in f32 alone is rejected, cancellation that right code has is not") {
  CHECK(says(verify<Rough>(), "f32 forward = f64 forward"));
  CHECK(says(verify<FarTail>(), "f32 forward = f64 forward"));
  CHECK(says(verify<Logistic>(), "where every number times 2^7: f32 forward = f64 forward"));
}

TEST_CASE("an input that moves the outputs needs a gradient, or a reason why it has none") {
  CHECK(says(verify<Forgotten>(), "an input without a gradient does not move the outputs"));
  CHECK(verify<ByConvention>().passed());
}

TEST_CASE("kinks: undeclared they are named, declared the convention is verified") {
  const OpReport r = verify<Magnitude>();
  CHECK_FALSE(r.wrong());
  CHECK_FALSE(r.passed());
  CHECK(says(r, "INCONCLUSIVE V3"));
  CHECK(says(r, "the slope jumps"));
  const OpReport declared = verify<MagnitudeDeclared>();
  INFO(declared.to_string());
  CHECK(declared.passed());
  CHECK(verify<OtherConvention>().wrong());
  const OpReport smooth = verify<SmoothDeclared>();
  CHECK_FALSE(smooth.wrong());
  CHECK(says(smooth, "no slope jumps here"));
}

TEST_CASE("straight-through: the function whose derivative the backward is by convention is verified") {
  const OpReport r = verify<Round>();
  INFO(r.to_string());
  CHECK(r.passed());
  CHECK(r.na.at("convention") == Round::convention);
  CHECK(verify<Doubled>().wrong());
}

TEST_CASE("small gradients are compared at their own size, without a gap") {
  CHECK(verify<Tiny>().passed());
  CHECK(verify<Off>().wrong());
}

TEST_CASE("values that are not finite are named as what they are") {
  const OpReport r = verify<Logarithm>();
  CHECK_FALSE(r.wrong());
  CHECK(says(r, "output 0 is nan at (1,) of (3,) at the point itself"));
}

TEST_CASE("a function that is no op climbs the ladder with the oracles that it has") {
  auto given = [](double factor) {
    return [factor](const Tensors& in) {
      const Tensor x = in[0];
      return Given::Result{{num::mul(x, num::mul(x, x))}, [x, factor](const Tensors& dy, const Need&) {
                             return Tensors{num::scale(num::mul(dy[0], num::mul(x, x)), factor)};
                           }};
    };
  };
  Given f;
  f.name = "cube";
  f.inputs = {In{"x"}};
  f.forward = given(3);
  f.samples = [](Rng& r) {
    return std::vector<Sample<NoArgs>>{{"(3, 4)", {}, {Tensor::randn({3, 4}, r, DType::f64)}}};
  };
  f.mutants = {{"factor 2", given(2)}};
  const OpReport bare = verify(f);
  INFO(bare.to_string());
  CHECK(bare.passed());
  CHECK(bare.count(Step::V1).comparisons == 0);
  CHECK(bare.count(Step::V2).comparisons == 0);
  CHECK(bare.count(Step::V3).comparisons > 0);
  CHECK(bare.count(Step::V6).comparisons > 0);
  f.reference = [](const Tensors& in) { return Tensors{num::mul(in[0], num::mul(in[0], in[0]))}; };
  f.jvp = [](const Tensors& in, const Tensors& u) {
    return Tensors{num::scale(num::mul(u[0], num::mul(in[0], in[0])), 3)};
  };
  const OpReport whole = verify(f);
  INFO(whole.to_string());
  CHECK(whole.passed());
  CHECK(whole.count(Step::V1).comparisons > 0);
  CHECK(whole.count(Step::V2).comparisons > 0);
  f.forward = given(3.001);
  CHECK(verify(f).wrong());
  CHECK_THAT(verify(f).failures.at(0).rerun, Contains("the same call with {.seed = 1"));
  f.forward = given(3);
  f.samples = [](Rng& r) {  // too large for the whole Jacobian
    return std::vector<Sample<NoArgs>>{{"(9, 10)", {}, {Tensor::randn({9, 10}, r, DType::f64)}}};
  };
  f.reference = {};
  f.jvp = {};
  const OpReport large = verify(f);
  INFO(large.to_string());
  CHECK(large.passed());
  CHECK(large.generated > 0);
  CHECK(large.generated_killed == large.generated);
  f.name.clear();
  CHECK_THROWS_WITH(verify(f), Contains("the function has no name"));
}
