// Layers: what they compute and hold, dropout, attention modules. Caching is tested with whole models in tests/models.
#include <cmath>

#include "autograd/engine.h"
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

namespace {

/// Largest difference between the layer and its composition from primitive ops, in the output and in every gradient.
template <class O>
double against_composition(const nn::SelfAttention& layer, AttentionLayerArgs args, const Var& x,
                           const nn::AttentionInputs& more, Rng& rng) {
  args.heads = layer.options().heads;
  args.causal = layer.options().causal;
  args.memory = more.memory.defined();
  args.lengths = more.lengths.defined();
  args.learned_scale = layer.options().learned_scale;
  Vars in{x}, of{x};
  if (args.memory) in.push_back(more.memory), of.push_back(more.memory);
  if (args.lengths) in.emplace_back(more.lengths);
  for (const NamedParameter& p : layer.parameters()) in.push_back(p.var), of.push_back(p.var);
  const Var y = layer.forward(x, {}, more), composed = O::compose(in, args)[0];
  const Var v(Tensor::randn(y.shape(), rng, DType::f64));
  const Vars got = grad({y}, of, {v}), want = grad({composed}, of, {v});
  double worst = num::max_abs(num::sub(y.value(), composed.value())), largest = 0;
  for (size_t i = 0; i < of.size(); ++i) {
    worst = std::max(worst, num::max_abs(num::sub(got[i].value(), want[i].value())));
    largest = std::max(largest, num::max_abs(want[i].value()));
  }
  CHECK(largest > 0.1);
  const Tensor traced = layer.trace(x.value(), more).output;
  return std::max(worst, num::max_abs(num::sub(traced, y.value())));
}

}  // namespace

TEST_CASE("SelfAttention: memory, lengths and a learned scale against a composition of primitive ops") {
  Rng rng(21);
  for (const bool with_memory : {false, true})
    for (const bool with_lengths : {false, true})
      for (const bool learned : {false, true})
        for (const int kind : {0, 1, 2, 3}) {  // standard, twicing, boosted with gates linear and mlp
          nn::SelfAttentionOptions o = boosted(kind == 3 ? Gate::mlp : Gate::linear);
          if (kind < 2) o.kind = kind == 0 ? nn::AttentionKind::standard : nn::AttentionKind::twicing;
          if (kind == 1 && with_memory) continue;
          o.memory = with_memory ? 5 : 0;
          o.causal = !with_memory && kind != 3;
          o.learned_scale = learned;
          nn::SelfAttention layer(o, Init::uniform_fan_in(rng));
          layer.to(DType::f64);
          if (learned) layer.parameters()[6].var.value().fill(0.3);  // rounds.0.log_scale
          const Var x(Tensor::randn({2, 4, 6}, rng, DType::f64), true);
          nn::AttentionInputs more;
          if (with_memory) more.memory = Var(Tensor::randn({learned ? 1 : 2, 3, 5}, rng, DType::f64), true);
          if (with_lengths) more.lengths = Tensor::of<int64_t>({2, with_memory ? 0 : 3}, {2});
          INFO("kind " << kind << ", memory " << with_memory << ", lengths " << with_lengths << ", scale " << learned);
          AttentionLayerArgs args;
          double worst = 0;
          if (kind >= 2) {
            args.rounds = o.rounds;
            args.gate = o.gate;
            worst = against_composition<BoostedAttention>(layer, args, x, more, rng);
          } else if (kind == 1) {
            worst = against_composition<TwicingAttention>(layer, args, x, more, rng);
          } else {
            worst = against_composition<StandardAttention>(layer, args, x, more, rng);
          }
          CHECK(worst < 1e-12);
        }
}

