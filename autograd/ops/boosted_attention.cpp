#include "autograd/ops/boosted_attention.h"

#include <cmath>
#include <map>
#include <mutex>
#include <tuple>

#include "autograd/ops/attention_parts.h"
#include "core/elementwise.h"
#include "core/gemm.h"
#include "core/kernels/vec_math.h"

namespace bg {

using namespace attn;

namespace {

AttentionLayout make_layout(const AttentionLayerArgs& a) {
  AttentionLayout at;
  auto add = [&](std::string name, bool differentiable = true) {
    at.inputs.emplace_back(std::move(name), differentiable);
    return static_cast<int>(at.inputs.size()) - 1;
  };
  at.x = add("x");
  if (a.memory) at.memory = add("memory");
  if (a.lengths) at.lengths = add("lengths", false);
  for (int m = 0; m < a.rounds; ++m) {
    AttentionLayout::Round r;
    auto named = [&](const char* part) { return add(str("rounds.", m, ".", part)); };
    r.w_q = named("w_q");
    r.w_k = named("w_k");
    r.w_v = named("w_v");
    if (a.bias) {
      r.b_q = named("b_q");
      r.b_k = named("b_k");
      r.b_v = named("b_v");
    }
    if (a.learned_scale) r.log_scale = named("log_scale");
    if (m > 0 && a.gate == Gate::scalar) r.gate = named("gate");
    if (m > 0 && a.gate == Gate::linear) {
      r.w_g = named("w_g");
      r.b_g = named("b_g");
    }
    if (m > 0 && a.gate == Gate::mlp) {
      r.w_1 = named("w_1");
      r.b_1 = named("b_1");
      r.w_2 = named("w_2");
      r.b_2 = named("b_2");
    }
    at.rounds.push_back(r);
  }
  if (a.project_out) {
    at.w_out = add("w_out");
    if (a.bias) at.b_out = add("b_out");
  }
  return at;
}

}  // namespace

// Names are slow to make beside a small layer's arithmetic.
const AttentionLayout& attention_layout(const AttentionLayerArgs& a) {
  using Key = std::tuple<bool, bool, bool, bool, bool, int, Gate>;
  static std::mutex mutex;
  static std::map<Key, AttentionLayout> layouts;
  const std::lock_guard lock(mutex);
  const Key key{a.memory, a.lengths, a.bias, a.project_out, a.learned_scale, a.rounds, a.gate};
  auto found = layouts.find(key);
  if (found == layouts.end()) found = layouts.emplace(key, make_layout(a)).first;
  return found->second;
}

namespace {

// -- Small pieces of linear algebra on (B, T, n) tensors as tall matrices ---------------------------------------------

Tensor flat(const Tensor& t) {
  return t.reshape({t.shape().numel() / std::max<int64_t>(t.shape().back(), 1), t.shape().back()});
}

// out = alpha op(a) op(b) + beta out, all two-dimensional with contiguous rows.
void product(Trans ta, Trans tb, const Tensor& a, const Tensor& b, Tensor& out, double beta = 0) {
  const int64_t m = out.size(0), n = out.size(1), k = ta == Trans::no ? a.size(1) : a.size(0);
  dispatch_float("attention", out.dtype(), [&]<class T>() {
    gemm<T>(ta, tb, m, n, k, T{1}, a.data<T>(), a.strides()[0], b.data<T>(), b.strides()[0], static_cast<T>(beta),
            out.mutable_data<T>("attention"), out.strides()[0]);
  });
}

// out = a b + bias, undefined: none.
void affine(const Tensor& a, const Tensor& b, const Tensor& bias, Tensor& out) {
  if (!bias.defined()) return product(Trans::no, Trans::no, a, b, out);
  dispatch_float("attention", out.dtype(), [&]<class T>() {
    gemm_bias<T>(Trans::no, Trans::no, out.size(0), out.size(1), a.size(1), a.data<T>(), a.strides()[0], b.data<T>(),
                 b.strides()[0], bias.data<T>(), out.mutable_data<T>("attention"), out.strides()[0]);
  });
}

Tensor columns_sum(const Tensor& t) { return num::sum(flat(t), {0}); }

// f(begin, end) over all elements, for passes over equally shaped contiguous tensors; a range is small enough for the
// serial use of the kernels.
template <class F>
void over_elements(const Tensor& like, F f) {
  parallel_for(like.numel(), 8192, f);
}

// f + g * c; g undefined: 1, one element: the same everywhere.
Tensor gated_sum(const Tensor& f, const Tensor& g, const Tensor& c) {
  Tensor y = Tensor::empty(f.shape(), f.dtype());
  const bool everywhere = g.defined() && g.rank() == 3;
  dispatch_float("attention", f.dtype(), [&]<class T>() {
    const T *pf = f.data<T>(), *pc = c.data<T>(), *pg = g.defined() ? g.data<T>() : nullptr;
    T* out = y.mutable_data<T>("attention");
    over_elements(f, [=](int64_t begin, int64_t end) {
      if (everywhere)
        for (int64_t i = begin; i < end; ++i) out[i] = pf[i] + pg[i] * pc[i];
      else
        for (int64_t i = begin; i < end; ++i) out[i] = pf[i] + (pg ? pg[0] : T{1}) * pc[i];
    });
  });
  return y;
}

// a becomes g = sigmoid(a); returns f + g * c. One pass.
Tensor open_and_add(Tensor& a, const Tensor& f, const Tensor& c) {
  Tensor y = Tensor::empty(f.shape(), f.dtype());
  dispatch_float("attention", f.dtype(), [&]<class T>() {
    const T *pf = f.data<T>(), *pc = c.data<T>();
    T *g = a.mutable_data<T>("attention"), *out = y.mutable_data<T>("attention");
    over_elements(f, [=](int64_t begin, int64_t end) {
      kernels::sigmoid(g + begin, g + begin, end - begin);
      for (int64_t i = begin; i < end; ++i) out[i] = pf[i] + g[i] * pc[i];
    });
  });
  return y;
}

// to += d, from -= d. One pass.
void move_gradient(Tensor& to, Tensor& from, const Tensor& d) {
  dispatch_float("attention", d.dtype(), [&]<class T>() {
    const T* p = d.data<T>();
    T *t = to.mutable_data<T>("attention"), *f = from.mutable_data<T>("attention");
    over_elements(d, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) t[i] += p[i], f[i] -= p[i];
    });
  });
}

// -- Projections ------------------------------------------------------------------------------------------------------

// Several weights that share one source, side by side: one matrix product instead of many.
struct Packed {
  std::vector<int> w, b;  // input indices; b is -1 without biases
};

