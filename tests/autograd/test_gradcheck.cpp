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

/// An op from two functions: its value, and its gradients for a cotangent.
struct Given {
  static constexpr std::string_view name = "given";
  struct Args {
    std::function<Tensor(const Tensors& in)> forward;
    std::function<Tensors(const Tensor& dy, const Tensors& in)> backward;
  };
  static std::vector<In> inputs_for(const Args&, size_t count) { return std::vector<In>(count, In("x")); }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return in;
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    for (size_t i = 0; i < in.size(); ++i) saved.keep_input(static_cast<int>(i), in[i]);
    return a.forward(in);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensors in;
    for (size_t i = 0; i < b.input_count(); ++i) in.push_back(b[i]);
    return b.args.backward(b.dy(), in);
  }
  static std::vector<Sample<Args>> samples(Rng&) { return {}; }
  static std::vector<Mutant<Tensor, Args>> mutants() { return {}; }
};
Var given(const Vars& in, decltype(Given::Args::forward) forward, decltype(Given::Args::backward) backward) {
  return apply<Given>({std::move(forward), std::move(backward)}, in)[0];
}

Tensor each(const Tensor& x, const std::function<double(double)>& f) {
  std::vector<double> y = x.to_vector<double>();
  for (double& e : y) e = f(e);
  return Tensor::of(std::move(y), x.shape());
}
/// f of every element, with `slope` taken for its derivative.
Var each(const Var& x, const std::function<double(double)>& f, const std::function<double(double)>& slope) {
  return given(
      {x}, [f](const Tensors& in) { return each(in[0], f); },
      [slope](const Tensor& dy, const Tensors& in) { return Tensors{num::mul(dy, each(in[0], slope))}; });
}
/// The same numbers, with a backward of one's own.
Var passed_through(const Var& x, const std::function<Tensor(const Tensor& dy)>& backward) {
  return given(
      {x}, [](const Tensors& in) { return in[0].clone(); },
      [backward](const Tensor& dy, const Tensors&) { return Tensors{backward(dy)}; });
}

/// A softmax with a gradient that is wrong by a factor.
struct SoftmaxTimesMinusSeven : Softmax {
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::scale(Softmax::backward(b)[0], -7)}; }
};
Var wrong_softmax(const Var& x) { return apply<SoftmaxTimesMinusSeven>({}, {x})[0]; }

GradcheckReport check_at(const Tensor& x, const std::function<Var(const Var&)>& f, const GradcheckOptions& o = {}) {
  return gradcheck([&](const Vars& in) { return Vars{f(in[0])}; }, {Var(x)}, o);
}

Vars attention_like(const Vars& in) {
  const Var scores = matmul(in[0], transpose(in[1], -1, -2));
  return {matmul(softmax(scores), in[1]), sum(scores * scores)};
}

}  // namespace

TEST_CASE("gradcheck accepts right gradients of any function, with several inputs and outputs") {
  const GradcheckReport r = gradcheck(attention_like, {Var(random_tensor(1, {3, 4})), Var(random_tensor(2, {3, 4}))});
  INFO(r.to_string());
  CHECK(r.passed());
  REQUIRE(r.pairs.size() == 4);
  for (const GradcheckPair& p : r.pairs) {
    CHECK(p.comparisons == 3 + 12);  // directions and elements
    CHECK(p.seen());
    CHECK(p.noticeable < 1e-5);
  }
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
  const GradcheckReport undeclared = gradcheck(shifted, in);
  CHECK(undeclared.verdict == Verdict::inconclusive);
  REQUIRE(undeclared.failures.size() == 1);
  CHECK(undeclared.failures[0].input == "input 1");
  CHECK_THAT(undeclared.to_string(), Contains("zero, or too small to be seen") && Contains("zero_inputs"));
  const GradcheckReport right = gradcheck(shifted, in, {.zero_inputs = {1}});
  INFO(right.to_string());
  CHECK(right.passed());
  REQUIRE(right.left_out.size() == 1);
  CHECK_THAT(right.left_out[0], Contains("input 1"));
  // small gradients are still seen: two thirds of one that is 1e-9 of the others is lost
  auto lost = [&](const Vars& x) { return Vars{x[0] + (x[1] * 1e-9).detach() + (x[1] * 1e-9) * 0.5}; };
  const GradcheckReport wrong = gradcheck(lost, {in[0], in[1]});
  INFO(wrong.to_string());
  CHECK(wrong.verdict == Verdict::wrong);
  REQUIRE(wrong.failures.size() == 1);
  CHECK(wrong.failures[0].input == "input 1");
}

