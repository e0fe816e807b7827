// Layers: what they compute and hold, dropout, attention modules. Caching is tested with whole models in tests/models.
#include <cmath>

#include "core/tensor_ops.h"
#include "nn/attention.h"
#include "nn/layers.h"
#include "tests/match.h"

using namespace bg;

namespace {

std::vector<std::string> paths(const Module& m) {
  std::vector<std::string> out;
  for (const NamedParameter& p : m.parameters()) out.push_back(p.path);
  return out;
}

nn::SelfAttentionOptions boosted(Gate gate) {
  nn::SelfAttentionOptions o;
  o.kind = nn::AttentionKind::boosted;
  o.d = 6;
  o.heads = 2;
  o.gate = gate;
  return o;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Linear, Embedding and norms compute what their parameters say") {
  Rng rng(1);
  const Init init = Init::uniform_fan_in(rng);
  const nn::Linear linear(3, 2, init), bare(3, 2, init, false);
  CHECK(paths(linear) == Names{"w", "b"});
  CHECK(paths(bare) == Names{"w"});
  const Tensor x = Tensor::randn({4, 3}, rng);
  const StateDict p = linear.state_dict();
  const Tensor want = num::add(num::matmul(x, p.at("w")), p.at("b"));
  CHECK(num::max_abs(num::sub(linear.forward(x).value(), want)) < 1e-6);
  CHECK(num::max_abs(num::sub(bare.forward(x).value(), num::matmul(x, bare.state_dict().at("w")))) < 1e-6);

  const nn::Embedding table(5, 2, init);
  const Tensor rows = table.forward(Tensor::of<int64_t>({4, 0}, {1, 2})).value();
  CHECK(rows.shape() == Shape{1, 2, 2});
  CHECK(rows.at({0, 1, 1}) == table.table().value().at({0, 1}));

  nn::LayerNorm layer(3);
  nn::RMSNorm rms(3);
  CHECK(paths(layer) == Names{"gamma", "beta"});
  CHECK(paths(rms) == Names{"gamma"});
  layer.parameters()[1].var.value().fill(7);
  const Tensor y = layer.forward(x).value(), z = rms.forward(x).value();
  CHECK(close(num::sum(y).item() / 12, 7, 1e-6));
  CHECK(close(num::dot(z, z) / 12, 1, 1e-3));
}

TEST_CASE("Dropout: masks from the context in training, the identity in evaluation") {
  nn::Dropout drop(0.25);
  const Var x = Tensor::full({100, 100}, 1);
  CHECK_THROWS_WITH(drop.forward(x, {}), Contains("needs random numbers"));
  Rng rng(2), again(2);
  const Tensor y = drop.forward(x, {&rng}).value();
  CHECK(close(num::sum(y).item(), 1e4, 0.03));
  CHECK(close(num::max_abs(y), 1 / 0.75, 1e-6));
  CHECK(y.to_vector<float>() == drop.forward(x, {&again}).value().to_vector<float>());
  CHECK(y.to_vector<float>() != drop.forward(x, {&again}).value().to_vector<float>());
  drop.eval();
  CHECK(num::max_abs(num::sub(drop.forward(x, {}).value(), x.value())) == 0);
  for (const double p : {-0.1, 1.0, std::nan("")}) CHECK_THROWS_AS(nn::Dropout(p), UsageError);
}

TEST_CASE("Mlp: each activation between its two maps") {
  Rng rng(3);
  const Var x = Tensor::randn({2, 3}, rng);
  for (const auto f : {nn::Activation::gelu, nn::Activation::relu, nn::Activation::silu}) {
    const nn::Mlp mlp(3, 12, f, 0, Init::uniform_fan_in(rng));
    CHECK(paths(mlp) == Names{"up.w", "up.b", "down.w", "down.b"});
    const StateDict p = mlp.state_dict();
    const Tensor h = num::add(num::matmul(x.value(), p.at("up.w")), p.at("up.b"));
    const Tensor want = num::add(num::matmul(nn::activate(h, f).value(), p.at("down.w")), p.at("down.b"));
    CHECK(num::max_abs(num::sub(mlp.forward(x, {}).value(), want)) < 1e-6);
  }
  CHECK(nn::activate(Tensor::of({-1}, {1}), nn::Activation::relu).item() == 0);
  CHECK(close(nn::activate(Tensor::of({-1}, {1}), nn::Activation::silu).item(), -1 / (1 + std::exp(1.0)), 1e-14));
  CHECK(close(nn::activate(Tensor::of({-1}, {1}), nn::Activation::gelu).item(), -0.15865525393145707, 1e-14));
}

TEST_CASE("SelfAttention: parameters of each gate, first values") {
  Rng rng(4);
  const Init init = Init::normal(rng);
  const Names first = {"rounds.0.w_q", "rounds.0.w_k", "rounds.0.w_v", "rounds.0.b_q", "rounds.0.b_k", "rounds.0.b_v"};
  const Names second = {"rounds.1.w_q", "rounds.1.w_k", "rounds.1.w_v", "rounds.1.b_q", "rounds.1.b_k", "rounds.1.b_v"};
  const auto with = [&](const Names& gate) {
    Names all = first;
    all.insert(all.end(), second.begin(), second.end());
    all.insert(all.end(), gate.begin(), gate.end());
    all.insert(all.end(), {"w_out", "b_out"});
    return all;
  };
  CHECK(paths(nn::SelfAttention(boosted(Gate::none), init)) == with({}));
  CHECK(paths(nn::SelfAttention(boosted(Gate::scalar), init)) == with({"rounds.1.gate"}));
  CHECK(paths(nn::SelfAttention(boosted(Gate::linear), init)) == with({"rounds.1.w_g", "rounds.1.b_g"}));
  const nn::SelfAttention mlp(boosted(Gate::mlp), init);
  CHECK(paths(mlp) == with({"rounds.1.w_1", "rounds.1.b_1", "rounds.1.w_2", "rounds.1.b_2"}));
  CHECK(mlp.state_dict().at("rounds.1.w_1").shape() == Shape{13, 32});
  CHECK(mlp.state_dict().at("rounds.1.w_2").shape() == Shape{32, 6});
  CHECK(nn::SelfAttention(boosted(Gate::scalar), init).state_dict().at("rounds.1.gate").item() == 0.5);
  nn::SelfAttentionOptions twicing = boosted(Gate::linear);
  twicing.kind = nn::AttentionKind::twicing;
  CHECK(nn::SelfAttention(twicing, init).parameter_count() == 4 * (36 + 6));
}

TEST_CASE("SelfAttention: dropout of the weights in training mode, one mask a round") {
  Rng rng(5);
  nn::SelfAttentionOptions o = boosted(Gate::linear);
  o.dropout = 0.5;
  nn::SelfAttention attention(o, Init::uniform_fan_in(rng));
  const Var x = Tensor::randn({2, 5, 6}, rng);
  CHECK_THROWS_WITH(attention.forward(x, {}), Contains("needs random numbers"));
  Rng a(6), b(6), two_masks(6);
  const Tensor y = attention.forward(x, {&a}).value();
  CHECK(y.to_vector<float>() == attention.forward(x, {&b}).value().to_vector<float>());
  two_masks.next_mask();
  two_masks.next_mask();
  CHECK(a == two_masks);
  attention.eval();
  CHECK(num::max_abs(num::sub(attention.forward(x, {}).value(), y)) > 1e-3);
}

TEST_CASE("SelfAttention: impossible options and caches") {
  Rng rng(7);
  const Init init = Init::normal(rng);
  const auto broken = [&](auto&& change) {
    nn::SelfAttentionOptions o = boosted(Gate::mlp);
    change(o);
    CHECK_THROWS_AS(nn::SelfAttention(o, init), UsageError);
  };
  broken([](auto& o) { o.heads = 4; });
  broken([](auto& o) { o.heads = 0; });
  broken([](auto& o) { o.d = 0; });
  broken([](auto& o) { o.rounds = 0; });
  broken([](auto& o) { o.dropout = 1; });
  broken([](auto& o) { o.gate_hidden = 0; });

  const nn::SelfAttention attention(boosted(Gate::linear), init);
  nn::AttentionCache cache = attention.make_cache(3);
  attention.extend(Tensor::zeros({1, 2, 6}), cache);
  CHECK(cache.length == 2);
  CHECK_THROWS_WITH(attention.extend(Tensor::zeros({1, 2, 6}), cache), Contains("the cache is full"));
  CHECK_THROWS_WITH(attention.extend(Tensor::zeros({2, 1, 6}), cache), Contains("wrong shape of new tokens"));
  CHECK(cache.length == 2);
  nn::SelfAttentionOptions both_ways = boosted(Gate::linear);
  both_ways.causal = false;
  const nn::SelfAttention sees_all(both_ways, init);
  cache = sees_all.make_cache(3);
  CHECK_THROWS_WITH(sees_all.extend(Tensor::zeros({1, 1, 6}), cache), Contains("needs causal attention"));
}