// Where a round finds its queries, keys and values: columns of which packed product.
struct Place {
  int packed = 0;
  int64_t column = 0;
};
struct RoundPlaces {
  Place q, k, v;
};

// Sources of the packed products: 0 is x, 1 the memory (if any), then one residual a round from round 1 on.
struct Plan {
  const AttentionLayout& at;
  std::vector<Packed> packed;
  std::vector<RoundPlaces> rounds;

  static int residual(int m) { return 1 + m; }
};

Plan make_plan(const Tensors& in, const AttentionLayerArgs& a) {
  Plan p{attention_layout(a), {}, {}};
  p.packed.resize(static_cast<size_t>(1 + a.rounds));
  std::vector<int64_t> width(p.packed.size(), 0);
  auto place = [&](int source, int w, int b) {
    Packed& k = p.packed[static_cast<size_t>(source)];
    k.w.push_back(w);
    k.b.push_back(b);
    const Place at{source, width[static_cast<size_t>(source)]};
    width[static_cast<size_t>(source)] += in[static_cast<size_t>(w)].size(1);
    return at;
  };
  for (int m = 0; m < a.rounds; ++m) {
    const AttentionLayout::Round& r = p.at.rounds[static_cast<size_t>(m)];
    const int query_source = m == 0 ? 0 : Plan::residual(m);
    const int key_source = a.memory ? 1 : a.kv == Kv::residual ? query_source : 0;
    RoundPlaces places;
    places.q = place(query_source, r.w_q, r.b_q);
    places.k = place(key_source, r.w_k, r.b_k);
    places.v = place(key_source, r.w_v, r.b_v);
    p.rounds.push_back(places);
  }
  return p;
}

void check_weight(std::string_view op, const Tensors& in, const AttentionLayout& at, int i, int64_t rows,
                  int64_t cols) {
  if (i < 0) return;
  const Tensor& w = in[static_cast<size_t>(i)];
  num::check_same_float(op, in[0], w);
  const Shape expected = rows < 0 ? Shape{cols} : Shape{rows, cols};
  BG_CHECK(w.shape() == expected, op, str("wrong shape of ", at.inputs[static_cast<size_t>(i)].name), str(w.shape()),
           str(expected));
}

void check_layer(std::string_view op, const Tensors& in, const AttentionLayerArgs& a, const AttentionLayout& at) {
  BG_CHECK(a.rounds >= 1, op, "bad number of rounds", str(a.rounds), "1 or more");
  BG_CHECK(a.heads >= 1, op, "bad number of heads", str(a.heads), "1 or more");
  const Tensor& x = in[0];
  BG_CHECK(x.defined() && x.rank() == 3 && is_float(x.dtype()), op, "bad x",
           x.defined() ? str(x.dtype(), " ", x.shape()) : "no data", "a floating (B, T, d)");
  BG_CHECK(!(a.memory && a.kv == Kv::residual), op, "keys and values cannot come from both memory and residual",
           "memory with kv = residual", "one source", "kv = input");
  BG_CHECK(a.dropout >= 0 && a.dropout < 1, op, "bad dropout", str(a.dropout), "at least 0 and below 1");
  BG_CHECK(a.dropout == 0 || static_cast<int>(a.masks.size()) >= a.rounds, op, "too few dropout masks",
           str(a.masks.size()), str("one a round: ", a.rounds));
  const int64_t d = x.size(2);
  int64_t e = d;
  if (a.memory) {
    const Tensor& s = in[static_cast<size_t>(at.memory)];
    num::check_same_float(op, x, s);
    BG_CHECK(s.rank() == 3 && (s.size(0) == x.size(0) || s.size(0) == 1), op, "bad memory", str(s.shape()),
             str("(", x.size(0), " or 1, S, e)"));
    e = s.size(2);
  }
  int64_t d_v = 0;
  for (size_t m = 0; m < at.rounds.size(); ++m) {
    const AttentionLayout::Round& r = at.rounds[m];
    for (int i : {r.w_q, r.w_k, r.w_v})
      BG_CHECK(in[static_cast<size_t>(i)].rank() == 2, op, str(at.inputs[static_cast<size_t>(i)].name, " is no matrix"),
               str(in[static_cast<size_t>(i)].shape()), "two dimensions");
    const int64_t d_q = in[static_cast<size_t>(r.w_q)].size(1), d_vm = in[static_cast<size_t>(r.w_v)].size(1);
    BG_CHECK(d_q % a.heads == 0 && d_vm % a.heads == 0 && d_q > 0, op, "heads do not divide the width",
             str(a.heads, " heads, widths ", d_q, " and ", d_vm), "multiples of the heads");
    d_v = m == 0 ? d_vm : d_v;
    check_weight(op, in, at, r.w_q, d, d_q);
    check_weight(op, in, at, r.w_k, e, d_q);
    check_weight(op, in, at, r.w_v, e, d_v);
    check_weight(op, in, at, r.b_q, -1, d_q);
    check_weight(op, in, at, r.b_k, -1, d_q);
    check_weight(op, in, at, r.b_v, -1, d_v);
    check_weight(op, in, at, r.log_scale, -1, 1);
    check_weight(op, in, at, r.gate, -1, 1);
    check_weight(op, in, at, r.w_g, 2 * d, d);
    check_weight(op, in, at, r.b_g, -1, d);
    const int64_t h = r.w_1 < 0 ? 0 : in[static_cast<size_t>(r.w_1)].shape().back();
    check_weight(op, in, at, r.w_1, 2 * d + 1, h);
    check_weight(op, in, at, r.b_1, -1, h);
    check_weight(op, in, at, r.w_2, h, d);
    check_weight(op, in, at, r.b_2, -1, d);
  }
  BG_CHECK(a.rounds == 1 || d_v == d, op, "the attention's output cannot be subtracted from x", str("width ", d_v),
           str("x's width ", d));
  if (at.w_out >= 0) {
    const Tensor& w = in[static_cast<size_t>(at.w_out)];
    check_weight(op, in, at, at.w_out, d_v, w.shape().back());
    check_weight(op, in, at, at.b_out, -1, w.shape().back());
  }
}

Tensor pack_weights(const Tensors& in, const Packed& p) {
  int64_t width = 0;
  for (int w : p.w) width += in[static_cast<size_t>(w)].size(1);
  Tensor all = Tensor::empty({in[static_cast<size_t>(p.w[0])].size(0), width}, in[0].dtype());
  int64_t at = 0;
  for (int w : p.w) {
    const Tensor& t = in[static_cast<size_t>(w)];
    Tensor part = all.slice(1, at, at + t.size(1));
    part.copy_from(t, "attention");
    at += t.size(1);
  }
  return all;
}