TEST_CASE("gradcheck never calls right what it could not see") {
  const Tensor x = random_tensor(1, {3, 5});
  // the true gradient is zero whatever the factor
  const GradcheckReport sum_of_softmax = check_at(x, [](const Var& v) { return sum(wrong_softmax(v)); });
  INFO(sum_of_softmax.to_string());
  CHECK(sum_of_softmax.verdict == Verdict::inconclusive);
  CHECK_THAT(sum_of_softmax.to_string(), Contains("INCONCLUSIVE gradcheck: input 0") && Contains("zero_inputs") &&
                                             Contains("another output") && !Contains("FAIL"));
  CHECK(check_at(x, [](const Var& v) { return sum(softmax(v)); }).verdict == Verdict::inconclusive);
  CHECK(check_at(x, [](const Var& v) { return sum(softmax(v)); }, {.zero_inputs = {0}}).passed());
  CHECK(check_at(x, [](const Var& v) { return sum(softmax(v)); }, {.constant_outputs = {0}}).verdict != Verdict::wrong);
  CHECK(check_at(x, [](const Var& v) { return wrong_softmax(v); }).verdict == Verdict::wrong);

  // a head of zeros hides what lies before it
  const Tensor head = Tensor::zeros({5, 2}, DType::f64);
  auto headed = [](const Vars& in) { return Vars{matmul(wrong_softmax(in[0]), in[1])}; };
  const GradcheckReport hidden = gradcheck(headed, {Var(x), Var(head)});
  INFO(hidden.to_string());
  CHECK(hidden.verdict == Verdict::inconclusive);
  REQUIRE(hidden.failures.size() == 1);
  CHECK(hidden.failures[0].input == "input 0");
  CHECK(gradcheck(headed, {Var(x), Var(random_tensor(3, {5, 2}))}).verdict == Verdict::wrong);

  // an output that hides another is no reason not to look at each
  const GradcheckReport loud = gradcheck(
      [](const Vars& in) {
        return Vars{in[0] * 1e8, wrong_softmax(in[0])};
      },
      {Var(x)});
  INFO(loud.to_string());
  CHECK(loud.verdict == Verdict::wrong);
  CHECK(loud.failures[0].output == "output 1");
  const GradcheckReport one_unseen = gradcheck(
      [](const Vars& in) {
        return Vars{in[0] * 2, sum(wrong_softmax(in[0]))};
      },
      {Var(x)});
  INFO(one_unseen.to_string());
  CHECK(one_unseen.verdict == Verdict::inconclusive);
  REQUIRE(one_unseen.failures.size() == 1);
  CHECK(one_unseen.failures[0].output == "output 1");
  CHECK(one_unseen.failures[0].input.empty());

  // rounding hides everything under a large offset
  const auto wrong_exp = [](const Var& v) {
    return each(
        v, [](double t) { return std::exp(t); }, [](double t) { return 1.01 * std::exp(t); });
  };
  const GradcheckReport under_offset = check_at(x, [&](const Var& v) { return sum(wrong_exp(v)) + 1e12; });
  INFO(under_offset.to_string());
  CHECK(under_offset.verdict == Verdict::inconclusive);
  CHECK_THAT(under_offset.to_string(), Contains("offset"));
  CHECK(check_at(x, [&](const Var& v) { return sum(wrong_exp(v)); }).verdict == Verdict::wrong);
  CHECK(check_at(x, [](const Var& v) { return v + 1e12 - 1e12; }).verdict == Verdict::inconclusive);
}

TEST_CASE("gradcheck compares every element of an input and of an output at its own scale") {
  // one tensor whose first element drowns the others, as one output and in one sum
  const Tensor x = random_tensor(1, {6}), large = random_tensor(1, {40, 5});
  auto f = [](const Var& v, double slip) {
    const int64_t n = v.size(0);
    const Var rest = slice(v, 0, 1, n);
    return concat({slice(v, 0, 0, 1) * 1e8, given(
                                                {rest}, [](const Tensors& in) { return num::mul(in[0], in[0]); },
                                                [slip](const Tensor& dy, const Tensors& in) {
                                                  return Tensors{num::scale(num::mul(dy, in[0]), 2 + slip)};
                                                })},
                  0);
  };
  for (const double slip : {0.0, 1e-2, -4.0}) {
    const Verdict want = slip == 0 ? Verdict::right : Verdict::wrong;
    INFO(slip);
    for (const Tensor& at : {x, large}) {
      const GradcheckReport whole = check_at(at, [&](const Var& v) { return f(v, slip); });
      INFO(whole.to_string());
      CHECK(whole.verdict == want);
    }
    const GradcheckReport total = check_at(x, [&](const Var& v) { return sum(f(v, slip)); });
    INFO(total.to_string());
    CHECK(total.verdict == want);
  }
}