TEST_CASE("SelfAttention: a learned scale starts as the usual one and is kept by the cache") {
  for (const Gate gate : {Gate::linear, Gate::mlp}) {
    Rng rng(22), same(22);
    nn::SelfAttentionOptions o = boosted(gate);
    const nn::SelfAttention plain(o, Init::normal(rng, 0.4));
    o.learned_scale = true;
    nn::SelfAttention layer(o, Init::normal(same, 0.4));
    CHECK(layer.parameter_count() == plain.parameter_count() + 2);
    const Tensor x = Tensor::randn({1, 5, 6}, rng);
    CHECK(num::max_abs(num::sub(layer.forward(Var(x), {}).value(), plain.forward(Var(x), {}).value())) < 1e-6);
    for (NamedParameter& p : layer.parameters())
      if (p.path.ends_with("log_scale")) p.var.value().fill(0.7);
    const Tensor y = layer.forward(Var(x), {}).value();
    CHECK(num::max_abs(num::sub(y, plain.forward(Var(x), {}).value())) > 1e-3);
    nn::AttentionCache cache = layer.make_cache(5);
    layer.extend(x.slice(1, 0, 2), cache);
    CHECK(num::max_abs(num::sub(layer.extend(x.slice(1, 2, 5), cache), y.slice(1, 2, 5))) < 1e-5);
    for (NamedParameter& p : layer.parameters())  // exp(-800) is 0: every key weighs the same
      if (p.path.ends_with("log_scale")) p.var.value().fill(-800);
    const Tensor even = layer.forward(Var(x), {}).value();
    CHECK(num::max_abs(num::sub(even, plain.forward(Var(x), {}).value())) > 1e-3);
    cache = layer.make_cache(5);
    CHECK(num::max_abs(num::sub(layer.extend(x, cache), even)) < 1e-5);
  }
}

TEST_CASE("SelfAttention: what does not go with a memory is refused in one sentence") {
  Rng rng(23);
  const Init init = Init::normal(rng);
  nn::SelfAttentionOptions o{.d = 6, .heads = 2, .causal = false, .memory = 5};
  auto with = [&](auto change) {
    nn::SelfAttentionOptions changed = o;
    change(changed);
    return nn::SelfAttention(changed, init).parameter_count();
  };
  CHECK_THROWS_WITH(with([](auto& c) { c.causal = true; }), Contains("[attention] attention to a memory"));
  CHECK_THROWS_WITH(with([](auto& c) { c.kind = nn::AttentionKind::twicing; }), Contains("twicing attends to x alone"));
  CHECK_THROWS_WITH(with([](auto& c) { c.kind = nn::AttentionKind::boosted, c.kv = Kv::residual; }),
                    Contains("from both memory and residual"));
  CHECK_THROWS_WITH(with([](auto& c) { c.memory = -1; }), Contains("bad width of the memory: got -1"));
  const nn::SelfAttention layer(o, init), alone({.d = 6, .heads = 2}, init);
  CHECK(layer.state_dict().at("rounds.0.w_k").shape() == Shape{5, 6});
  const Var x(Tensor::zeros({1, 2, 6})), memory(Tensor::zeros({1, 3, 5}));
  CHECK_THROWS_WITH(layer.forward(x, {}),
                    Contains("[attention] the memory is not the one of the options: got no memory"));
  CHECK_THROWS_WITH(layer.forward(x, {}, {.memory = x}), Contains("got shape (1, 2, 6), expected (B or 1, S, 5)"));
  CHECK_THROWS_WITH(alone.forward(x, {}, {.memory = memory}), Contains("got shape (1, 3, 5), expected none"));
  CHECK_THROWS_WITH(layer.trace(x.value()), Contains("got no memory"));
  CHECK_THROWS_WITH(alone.forward(x, {}, {.lengths = Tensor::of<int64_t>({3}, {1})}), Contains("length out of range"));
  nn::AttentionCache cache = layer.make_cache(4);
  CHECK_THROWS_WITH(layer.extend(Tensor::zeros({1, 1, 6}), cache), Contains("a cache needs causal attention"));
}
