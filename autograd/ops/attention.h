// Scaled dot-product attention of many heads, and twicing, on projected queries, keys and values.
//
//   q (B, Tq, H d_key), k (B, Tk, H d_key), v (B, Tk, H d_value), lengths (B) optional: valid keys of each row
//   P = softmax(mask(q k^T scale)) per head,   D = dropout mask (0 or 1/(1-p)), redrawn from the counter in backward
//
//   attention   o = (D*P) v;                       entropy = -sum_j P log P, mean over heads, on request
//   twicing     u = (D*P) v;  o = u + (D*P)(v - u) = (2A - A^2) v: a second pass over the values' residual
//
// The T x T weights are never stored: two numbers a row (maximum and log-sum) bring them back. The derivation of the
// kernel's backward is in core/kernels/attention.h. A row that sees no key gives 0 and has zero gradients.
#pragma once

#include "autograd/ops/matmul.h"
#include "autograd/ops/unary.h"
#include "core/kernels/attention.h"

namespace bg {

struct AttentionArgs {
  int heads = 1;
  bool causal = false;   ///< query i sees keys j <= i + Tk - Tq
  double scale = 0;      ///< of the logits; 0: 1 / sqrt(d_key)
  bool lengths = false;  ///< a fourth input gives the number of valid keys of each row
  bool entropy = false;  ///< a second output (B, Tq)
  double dropout = 0;
  MaskKey mask = {};
};

namespace attn {

inline double logit_scale(double scale, int64_t d_key) {
  return scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(d_key));
}

inline bool visible(bool causal, int64_t i, int64_t j, int64_t queries, int64_t keys, int64_t length) {
  return j < length && (!causal || j <= i + keys - queries);
}

/// Checks the lengths input and returns it as the kernel wants it.
std::vector<int64_t> read_lengths(std::string_view op, const Tensor& lengths, int64_t batch, int64_t keys);

// -- Reference and composition, shared with the layers of boosted_attention.h -----------------------------------------

template <class S>
struct Result {
  Arr<S> o, entropy;
};

/// Naive loops. k and v may have batch size 1. `lengths` may be null.
template <class S>
Result<S> reference(const Arr<S>& q, const Arr<S>& k, const Arr<S>& v, const Arr<S>* lengths, int heads, bool causal,
                    S scale, double dropout, MaskKey mask) {
  const int64_t B = q.size(0), Tq = q.size(1), Tk = k.size(1), H = heads;
  const int64_t dk = q.size(2) / H, dv = v.size(2) / H, kb = k.size(0) > 1, vb = v.size(0) > 1;
  Result<S> r{Arr<S>(Shape{B, Tq, H * dv}), Arr<S>(Shape{B, Tq})};
  for (int64_t b = 0; b < B; ++b)
    for (int64_t h = 0; h < H; ++h)
      for (int64_t i = 0; i < Tq; ++i) {
        const int64_t length = lengths ? lengths->index(b) : Tk;
        std::vector<S> p(static_cast<size_t>(Tk), S(0));
        S sum(0), max(0);
        bool any = false;
        for (int64_t j = 0; j < Tk; ++j) {
          if (!visible(causal, i, j, Tq, Tk, length)) continue;
          S dot(0);
          for (int64_t c = 0; c < dk; ++c) dot += q(b, i, h * dk + c) * k(b * kb, j, h * dk + c);
          p[static_cast<size_t>(j)] = dot * scale;
          if (!any || p[static_cast<size_t>(j)] > max) max = p[static_cast<size_t>(j)];
          any = true;
        }
        if (!any) continue;
        for (int64_t j = 0; j < Tk; ++j)
          if (visible(causal, i, j, Tq, Tk, length)) sum += sc::exp(p[static_cast<size_t>(j)] - max);
        for (int64_t j = 0; j < Tk; ++j) {
          if (!visible(causal, i, j, Tq, Tk, length)) continue;
          const S log_p = p[static_cast<size_t>(j)] - max - sc::log(sum), w = sc::exp(log_p);
          r.entropy(b, i) += -(w * log_p) / S(static_cast<double>(H));
          const auto index = static_cast<uint64_t>(((b * H + h) * Tq + i) * Tk + j);
          if (dropout > 0 && !mask_keep(mask, index, dropout)) continue;
          for (int64_t c = 0; c < dv; ++c) r.o(b, i, h * dv + c) += w * v(b * vb, j, h * dv + c) / S(1 - dropout);
        }
      }
  return r;
}

/// The same from primitive ops: outputs o and entropy. `scale` is a Var of one element.
Vars compose(const Var& q, const Var& k, const Var& v, const Tensor& lengths, int heads, bool causal, const Var& scale,
             double dropout, MaskKey mask);

/// (B, T, H d) -> (B, H, T, d) and back.
inline Var split_heads(const Var& x, int heads) {
  return permute(reshape(x, {x.size(0), x.size(1), heads, x.size(2) / heads}), {0, 2, 1, 3});
}
inline Var join_heads(const Var& x) {
  return reshape(permute(x, {0, 2, 1, 3}), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

}  // namespace attn

struct Attention {
  static constexpr std::string_view name = "attention";
  using Args = AttentionArgs;

  static std::vector<In> inputs_for(const Args& a, size_t) {
    std::vector<In> in{{"q"}, {"k"}, {"v"}};
    if (a.lengths) in.emplace_back("lengths", false);
    return in;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const S scale(attn::logit_scale(a.scale, in[0].size(2) / a.heads));
    auto r = attn::reference<S>(in[0], in[1], in[2], a.lengths ? &in[3] : nullptr, a.heads, a.causal, scale, a.dropout,
                                a.mask);
    if (a.entropy) return {std::move(r.o), std::move(r.entropy)};
    return {std::move(r.o)};
  }
  /// Saves q, k, v, lengths (inputs), o (output) and the row statistics.
  static Tensors forward(Saved& saved, const Tensors& in, const Args& a);
  static Tensors backward(const Backward<Tensor, Args>& b);
  static Vars compose(const Vars& in, const Args& a);
  static std::vector<Sample<Args>> samples(Rng& r);
  static std::vector<Mutant<Tensor, Args>> mutants();
};

struct Twicing {
  static constexpr std::string_view name = "twicing";
  using Args = AttentionArgs;
  static constexpr std::array fixed_arguments{5};  // no entropy

  static std::vector<In> inputs_for(const Args& a, size_t n) { return Attention::inputs_for(a, n); }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S> u = Attention::reference<S>(in, a)[0];
    const Arr<S> rest = zip(in[2], u, [](S v, S x) { return v - x; });
    Arrs<S> second = in;
    second[2] = rest;
    return {zip(u, Attention::reference<S>(second, a)[0], [](S x, S y) { return x + y; })};
  }
  /// Saves q, k, v, lengths (inputs), both passes' outputs and the row statistics.
  ///
  /// Backward, from the last line of the forward up:
  ///   o = u + t;  t = A w;  w = v - u;  u = A v
  ///   second pass  (dq, dk, dw) = attention backward(do at t);   du = do - dw;   dv = dw
  ///   first pass   (dq, dk, dv) += attention backward(du at u)
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a);
  static Tensors backward(const Backward<Tensor, Args>& b);
  static Vars compose(const Vars& in, const Args& a);
  static std::vector<Sample<Args>> samples(Rng& r);
  static std::vector<Mutant<Tensor, Args>> mutants();
};