TEST_CASE("gradcheck of many outputs goes by groups and says so") {
  auto many = [](int64_t wrong) {
    return [wrong](const Vars& in) {
      Vars out;
      for (int64_t k = 0; k < 80; ++k) {
        const Var part = slice(in[0], 0, k, k + 1);
        out.push_back(k == wrong ? each(
                                       part, [](double v) { return v * v; }, [](double v) { return 2.02 * v; })
                                 : part * part);
      }
      return out;
    };
  };
  const Vars in{Var(random_tensor(1, {80}))};
  const GradcheckReport right = gradcheck(many(-1), in);
  INFO(right.to_string());
  CHECK(right.passed());
  CHECK(right.pairs.size() == 80);
  REQUIRE(!right.left_out.empty());
  CHECK_THAT(right.left_out[0], Contains("80 outputs") && Contains("groups of 3"));
  const GradcheckReport wrong = gradcheck(many(61), in);
  CHECK(wrong.verdict == Verdict::wrong);
  CHECK_THAT(wrong.failures[0].output, Contains("output 60 to 62"));
  CHECK(wrong.failures[0].index == "(61,) of (80,)");
}

TEST_CASE("gradcheck reports, per input and output, how small an error would have been noticed") {
  const GradcheckReport r = gradcheck(
      [](const Vars& in) {
        return Vars{in[0] * in[1], exp(in[1])};
      },
      {Var(random_tensor(1, {3})), Var(random_tensor(2, {3}))});
  INFO(r.to_string());
  CHECK(r.passed());
  REQUIRE(r.pairs.size() == 4);
  CHECK(r.pairs[1].input == "input 0");
  CHECK(r.pairs[1].output == 1);
  CHECK(std::isinf(r.pairs[1].noticeable));  // exp(in[1]) does not depend on input 0
  CHECK_FALSE(r.pairs[1].seen());
  for (const size_t k : {0, 2, 3}) {
    CHECK(r.pairs[k].noticeable > 1e-8);
    CHECK(r.pairs[k].noticeable < 1e-5);
  }
  CHECK_THAT(r.to_string(), Contains("input 0 -> output 1") && Contains("nothing could be seen") &&
                                Contains("would have been noticed"));
  // an error ten times as large as what is said to be noticeable is noticed
  for (const double share : {10.0, 0.01}) {
    const double slip =
        share * check_at(random_tensor(3, {1}),
                         [](const Var& v) {
                           return each(
                               v, [](double t) { return std::exp(t); }, [](double t) { return std::exp(t); });
                         })
                    .pairs[0]
                    .noticeable;
    const GradcheckReport slipped = check_at(random_tensor(3, {1}), [&](const Var& v) {
      return each(
          v, [](double t) { return std::exp(t); }, [&](double t) { return std::exp(t) * (1 + slip); });
    });
    CHECK(slipped.verdict == (share > 1 ? Verdict::wrong : Verdict::right));
  }
}

