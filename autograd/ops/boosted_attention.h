// Attention layers as single nodes: standard, twicing, and gradient-boosted attention (Sargolzaei, arXiv 2604.03190).
//
// Shapes: x (B, T, d); heads h; keys and values come from s: x itself, the round's residual, or a memory (B or 1, S,
// e). A_m(z, s) = attention of q = z W_Q + b_Q on k = s W_K + b_K, v = s W_V + b_V, heads joined: (B, T, d_v).
//
//   standard   y = A(x, x) W_out + b_out
//   twicing    y = (U + A (V - U)) W_out + b_out,  U = A V: the same weights attend again to what they missed
//   boosted    F_0 = A_0(x, s)
//              r_m = x - F_{m-1}                      the residual: minus the gradient of |x - F|^2 / 2
//              c_m = A_m(r_m, s)                      the correction, with projections of its own
//              g_m = gate(F_{m-1}, c_m)               in (0, 1)
//              F_m = F_{m-1} + g_m * c_m              for m = 1 .. M-1
//              y   = F_{M-1} W_out + b_out
//
//   gate none: g = 1.  scalar: g = sigmoid(a_m), one number.  linear: g = sigmoid([F | c] W_g + b_g), one per
//   dimension. mlp: g = sigmoid(gelu([F | c | H] W_1 + b_1) W_2 + b_2), H (B, T) the entropy of round 0's weights, mean
//   over heads.
//
// Backward of boosted attention, by hand
//
//   Start with dF_{M-1} = dy W_out^T, dW_out = F_{M-1}^T dy, db_out = colsum dy. Undo the rounds from last to first;
//   dF stands for dF_m, and F for F_{m-1}:
//
//     F_m = F + g * c              dc  = g * dF                      dg = c * dF      (F itself gets dF: last line)
//     g = sigmoid(a)               da  = dg * g * (1 - g)
//     a = [F | c] W_g + b_g        [hF | hc] = da W_g^T              dW_g = [F | c]^T da,   db_g = colsum da
//                                  dc += hc
//     c = A_m(r, s)                (dq, dk, dv) = attention backward of dc    (core/kernels/attention.h)
//     q = r W_Q + b_Q              dr  = dq W_Q^T                    dW_Q = r^T dq,   db_Q = colsum dq
//     k, v = s W_K, s W_V          ds  = dk W_K^T + dv W_V^T         dW_K = s^T dk,   dW_V = s^T dv, ...
//     s = x, memory or r           dx, dmemory or dr += ds
//     r = x - F                    dx += dr
//                                  dF_{m-1} = dF + hF - dr
//   Round 0: c is F_0 and its query source is x: (dq, dk, dv) from dF_0; dx += dq W_Q^T; ds as above.
//   The mlp gate sends dH back too: -P (log P + H) dH joins round 0's dS. A learned scale exp(t): dt = sum(q * dq),
//   because dq already carries the scale. The key bias only shifts every logit of a row, which softmax ignores: its
//   gradient is exactly zero and is returned as such.
//
// Backward of twicing, o = u + t with u = P v and t = P (v - u): one P, used twice. From do,
//
//     t = P (v - u)                d(v - u) = P^T do =: e          dP  = do (v - u)^T
//     u = P v, and o = u + t       du = do - e, dv = e + P^T du    dP += du v^T
//
// and dP goes on through the softmax as above: two attention backwards of the same P, the second one adding to the
// first.
//
// Saved: the inputs, each round's projections q, k, v, its output (F_0, c_m), two numbers a row and head, and the gate.
// r_m and F_m are recomputed, one element-wise pass each. Nothing is T x T.
//
// Products are shared: all projections of one source are one matrix product. With keys and values from x, that is
// [W_Q0 | W_K0 | W_V0 | W_K1 | W_V1 | ...] at once.
#pragma once

#include "autograd/ops/attention.h"