// source [w_0 | w_1 | ...] + [b_0 | b_1 | ...]
Tensor project(const Tensors& in, const Packed& p, const Tensor& source) {
  const Tensor w = pack_weights(in, p);
  Tensor y = Tensor::empty({source.size(0), source.size(1), w.size(1)}, source.dtype());
  Tensor rows = flat(y), bias;
  if (p.b[0] >= 0) {
    bias = Tensor::empty({w.size(1)}, y.dtype());
    int64_t at = 0;
    for (int b : p.b) {
      const Tensor& t = in[static_cast<size_t>(b)];
      Tensor part = bias.slice(0, at, at + t.numel());
      part.copy_from(t, "attention");
      at += t.numel();
    }
  }
  affine(flat(source), w, bias, rows);
  return y;
}

// Gradients of a packed product's weights and biases from the one of its result; returns the source's if asked for.
Tensor unproject(const Tensors& in, const Packed& p, const Tensor& source, const Tensor& dy, bool need_source,
                 const std::function<bool(int)>& need, Tensors& g) {
  const Tensor rows = flat(dy);
  const bool any_w = std::any_of(p.w.begin(), p.w.end(), need), any_b = std::any_of(p.b.begin(), p.b.end(), need);
  Tensor dw, db;
  if (any_w) {
    dw = Tensor::empty({source.size(2), dy.size(2)}, dy.dtype());
    product(Trans::yes, Trans::no, flat(source), rows, dw);
  }
  if (any_b) db = columns_sum(dy);
  int64_t at = 0;
  for (size_t i = 0; i < p.w.size(); ++i) {
    const int64_t n = in[static_cast<size_t>(p.w[i])].size(1);
    if (need(p.w[i])) g[static_cast<size_t>(p.w[i])] = dw.slice(1, at, at + n);
    if (need(p.b[i])) g[static_cast<size_t>(p.b[i])] = db.slice(0, at, at + n);
    at += n;
  }
  if (!need_source) return {};
  Tensor ds = Tensor::empty(source.shape(), source.dtype());
  Tensor ds_rows = flat(ds);
  product(Trans::no, Trans::yes, rows, pack_weights(in, p), ds_rows);
  return ds;
}

// -- Gates ------------------------------------------------------------------------------------------------------------

// What a gate keeps: g itself (B, T, d), or (1) for scalar; u, the mlp's inner layer before its GELU.
struct GateValue {
  Tensor g, u;
};

Tensor sigmoid_of(const Tensor& a) {
  Tensor y = Tensor::empty(a.shape(), a.dtype());
  dispatch_float("attention", a.dtype(),
                 [&]<class T>() { kernels::sigmoid(a.data<T>(), y.mutable_data<T>("attention"), a.numel()); });
  return y;
}

Tensor gelu_of(const Tensor& u) {
  Tensor y = Tensor::empty(u.shape(), u.dtype());
  dispatch_float("attention", u.dtype(),
                 [&]<class T>() { kernels::gelu(u.data<T>(), y.mutable_data<T>("attention"), u.numel()); });
  return y;
}

// [F | c] w without building [F | c]: the upper rows of w meet F, the lower ones c; a last row meets H.
Tensor both(const Tensor& f, const Tensor& c, const Tensor& w, const Tensor& b, const Tensor& entropy) {
  const int64_t d = f.size(2), n = w.size(1);
  Tensor y = Tensor::empty({f.size(0), f.size(1), n}, f.dtype());
  Tensor rows = flat(y);
  affine(flat(f), w.slice(0, 0, d), b, rows);
  product(Trans::no, Trans::no, flat(c), w.slice(0, d, 2 * d), rows, 1);
  if (entropy.defined())
    product(Trans::no, Trans::no, entropy.reshape({entropy.numel(), 1}), w.slice(0, 2 * d, 2 * d + 1), rows, 1);
  return y;
}

// Weighs the correction: fills in what the gate keeps and returns F + g * c.
Tensor add_correction(const Tensors& in, const AttentionLayout::Round& r, Gate gate, const Tensor& f, const Tensor& c,
                      const Tensor& entropy, GateValue& kept) {
  auto at = [&](int i) -> const Tensor& { return in[static_cast<size_t>(i)]; };
  if (gate == Gate::scalar) kept.g = sigmoid_of(at(r.gate));
  if (gate == Gate::none || gate == Gate::scalar) return gated_sum(f, kept.g, c);
  if (gate == Gate::linear) {
    kept.g = both(f, c, at(r.w_g), at(r.b_g), {});
  } else {
    kept.u = both(f, c, at(r.w_1), at(r.b_1), entropy);
    kept.g = Tensor::empty(f.shape(), f.dtype());
    Tensor rows = flat(kept.g);
    affine(flat(gelu_of(kept.u)), at(r.w_2), at(r.b_2), rows);
  }
  return open_and_add(kept.g, f, c);
}

// Undoes both(): gradients of w and b; those of F, c and H are added to d_f, d_c and d_entropy where these are defined.
void undo_both(const Tensors& in, int w_at, int b_at, const Tensor& f, const Tensor& c, const Tensor& entropy,
               const Tensor& dy, const std::function<bool(int)>& need, Tensors& g, Tensor d_f, Tensor d_c,
               Tensor d_entropy) {
  const Tensor& w = in[static_cast<size_t>(w_at)];
  const int64_t d = f.size(2);
  const Tensor rows = flat(dy);
  if (need(w_at)) {
    Tensor dw = Tensor::empty(w.shape(), w.dtype());
    auto part = [&](const Tensor& left, int64_t begin, int64_t end) {
      Tensor to = dw.slice(0, begin, end);
      product(Trans::yes, Trans::no, left, rows, to);
    };
    part(flat(f), 0, d);
    part(flat(c), d, 2 * d);
    if (entropy.defined()) part(entropy.reshape({entropy.numel(), 1}), 2 * d, 2 * d + 1);
    g[static_cast<size_t>(w_at)] = dw;
  }
  if (need(b_at)) g[static_cast<size_t>(b_at)] = columns_sum(dy);
  auto add = [&](Tensor to, int64_t begin, int64_t end) {
    if (to.defined()) product(Trans::no, Trans::yes, rows, w.slice(0, begin, end), to, 1);
  };
  add(d_f.defined() ? flat(d_f) : d_f, 0, d);
  add(d_c.defined() ? flat(d_c) : d_c, d, 2 * d);
  add(d_entropy.defined() ? d_entropy.reshape({d_entropy.numel(), 1}) : d_entropy, 2 * d, 2 * d + 1);
}

// -- A layer's forward ------------------------------------------------------------------------------------------------