TEST_CASE("gradcheck takes declarations and checks them") {
  const Tensor x = random_tensor(1, {2, 3});
  CHECK_THROWS_WITH(check_at(x, [](const Var& v) { return v * v; }, {.zero_inputs = {1}}),
                    Contains("zero_inputs names no input") && Contains("got 1"));
  CHECK_THROWS_WITH(check_at(x, [](const Var& v) { return v * v; }, {.zero_inputs = {"y"}}),
                    Contains("such as input 0"));
  CHECK_THROWS_WITH(check_at(x, [](const Var& v) { return v * v; }, {.constant_outputs = {2}}),
                    Contains("constant_outputs names no output"));
  const GradcheckReport not_zero = check_at(x, [](const Var& v) { return v * v; }, {.zero_inputs = {"input 0"}});
  CHECK(not_zero.verdict == Verdict::wrong);
  CHECK_THAT(not_zero.to_string(), Contains("declared zero, but output 0 moves with it"));
  CHECK(check_at(x, [](const Var& v) { return v * v; }, {.constant_outputs = {0}}).verdict == Verdict::wrong);
  // declared zero, which it is, but the gradient is not
  const auto flat = [](const Var& v) {
    return each(
        v, [](double) { return 1.0; }, [](double) { return 1e-3; });
  };
  CHECK(check_at(x, flat, {.zero_inputs = {0}}).verdict == Verdict::wrong);

  // straight-through and reversed gradients: the derivative of another function, by convention
  const auto straight_through = [](const Var& v) {
    return each(
        v, [](double t) { return std::round(t); }, [](double) { return 1.0; });
  };
  const GradcheckReport undeclared = check_at(x, straight_through);
  CHECK_FALSE(undeclared.passed());
  CHECK_THAT(undeclared.to_string(), Contains("gradient_of"));
  const GradcheckReport declared = check_at(x, straight_through, {.gradient_of = [](const Vars& in) { return in; }});
  INFO(declared.to_string());
  CHECK(declared.passed());
  const auto reversed = [](double factor) {
    return [factor](const Var& v) {
      return passed_through(v, [factor](const Tensor& dy) { return num::scale(dy, factor); });
    };
  };
  const GradcheckOptions minus{.gradient_of = [](const Vars& in) { return Vars{-in[0]}; }};
  CHECK(check_at(x, reversed(-1), minus).passed());
  CHECK(check_at(x, reversed(-1)).verdict == Verdict::wrong);
  CHECK(check_at(x, reversed(-0.5), minus).verdict == Verdict::wrong);
  CHECK_THROWS_WITH(check_at(x, reversed(-1), {.gradient_of = [](const Vars& in) { return Vars{sum(in[0])}; }}),
                    Contains("gradient_of gives another output 0"));

  // on a kink by convention: the elements beside it are compared, the one on it lies between its slopes
  const Tensor kink = Tensor::of({1.0, 0.0, -2.0}, {3});
  const GradcheckReport relued = check_at(kink, [](const Var& v) { return relu(v); }, {.kinked_inputs = {0}});
  INFO(relued.to_string());
  CHECK(relued.passed());
  CHECK_THAT(relued.left_out.at(0), Contains("kinked_inputs"));
  const auto relu_like = [](double at_zero, double beyond) {
    return [=](const Var& v) {
      return each(
          v, [](double t) { return std::max(t, 0.0); }, [=](double t) { return t > 0   ? beyond
                                                                               : t < 0 ? 0
                                                                                       : at_zero; });
    };
  };
  CHECK(check_at(kink, relu_like(0.5, 1), {.kinked_inputs = {0}}).passed());
  CHECK(check_at(kink, relu_like(1.5, 1), {.kinked_inputs = {0}}).verdict == Verdict::wrong);
  CHECK(check_at(kink, relu_like(0, 1.001), {.kinked_inputs = {0}}).verdict == Verdict::wrong);
  CHECK(check_at(kink, relu_like(0, 1.001)).verdict == Verdict::wrong);  // wrong beats not differentiable
}

TEST_CASE("an output outside the graph that moves with an input is not verified") {
  const Tensor x = random_tensor(1, {3});
  const auto f = [](const Vars& in) { return Vars{in[0] * 2, Var(num::mul(in[0].value(), in[0].value()))}; };
  const GradcheckReport r = gradcheck(f, {Var(x)});
  INFO(r.to_string());
  CHECK(r.verdict == Verdict::inconclusive);
  REQUIRE(r.failures.size() == 1);
  CHECK(r.failures[0].output == "output 1");
  CHECK_THAT(r.to_string(), Contains("not verified") && Contains("moves with input 0") && Contains("constant_outputs"));
  CHECK(gradcheck(f, {Var(x)}, {.constant_outputs = {1}}).passed());
  // one that does not move is a constant, and a floating input that nobody differentiates is nobody's business
  CHECK(gradcheck(
            [](const Vars& in) {
              return Vars{in[0] * in[1], Var(Tensor::of({1.0, 2.0}, {2}))};
            },
            {Var(x, true), Var(random_tensor(2, {3}))})
            .passed());
  const GradcheckReport only = gradcheck([](const Vars& in) { return Vars{in[0].detach()}; }, {Var(x)});
  CHECK(only.verdict == Verdict::inconclusive);
  CHECK_THAT(only.to_string(), Contains("output 0: not verified"));
}

