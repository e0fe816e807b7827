#include "autograd/ops/attention.h"

#include <cmath>

#include "autograd/ops/attention_parts.h"

namespace bg {

using namespace attn;

namespace {

struct Shapes {
  int64_t batch, queries, keys, d_key, d_value;
};

Shapes check(std::string_view op, const Tensors& in, const AttentionArgs& a) {
  for (int i = 0; i < 3; ++i) {
    const Tensor& t = in[static_cast<size_t>(i)];
    num::check_same_float(op, in[0], t);
    BG_CHECK(t.rank() == 3, op, "queries, keys and values need three dimensions", str(t.shape()), "(B, T, heads * d)");
    BG_CHECK(a.heads >= 1 && t.size(2) % a.heads == 0, op, "heads do not divide the width",
             str(a.heads, " heads for ", t.shape()), "a width that is a multiple of the heads");
  }
  BG_CHECK(std::isfinite(a.scale), op, "bad scale", str(a.scale), "a number, or 0 for 1 / sqrt(width of a head)");
  const Tensor &q = in[0], &k = in[1], &v = in[2];
  BG_CHECK(q.size(2) == k.size(2), op, "queries and keys differ in width", str(q.shape(), " and ", k.shape()),
           "equal last sizes");
  BG_CHECK(k.size(0) == q.size(0) && v.size(0) == q.size(0), op, "batch sizes differ",
           str(q.shape(), ", ", k.shape(), ", ", v.shape()), "equal first sizes", "expand");
  BG_CHECK(k.size(1) == v.size(1), op, "keys and values differ in number", str(k.shape(), " and ", v.shape()),
           "equal second sizes");
  return {q.size(0), q.size(1), k.size(1), q.size(2) / a.heads, v.size(2) / a.heads};
}

Call make_call(const Tensors& in, const AttentionArgs& a, std::string_view op) {
  const Shapes s = check(op, in, a);
  Call c;
  c.shape = {.batch = s.batch,
             .heads = a.heads,
             .queries = s.queries,
             .keys = s.keys,
             .d_key = s.d_key,
             .d_value = s.d_value,
             .causal = a.causal,
             .scale = logit_scale(a.scale, s.d_key),
             .lengths = nullptr,
             .dropout = a.dropout,
             .mask = a.mask};
  if (a.lengths) c.lengths = read_lengths(op, in[3], s.batch, s.keys);
  return c;
}

Operand whole(const Tensor& t) { return {t, 0}; }

// A tensor whose last dimension is contiguous, as the kernels want it.
Tensor rows_of(const Tensor& t) { return t.size(2) <= 1 || t.strides()[2] == 1 ? t : t.contiguous(); }

}  // namespace

std::vector<int64_t> attn::read_lengths(std::string_view op, const Tensor& lengths, int64_t batch, int64_t keys) {
  BG_CHECK(is_index(lengths.dtype()) || is_float(lengths.dtype()), op, "bad dtype of lengths", str(lengths.dtype()),
           "i64");
  BG_CHECK(lengths.shape() == Shape{batch}, op, "lengths have the wrong shape", str(lengths.shape()),
           str(Shape{batch}));
  std::vector<int64_t> out;
  for (int64_t b = 0; b < batch; ++b) {
    const double length = lengths.flat(b);
    BG_CHECK(length >= 0 && length <= static_cast<double>(keys) && length == std::floor(length), op,
             "length out of range", str(length, " for row ", b), str("a whole number, 0 to ", keys));
    out.push_back(static_cast<int64_t>(length));
  }
  return out;
}

Vars attn::compose(const Var& q, const Var& k, const Var& v, const Tensor& lengths, int heads, bool causal,
                   const Var& scale, double dropout, MaskKey mask) {
  const int64_t B = q.size(0), Tq = q.size(1), Tk = k.size(1), H = heads;
  Tensor see = Tensor::zeros({B, 1, Tq, Tk}, q.dtype()), none = Tensor::zeros({B, 1, Tq, 1}, q.dtype());
  Tensor drop = Tensor::full({B, H, Tq, Tk}, 1, q.dtype());
  const std::vector<int64_t> valid =
      lengths.defined() ? read_lengths("attention", lengths, B, Tk) : std::vector<int64_t>();
  dispatch_float("attention", q.dtype(), [&]<class T>() {
    T *s = see.mutable_data<T>("mask"), *n = none.mutable_data<T>("mask");
    for (int64_t b = 0; b < B; ++b)
      for (int64_t i = 0; i < Tq; ++i) {
        bool any = false;
        for (int64_t j = 0; j < Tk; ++j) {
          const bool sees = visible(causal, i, j, Tq, Tk, valid.empty() ? Tk : valid[static_cast<size_t>(b)]);
          s[(b * Tq + i) * Tk + j] = sees;
          any |= sees;
        }
        n[b * Tq + i] = !any;
      }
    if (dropout > 0) mask_scale<T>(mask, 0, drop.numel(), dropout, drop.mutable_data<T>("mask"));
  });
  const Var logits = matmul(split_heads(q, heads), transpose(split_heads(k, heads), -1, -2)) * scale;
  Tensor max = Tensor::full({B, H, Tq, 1}, 0, q.dtype());  // a constant: softmax does not depend on it
  for (int64_t r = 0; r < B * H * Tq; ++r) {
    double m = 0;
    bool any = false;
    for (int64_t j = 0; j < Tk; ++j) {
      if (see.flat((r / (H * Tq) * Tq + r % Tq) * Tk + j) == 0) continue;
      const double s = logits.value().flat(r * Tk + j);
      m = any ? std::max(m, s) : s;
      any = true;
    }
    dispatch_float("attention", q.dtype(), [&]<class T>() { max.mutable_data<T>("max")[r] = static_cast<T>(m); });
  }
  const Var shifted = (logits - Var(max)) * Var(see);  // hidden ones are 0 here and masked again below
  const Var e = exp(shifted) * Var(see);
  const Var z = sum(e, {-1}, true) + Var(none);  // a row that sees nothing: 0 / 1
  const Var p = e / z;
  const Var o = join_heads(matmul(p * Var(drop), split_heads(v, heads)));
  const Var h = sum(p * (log(z) - shifted), {1, 3}) / static_cast<double>(H);
  return {o, h};
}

Tensors Attention::forward(Saved& saved, const Tensors& in, const Args& a) {
  const Call call = make_call(in, a, name);
  const Tensor q = rows_of(in[0]), k = rows_of(in[1]), v = rows_of(in[2]);
  const Attended r = attend(call, whole(q), whole(k), whole(v), a.entropy);
  saved.keep_input(0, q);
  saved.keep_input(1, k);
  saved.keep_input(2, v);
  saved.keep_output(0, r.o);
  saved.keep(r.stats);
  saved.keep(a.lengths ? in[3] : Tensor());
  if (a.entropy) return {r.o, r.entropy};
  return {r.o};
}

Tensors Attention::backward(const Backward<Tensor, Args>& b) {
  const Call call = make_call({b[0], b[1], b[2], b[5]}, b.args, name);
  Tensors g(b.input_count());
  Gradients d;
  for (size_t i : {0u, 1u, 2u})
    if (b.need(i)) d.of(i) = whole(g[i] = Tensor::empty(b.input_shape(i), b.input_dtype(i)));
  attend_backward(call, whole(b[0]), whole(b[1]), whole(b[2]), b[3], b[4], b.dy(), b.args.entropy ? b.dy(1) : Tensor(),
                  d, false);
  return g;
}

Vars Attention::compose(const Vars& in, const Args& a) {
  const Var scale(Tensor::scalar(logit_scale(a.scale, in[0].size(2) / a.heads), in[0].dtype()));
  Vars out = attn::compose(in[0], in[1], in[2], a.lengths ? in[3].value() : Tensor(), a.heads, a.causal, scale,
                           a.dropout, a.mask);
  if (!a.entropy) out.pop_back();
  return out;
}

Tensor Twicing::forward(Saved& saved, const Tensors& in, const Args& a) {
  BG_CHECK(!a.entropy, name, "no entropy output", "entropy = true", "false");
  const Call call = make_call(in, a, name);
  BG_CHECK(call.shape.queries == call.shape.keys, name, "twicing needs as many queries as keys",
           str(in[0].shape(), " and ", in[1].shape()), "equal second sizes");
  const Tensor q = rows_of(in[0]), k = rows_of(in[1]), v = rows_of(in[2]);
  const Attended first = attend(call, whole(q), whole(k), whole(v), false);
  const Attended second = attend(call, whole(q), whole(k), whole(num::sub(v, first.o)), false);
  saved.keep_input(0, q);
  saved.keep_input(1, k);
  saved.keep_input(2, v);
  saved.keep(first.o);
  saved.keep(second.o);
  saved.keep(first.stats);
  saved.keep(a.lengths ? in[3] : Tensor());
  return num::add(first.o, second.o);
}

Tensors Twicing::backward(const Backward<Tensor, Args>& b) {
  const Call call = make_call({b[0], b[1], b[2], b[6]}, b.args, name);
  const Tensor &q = b[0], &k = b[1], &v = b[2];
  Tensors g(b.input_count());
  for (size_t i : {0u, 1u, 2u}) g[i] = Tensor::empty(b.input_shape(i), b.input_dtype(i));
  twicing_backward(call, whole(q), whole(k), whole(v), b[3], b[4], b[5], b.dy(),
                   {whole(g[0]), whole(g[1]), whole(g[2])});
  for (size_t i : {0u, 1u, 2u})
    if (!b.need(i)) g[i] = Tensor();
  return g;
}

Vars Twicing::compose(const Vars& in, const Args& a) {
  const Var u = Attention::compose(in, a)[0];
  Vars second = in;
  second[2] = in[2] - u;
  return {u + Attention::compose(second, a)[0]};
}

namespace {

template <class O>
Vars apply_attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& o, bool entropy) {
  const AttentionArgs args{.heads = o.heads,
                           .causal = o.causal,
                           .scale = o.scale,
                           .lengths = o.lengths.defined(),
                           .entropy = entropy,
                           .dropout = o.dropout,
                           .mask = o.mask};
  return apply<O>(args, args.lengths ? Vars{q, k, v, Var(o.lengths)} : Vars{q, k, v});
}

}  // namespace

