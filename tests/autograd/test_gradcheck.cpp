// gradcheck of any function, forward mode, kinks, the accuracy table, the HTML page, graph pictures.
#include "autograd/graph_dump.h"
#include "autograd/jvp.h"
#include "autograd/ops/all.h"
#include "autograd/verify/accuracy.h"
#include "autograd/verify/gradcheck.h"
#include "autograd/verify/html.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

Tensor random_tensor(uint64_t seed, const Shape& shape) {
  Rng r(seed);
  return Tensor::randn(shape, r, DType::f64);
}

/// y = x^2 whose backward has one wrong element; no compose, so no second derivative.
struct WrongSquare {
  static constexpr std::string_view name = "wrong_square";
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
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensor g = num::scale(num::mul(b.dy(), b[0]), 2);
    g.mutable_data<double>(name)[2] *= 1.5;
    return {g};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return unary_samples(r, Args{}, [](Rng& g, const Shape& s) { return normal(g, s); });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return {}; }
};
Var wrong_square(const Var& x) { return apply<WrongSquare>({}, {x})[0]; }

Vars attention_like(const Vars& in) {
  const Var scores = matmul(in[0], transpose(in[1], -1, -2));
  return {matmul(softmax(scores), in[1]), sum(scores * scores)};
}

}  // namespace

TEST_CASE("gradcheck accepts right gradients of any function, with several inputs and outputs") {
  const GradcheckReport r = gradcheck(attention_like, {Var(random_tensor(1, {3, 4})), Var(random_tensor(2, {3, 4}))});
  INFO(r.to_string());
  CHECK(r.passed());
  CHECK(r.comparisons == 2 * (3 * 2 + 3));  // inputs, directions, oracles, and the same gradient asked for otherwise
  CHECK(r.forward_mode);
  CHECK(r.worst < 1e-9);
}

TEST_CASE("[R3] gradcheck pinpoints the wrong element of a wrong gradient") {
  const GradcheckReport r = gradcheck([](const Vars& in) { return Vars{wrong_square(in[0]) * in[1]}; },
                                      {Var(random_tensor(1, {2, 3})), Var(random_tensor(2, {2, 3}))});
  CHECK(r.verdict == Verdict::wrong);
  CHECK_FALSE(r.forward_mode);
  CHECK_THAT(r.note, Contains("no second derivative"));
  REQUIRE(r.failures.size() == 1);
  CHECK(r.failures[0].input == "input 0");
  CHECK(r.failures[0].index == "(0, 2) of (2, 3)");
  CHECK(close(r.failures[0].analytic, 1.5 * r.failures[0].reference, 1e-8));
  const std::string text = r.to_string();
  CHECK_THAT(text, Contains("analytic") && Contains("reference") && Contains("seed"));
  CHECK(std::count(text.begin(), text.end(), '\n') < 20);
}

TEST_CASE("gradcheck tells a gradient of zero, met up to rounding, from one that is lost") {
  // a shift that all logits of a row share changes nothing: by differences its slope is rounding and no more
  auto shifted = [](const Vars& in) { return Vars{softmax(in[0] + in[1]) * in[2]}; };
  const Vars in{Var(random_tensor(1, {3, 4})), Var(random_tensor(2, {3, 1})), Var(random_tensor(3, {3, 4}))};
  const GradcheckReport right = gradcheck(shifted, in);
  INFO(right.to_string());
  CHECK(right.passed());
  CHECK(right.comparisons == 3 * (3 * 2 + 3));
  // small gradients are still seen: two thirds of one that is 1e-9 of the others is lost
  auto lost = [&](const Vars& x) { return Vars{x[0] + (x[1] * 1e-9).detach() + (x[1] * 1e-9) * 0.5}; };
  const GradcheckReport wrong = gradcheck(lost, {in[0], in[1]});
  INFO(wrong.to_string());
  CHECK(wrong.verdict == Verdict::wrong);
  REQUIRE(wrong.failures.size() == 1);
  CHECK(wrong.failures[0].input == "input 1");
}