TEST_CASE("gradcheck does not reject right functions of difficult kinds") {
  const auto right = [](const std::string& what, const Tensor& x, const std::function<Var(const Var&)>& f) {
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      const GradcheckReport r = check_at(x, f, {.seed = seed});
      INFO(what << ", seed " << seed << "\n" << r.to_string());
      CHECK(r.verdict == Verdict::right);
    }
  };
  const auto unary = [](double (*f)(double), double (*slope)(double)) {
    return [=](const Var& v) { return each(v, f, slope); };
  };
  right("logsumexp at 1e6", num::add(random_tensor(1, {2, 4}), Tensor::full({2, 4}, 1e6, DType::f64)),
        [](const Var& v) { return logsumexp(v, 1); });
  right("1/x at 1e-3", Tensor::of({1e-3, -2e-3, 1.0}, {3}), [](const Var& v) { return pow(v, -1); });
  right("1/x at 1e-3 alone", Tensor::of({1e-3}, {1}), [](const Var& v) { return pow(v, -1); });
  right("sqrt at 1e-4", Tensor::of({1e-4, 1.0}, {2}), [](const Var& v) { return sqrt(v); });
  right("log at 1e-3", Tensor::of({1e-3, 1.0}, {2}), [](const Var& v) { return log(v); });
  right("asin at 0.999", Tensor::of({0.999, -0.999, 0.1}, {3}),
        unary([](double t) { return std::asin(t); }, [](double t) { return 1 / std::sqrt(1 - t * t); }));
  right("sin(1000 x)", random_tensor(2, {5}), [](const Var& v) { return sin(v * 1000); });
  right("softplus at -40", Tensor::of({-40.0, 1.0, 3.0}, {3}),
        unary([](double t) { return std::log1p(std::exp(t)); }, [](double t) { return 1 / (1 + std::exp(-t)); }));
  right("softplus at -40 alone", Tensor::of({-40.0}, {1}),
        unary([](double t) { return std::log1p(std::exp(t)); }, [](double t) { return 1 / (1 + std::exp(-t)); }));
  right("a product of twelve 0.1", Tensor::full({12}, 0.1, DType::f64), [](const Var& v) {
    Var p = select(v, 0, 0);
    for (int64_t k = 1; k < 12; ++k) p = p * select(v, 0, k);
    return p;
  });
  right("a norm", random_tensor(3, {2, 7}), [](const Var& v) { return sqrt(sum(v * v, {1})); });
  right("a norm of small numbers", num::scale(random_tensor(3, {7}), 1e-6),
        [](const Var& v) { return sqrt(sum(v * v)); });
  right("layer norm", random_tensor(4, {3, 8}), [](const Var& v) { return layer_norm(v); });
  right("cross entropy, saturated", num::scale(random_tensor(5, {4, 6}), 30), [](const Var& v) {
    return cross_entropy(v, Tensor::of(std::vector<int64_t>{0, 1, 2, 3}, {4}));
  });
  right("a ReLU with most elements off", num::sub(random_tensor(6, {4, 8}), Tensor::full({4, 8}, 1.5, DType::f64)),
        [](const Var& v) { return relu(v); });
  right("pow",
        num::add(each(random_tensor(7, {5}), [](double t) { return t * t; }), Tensor::full({5}, 0.01, DType::f64)),
        [](const Var& v) { return pow(v, 2.5); });

  // never wrong, whatever else is said
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    CHECK(check_at(random_tensor(5, {3, 4}), [](const Var& v) { return softmax(v * 1000); }, {.seed = seed}).verdict !=
          Verdict::wrong);
    const GradcheckReport far = check_at(Tensor::of({100.0, -100.0, 0.0, -50.0, 300.0, 2.0}, {2, 3}),
                                         [](const Var& v) {
                                           return cross_entropy(v, Tensor::of(std::vector<int64_t>{0, 1}, {2}));
                                         },
                                         {.seed = seed});
    CHECK(far.verdict == Verdict::inconclusive);
  }
  for (const double large : {1e13, 1e15})
    CHECK(check_at(Tensor::of({0.7}, {1}), [&](const Var& v) { return v + large - large; }).verdict ==
          Verdict::inconclusive);
  const GradcheckReport chaos = check_at(Tensor::of({0.3, 0.7}, {2}), [](const Var& v) {
    Var y = v;
    for (int k = 0; k < 60; ++k) y = y * (1.0 - y) * 3.99;
    return y;
  });
  INFO(chaos.to_string());
  CHECK(chaos.verdict != Verdict::wrong);
  CHECK_FALSE(chaos.passed());
  const GradcheckReport milder = check_at(Tensor::of({0.3, 0.7}, {2}), [](const Var& v) {
    Var y = v;
    for (int k = 0; k < 12; ++k) y = y * (1.0 - y) * 3.99;
    return y;
  });
  INFO(milder.to_string());
  CHECK(milder.passed());
}

