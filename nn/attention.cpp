#include "nn/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops/linear.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/select.h"
#include "autograd/ops/softmax.h"
#include "nn/layers.h"

namespace bg::nn {
namespace {

AttentionLayerArgs layer_args(const SelfAttentionOptions& o) {
  if (o.heads < 1 || o.d < 1 || o.d % o.heads != 0)
    fail<UsageError>("attention", "the heads do not divide the width", str(o.heads, " heads, width ", o.d),
                     "a width that is a positive multiple of the heads");
  if (o.rounds < 1) fail<UsageError>("attention", "bad number of rounds", str(o.rounds), "1 or more");
  if (!(o.dropout >= 0 && o.dropout < 1))
    fail<UsageError>("attention", "bad dropout", str(o.dropout), "at least 0 and below 1");
  if (o.gate_hidden < 1) fail<UsageError>("attention", "bad width of the gate", str(o.gate_hidden), "1 or more");
  if (o.memory < 0) fail<UsageError>("attention", "bad width of the memory", str(o.memory), "0 (none) or more");
  if (o.memory > 0 && o.causal)
    fail<UsageError>("attention", "attention to a memory has no order of time", "causal = true", "causal = false");
  if (o.memory > 0 && o.kind == AttentionKind::twicing)
    fail<UsageError>("attention", "twicing attends to x alone", str("a memory of width ", o.memory), "memory = 0");
  if (o.memory > 0 && o.kind == AttentionKind::boosted && o.kv == Kv::residual)
    fail<UsageError>("attention", "keys and values cannot come from both memory and residual", "kv = residual",
                     "kv = input");
  AttentionLayerArgs a;
  a.heads = o.heads;
  a.causal = o.causal;
  a.memory = o.memory > 0;
  a.learned_scale = o.learned_scale;
  if (o.kind != AttentionKind::boosted) return a;
  a.rounds = o.rounds;
  a.kv = o.kv;
  a.gate = o.gate;
  return a;
}

/// First value of the parameter of a name such as rounds.1.w_g.
Tensor first_value(std::string_view path, const SelfAttentionOptions& o, const Init& init) {
  const std::string_view name = path.substr(path.rfind('.') + 1);
  const int64_t d = o.d, hidden = o.gate_hidden, e = o.memory > 0 ? o.memory : d;
  if (name == "w_k" || name == "w_v") return init.weight({e, d}, e);
  if (name == "b_k" || name == "b_v") return init.bias({d}, e);
  if (name == "log_scale") return Tensor::full({1}, std::log(attn::logit_scale(0, d / o.heads)));
  if (name == "gate") return Tensor::full({1}, 0.5);
  if (name == "w_g") return init.weight({2 * d, d}, 2 * d);
  if (name == "b_g") return init.bias({d}, 2 * d);
  if (name == "w_1") return init.weight({2 * d + 1, hidden}, 2 * d + 1);
  if (name == "b_1") return init.bias({hidden}, 2 * d + 1);
  if (name == "w_2") return init.weight({hidden, d}, hidden);
  if (name == "b_2") return init.bias({d}, hidden);
  return name.starts_with('w') ? init.weight({d, d}, d) : init.bias({d}, d);
}

}  // namespace

SelfAttention::SelfAttention(const SelfAttentionOptions& options, const Init& init)
    : options_(options),
      args_(layer_args(options)),
      layout_(attention_layout(args_)),
      first_(layout_.memory < 0 ? 1 : 2) {
  for (size_t i = static_cast<size_t>(first_); i < layout_.inputs.size(); ++i) {
    const std::string& name = layout_.inputs[i].name;
    inputs_.push_back(&register_parameter(name, first_value(name, options, init)));
  }
}

void SelfAttention::check(const AttentionInputs& more) const {
  const bool fits = options_.memory == 0
                        ? !more.memory.defined()
                        : more.memory.defined() && more.memory.rank() == 3 && more.memory.size(2) == options_.memory;
  BG_CHECK(fits, "attention", "the memory is not the one of the options",
           more.memory.defined() ? str("shape ", more.memory.shape()) : "no memory",
           options_.memory == 0 ? "none" : str("(B or 1, S, ", options_.memory, ")"));
}

Var SelfAttention::forward(const Var& x, const Context& context, const AttentionInputs& more) const {
  const Scope here = enter();
  check(more);
  AttentionLayerArgs args = args_;
  args.lengths = more.lengths.defined();
  if (training() && options_.dropout > 0) {
    args.dropout = options_.dropout;
    for (int m = 0; m < args.rounds; ++m) args.masks.push_back(next_mask(context));
  }
  Vars in{x};
  if (args.memory) in.push_back(more.memory);
  if (args.lengths) in.emplace_back(more.lengths);
  for (const Var* p : inputs_) in.push_back(*p);
  switch (options_.kind) {
    case AttentionKind::twicing:
      return twicing_attention(in, args);
    case AttentionKind::boosted:
      return boosted_attention(in, args);
    case AttentionKind::standard:
      break;
  }
  return standard_attention(in, args);
}

// -- In plain steps ---------------------------------------------------------------------------------------------------

Var SelfAttention::affine(const Var& x, int w, int b) const {
  return linear(x, parameter(w), b < 0 ? Var() : parameter(b));
}

// g (B, T, d), or of a shape that broadcasts to it; undefined without a gate.
Var SelfAttention::gate(const Var& f, const Var& c, const Var& entropy, const AttentionLayout::Round& r) const {
  switch (options_.gate) {
    case Gate::none:
      return {};
    case Gate::scalar:
      return sigmoid(parameter(r.gate));
    case Gate::linear:
      return sigmoid(affine(concat({f, c}, -1), r.w_g, r.b_g));
    case Gate::mlp:
      break;
  }
  const Var hidden = gelu(affine(concat({f, c, unsqueeze(entropy, -1)}, -1), r.w_1, r.b_1));
  return sigmoid(affine(hidden, r.w_2, r.b_2));
}

// log softmax(mask(q k^T scale)), (B, H, T, keys). `valid` (B, 1, 1, keys) masks keys out; undefined: none.
Var SelfAttention::log_weights(const Var& q, const Var& k, const AttentionLayout::Round& r, const Tensor& valid) const {
  constexpr double kHidden = -1e30;  // its weight is 0, and unlike infinity it gives 0 log 0 = 0
  const int heads = args_.heads;
  const int64_t T = q.size(1);
  const Var dots = matmul(attn::split_heads(q, heads), transpose(attn::split_heads(k, heads), -1, -2));
  Var logits = r.log_scale < 0 ? dots * attn::logit_scale(0, options_.d / heads) : dots * exp(parameter(r.log_scale));
  const Var hidden(Tensor::full({1}, kHidden, q.dtype()));
  if (valid.defined()) logits = where(valid, logits, hidden);
  if (!options_.causal) return log_softmax(logits);
  const Tensor places = Tensor::arange(T).to(q.dtype());
  const Tensor seen = less_equal(places.reshape({1, T}), places.reshape({T, 1}));  // key j by query i: j <= i
  return log_softmax(where(seen, logits, hidden));
}

namespace {

// (B, 1, 1, keys): 1 where a key is among the first `lengths` ones of its row.
Tensor valid_keys(const Tensor& lengths, int64_t batch, int64_t keys) {
  const std::vector<int64_t> n = attn::read_lengths("attention", lengths, batch, keys);
  std::vector<int32_t> valid;
  for (const int64_t length : n)
    for (int64_t j = 0; j < keys; ++j) valid.push_back(j < length);
  return Tensor::of(valid, {batch, 1, 1, keys});
}

}  // namespace

AttentionTrace SelfAttention::trace(const Tensor& x_in, const AttentionInputs& more) const {
  const Scope here = enter();
  const NoGrad off;
  check(more);
  const auto average = [&](const Var& p, const Var& v) {
    return attn::join_heads(matmul(p, attn::split_heads(v, args_.heads)));
  };
  AttentionTrace t;
  t.input = x_in;
  const Var x(x_in);
  Var memory = more.memory;
  if (memory.defined()) memory = expand(memory, {x.size(0), memory.size(1), memory.size(2)});
  const Tensor valid = more.lengths.defined()
                           ? valid_keys(more.lengths, x.size(0), memory.defined() ? memory.size(1) : x.size(1))
                           : Tensor();
  const Var nothing(Tensor::zeros({1}, x.dtype()));
  Var f, first_entropy;  // F_{m-1}; of round 0, mean over heads (B, T)
  for (size_t m = 0; m < layout_.rounds.size(); ++m) {
    const AttentionLayout::Round& r = layout_.rounds[m];
    const Var z = m == 0 ? x : x - f, source = memory.defined() ? memory : args_.kv == Kv::residual ? z : x;
    const Var q = affine(z, r.w_q, r.b_q), k = affine(source, r.w_k, r.b_k), v = affine(source, r.w_v, r.b_v);
    const Var log_p = log_weights(q, k, r, valid);
    // the softmax of a row that sees no key is uniform; the fused op gives such a row no weights
    const Var p = valid.defined() ? where(valid, exp(log_p), nothing) : exp(log_p);
    const Var entropy = -sum(p * log_p, {-1});
    const Var c = average(p, v);
    if (m == 0) first_entropy = mean(entropy, {1});
    const Var g = m == 0 ? Var() : gate(f, c, first_entropy, r);
    f = m == 0 ? c : f + (g.defined() ? g * c : c);
    t.rounds.push_back({p.value(), entropy.value(), v.value(), c.value(),
                        g.defined() ? g.value().expand(c.shape()) : Tensor(), f.value()});
    if (options_.kind == AttentionKind::twicing) {  // F = U + A (V - U), U = A V
      const Var rest = v - f, again = average(p, rest);
      f = f + again;
      t.rounds.push_back({p.value(), entropy.value(), rest.value(), again.value(), {}, f.value()});
    }
  }
  t.output = affine(f, layout_.w_out, layout_.b_out).value();
  return t;
}

// -- Token by token ---------------------------------------------------------------------------------------------------

AttentionCache SelfAttention::make_cache(int64_t capacity) const {
  const DType dtype = inputs_[0]->dtype();
  auto room = [&] { return Tensor::empty({1, capacity, options_.d}, dtype); };
  AttentionCache cache;
  for (int m = 0; m < args_.rounds; ++m) cache.slots.push_back({room(), room()});
  if (options_.kind == AttentionKind::twicing) cache.slots.push_back({Tensor(), room()});
  return cache;
}

namespace {

// The learned scale as forward() computes it. Where it vanishes, the least number does the same to the logits: in
// AttentionArgs, 0 means the default.
double scale_of(const Var& log_scale) {
  return std::max(std::exp(log_scale.item()), std::numeric_limits<double>::denorm_min());
}

}  // namespace

Tensor SelfAttention::extend(const Tensor& x_new, AttentionCache& cache) const {
  const Scope here = enter();
  const NoGrad off;
  BG_CHECK(options_.causal, Scope::current(), "a cache needs causal attention", "attention that sees later tokens",
           "causal = true");
  BG_CHECK(x_new.rank() == 3 && x_new.size(0) == 1 && x_new.size(2) == options_.d, Scope::current(),
           "wrong shape of new tokens", str(x_new.shape()), str("(1, n, ", options_.d, ")"));
  const int64_t end = cache.length + x_new.size(1);
  BG_CHECK(end <= cache.slots[0].values.size(1), Scope::current(), "the cache is full", str(end, " tokens"),
           str("at most ", cache.slots[0].values.size(1)), "a cache of larger capacity, or a new one");

  auto store = [&](Tensor& all, const Var& rows) { all.slice(1, cache.length, end).copy_from(rows.value()); };
  auto attend = [&](const AttentionLayout::Round& r, const Var& q, const Tensor& keys, const Tensor& values,
                    bool entropy) {
    AttentionArgs args;
    args.heads = args_.heads;
    args.causal = true;
    if (r.log_scale >= 0) args.scale = scale_of(parameter(r.log_scale));
    args.entropy = entropy;
    return apply<Attention>(args, {q, Var(keys.slice(1, 0, end)), Var(values.slice(1, 0, end))});
  };
  const Var x(x_new);
  Var f, entropy;
  for (size_t m = 0; m < layout_.rounds.size(); ++m) {
    const AttentionLayout::Round& r = layout_.rounds[m];
    AttentionCache::Slot& slot = cache.slots[m];
    const Var z = m == 0 ? x : x - f, source = args_.kv == Kv::residual ? z : x;
    const Var q = affine(z, r.w_q, r.b_q), v = affine(source, r.w_v, r.b_v);
    store(slot.keys, affine(source, r.w_k, r.b_k));
    store(slot.values, v);
    const bool wants_entropy = m == 0 && args_.rounds > 1 && args_.gate == Gate::mlp;
    const Vars out = attend(r, q, slot.keys, slot.values, wants_entropy);
    if (wants_entropy) entropy = out[1];
    const Var c = out[0], g = m == 0 ? Var() : gate(f, c, entropy, r);
    f = m == 0 ? c : f + (g.defined() ? g * c : c);
    if (options_.kind == AttentionKind::twicing) {  // F = U + A (V - U), U = A V
      Tensor& residuals = cache.slots[1].values;
      store(residuals, v - f);
      f = f + attend(r, q, slot.keys, residuals, false)[0];
    }
  }
  cache.length = end;
  return affine(f, layout_.w_out, layout_.b_out).value();
}

}  // namespace bg::nn