Var attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options) {
  return apply_attention<Attention>(q, k, v, options, false)[0];
}

AttentionOutput attention_with_entropy(const Var& q, const Var& k, const Var& v, const AttentionOptions& options) {
  const Vars out = apply_attention<Attention>(q, k, v, options, true);
  return {out[0], out[1]};
}

Var twicing(const Var& q, const Var& k, const Var& v, const AttentionOptions& options) {
  return apply_attention<Twicing>(q, k, v, options, false)[0];
}

namespace {

// Points that reach every branch: causal or not, several heads, one token, more keys than queries, padding, dropout.
std::vector<Sample<AttentionArgs>> core_samples(Rng& r, bool square, bool entropy) {
  std::vector<Sample<AttentionArgs>> out;
  auto add = [&](std::string label, AttentionArgs a, int64_t B, int64_t Tq, int64_t Tk, int64_t dk, int64_t dv,
                 std::vector<double> lengths = {}, std::vector<int> zero = {}) {
    Tensors in{normal(r, {B, Tq, a.heads * dk}), normal(r, {B, Tk, a.heads * dk}), normal(r, {B, Tk, a.heads * dv})};
    if (!lengths.empty()) {
      a.lengths = true;
      in.push_back(Tensor::of(std::move(lengths), {B}).to(DType::i64));
    }
    out.emplace_back(std::move(label), a, std::move(in), std::move(zero));
  };
  add("one head", {.heads = 1}, 1, 3, 3, 2, 2);
  add("two heads, causal", {.heads = 2, .causal = true}, 2, 4, 4, 3, 2);
  add("scale 0.3", {.heads = 1, .scale = 0.3}, 1, 3, 3, 4, 1);
  add("one token", {.heads = 2}, 2, 1, 1, 2, 3, {}, {0, 1});
  add("padded rows, one fully masked", {.heads = 1}, 3, 3, 3, 2, 2, {2, 3, 0});
  add("padded, causal", {.heads = 2, .causal = true}, 3, 4, 4, 2, 2, {3, 4, 3});
  add("wide heads", {.heads = 1}, 2, 3, 3, 17, 18);
  add("dropout", {.heads = 2, .causal = true, .dropout = 0.3, .mask = {11, 5}}, 2, 5, 5, 2, 2);
  if (!square) {
    add("more keys than queries, causal", {.heads = 1, .causal = true}, 2, 2, 5, 3, 2);
    add("cross", {.heads = 2}, 1, 4, 2, 2, 3);
  }
  if (entropy) {
    add("entropy", {.heads = 2, .causal = true, .entropy = true}, 2, 4, 4, 2, 2);
    add("entropy under dropout and padding", {.heads = 2, .entropy = true, .dropout = 0.4, .mask = {3, 1}}, 2, 3, 3, 2,
        2, {2, 3});
  }
  add("several blocks, causal, dropout", {.heads = 2, .causal = true, .dropout = 0.2, .mask = {7, 9}}, 1, 100, 100, 5,
      3);
  return out;
}

}  // namespace