TEST_CASE("gradcheck of a ReLU network 64 wide on a batch of 64 is right at every seed") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Rng rng(seed);
    const Var x(Tensor::randn({64, 16}, rng, DType::f64));
    Vars w;
    for (const Shape& s : {Shape{16, 64}, Shape{64, 64}, Shape{64, 1}})
      w.emplace_back(num::scale(Tensor::randn(s, rng, DType::f64), 1 / std::sqrt(static_cast<double>(s[0]))), true);
    const auto loss = [&] { return Vars{mean(square(matmul(relu(matmul(relu(matmul(x, w[0])), w[1])), w[2])))}; };
    const GradcheckReport r = gradcheck_parameters(loss, w, {}, {.seed = seed});
    INFO(r.to_string());
    CHECK(r.passed());
  }
}

TEST_CASE("gradcheck requires a backward that is linear in its cotangent, however large or sparse that is") {
  const Tensor x = random_tensor(1, {12, 8});
  const auto verdict = [&](const std::function<Tensor(const Tensor&)>& backward, const GradcheckOptions& o = {}) {
    return check_at(
        x, [&](const Var& v) { return passed_through(v, backward); }, o);
  };
  CHECK(verdict([](const Tensor& dy) { return dy.clone(); }).passed());
  const auto clipped = [](const Tensor& dy) { return each(dy, [](double t) { return std::clamp(t, -1e6, 1e6); }); };
  const GradcheckReport at_scale = verdict(clipped);
  CHECK(at_scale.verdict == Verdict::wrong);
  CHECK_THAT(at_scale.to_string(), Contains("scaled by 2^100"));
  CHECK(verdict(clipped, {.nonlinear = "clipped on purpose"}).passed());
  CHECK_THAT(verdict(clipped, {.nonlinear = "clipped on purpose"}).left_out.at(0), Contains("clipped on purpose"));
  const GradcheckReport small =
      verdict([](const Tensor& dy) { return each(dy, [](double t) { return std::abs(t) < 1e-12 ? 0 : t; }); });
  CHECK_THAT(small.to_string(), Contains("scaled by 2^-100"));
  // stops at the first element, or row, that is zero
  const auto breaks = [](int64_t width) {
    return [width](const Tensor& dy) {
      std::vector<double> g = dy.to_vector<double>();
      bool over = false;
      for (size_t j = 0; j < g.size(); j += static_cast<size_t>(width)) {
        double size = 0;
        for (size_t k = j; k < j + static_cast<size_t>(width); ++k) size += std::abs(g[k]);
        over = over || size == 0;
        for (size_t k = j; over && k < j + static_cast<size_t>(width); ++k) g[k] = 0;
      }
      return Tensor::of(std::move(g), dy.shape());
    };
  };
  for (const int64_t width : {1, 8}) {
    const GradcheckReport r = verdict(breaks(width));
    INFO(r.to_string());
    CHECK(r.verdict == Verdict::wrong);
    CHECK_THAT(r.to_string(), Contains("the sum of the gradients for"));
  }
}

TEST_CASE("gradcheck sees a backward that writes where it must not, or refuses what the engine may hand to it") {
  const Tensor x = random_tensor(1, {3, 4});
  const GradcheckReport writes = check_at(x, [](const Var& v) {
    return passed_through(v, [](const Tensor& dy) {
      Tensor same = dy;
      same.fill(0);
      return Tensor::zeros(dy.shape(), dy.dtype());
    });
  });
  CHECK(writes.verdict == Verdict::wrong);
  const GradcheckReport refuses = check_at(x, [](const Var& v) {
    return passed_through(v, [](const Tensor& dy) {
      BG_CHECK(dy.is_contiguous(), "picky", "not contiguous");
      return dy.clone();
    });
  });
  INFO(refuses.to_string());
  CHECK(refuses.verdict == Verdict::wrong);
  CHECK_THAT(refuses.to_string(), Contains("transposed cotangent") && Contains("the backward throws: [picky]"));
  const GradcheckReport leaks = check_at(x, [](const Var& v) {
    return passed_through(v, [](const Tensor& dy) { return each(dy, [](double t) { return t == 0 ? 1e-30 : t; }); });
  });
  CHECK_THAT(leaks.to_string(), Contains("a gradient of zero for a cotangent of zeros"));
  // a gradient that differs from call to call
  int calls = 0;
  const GradcheckReport counts = check_at(x, [&](const Var& v) {
    return passed_through(v, [&](const Tensor& dy) { return num::scale(dy, ++calls > 4 ? 1 + 1e-15 : 1); });
  });
  CHECK(counts.verdict == Verdict::wrong);
  CHECK_THAT(counts.to_string(), Contains("computed again"));
}

