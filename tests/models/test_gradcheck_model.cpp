// A whole language model under gradcheck: every parameter, embeddings included.
#include "autograd/ops/arithmetic.h"
#include "nn/gradcheck.h"
#include "tests/catch.h"
#include "tests/match.h"
#include "tests/models/lm_support.h"

using namespace bg;
using namespace bg::test;

namespace {

/// y = x^2 with a backward that forgets the factor 2.
struct HalfSquare {
  static constexpr std::string_view name = "half_square";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[0], [](S a, S b) { return a * b; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return num::mul(in[0], in[0]);
  }
  static Vars backward(const Backward<Var, Args>& b) { return {b.dy() * b[0]}; }
  static std::vector<Sample<Args>> samples(Rng&) { return {}; }
  static std::vector<Mutant<Var, Args>> mutants() { return {}; }
};

/// A model with one wrong step behind the weights of its second part.
class Wrong : public Module {
 public:
  explicit Wrong(const Init& init)
      : good_(add_child<nn::Linear>("good", 3, 3, init)), bad_(add_child<nn::Linear>("bad", 3, 3, init)) {}
  Var loss(const Var& x) const { return sum(good_.forward(x)) + sum(apply<HalfSquare>({}, {bad_.forward(x)})[0]); }

 private:
  nn::Linear &good_, &bad_;
};

}  // namespace

TEST_CASE("gradcheck of a pre-LN boosted transformer over all of its parameters") {
  for (const bool tied : {true, false}) {
    TransformerConfig c = tiny_config();
    c.model = nn::AttentionKind::boosted;
    c.rounds = 2;
    c.tied = tied;
    Rng rng(21);
    Transformer model(c, rng);
    model.to(DType::f64);
    enliven(model, rng);
    const Tensor ids = random_ids(2, 5, 17, rng), targets = random_ids(2, 5, 17, rng);
    // a bias that all keys share moves every logit of a row alike, which softmax does not see
    const GradcheckReport r =
        gradcheck(model, [&] { return Vars{model.loss(ids, targets)}; }, {.directions = 2, .zero_inputs = {"b_k"}});
    INFO(r.to_string());
    CHECK(r.passed());
    CHECK(r.forward_mode);  // every op of the model has a second derivative
    // two directions, differences and forward mode, every parameter; and the repeated gradients
    CHECK(r.comparisons >= static_cast<int64_t>(2 * 2 * model.parameters().size()));
    CHECK(r.worst < 1e-7);
  }
}

TEST_CASE("gradcheck of a model names the parameters behind a wrong backward, and no others") {
  Rng rng(22);
  Wrong model(Init::normal(rng));
  const Var x(Tensor::randn({2, 3}, rng, DType::f64));
  CHECK_THROWS_WITH(gradcheck(model, [&] { return Vars{model.loss(Var(x.value().to(DType::f32)))}; }),
                    Contains("good.w is not f64"));
  model.to(DType::f64);
  enliven(model, rng);
  const GradcheckReport r = gradcheck(model, [&] { return Vars{model.loss(x)}; });
  CHECK(r.verdict == Verdict::wrong);
  REQUIRE(r.failures.size() == 2);
  CHECK(r.failures[0].input == "bad.w");
  CHECK(r.failures[1].input == "bad.b");
  CHECK_THAT(r.to_string(), Contains("bad.w, worst at") && Contains("the same call with {.seed = 1}"));
}