TEST_CASE("[R5] gradcheck sees a gradient that depends on what else is needed, and strides that are misread") {
  struct WeightsOnlyWithInput : Linear {
    static Tensors backward(const Backward<Tensor, Args>& b) {
      Tensors g = Linear::backward(b);
      if (!b.need(0)) g[1] = Tensor();
      return g;
    }
  };
  const GradcheckReport needs = gradcheck([](const Vars& in) { return apply<WeightsOnlyWithInput>({}, in); },
                                          {Var(random_tensor(1, {3, 4})), Var(random_tensor(2, {4, 2}))});
  CHECK(needs.verdict == Verdict::wrong);
  REQUIRE(needs.failures.size() == 1);
  CHECK(needs.failures[0].input == "input 1");
  CHECK_THAT(needs.to_string(), Contains("FAIL V6") && Contains("when no other is needed"));

  struct AssumesContiguous : Softmax {
    static Tensors backward(const Backward<Tensor, Args>& b) {
      Tensor dy = Tensor::empty(b.dy().shape(), b.dy().dtype());
      const int64_t last = static_cast<int64_t>(b.dy().storage()->bytes() / sizeof(double)) - 1;
      for (int64_t i = 0; i < dy.numel(); ++i)
        dy.mutable_data<double>("test")[i] = b.dy().data<double>()[std::min(i, last)];
      const std::vector<Tensor> cotangents{dy}, saved{b[0]};
      const std::vector<Node::Value> inputs{{b.input_shape(0), b.input_dtype(0)}};
      return Softmax::backward(Backward<Tensor, Args>(name, cotangents, saved, Need({true}), b.args, inputs));
    }
  };
  const GradcheckReport strides =
      gradcheck([](const Vars& in) { return apply<AssumesContiguous>({}, in); }, {Var(random_tensor(1, {3, 5}))});
  CHECK(strides.verdict == Verdict::wrong);
  REQUIRE(strides.failures.size() == 1);
  CHECK_THAT(strides.to_string(), Contains("FAIL V6") && Contains("transposed cotangent"));
}

TEST_CASE("[R1] gradcheck refuses f32 with advice, and functions that it cannot check") {
  auto square = [](const Vars& in) { return Vars{in[0] * in[0]}; };
  CHECK_THROWS_WITH(gradcheck(square, {Var(Tensor::zeros({2}, DType::f32))}),
                    Contains("1e-4 at best") && Contains("got f32, expected f64") && Contains("to(DType::f64)"));
  CHECK_THROWS_WITH(gradcheck(square, {}), Contains("nothing to differentiate"));
  CHECK_THROWS_WITH(gradcheck([](const Vars& in) { return Vars{in[0].detach()}; }, {Var(random_tensor(1, {2}))}),
                    Contains("depend on none of the inputs"));
  int calls = 0;
  CHECK_THROWS_WITH(gradcheck([&](const Vars& in) { return Vars{in[0] * static_cast<double>(++calls)}; },
                              {Var(random_tensor(1, {2}))}),
                    Contains("other outputs when it runs again"));
}

