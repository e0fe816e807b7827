// The gradient flow of a model: numbers against a hand calculation, and planted dead parts that must be named.
#include <algorithm>
#include <cmath>

#include "autograd/ops/reduce.h"
#include "autograd/ops/unary.h"
#include "nn/block.h"
#include "nn/flow.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

/// y = (x a) b, by two children of one scope each.
class Chain : public Module {
 public:
  explicit Chain(const Init& init)
      : first(add_child<nn::Linear>("parts.0", 3, 3, init)), second(add_child<nn::Linear>("parts.1", 3, 3, init)) {}
  Var forward(const Var& x) const {
    const Scope here = enter();
    return second.forward(first.forward(x));
  }
  nn::Linear &first, &second;
};

void set(const Module& m, const std::string& path, double value) {
  for (NamedParameter& p : m.parameters())
    if (p.path == path) p.var.value().fill(value);
}

const FlowRow& row(const Flow& flow, const std::string& path) {
  const auto at = std::find_if(flow.rows.begin(), flow.rows.end(), [&](auto& r) { return r.path == path; });
  REQUIRE(at != flow.rows.end());
  return *at;
}

nn::BlockOptions small_block() {
  nn::BlockOptions o;
  o.attention.d = 8;
  o.attention.heads = 2;
  o.attention.kind = nn::AttentionKind::boosted;
  o.mlp_hidden = 16;
  return o;
}

/// Two boosted blocks.
class Pair : public Module {
 public:
  explicit Pair(const Init& init)
      : a(add_child<nn::Block>("blocks.0", small_block(), init)),
        b(add_child<nn::Block>("blocks.1", small_block(), init)) {}
  Var forward(const Var& x) const { return b.forward(a.forward(x, {}), {}); }
  nn::Block &a, &b;
};

}  // namespace

TEST_CASE("flow: the numbers of a chain computed by hand") {
  Rng rng(1);
  Chain model(Init::normal(rng));
  set(model, "parts.0.w", 0.5);
  set(model, "parts.1.w", 2);
  const Var x(Tensor::full({2, 3}, 1));
  const Scope somewhere("outer");  // rows are named from the model on
  const Flow flow = gradient_flow(model, [&] { return mean(model.forward(x)); });
  REQUIRE(flow.rows.size() == 2);
  const FlowRow &first = flow.rows[0], &second = flow.rows[1];
  CHECK(first.path == "parts.0");
  CHECK(second.shape == Shape{2, 3});
  CHECK(close(first.activation, 1.5, 1e-6));     // each output is 3 * 0.5
  CHECK(close(second.activation, 9, 1e-6));      // 3 * 1.5 * 2
  CHECK(close(second.gradient, 1.0 / 6, 1e-6));  // of a mean over 6
  CHECK(close(first.gradient, 1, 1e-6));         // 3 * 2 / 6
  CHECK(first.parameters == 12);
  CHECK(close(first.weight, 1.5, 1e-6));                                      // sqrt(9 * 0.25)
  CHECK(close(second.weight_gradient, std::sqrt(9 * 0.25 + 3 / 9.0), 1e-6));  // dW = 2 * 1.5 / 6 each, db = 1 / 3
  CHECK(close(second.ratio(), second.weight_gradient / 6, 1e-6));
  CHECK(flow.dead.empty());
  CHECK(close(flow.loss, 9, 1e-6));
  for (const NamedParameter& p : model.parameters()) CHECK_FALSE(p.var.grad().defined());
}

TEST_CASE("flow: planted dead layers are named") {
  Rng rng(2);
  Pair model(Init::normal(rng));
  const Var x(Tensor::randn({2, 5, 8}, rng));
  auto flow_of = [&] { return gradient_flow(model, [&] { return mean(square(model.forward(x))); }); };

  const Flow alive = flow_of();
  CHECK(alive.rows.at(0).path == "blocks.0");
  CHECK(alive.dead.empty());
  for (const FlowRow& r : alive.rows) CHECK(r.problem.empty());
  CHECK(alive.table().find("dead") == std::string::npos);

  SECTION("a feed-forward part whose output weights are zero teaches its first layer nothing") {
    set(model, "blocks.1.mlp.down.w", 0);
    const Flow flow = flow_of();
    CHECK(row(flow, "blocks.1.mlp").problem == "the output is zero");
    CHECK(row(flow, "blocks.1.mlp.up").problem == "no gradient arrives");
    CHECK(flow.dead == std::vector<std::string>{"blocks.1.norm2.gamma", "blocks.1.norm2.beta", "blocks.1.mlp.up.w",
                                                "blocks.1.mlp.up.b"});
    CHECK_THAT(flow.table(), Contains("blocks.1.mlp.up") && Contains("<- no gradient arrives") &&
                                 Contains("dead: blocks.1.mlp.up.w gets a gradient of exactly zero"));
    CHECK(row(flow, "blocks.0.mlp.up").problem.empty());
  }
  SECTION("what blows up is named, and its place in the plot stays empty") {
    set(model, "blocks.0.mlp.up.b", 100);
    set(model, "blocks.0.mlp.down.w", 1e38);
    const Flow flow = flow_of();
    CHECK(row(flow, "blocks.0.mlp").problem == "the output is not finite");
    CHECK_THAT(flow.plot_script(), Contains("\"blocks.0.mlp\" 0 ") && Contains("\"not finite\""));
  }
}

TEST_CASE("flow: what is no loss is refused") {
  Rng rng(3);
  Chain model(Init::normal(rng));
  const Var x(Tensor::full({2, 3}, 1));
  CHECK_THROWS_WITH(gradient_flow(model, [&] { return model.forward(x); }), Contains("[flow] not a loss"));
  CHECK_THROWS_WITH(gradient_flow(model, [&] { return sum(x); }), Contains("no gradient"));
}