std::vector<Sample<AttentionArgs>> Attention::samples(Rng& r) { return core_samples(r, false, true); }
std::vector<Sample<AttentionArgs>> Twicing::samples(Rng& r) { return core_samples(r, true, false); }

std::vector<Mutant<Tensor, AttentionArgs>> Attention::mutants() {
  auto with = [](auto change) {
    return [change](const Backward<Tensor, Args>& b) {
      Tensors g = Attention::backward(b);
      change(b, g);
      return g;
    };
  };
  return {{"row dot dropped",
           [](const Backward<Tensor, Args>& b) {
             const std::vector<Tensor> dy{b.dy(), b.args.entropy ? b.dy(1) : Tensor()};
             const std::vector<Tensor> kept{b[0], b[1], b[2], num::scale(b[3], 0), b[4], b[5]};
             std::vector<Node::Value> values;
             std::vector<bool> need;
             for (size_t i = 0; i < b.input_count(); ++i) {
               values.push_back({b.input_shape(i), b.input_dtype(i)});
               need.push_back(b.need(i));
             }
             return Attention::backward(Backward<Tensor, Args>(name, dy, kept, Need(need), b.args, values));
           }},
          {"queries' gradient without the scale", with([](auto& b, Tensors& g) {
             if (g[0].defined())
               g[0] = num::scale(g[0], 1 / logit_scale(b.args.scale, b.input_shape(0)[2] / b.args.heads));
           })},
          {"keys' gradient dropped", with([](auto&, Tensors& g) { g[1] = Tensor(); })},
          {"values' gradient negated", with([](auto&, Tensors& g) {
             if (g[2].defined()) g[2] = num::scale(g[2], -1);
           })}};
}

std::vector<Mutant<Tensor, AttentionArgs>> Twicing::mutants() {
  return {{"second pass ignored",
           [](const Backward<Tensor, Args>& b) {
             Tensors g = Twicing::backward(b);
             g[2] = b.need(2) ? num::scale(g[2], 0.5) : Tensor();
             return g;
           }},
          {"first pass's values forgotten", [](const Backward<Tensor, Args>& b) {
             const Call call = make_call({b[0], b[1], b[2], b[6]}, b.args, name);
             Tensors g(b.input_count());
             for (size_t i : {0u, 1u, 2u}) g[i] = Tensor::empty(b.input_shape(i), b.input_dtype(i));
             attend_backward(call, whole(b[0]), whole(b[1]), whole(num::sub(b[2], b[3])), b[4], b[5], b.dy(), Tensor(),
                             {whole(g[0]), whole(g[1]), whole(g[2])}, false);
             return g;
           }}};
}

}  // namespace bg