Call make_call(const Tensors& in, const AttentionLayerArgs& a, const AttentionLayout& at, int m, std::string_view op) {
  const AttentionLayout::Round& r = at.rounds[static_cast<size_t>(m)];
  const Tensor& x = in[0];
  const Tensor& s = at.memory >= 0 ? in[static_cast<size_t>(at.memory)] : x;
  Call c;
  const int64_t d_key = in[static_cast<size_t>(r.w_q)].size(1) / a.heads;
  c.shape = {.batch = x.size(0),
             .heads = a.heads,
             .queries = x.size(1),
             .keys = s.size(1),
             .d_key = d_key,
             .d_value = in[static_cast<size_t>(r.w_v)].size(1) / a.heads,
             .causal = a.causal,
             .scale = r.log_scale >= 0 ? std::exp(in[static_cast<size_t>(r.log_scale)].flat(0)) : logit_scale(0, d_key),
             .lengths = nullptr,
             .dropout = a.dropout,
             .mask = a.dropout > 0 ? a.masks[static_cast<size_t>(m)] : MaskKey{}};
  if (at.lengths >= 0) c.lengths = read_lengths(op, in[static_cast<size_t>(at.lengths)], x.size(0), c.shape.keys);
  return c;
}

Tensor project_out(const Tensors& in, const AttentionLayout& at, const Tensor& f) {
  if (at.w_out < 0) return f;
  return project(in, {{at.w_out}, {at.b_out}}, f);
}

// The state that forward saves after the inputs, in this order.
struct Kept {
  std::vector<Tensor> packed;      // each packed product's result (undefined where nothing is packed)
  std::vector<Tensor> out, stats;  // each round's attention output and row statistics
  std::vector<GateValue> gates;    // from round 1 on
  Tensor entropy;

  void save(Saved& s) const {
    for (const Tensor& t : packed) s.keep(t);
    for (size_t m = 0; m < out.size(); ++m) {
      s.keep(out[m]);
      s.keep(stats[m]);
    }
    for (const GateValue& g : gates) {
      s.keep(g.g);
      s.keep(g.u);
    }
    s.keep(entropy);
  }
  static Kept load(const Backward<Tensor, AttentionLayerArgs>& b, int rounds) {
    Kept k;
    size_t at = b.input_count();
    for (int i = 0; i < 1 + rounds; ++i) k.packed.push_back(b[at++]);
    for (int m = 0; m < rounds; ++m) {
      k.out.push_back(b[at++]);
      k.stats.push_back(b[at++]);
    }
    for (int m = 1; m < rounds; ++m) {
      GateValue g;
      g.g = b[at++];
      g.u = b[at++];
      k.gates.push_back(g);
    }
    k.entropy = b[at++];
    return k;
  }
};

Tensors contiguous_inputs(const Tensors& in) {
  Tensors c;
  for (const Tensor& t : in) c.push_back(t.contiguous());
  return c;
}

void keep_inputs(Saved& saved, const Tensors& in) {
  for (size_t i = 0; i < in.size(); ++i) saved.keep_input(static_cast<int>(i), in[i]);
}

Tensors saved_inputs(const Backward<Tensor, AttentionLayerArgs>& b) {
  Tensors in;
  for (size_t i = 0; i < b.input_count(); ++i) in.push_back(b[i]);
  return in;
}

Tensor layer_forward(std::string_view op, Saved& saved, const Tensors& given, const AttentionLayerArgs& a) {
  const AttentionLayout& at = attention_layout(a);
  check_layer(op, given, a, at);
  const Tensors in = contiguous_inputs(given);
  const Plan plan = make_plan(in, a);
  const Tensor& x = in[0];
  Kept k;
  k.packed.resize(plan.packed.size());
  k.packed[0] = project(in, plan.packed[0], x);
  if (a.memory) k.packed[1] = project(in, plan.packed[1], in[static_cast<size_t>(at.memory)]);
  auto operand = [&](const Place& p) { return Operand{k.packed[static_cast<size_t>(p.packed)], p.column}; };

  Tensor f;
  for (int m = 0; m < a.rounds; ++m) {
    const RoundPlaces& places = plan.rounds[static_cast<size_t>(m)];
    if (m > 0)
      k.packed[static_cast<size_t>(places.q.packed)] =
          project(in, plan.packed[static_cast<size_t>(places.q.packed)], num::sub(x, f));
    const bool entropy = m == 0 && a.rounds > 1 && a.gate == Gate::mlp;
    const Attended c =
        attend(make_call(in, a, at, m, op), operand(places.q), operand(places.k), operand(places.v), entropy);
    if (entropy) k.entropy = c.entropy;
    k.out.push_back(c.o);
    k.stats.push_back(c.stats);
    if (m == 0) {
      f = c.o;
    } else {
      k.gates.emplace_back();
      f = add_correction(in, at.rounds[static_cast<size_t>(m)], a.gate, f, c.o, k.entropy, k.gates.back());
    }
  }
  if (saved.recording()) {
    keep_inputs(saved, in);
    k.save(saved);
  }
  return project_out(in, at, f);
}

// -- A layer's backward -----------------------------------------------------------------------------------------------

class LayerBackward {
 public:
  using B = Backward<Tensor, AttentionLayerArgs>;

  LayerBackward(const B& b, BoostFault fault)
      : b_(b),
        a_(b.args),
        fault_(fault),
        in_(saved_inputs(b)),
        plan_(make_plan(in_, a_)),
        kept_(Kept::load(b, a_.rounds)),
        grads_(b.input_count()) {
    f_.push_back(kept_.out[0]);  // F_0 .. F_{M-1} again
    for (int m = 1; m < a_.rounds; ++m)
      f_.push_back(gated_sum(f_.back(), gate(m).g, kept_.out[static_cast<size_t>(m)]));
    for (const Tensor& t : kept_.packed)
      d_packed_.push_back(t.defined() ? Tensor::empty({batch(), t.size(1), t.size(2)}, t.dtype()) : Tensor());
  }

  Tensors run() {
    Tensor df = undo_out(b_.dy().contiguous());
    if (a_.rounds > 1 && df.same_storage(b_.dy())) df = df.clone();  // undo_round writes to it
    for (int m = a_.rounds - 1; m >= 1; --m) undo_round(m, df);
    undo_first(df);
    const AttentionLayout& at = plan_.at;
    if (fault_ == BoostFault::first_round_only)
      for (int m = 1; m < a_.rounds; ++m) grads_[static_cast<size_t>(at.rounds[static_cast<size_t>(m)].w_q)] = Tensor();
    for (size_t m = 0; m < at.rounds.size(); ++m) {  // the key bias shifts a row's logits together: exactly zero
      if (at.rounds[m].b_k >= 0) grads_[static_cast<size_t>(at.rounds[m].b_k)] = Tensor();
      if (fault_ == BoostFault::query_bias_dropped && a_.bias) grads_[static_cast<size_t>(at.rounds[m].b_q)] = Tensor();
      if (fault_ == BoostFault::value_bias_dropped && a_.bias) grads_[static_cast<size_t>(at.rounds[m].b_v)] = Tensor();
    }
    if (need(at.x)) grads_[0] = dx_;
    return std::move(grads_);
  }