struct AttentionOptions {
  int heads = 1;
  bool causal = false;  ///< query i sees keys j <= i + Tk - Tq
  double scale = 0;     ///< of the logits; 0: 1 / sqrt(d_key)
  Tensor lengths = {};  ///< (B), whole numbers in 0 .. Tk: how many keys of each row are valid; undefined: all
  double dropout = 0;   ///< of the weights, with masks drawn from `mask` (Rng::next_mask)
  MaskKey mask = {};
};

struct AttentionOutput {
  Var output;   ///< (B, Tq, heads d_value)
  Var entropy;  ///< (B, Tq), in nats, mean over heads
};

/// softmax(q k^T scale) v per head, (B, Tq, heads d_value), for q (B, Tq, heads d_key), k (B, Tk, heads d_key) and v
/// (B, Tk, heads d_value). A query that sees no key gets 0. Throws when shapes or dtypes do not fit.
Var attention(const Var& q, const Var& k, const Var& v, const AttentionOptions& options = {});
/// The same with the entropy of the weights before dropout; both can be differentiated.
AttentionOutput attention_with_entropy(const Var& q, const Var& k, const Var& v, const AttentionOptions& options = {});
/// (2A - A^2) v for the weights A of attention: it attends once more to what the first pass missed. Tq = Tk.
Var twicing(const Var& q, const Var& k, const Var& v, const AttentionOptions& options = {});

}  // namespace bg