TEST_CASE("[R24] a kink or a tie is called not differentiable, not wrong") {
  const Var at_kink(Tensor::of({1.0, 0.0, -2.0}, {3}));
  for (const auto& f : std::vector<std::function<Vars(const Vars&)>>{
           [](const Vars& in) { return Vars{abs(in[0])}; }, [](const Vars& in) { return Vars{relu(in[0])}; },
           [](const Vars& in) { return Vars{clamp(in[0], 0, 5)}; },
           [](const Vars& in) {
             return Vars{maximum(in[0], Var(Tensor::of({0.0, 0.0, 0.0}, {3})))};
           }}) {
    const GradcheckReport r = gradcheck(f, {at_kink});
    INFO(r.to_string());
    CHECK(r.verdict == Verdict::not_differentiable);
    CHECK_FALSE(r.passed());
    REQUIRE(r.failures.size() == 1);
    CHECK(r.failures[0].index == "(1,) of (3,)");
    CHECK_THAT(r.to_string(), Contains("not differentiable here") && Contains("slope"));
  }
  // beside the kink but within reach of the differences
  CHECK(gradcheck([](const Vars& in) { return Vars{abs(in[0])}; }, {Var(Tensor::of({1.0, 1e-3}, {2}))}).verdict ==
        Verdict::not_differentiable);
  // a margin away, and strongly bent but smooth
  CHECK(gradcheck([](const Vars& in) { return Vars{abs(in[0])}; }, {Var(Tensor::of({1.0, 0.5}, {2}))}).passed());
  CHECK(gradcheck([](const Vars& in) { return Vars{exp(in[0] * 5) * in[0]}; }, {Var(random_tensor(3, {4}))}).passed());
  CHECK(gradcheck([](const Vars& in) { return Vars{sin(in[0] * 20)}; }, {Var(random_tensor(4, {4}))}).passed());
  // a wrong gradient at a smooth point stays wrong
  CHECK(gradcheck([](const Vars& in) { return Vars{wrong_square(in[0])}; }, {Var(random_tensor(5, {2, 3}))}).verdict ==
        Verdict::wrong);
}

TEST_CASE("gradcheck over parameters moves them in place and puts them back") {
  Var w(random_tensor(1, {4, 3}), true), b(random_tensor(2, {3}), true);
  const Tensor before = w.value().clone();
  const Var x(random_tensor(3, {5, 4}));
  const GradcheckReport r = gradcheck_parameters([&] { return Vars{tanh(matmul(x, w) + b)}; }, {w, b}, {"w", "b"});
  INFO(r.to_string());
  CHECK(r.passed());
  CHECK(num::max_abs(num::sub(w.value(), before)) == 0);
  CHECK_FALSE(w.grad().defined());
  const GradcheckReport wrong =
      gradcheck_parameters([&] { return Vars{matmul(x, wrong_square(w)) + b}; }, {w, b}, {"w", "b"});
  CHECK(wrong.verdict == Verdict::wrong);
  REQUIRE(wrong.failures.size() == 1);
  CHECK(wrong.failures[0].input == "w");
  CHECK(wrong.failures[0].index == "(0, 2) of (4, 3)");
}

TEST_CASE("[R20] jvp agrees with differences and refuses what has no second derivative") {
  const Tensor x = random_tensor(1, {3, 4}), y = random_tensor(2, {3, 4}), tx = random_tensor(3, {3, 4}),
               ty = random_tensor(4, {3, 4});
  const Jvp j = jvp(attention_like, {x, y}, {tx, ty});
  REQUIRE(j.tangents.size() == 2);
  const double h = 1e-5;
  auto at = [&](double t) {
    return attention_like({Var(num::add(x, num::scale(tx, t))), Var(num::add(y, num::scale(ty, t)))});
  };
  for (size_t k = 0; k < 2; ++k) {
    const Tensor d = num::scale(num::sub(at(h)[k].value(), at(-h)[k].value()), 1 / (2 * h));
    CHECK(num::max_abs(num::sub(j.tangents[k], d)) < 1e-7 * std::max(1.0, num::max_abs(d)));
  }
  CHECK(num::max_abs(jvp([](const Vars& in) { return Vars{in[0].detach()}; }, {x}, {tx}).tangents[0]) == 0);
  CHECK_THROWS_WITH(jvp(attention_like, {x, y}, {tx}), Contains("wrong number of tangents"));
  CHECK_THROWS_WITH(jvp(attention_like, {x, y}, {tx, random_tensor(1, {4})}), Contains("does not match its input"));
  CHECK_THROWS_WITH(jvp([](const Vars& in) { return Vars{wrong_square(in[0])}; }, {x}, {tx}),
                    Contains("[wrong_square] no second derivative"));
}