 private:
  int64_t batch() const { return in_[0].size(0); }
  bool need(int i) const { return i >= 0 && b_.need(static_cast<size_t>(i)); }
  std::function<bool(int)> need_fn() const {
    return [this](int i) { return need(i); };
  }
  const GateValue& gate(int m) const { return kept_.gates[static_cast<size_t>(m - 1)]; }
  Operand operand(const Place& p) const { return {kept_.packed[static_cast<size_t>(p.packed)], p.column}; }
  Operand gradient(const Place& p) const { return {d_packed_[static_cast<size_t>(p.packed)], p.column}; }
  Tensor residual(int m) const { return num::sub(in_[0], f_[static_cast<size_t>(m - 1)]); }

  // y = F W_out + b_out
  Tensor undo_out(const Tensor& dy) {
    const AttentionLayout& at = plan_.at;
    if (at.w_out < 0) return dy;
    return unproject(in_, {{at.w_out}, {at.b_out}}, f_.back(), dy, true, need_fn(), grads_);
  }

  // c = A_m(z, s): fills this round's columns of the packed products' gradients.
  void undo_attention(int m, const Tensor& dc, const Tensor& d_entropy) {
    const size_t i = static_cast<size_t>(m);
    const RoundPlaces& p = plan_.rounds[i];
    const Call call = make_call(in_, a_, plan_.at, m, BoostedAttention::name);
    const Tensor o = fault_ == BoostFault::row_dot_dropped ? num::scale(kept_.out[i], 0) : kept_.out[i];
    attend_backward(call, operand(p.q), operand(p.k), operand(p.v), o, kept_.stats[i], dc, d_entropy,
                    {gradient(p.q), gradient(p.k), gradient(p.v)}, false);
    const int64_t width = call.shape.heads * call.shape.d_key;
    Tensor dq = d_packed_[static_cast<size_t>(p.q.packed)].slice(2, p.q.column, p.q.column + width);
    const AttentionLayout::Round& r = plan_.at.rounds[i];
    if (need(r.log_scale)) {  // logits = exp(t) q.k: dt = sum of dlogit * logit = sum of q * dq
      const Tensor q = kept_.packed[static_cast<size_t>(p.q.packed)].slice(2, p.q.column, p.q.column + width);
      grads_[static_cast<size_t>(r.log_scale)] = num::sum(num::mul(q, dq)).reshape({1});
    }
    if (fault_ == BoostFault::scale_omitted) dq.copy_from(num::scale(dq, 1 / call.shape.scale));
    if (fault_ == BoostFault::key_value_dropped) {
      d_packed_[static_cast<size_t>(p.k.packed)].slice(2, p.k.column, p.k.column + width).fill(0);
      const int64_t values = call.shape.heads * call.shape.d_value;
      d_packed_[static_cast<size_t>(p.v.packed)].slice(2, p.v.column, p.v.column + values).fill(0);
    }
  }

  // F_m = F + g * c: dF becomes dF_{m-1} = dF + hF - dr.
  void undo_round(int m, Tensor& df) {
    const Tensor &f = f_[static_cast<size_t>(m - 1)], &c = kept_.out[static_cast<size_t>(m)];
    const Tensor dc = undo_gate(m, f, c, df);
    undo_attention(m, dc, Tensor());
    const size_t source = static_cast<size_t>(Plan::residual(m));
    Tensor dr = unproject(in_, plan_.packed[source], residual(m), d_packed_[source], true, need_fn(), grads_);
    if (fault_ == BoostFault::residual_dropped) return;
    if (fault_ == BoostFault::residual_sign_flipped) num::add_into(df, num::scale(dr, 2));
    if (!dx_.defined()) dx_ = Tensor::zeros(dr.shape(), dr.dtype());
    move_gradient(dx_, df, dr);  // r = x - F
  }

  // Returns dc = g * dF + hc and adds hF to dF; gradients of the gate's own parameters, and of the entropy.
  Tensor undo_gate(int m, const Tensor& f, const Tensor& c, Tensor& df) {
    const AttentionLayout::Round& r = plan_.at.rounds[static_cast<size_t>(m)];
    const GateValue& v = gate(m);
    const bool slope = fault_ != BoostFault::gate_slope_omitted, keep_f = fault_ != BoostFault::skip_dropped;
    if (a_.gate == Gate::none || a_.gate == Gate::scalar) {
      const double g = a_.gate == Gate::none ? 1 : v.g.flat(0);
      if (need(r.gate))
        grads_[static_cast<size_t>(r.gate)] =
            num::scale(num::sum(num::mul(df, c)), slope ? g * (1 - g) : 1).reshape({1});
      const Tensor dc = g == 1 && keep_f ? df : num::scale(df, g);
      if (!keep_f) df.fill(0);
      return dc;
    }
    Tensor dc = Tensor::empty(df.shape(), df.dtype()), da = Tensor::empty(df.shape(), df.dtype());
    dispatch_float("attention", df.dtype(), [&]<class T>() {
      const T *g = v.g.data<T>(), *pc = c.data<T>(), *pd = df.data<T>();
      T *to_c = dc.mutable_data<T>("attention"), *to_a = da.mutable_data<T>("attention");
      over_elements(df, [=](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          to_c[i] = g[i] * pd[i];
          to_a[i] = pc[i] * pd[i] * (slope ? g[i] * (1 - g[i]) : T{1});
        }
      });
    });
    if (!keep_f) df.fill(0);
    const Tensor h_f = fault_ == BoostFault::gate_to_f_dropped ? Tensor() : df;
    const Tensor h_c = fault_ == BoostFault::gate_to_c_dropped ? Tensor() : dc;
    if (a_.gate == Gate::linear) {
      undo_both(in_, r.w_g, r.b_g, f, c, {}, da, need_fn(), grads_, h_f, h_c, {});
      return dc;
    }
    const Tensor t = gelu_of(v.u);
    const Tensor dt = unproject(in_, {{r.w_2}, {r.b_2}}, t, da, true, need_fn(), grads_);
    Tensor du = Tensor::empty(dt.shape(), dt.dtype());
    dispatch_float("attention", dt.dtype(), [&]<class T>() {
      kernels::gelu_backward(v.u.data<T>(), dt.data<T>(), du.mutable_data<T>("attention"), dt.numel());
    });
    if (!d_entropy_.defined()) d_entropy_ = Tensor::zeros(kept_.entropy.shape(), dt.dtype());
    undo_both(in_, r.w_1, r.b_1, f, c, kept_.entropy, du, need_fn(), grads_, h_f, h_c, d_entropy_);
    return dc;
  }

  // F_0 = A_0(x, s), and whatever all rounds have left in the shared packed products.
  void undo_first(const Tensor& df) {
    undo_attention(0, df, fault_ == BoostFault::entropy_dropped ? Tensor() : d_entropy_);
    add_dx(unproject(in_, plan_.packed[0], in_[0], d_packed_[0], need(0), need_fn(), grads_));
    if (!a_.memory) return;
    const size_t at = static_cast<size_t>(plan_.at.memory);
    Tensor d = d_packed_[1];
    if (in_[at].size(0) == 1 && batch() != 1) d = num::sum(d, {0}, true);  // one memory for the whole batch
    const Tensor dm = unproject(in_, plan_.packed[1], in_[at], d, need(plan_.at.memory), need_fn(), grads_);
    if (need(plan_.at.memory)) grads_[at] = dm;
  }

  void add_dx(const Tensor& t) {
    if (!need(0) || !t.defined()) return;
    if (dx_.defined())
      num::add_into(dx_, t);
    else
      dx_ = t;
  }

  const B& b_;
  const AttentionLayerArgs& a_;
  BoostFault fault_;
  Tensors in_;
  Plan plan_;
  Kept kept_;
  Tensors f_, d_packed_, grads_;
  Tensor dx_, d_entropy_;
};