TEST_CASE("gradcheck takes scalars, empty tensors, inputs that are returned and outputs that are returned twice") {
  const GradcheckReport r = gradcheck(
      [](const Vars& in) {
        const Var y = in[0] * in[1];
        return Vars{y, y, in[0], Var(Tensor::of(std::vector<int64_t>{1, 2}, {2})), in[2] * 2};
      },
      {Var(Tensor::of({1.5}, {})), Var(random_tensor(1, {2, 3})), Var(Tensor::zeros({0, 3}, DType::f64))});
  INFO(r.to_string());
  CHECK(r.passed());
  const GradcheckReport masked = check_at(random_tensor(1, {3}), [](const Var& v) {
    return sum(v * v * Var(Tensor::of({1.0, 0.0, 0.0}, {3})));
  });
  CHECK(masked.passed());
  REQUIRE(masked.left_out.size() == 1);
  CHECK_THAT(masked.left_out[0], Contains("2 of its 3 elements"));
}

TEST_CASE("gradcheck sees an op that misreads an offset or padded rows, of a cotangent or an input") {
  // reads the elements from the start of the storage, or as if the rows lay one behind the other
  const auto from_start = [](const Tensor& t) {
    const Tensor whole = t.clone();
    if (!t.is_contiguous()) return whole;
    const auto* data = reinterpret_cast<const double*>(t.storage()->data());
    return Tensor::of(std::vector<double>(data, data + t.numel()), t.shape());
  };
  const auto unpadded = [](const Tensor& t) {
    const double* data = t.data<double>();
    const bool padded = t.rank() == 2 && t.strides()[1] == 1 && t.strides()[0] >= t.size(1);  // or without a gap
    if (!padded) return t.clone();
    return Tensor::of(std::vector<double>(data, data + t.numel()), t.shape());
  };
  const Tensor x = random_tensor(1, {4, 5});
  for (const auto& [misread, word] : std::vector<std::pair<std::function<Tensor(const Tensor&)>, std::string>>{
           {from_start, "offset"}, {unpadded, "padded"}}) {
    const GradcheckReport cotangent = check_at(x, [&](const Var& v) { return passed_through(v, misread); });
    INFO(cotangent.to_string());
    CHECK(cotangent.verdict == Verdict::wrong);
    CHECK_THAT(cotangent.to_string(), Contains(word) && Contains("cotangent"));
    const GradcheckReport input = check_at(x, [&](const Var& v) {
      return given(
          {v}, [](const Tensors& in) { return num::mul(in[0], in[0]); },
          [&](const Tensor& dy, const Tensors& in) { return Tensors{num::scale(num::mul(dy, misread(in[0])), 2)}; });
    });
    INFO(input.to_string());
    CHECK(input.verdict == Verdict::wrong);
    CHECK_THAT(input.to_string(), Contains(word) && Contains("inputs"));
    // a forward that misreads, with a backward that does not look at the input
    const GradcheckReport forward = check_at(x, [&](const Var& v) {
      return given(
          {v}, [&](const Tensors& in) { return num::scale(misread(in[0]), 3); },
          [](const Tensor& dy, const Tensors&) { return Tensors{num::scale(dy, 3)}; });
    });
    INFO(forward.to_string());
    CHECK(forward.verdict == Verdict::wrong);
    CHECK_THAT(forward.to_string(), Contains("f gives other outputs for " + word));
  }
  // a matrix that is singular once its rows are made equal is no reason to reject its inverse
  const GradcheckReport inverse = check_at(random_tensor(9, {2, 2}), [](const Var& m) {
    const auto at = [&](int64_t i, int64_t j) { return slice(slice(m, 0, i, i + 1), 1, j, j + 1); };
    const Var det = at(0, 0) * at(1, 1) - at(0, 1) * at(1, 0);
    return concat({concat({at(1, 1), -at(0, 1)}, 1), concat({-at(1, 0), at(0, 0)}, 1)}, 0) / det;
  });
  INFO(inverse.to_string());
  CHECK(inverse.passed());
}