namespace bg {

enum class Kv { input, residual };              ///< where later rounds take keys and values from
enum class Gate { none, scalar, linear, mlp };  ///< how a correction is weighted

struct AttentionLayerArgs {
  int heads = 1;
  bool causal = false;
  bool memory = false;         ///< input `memory`: keys and values of all rounds come from it
  bool lengths = false;        ///< input `lengths` (B): valid keys of each row
  bool bias = true;            ///< b_q, b_k, b_v, b_out
  bool project_out = true;     ///< w_out
  bool learned_scale = false;  ///< log_scale (1) per round: logits are exp(log_scale) q.k; else q.k / sqrt(d_key)
  double dropout = 0;
  std::vector<MaskKey> masks = {};  ///< one per round when dropout > 0
  // boosted only
  int rounds = 1;
  Kv kv = Kv::input;
  Gate gate = Gate::linear;
};

/// Positions of a layer's inputs, in this order (-1: absent): x, memory, lengths; per round m: w_q (d, d_q), w_k (e,
/// d_q), w_v (e, d_v), b_q, b_k, b_v, log_scale (1), and from round 1 on the gate's - scalar: gate (1); linear: w_g (2
/// d, d), b_g (d); mlp: w_1 (2 d + 1, h), b_1 (h), w_2 (h, d), b_2 (d) -; w_out (d_v, d_out), b_out (d_out). Names are
/// x, memory, lengths, rounds.0.w_q, ..., w_out, b_out.
struct AttentionLayout {
  struct Round {
    int w_q = -1, w_k = -1, w_v = -1, b_q = -1, b_k = -1, b_v = -1, log_scale = -1;
    int gate = -1, w_g = -1, b_g = -1, w_1 = -1, b_1 = -1, w_2 = -1, b_2 = -1;
  };
  int x = 0, memory = -1, lengths = -1, w_out = -1, b_out = -1;
  std::vector<Round> rounds;
  std::vector<In> inputs;
};
const AttentionLayout& attention_layout(const AttentionLayerArgs& args);  ///< made once and kept

/// Terms that a mutant leaves out of, or spoils in, the boosted backward.
enum class BoostFault {
  none,
  row_dot_dropped,        // softmax: dS = P * dP
  gate_to_f_dropped,      // hF
  gate_to_c_dropped,      // hc
  residual_dropped,       // dr reaches neither x nor F
  residual_sign_flipped,  // dF_{m-1} = dF + hF + dr
  key_value_dropped,      // ds
  scale_omitted,          // dq without the logits' scale
  query_bias_dropped,     // db_q
  value_bias_dropped,     // db_v
  skip_dropped,           // dF_{m-1} = hF - dr
  gate_slope_omitted,     // da = dg
  entropy_dropped,        // dH
  first_round_only,       // later rounds' weights get nothing
};

struct BoostedAttention {
  static constexpr std::string_view name = "boosted_attention";
  static constexpr double f32_bound = 3e-4;  // each round's rounding is the next one's input: gradcheck --accuracy
  using Args = AttentionLayerArgs;

  static std::vector<In> inputs_for(const Args& a, size_t) { return attention_layout(a).inputs; }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a);
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a);
  static Tensors backward(const Backward<Tensor, Args>& b) { return backward_with(b, BoostFault::none); }
  static Tensors backward_with(const Backward<Tensor, Args>& b, BoostFault fault);
  static Vars compose(const Vars& in, const Args& a);
  static std::vector<Sample<Args>> samples(Rng& r);
  static std::vector<Mutant<Tensor, Args>> mutants();
};

/// Single-pass attention with its projections: exactly a boosted layer of one round.
struct StandardAttention {
  static constexpr std::string_view name = "standard_attention";
  using Args = AttentionLayerArgs;
  static constexpr std::array fixed_arguments{10, 11, 12};  // what is boosted only

  static std::vector<In> inputs_for(const Args& a, size_t) { return attention_layout(a).inputs; }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return BoostedAttention::reference<S>(in, a);
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a);
  static Tensors backward(const Backward<Tensor, Args>& b);
  static Vars compose(const Vars& in, const Args& a) { return BoostedAttention::compose(in, a); }
  static std::vector<Sample<Args>> samples(Rng& r);
  static std::vector<Mutant<Tensor, Args>> mutants();
};