// -- Composition from primitive ops -----------------------------------------------------------------------------------

Var linear_of(const Vars& in, const Var& x, int w, int b) {
  const Var y = matmul(x, in[static_cast<size_t>(w)]);
  return b < 0 ? y : y + in[static_cast<size_t>(b)];
}

struct ComposedRound {
  Var q, k, v, scale;
};

ComposedRound compose_projections(const Vars& in, const AttentionLayout::Round& r, const Var& z, const Var& s,
                                  int heads) {
  ComposedRound c;
  c.q = linear_of(in, z, r.w_q, r.b_q);
  c.k = linear_of(in, s, r.w_k, r.b_k);
  c.v = linear_of(in, s, r.w_v, r.b_v);
  c.scale = r.log_scale >= 0 ? exp(in[static_cast<size_t>(r.log_scale)])
                             : Var(Tensor::scalar(logit_scale(0, c.q.size(2) / heads), z.dtype()));
  return c;
}

}  // namespace

Tensor BoostedAttention::forward(Saved& saved, const Tensors& in, const Args& a) {
  return layer_forward(name, saved, in, a);
}

Tensors BoostedAttention::backward_with(const Backward<Tensor, Args>& b, BoostFault fault) {
  return LayerBackward(b, fault).run();
}

Vars BoostedAttention::compose(const Vars& in, const Args& a) {
  const AttentionLayout& at = attention_layout(a);
  const Var& x = in[0];
  const Tensor lengths = at.lengths < 0 ? Tensor() : in[static_cast<size_t>(at.lengths)].value();
  auto round = [&](int m, const Var& z) {
    const Var& s = at.memory >= 0 ? in[static_cast<size_t>(at.memory)] : a.kv == Kv::residual ? z : x;
    const Var full = s.size(0) == x.size(0) ? s : expand(s, {x.size(0), s.size(1), s.size(2)});
    const ComposedRound r = compose_projections(in, at.rounds[static_cast<size_t>(m)], z, full, a.heads);
    return attn::compose(r.q, r.k, r.v, lengths, a.heads, a.causal, r.scale, a.dropout,
                         a.dropout > 0 ? a.masks[static_cast<size_t>(m)] : MaskKey{});
  };
  const Vars first = round(0, x);
  const Var entropy = reshape(first[1], {x.size(0), x.size(1), 1});
  Var f = first[0];
  for (int m = 1; m < a.rounds; ++m) {
    const AttentionLayout::Round& r = at.rounds[static_cast<size_t>(m)];
    const Var c = round(m, x - f)[0];
    Var gated = c;
    if (a.gate == Gate::scalar) gated = sigmoid(in[static_cast<size_t>(r.gate)]) * c;
    if (a.gate == Gate::linear) gated = sigmoid(linear_of(in, concat({f, c}, 2), r.w_g, r.b_g)) * c;
    if (a.gate == Gate::mlp)
      gated = sigmoid(linear_of(in, gelu(linear_of(in, concat({f, c, entropy}, 2), r.w_1, r.b_1)), r.w_2, r.b_2)) * c;
    f = f + gated;
  }
  return {at.w_out < 0 ? f : linear_of(in, f, at.w_out, at.b_out)};
}

Tensor StandardAttention::forward(Saved& saved, const Tensors& in, const Args& a) {
  BG_CHECK(a.rounds == 1, name, "standard attention has one round", str(a.rounds), "1", "boosted_attention");
  return layer_forward(name, saved, in, a);
}
Tensors StandardAttention::backward(const Backward<Tensor, Args>& b) {
  return LayerBackward(b, BoostFault::none).run();
}

// Twicing keeps, after the inputs: packed q, k, v; u; t; the row statistics.
Tensor TwicingAttention::forward(Saved& saved, const Tensors& given, const Args& a) {
  const AttentionLayout& at = attention_layout(a);
  check_layer(name, given, a, at);
  BG_CHECK(a.rounds == 1 && !a.memory, name, "twicing has one round and attends to x",
           str(a.rounds, " rounds", a.memory ? ", a memory" : ""), "1 round, no memory");
  const Tensors in = contiguous_inputs(given);
  const Plan plan = make_plan(in, a);
  const Tensor packed = project(in, plan.packed[0], in[0]);
  const Operand q{packed, plan.rounds[0].q.column}, k{packed, plan.rounds[0].k.column},
      v{packed, plan.rounds[0].v.column};
  const Call call = make_call(in, a, at, 0, name);
  const Attended u = attend(call, q, k, v, false);
  const Attended t = attend(call, q, k, {difference(v, u.o), 0}, false);
  if (saved.recording()) {
    keep_inputs(saved, in);
    for (const Tensor& x : {packed, u.o, t.o, u.stats}) saved.keep(x);
  }
  return project_out(in, at, num::add(u.o, t.o));
}

