// Self-attention, alone and as layers.
#include <algorithm>

#include "autograd/engine.h"
#include "autograd/ops/attention.h"
#include "examples/boostgrad/bench/cases.h"
#include "models/flops.h"
#include "nn/attention.h"

namespace bg::bench {
namespace {

/// A function of Vars and where to evaluate it.
struct Problem {
  std::function<Var()> forward;
  Vars inputs;
};

Problem core_problem(bool twicing, int64_t batch, int64_t seq_len, int heads, int64_t width, bool causal) {
  Rng rng(1);
  Vars in;
  for (int i = 0; i < 3; ++i) in.emplace_back(Tensor::randn({batch, seq_len, width}, rng), true);
  AttentionArgs args;
  args.heads = heads;
  args.causal = causal;
  return {[=] { return twicing ? apply<Twicing>(args, in)[0] : apply<Attention>(args, in)[0]; }, in};
}

Problem layer_problem(nn::AttentionKind kind, int64_t batch, int64_t seq_len, int heads, int64_t width, bool causal,
                      int rounds) {
  Rng rng(1);
  nn::SelfAttentionOptions o;
  o.kind = kind;
  o.d = width;
  o.heads = heads;
  o.causal = causal;
  o.rounds = rounds;
  auto layer = std::make_shared<nn::SelfAttention>(o, Init::normal(rng));
  Vars in{Var(Tensor::randn({batch, seq_len, width}, rng), true)};
  for (const Var& parameter : vars_of(layer->parameters())) in.push_back(parameter);
  return {[=] { return layer->forward(in[0], {}); }, in};
}

}  // namespace

Cases attention_cases(const AttentionOptions& o) {
  const int64_t batch = std::max<int64_t>(1, o.tokens / o.seq_len), heads = std::max<int64_t>(1, o.width / o.d_head);
  const int64_t width = heads * o.d_head;
  const bool layer = o.kind == "boosted" || o.kind.ends_with("_layer");
  TransformerConfig counted;
  counted.model = nn::kAttentionNames.parse(o.kind.substr(0, o.kind.find('_')));
  counted.rounds = o.rounds;
  counted.d_model = width;
  counted.seq_len = o.seq_len;
  const double per_token =
      layer ? attention_layer_flops_per_token(counted, o.causal) : attention_flops_per_token(counted, o.causal);
  const double forward = per_token * static_cast<double>(batch * o.seq_len);
  auto problem = [=] {
    return layer ? layer_problem(counted.model, batch, o.seq_len, static_cast<int>(heads), width, o.causal, o.rounds)
                 : core_problem(counted.model == nn::AttentionKind::twicing, batch, o.seq_len, static_cast<int>(heads),
                                width, o.causal);
  };
  auto cotangent = [](const Var& y) {
    Rng rng(2);
    return Var(Tensor::randn(y.shape(), rng));
  };
  Case base{o.kind, str("B ", batch, ", T ", o.seq_len, ", H ", heads, ", d_h ", o.d_head, o.causal ? ", causal" : "")};
  Cases all(3, base);
  all[0].pass = "forward";
  all[0].work = forward;
  all[0].prepare = [=] {
    const Problem p = problem();
    return [=] {
      NoGrad off;
      return Vars{p.forward()};
    };
  };
  all[1].pass = "backward";
  all[1].work = 2 * forward;
  all[1].prepare = [=] {
    const Problem p = problem();
    const Var y = p.forward(), dy = cotangent(y);
    return [=] { return grad({y}, p.inputs, {dy}, {.retain_graph = true}); };
  };
  all[2].pass = "both";
  all[2].work = 3 * forward;
  all[2].prepare = [=] {
    const Problem p = problem();
    const Var dy = cotangent(p.forward());
    return [=] {
      const Var y = p.forward();
      Vars out = grad({y}, p.inputs, {dy});
      out.push_back(y.detach());
      return out;
    };
  };
  return all;
}

}  // namespace bg::bench