/// Twicing attention with its projections; keys and values from x.
struct TwicingAttention {
  static constexpr std::string_view name = "twicing_attention";
  using Args = AttentionLayerArgs;
  static constexpr std::array fixed_arguments{3, 10, 11, 12};  // no memory, and what is boosted only

  static std::vector<In> inputs_for(const Args& a, size_t) { return attention_layout(a).inputs; }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a);
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a);
  static Tensors backward(const Backward<Tensor, Args>& b);
  static Vars compose(const Vars& in, const Args& a);
  static std::vector<Sample<Args>> samples(Rng& r);
  static std::vector<Mutant<Tensor, Args>> mutants();
};

inline Var boosted_attention(const Vars& in, const AttentionLayerArgs& args) {
  return apply<BoostedAttention>(args, in)[0];
}
inline Var standard_attention(const Vars& in, const AttentionLayerArgs& args) {
  return apply<StandardAttention>(args, in)[0];
}
inline Var twicing_attention(const Vars& in, const AttentionLayerArgs& args) {
  return apply<TwicingAttention>(args, in)[0];
}

namespace attn {

/// Sizes of a layer to verify; 0 stands for T, d or no memory, S < 0 for one memory that the batch shares.
struct LayerSize {
  int64_t B = 2, T = 3, d = 4, S = 0, e = 0, d_q = 0, d_v = 0, d_out = 0, hidden = 3;
  double gain = 1;  ///< of the query, key and value weights
};

/// A layer of random numbers: unit-variance inputs, weights of standard deviation gain / sqrt(fan_in) or, besides the
/// projections, 1 / sqrt(fan_in); the gradients that are zero declared.
Sample<AttentionLayerArgs> layer_sample(Rng& r, std::string label, AttentionLayerArgs args, LayerSize size,
                                        std::vector<double> lengths = {});

}  // namespace attn

// -- References -------------------------------------------------------------------------------------------------------

namespace attn {

/// source (B, T, k) w (k, n) + b.
template <class S>
Arr<S> linear_reference(const Arr<S>& source, const Arr<S>& w, const Arr<S>* b) {
  const int64_t k = w.size(0), n = w.size(1), rows = source.numel() / k;
  Arr<S> y(Shape{source.size(0), source.size(1), n});
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t j = 0; j < n; ++j) {
      S s = b ? (*b)[j] : S(0);
      for (int64_t i = 0; i < k; ++i) s += source[r * k + i] * w[i * n + j];
      y[r * n + j] = s;
    }
  return y;
}

template <class S>
struct Projected {
  Arr<S> q, k, v;
  S scale;
};

template <class S>
Projected<S> project_reference(const Arrs<S>& in, const AttentionLayout::Round& r, const Arr<S>& z, const Arr<S>& s,
                               int heads) {
  auto bias = [&](int i) { return i < 0 ? nullptr : &in[static_cast<size_t>(i)]; };
  auto w = [&](int i) -> const Arr<S>& { return in[static_cast<size_t>(i)]; };
  const S scale = r.log_scale >= 0 ? sc::exp(w(r.log_scale)[0]) : S(logit_scale(0, w(r.w_q).size(1) / heads));
  return {linear_reference(z, w(r.w_q), bias(r.b_q)), linear_reference(s, w(r.w_k), bias(r.b_k)),
          linear_reference(s, w(r.w_v), bias(r.b_v)), scale};
}