Tensors TwicingAttention::backward(const Backward<Tensor, Args>& b) {
  const AttentionLayout& at = attention_layout(b.args);
  const Tensors in = saved_inputs(b);
  const Plan plan = make_plan(in, b.args);
  const size_t n = b.input_count();
  const Tensor &packed = b[n], &u = b[n + 1], &t = b[n + 2], &stats = b[n + 3];
  Tensors g(n);
  auto need = [&](int i) { return i >= 0 && b.need(static_cast<size_t>(i)); };
  Tensor d_o = b.dy().contiguous();
  if (at.w_out >= 0) d_o = unproject(in, {{at.w_out}, {at.b_out}}, num::add(u, t), d_o, true, need, g);
  const Tensor d = Tensor::empty(packed.shape(), packed.dtype());
  const RoundPlaces& p = plan.rounds[0];
  const Call call = make_call(in, b.args, at, 0, name);
  twicing_backward(call, {packed, p.q.column}, {packed, p.k.column}, {packed, p.v.column}, u, t, stats, d_o,
                   {{d, p.q.column}, {d, p.k.column}, {d, p.v.column}});
  if (need(at.rounds[0].log_scale)) {
    const int64_t width = call.shape.heads * call.shape.d_key;
    g[static_cast<size_t>(at.rounds[0].log_scale)] =
        num::sum(num::mul(packed.slice(2, p.q.column, p.q.column + width), d.slice(2, p.q.column, p.q.column + width)))
            .reshape({1});
  }
  const Tensor dx = unproject(in, plan.packed[0], in[0], d, need(0), need, g);
  if (need(0)) g[0] = dx;
  if (at.rounds[0].b_k >= 0) g[static_cast<size_t>(at.rounds[0].b_k)] = Tensor();
  return g;
}

Vars TwicingAttention::compose(const Vars& in, const Args& a) {
  const AttentionLayout& at = attention_layout(a);
  const Tensor lengths = at.lengths < 0 ? Tensor() : in[static_cast<size_t>(at.lengths)].value();
  const ComposedRound r = compose_projections(in, at.rounds[0], in[0], in[0], a.heads);
  auto attend_to = [&](const Var& v) {
    return attn::compose(r.q, r.k, v, lengths, a.heads, a.causal, r.scale, a.dropout,
                         a.dropout > 0 ? a.masks[0] : MaskKey{})[0];
  };
  const Var u = attend_to(r.v);
  const Var o = u + attend_to(r.v - u);
  return {at.w_out < 0 ? o : linear_of(in, o, at.w_out, at.b_out)};
}

// -- Samples and mutants ----------------------------------------------------------------------------------------------

Sample<AttentionLayerArgs> attn::layer_sample(Rng& r, std::string label, AttentionLayerArgs a, LayerSize s,
                                              std::vector<double> lengths) {
  a.lengths = !lengths.empty();
  if (a.dropout > 0)
    for (int m = 0; m < a.rounds; ++m) a.masks.push_back(r.next_mask());
  const AttentionLayout& at = attention_layout(a);
  const int64_t e = a.memory ? (s.e ? s.e : s.d) : s.d, d_q = s.d_q ? s.d_q : s.d, d_v = s.d_v ? s.d_v : s.d;
  Tensors in(at.inputs.size());
  std::vector<int> zero;
  auto put = [&](int i, const Shape& shape, double stddev) {
    if (i >= 0) in[static_cast<size_t>(i)] = normal(r, shape, stddev);
  };
  auto matrix = [&](int i, int64_t rows, int64_t cols, double gain = 1) {
    put(i, {rows, cols}, gain / std::sqrt(static_cast<double>(rows)));
  };
  put(at.x, {s.B, s.T, s.d}, 1);
  put(at.memory, {a.memory && s.S < 0 ? 1 : s.B, std::abs(s.S ? s.S : s.T), e}, 1);
  if (a.lengths) in[static_cast<size_t>(at.lengths)] = Tensor::of(std::move(lengths), {s.B}).to(DType::i64);
  for (const AttentionLayout::Round& round : at.rounds) {
    matrix(round.w_q, s.d, d_q, s.gain);
    matrix(round.w_k, e, d_q, s.gain);
    matrix(round.w_v, e, d_v, s.gain);
    put(round.b_q, {d_q}, 0.5);
    put(round.b_k, {d_q}, 0.5);
    put(round.b_v, {d_v}, 0.5);
    if (round.b_k >= 0) zero.push_back(round.b_k);
    put(round.log_scale, {1}, 0.3);
    put(round.gate, {1}, 1);
    matrix(round.w_g, 2 * s.d, s.d);
    put(round.b_g, {s.d}, 0.5);
    matrix(round.w_1, 2 * s.d + 1, s.hidden);
    put(round.b_1, {s.hidden}, 0.5);
    matrix(round.w_2, s.hidden, s.d);
    put(round.b_2, {s.d}, 0.5);
    const bool one_key = s.T == 1 && !a.memory;  // softmax over one key is constant
    if (one_key)
      for (int i : {round.w_q, round.w_k, round.b_q, round.log_scale})
        if (i >= 0) zero.push_back(i);
  }
  matrix(at.w_out, d_v, s.d_out ? s.d_out : s.d);
  put(at.b_out, {s.d_out ? s.d_out : s.d}, 0.5);
  return {std::move(label), a, std::move(in), std::move(zero)};
}