TEST_CASE("gradcheck names NaN, infinities and hidden state as what they are") {
  const GradcheckReport outside = check_at(Tensor::of({2.0, -1.5, 1.0}, {3}), [](const Var& v) { return log(v); });
  INFO(outside.to_string());
  CHECK(outside.verdict == Verdict::inconclusive);
  CHECK_THAT(outside.to_string(),
             Contains("output 0 is nan at (1,) of (3,), at the point itself") && !Contains("dropout"));
  CHECK_THAT(check_at(Tensor::of({0.0, 1.0}, {2}), [](const Var& v) { return pow(v, -1); }).to_string(),
             Contains("output 0 is inf at (0,) of (2,)"));
  CHECK_THAT(check_at(Tensor::of({1.0, std::nan("")}, {2}), [](const Var& v) { return v * v; }).to_string(),
             Contains("input 0 is nan at (1,) of (2,)"));
  // finite at the point, and nowhere beside it
  const GradcheckReport edge = check_at(Tensor::of({0.0, 0.0}, {2}), [](const Var& v) { return sqrt(v * v * -1.0); });
  INFO(edge.to_string());
  CHECK(edge.verdict == Verdict::inconclusive);
  CHECK_THAT(edge.to_string(),
             Contains("output 0 is nan at (") && Contains(" of (2,), a step of") && Contains("domain"));
  // a gradient that is not finite where the function is smooth, beside one that is wrong
  const GradcheckReport bad = check_at(Tensor::of({1.0, 2.0, 3.0}, {3}), [](const Var& v) {
    return each(
        v, [](double t) { return t * t; }, [](double t) { return t == 2   ? std::nan("")
                                                                 : t == 3 ? 600
                                                                          : 2 * t; });
  });
  INFO(bad.to_string());
  CHECK(bad.verdict == Verdict::wrong);
  CHECK(bad.failures[0].index == "(1,) of (3,)");
  CHECK_THAT(bad.to_string(), Contains("the gradient is nan at (1,) of (3,)"));

  int calls = 0;
  CHECK_THROWS_WITH(check_at(random_tensor(1, {2}), [&](const Var& v) { return v * static_cast<double>(++calls); }),
                    Contains("other outputs when it runs again") && Contains("suspected: hidden state"));
  double drift = 1;
  CHECK_THROWS_WITH(check_at(random_tensor(1, {2}),
                             [&](const Var& v) {
                               drift *= 1 + 1e-16;  // the same bits
                               return v * drift + ((++calls > 40) ? 1e-9 : 0);
                             }),
                    Contains("other outputs when it runs again"));
  const std::string text = check_at(random_tensor(1, {2, 3}), [](const Var& v) { return wrong_square(v); }).to_string();
  CHECK_THAT(text, Contains("WRONG gradcheck: input 0, output 0") && Contains("step size") &&
                       Contains("in units of the input") && Contains("+-") && !Contains("FAIL V"));
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
  CHECK_THAT(needs.to_string(), Contains("WRONG gradcheck: input 1") && Contains("when no other is needed"));

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
  CHECK_THAT(strides.to_string(), Contains("transposed cotangent"));
}

TEST_CASE("[R1] gradcheck refuses f32 with advice, and functions that it cannot check") {
  auto square = [](const Vars& in) { return Vars{in[0] * in[0]}; };
  CHECK_THROWS_WITH(gradcheck(square, {Var(Tensor::zeros({2}, DType::f32))}),
                    Contains("1e-4 at best") && Contains("got f32, expected f64") && Contains("to(DType::f64)"));
  CHECK_THROWS_WITH(gradcheck(square, {}), Contains("nothing to differentiate"));
  CHECK_THROWS_WITH(
      gradcheck([](const Vars&) { return Vars{Var(Tensor::of({1.0}, {1}))}; }, {Var(random_tensor(1, {2}))}),
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
  // several elements tie for the largest: each slope jumps, and both are told
  const GradcheckReport tie =
      gradcheck([](const Vars& in) { return Vars{max(in[0])}; }, {Var(Tensor::of({1.0, 2.0, 2.0}, {3}))});
  INFO(tie.to_string());
  CHECK(tie.verdict == Verdict::not_differentiable);
  CHECK(tie.failures[0].index == "(1,) of (3,)");
  CHECK_THAT(tie.to_string(), Contains("NOT DIFFERENTIABLE") && Contains(" to "));
  CHECK(check_at(Tensor::zeros({3}, DType::f64), [](const Var& v) { return sqrt(sum(v * v)); }).verdict ==
        Verdict::not_differentiable);
  // NaN is no convention that a declared kink could have
  CHECK(check_at(Tensor::zeros({3}, DType::f64), [](const Var& v) { return sqrt(sum(v * v)); }, {.kinked_inputs = {0}})
            .verdict == Verdict::wrong);
  // beside the kink, where the step shrinks below the distance
  CHECK(gradcheck([](const Vars& in) { return Vars{abs(in[0])}; }, {Var(Tensor::of({1.0, 1e-3}, {2}))}).passed());
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
             Contains("</html>") && Contains("of 2 ops 2 wrong, 0 inconclusive") && Contains("&lt;script&gt;") && Contains("<svg"));
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