TEST_CASE("[R7] a fused op without compose throws under create_graph") {
  const Var x(random_tensor(1, {2, 3}), true);
  CHECK_THROWS_WITH(grad({sum(wrong_square(x))}, {x}, {}, {.create_graph = true}), Contains("no compose"));
}

TEST_CASE("accuracy: a few units in the last place for elementary ops, and rounding to bf16 seen") {
  const std::vector<AccuracyRow> rows = measure_accuracy(verifier::make_entry<Exp>());
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].what == "output");
  CHECK(rows[1].what == "d x");
  for (const AccuracyRow& r : rows) {
    CHECK(r.f64.elements > 0);
    CHECK(r.f64.max_ulp <= 4);
    CHECK(r.f32.max_ulp <= 4);
    CHECK(r.f32.max_relative > 1e-9);
    CHECK(r.bf16_inputs.max_relative > 1e-4);
    CHECK(r.bf16_inputs.max_relative < 1e-1);
  }
  CHECK_THAT(accuracy_table(rows), Contains("exp") && Contains("d x"));
}

TEST_CASE("accuracy: attention's own f32 backward is no worse than 4 times its composition") {
  for (const verifier::Entry& e : verifier::all_entries()) {
    if (e.name != "attention" && e.name != "standard_attention") continue;
    const std::vector<AccuracyRow> rows = measure_accuracy(e);
    const auto all = std::find_if(rows.begin(), rows.end(), [](auto& r) { return r.what == "all gradients"; });
    REQUIRE(all != rows.end());
    INFO(accuracy_table(rows));
    CHECK(all->f32.elements >= 500);
    CHECK(all->composed_f32.elements == all->f32.elements);
    CHECK(all->f32_ratio() <= 4);
    CHECK(close(all->f32_ratio(), all->f32.median_ulp / all->composed_f32.median_ulp, 1e-12));
  }
  CHECK(measure_accuracy(verifier::make_entry<Exp>())[1].f32_ratio() < 0);  // no composition
}

TEST_CASE("boosted attention: f32 errors grow with the rounds, and at twice unit gain the map turns chaotic") {
  const std::vector<GrowthRow> rows = measure_growth(1);
  INFO(growth_table(rows));
  REQUIRE(rows.size() == 4);
  for (const GrowthRow& r : rows) {
    CHECK(r.unit_gain.max < 1e-3);
    CHECK(r.unit_gain.median < 1e-4);
    CHECK(r.unit_gain.median > 1e-8);  // f32 was at work
  }
  CHECK(rows[3].twice_gain.max > 100 * rows[0].twice_gain.max);
  CHECK(rows[3].twice_gain.median > 3 * rows[3].unit_gain.median);
}

TEST_CASE("the HTML page is whole, escapes names and shows failures") {
  const verifier::Entry e = verifier::make_entry<WrongSquare>();
  const OpReport r = verifier::verify_entry(e, {});
  CHECK_FALSE(r.passed());
  OpReport evil = r;
  evil.op = "<script>";
  const ErrorMap m = error_map(e, r, {});
  CHECK(m.error.size() > 0);
  const std::string page = html_page({r, evil}, {m, m}, {});
  CHECK_THAT(page,
             Contains("</html>") && Contains("2 of 2 ops failed") && Contains("&lt;script&gt;") && Contains("<svg"));
  CHECK_THAT(page, !Contains("<script>") && !Contains("http"));
}

TEST_CASE("a graph's picture names ops, scopes, shapes and saved bytes") {
  const Var x(random_tensor(1, {2, 3}), true);
  Var y;
  {
    Scope s("block.0");
    y = sum(x * x);
  }
  const std::string dot = to_dot({y});
  CHECK_THAT(dot, Contains("digraph") && Contains("mul\\nblock.0\\nf64 (2, 3)\\nsaved 96 bytes") && Contains("leaf") &&
                      Contains("2 ops, 96 bytes saved") && Contains("[label=\"a\"]"));
  CHECK_THAT(to_dot({y}, 1), Contains("cut off here"));
}