template <class S>
Arr<S> gate_reference(const Arrs<S>& in, const AttentionLayout::Round& r, Gate gate, const Arr<S>& f, const Arr<S>& c,
                      const Arr<S>& entropy) {
  const int64_t d = f.size(2), rows = f.numel() / d;
  Arr<S> g(f.shape);
  auto w = [&](int i) -> const Arr<S>& { return in[static_cast<size_t>(i)]; };
  for (int64_t i = 0; i < rows; ++i) {
    std::vector<S> u;  // [F | c | H] of this token
    for (int64_t k = 0; k < d; ++k) u.push_back(f[i * d + k]);
    for (int64_t k = 0; k < d; ++k) u.push_back(c[i * d + k]);
    if (gate == Gate::mlp) u.push_back(entropy[i]);
    auto layer = [](const std::vector<S>& x, const Arr<S>& weight, const Arr<S>& b) {
      std::vector<S> y;
      for (int64_t j = 0; j < weight.size(1); ++j) {
        S s = b[j];
        for (size_t k = 0; k < x.size(); ++k) s += x[k] * weight(k, j);
        y.push_back(s);
      }
      return y;
    };
    if (gate == Gate::linear) u = layer(u, w(r.w_g), w(r.b_g));
    if (gate == Gate::mlp) {
      u = layer(u, w(r.w_1), w(r.b_1));
      for (S& t : u) t = S(0.5) * t * (S(1) + sc::erf(t * S(std::sqrt(0.5))));
      u = layer(u, w(r.w_2), w(r.b_2));
    }
    for (int64_t k = 0; k < d; ++k)
      g[i * d + k] = gate == Gate::none     ? S(1)
                     : gate == Gate::scalar ? sc::sigmoid(w(r.gate)[0])
                                            : sc::sigmoid(u[static_cast<size_t>(k)]);
  }
  return g;
}

template <class S>
Arr<S> out_reference(const Arrs<S>& in, const AttentionLayout& at, const Arr<S>& f) {
  if (at.w_out < 0) return f;
  return linear_reference(f, in[static_cast<size_t>(at.w_out)],
                          at.b_out < 0 ? nullptr : &in[static_cast<size_t>(at.b_out)]);
}

}  // namespace attn

template <class S>
Arrs<S> BoostedAttention::reference(const Arrs<S>& in, const Args& a) {
  const AttentionLayout& at = attention_layout(a);
  const Arr<S>& x = in[0];
  const Arr<S>* lengths = at.lengths < 0 ? nullptr : &in[static_cast<size_t>(at.lengths)];
  auto round = [&](int m, const Arr<S>& z) {
    const Arr<S>& s = at.memory >= 0 ? in[static_cast<size_t>(at.memory)] : a.kv == Kv::residual ? z : x;
    const auto p = attn::project_reference(in, at.rounds[static_cast<size_t>(m)], z, s, a.heads);
    return attn::reference(p.q, p.k, p.v, lengths, a.heads, a.causal, p.scale, a.dropout,
                           a.dropout > 0 ? a.masks[static_cast<size_t>(m)] : MaskKey{});
  };
  const attn::Result<S> first = round(0, x);
  Arr<S> f = first.o;
  for (int m = 1; m < a.rounds; ++m) {
    const Arr<S> r = zip(x, f, [](S p, S q) { return p - q; });
    const Arr<S> c = round(m, r).o;
    const Arr<S> g = attn::gate_reference(in, at.rounds[static_cast<size_t>(m)], a.gate, f, c, first.entropy);
    f = zip(f, zip(g, c, [](S p, S q) { return p * q; }), [](S p, S q) { return p + q; });
  }
  return {attn::out_reference(in, at, f)};
}

template <class S>
Arrs<S> TwicingAttention::reference(const Arrs<S>& in, const Args& a) {
  const AttentionLayout& at = attention_layout(a);
  const auto p = attn::project_reference(in, at.rounds[0], in[0], in[0], a.heads);
  const Arr<S>* lengths = at.lengths < 0 ? nullptr : &in[static_cast<size_t>(at.lengths)];
  auto attend = [&](const Arr<S>& v) {
    return attn::reference(p.q, p.k, v, lengths, a.heads, a.causal, p.scale, a.dropout,
                           a.dropout > 0 ? a.masks[0] : MaskKey{})
        .o;
  };
  const Arr<S> u = attend(p.v);
  const Arr<S> t = attend(zip(p.v, u, [](S x, S y) { return x - y; }));
  return {attn::out_reference(in, at, zip(u, t, [](S x, S y) { return x + y; }))};
}

}  // namespace bg