std::vector<Sample<AttentionLayerArgs>> BoostedAttention::samples(Rng& r) {
  std::vector<Sample<Args>> out;
  static constexpr std::pair<Kv, const char*> kKv[] = {{Kv::input, "input"}, {Kv::residual, "residual"}};
  static constexpr std::pair<Gate, const char*> kGates[] = {
      {Gate::none, "none"}, {Gate::scalar, "scalar"}, {Gate::linear, "linear"}, {Gate::mlp, "mlp"}};
  for (int rounds = 1; rounds <= 4; ++rounds)
    for (const auto& [kv, kv_name] : kKv)
      for (const auto& [gate, gate_name] : kGates)
        for (bool causal : {false, true}) {
          if (rounds == 1 && (kv != Kv::input || gate != Gate::none)) continue;  // one round has neither
          Args a{.heads = 2, .causal = causal};
          a.rounds = rounds;
          a.kv = kv;
          a.gate = gate;
          out.push_back(layer_sample(
              r, str("M=", rounds, ", kv ", kv_name, ", gate ", gate_name, causal ? ", causal" : ""), a, {}));
        }
  auto boosted = [](Args a, int rounds, Gate gate, Kv kv = Kv::input) {
    a.rounds = rounds;
    a.gate = gate;
    a.kv = kv;
    return a;
  };
  out.push_back(layer_sample(r, "dropout", boosted({.heads = 2, .causal = true, .dropout = 0.3}, 3, Gate::linear), {}));
  out.push_back(
      layer_sample(r, "dropout, residual, mlp", boosted({.heads = 1, .dropout = 0.4}, 2, Gate::mlp, Kv::residual), {}));
  out.push_back(
      layer_sample(r, "padded rows, one fully masked", boosted({.heads = 2}, 2, Gate::mlp), {.B = 4}, {2, 3, 0, 2}));
  out.push_back(layer_sample(r, "padded, causal, residual",
                             boosted({.heads = 2, .causal = true}, 2, Gate::linear, Kv::residual), {.T = 4}, {3, 4}));
  out.push_back(layer_sample(r, "one token", boosted({.heads = 2}, 2, Gate::linear), {.T = 1}));
  out.push_back(layer_sample(r, "one head, other widths", boosted({.heads = 1}, 2, Gate::linear),
                             {.d = 3, .d_q = 5, .d_out = 2}));
  // the paper's synthetic task: one query a row, a shared memory of patterns, no biases, no output projection
  Args task{.heads = 1, .memory = true, .bias = false, .project_out = false, .learned_scale = true};
  for (const auto& [gate, gate_name] : kGates)
    out.push_back(layer_sample(r, str("shared memory, learned scale, gate ", gate_name), boosted(task, 3, gate),
                               {.B = 3, .T = 1, .d = 4, .S = -5, .d_q = 2}));
  out.push_back(layer_sample(r, "memory of another width", boosted({.heads = 2, .memory = true}, 2, Gate::linear),
                             {.T = 2, .S = 4, .e = 3}));
  out.push_back(layer_sample(r, "memory, padded", boosted({.heads = 1, .memory = true, .dropout = 0.2}, 2, Gate::mlp),
                             {.T = 2, .S = 4, .e = 3}, {4, 2}));
  out.push_back(layer_sample(r, "wider than a vector", boosted({.heads = 1, .memory = true}, 2, Gate::mlp),
                             {.T = 2, .d = 17, .S = 3, .e = 18, .d_q = 19, .hidden = 18}));
  out.push_back(layer_sample(r, "several blocks", boosted({.heads = 2, .causal = true}, 2, Gate::linear, Kv::residual),
                             {.B = 3, .T = 100, .d = 34}));
  return out;
}

std::vector<Mutant<Tensor, AttentionLayerArgs>> BoostedAttention::mutants() {
  static constexpr std::pair<BoostFault, const char*> kFaults[] = {
      {BoostFault::row_dot_dropped, "softmax row dot dropped"},
      {BoostFault::gate_to_f_dropped, "gate -> F dropped"},
      {BoostFault::gate_to_c_dropped, "gate -> c dropped"},
      {BoostFault::residual_dropped, "residual path dropped"},
      {BoostFault::residual_sign_flipped, "residual sign flipped"},
      {BoostFault::key_value_dropped, "key/value path dropped"},
      {BoostFault::scale_omitted, "scale omitted"},
      {BoostFault::query_bias_dropped, "query bias gradient dropped"},
      {BoostFault::value_bias_dropped, "value bias gradient dropped"},
      {BoostFault::skip_dropped, "F's own path dropped"},
      {BoostFault::gate_slope_omitted, "sigmoid's slope omitted"},
      {BoostFault::entropy_dropped, "entropy path dropped"},
      {BoostFault::first_round_only, "later rounds' query weights dropped"}};
  return mutants_of<BoostedAttention>(kFaults);
}

namespace {

std::vector<Sample<AttentionLayerArgs>> single_round_samples(Rng& r, bool memory) {
  std::vector<Sample<AttentionLayerArgs>> out;
  for (bool causal : {false, true})
    out.push_back(layer_sample(r, causal ? "causal" : "full", {.heads = 2, .causal = causal}, {.T = 4}));
  out.push_back(layer_sample(r, "dropout", {.heads = 2, .causal = true, .dropout = 0.3}, {}));
  out.push_back(layer_sample(r, "padded", {.heads = 1}, {.B = 4}, {1, 3, 0, 3}));
  out.push_back(layer_sample(r, "wider than a vector", {.heads = 1}, {.d = 17, .d_q = 18, .d_v = 19, .d_out = 21}));
  out.push_back(layer_sample(r, "one token", {.heads = 2}, {.T = 1}));
  out.push_back(layer_sample(r, "no biases, no output projection, learned scale",
                             {.heads = 1, .bias = false, .project_out = false, .learned_scale = true}, {.d_v = 2}));
  if (memory)
    out.push_back(
        layer_sample(r, "memory", {.heads = 2, .memory = true}, {.T = 2, .S = 4, .e = 18, .d_q = 6, .d_v = 2}));
  return out;
}

// A right backward with one gradient replaced.
template <class O>
Mutant<Tensor, AttentionLayerArgs> spoiled(std::string label, int AttentionLayout::Round::*which, double factor) {
  return {std::move(label), [which, factor](const Backward<Tensor, AttentionLayerArgs>& b) {
            Tensors g = O::backward(b);
            const int i = attention_layout(b.args).rounds[0].*which;
            if (i >= 0 && g[static_cast<size_t>(i)].defined())
              g[static_cast<size_t>(i)] = num::scale(g[static_cast<size_t>(i)], factor);
            return g;
          }};
}

}  // namespace

std::vector<Sample<AttentionLayerArgs>> StandardAttention::samples(Rng& r) { return single_round_samples(r, true); }
std::vector<Sample<AttentionLayerArgs>> TwicingAttention::samples(Rng& r) { return single_round_samples(r, false); }

std::vector<Mutant<Tensor, AttentionLayerArgs>> StandardAttention::mutants() {
  return {{"softmax row dot dropped",
           [](const Backward<Tensor, Args>& b) { return LayerBackward(b, BoostFault::row_dot_dropped).run(); }},
          {"key/value path dropped",
           [](const Backward<Tensor, Args>& b) { return LayerBackward(b, BoostFault::key_value_dropped).run(); }},
          spoiled<StandardAttention>("value bias negated", &AttentionLayout::Round::b_v, -1)};
}

std::vector<Mutant<Tensor, AttentionLayerArgs>> TwicingAttention::mutants() {
  return {spoiled<TwicingAttention>("query weights' gradient halved", &AttentionLayout::Round::w_q, 0.5),
          spoiled<TwicingAttention>("value weights' gradient negated", &AttentionLayout::Round::w_v, -1),
          {"twicing's second pass dropped", [](const Backward<Tensor, Args>& b) {
             Tensors g = TwicingAttention::backward(b);
             if (g[0].defined()) g[0] = num::scale(g[0], 0.5);
             return g;
           }}};
}

}  // namespace bg
