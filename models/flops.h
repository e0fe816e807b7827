// Floating-point operations of training, as every speed in Boostgrad counts them. The only place.
//
// Matrix products alone, 2 m n k each; causal attention counts half of T x T (what is computed); backward is twice the
// forward; what checkpointing or the attention kernel computes again is not counted. With d = d_model and R rounds
// (1 unless boosted), a token of a full sequence costs in forward
//
//   projections   q, k, v of each round and one output        2 (3 R + 1) d^2             per layer
//   attention     q k^T and P v, T / 2 visible keys           2 T d R                     per layer
//   twicing       P (v - P v)                                 T d                         per layer
//   gate          linear, from round 1 on                     2 (2 d^2)                   per layer and round
//                 mlp of width h                              2 ((2 d + 1) h + h d)       per layer and round
//   feed-forward                                              2 (2 mlp_ratio d^2)         per layer
//   output                                                    2 d vocab
#pragma once

#include "models/transformer.h"

namespace bg {

/// Forward of one token of one layer's attention alone, given q, k and v, over all heads, of `width` together. All T
/// keys count unless causal.
inline double attention_flops_per_token(const TransformerConfig& c, bool causal = true) {
  const double products = c.model == nn::AttentionKind::twicing   ? 3
                          : c.model == nn::AttentionKind::boosted ? 2 * static_cast<double>(c.rounds)
                                                                  : 2;
  const double visible = static_cast<double>(c.seq_len) / (causal ? 2 : 1);
  return products * 2 * visible * static_cast<double>(c.d_model);
}

/// Forward of one token of one attention layer: projections, attention, gates.
inline double attention_layer_flops_per_token(const TransformerConfig& c, bool causal = true) {
  const double d = static_cast<double>(c.d_model), h = static_cast<double>(nn::SelfAttentionOptions().gate_hidden);
  const bool boosted = c.model == nn::AttentionKind::boosted;
  const double rounds = boosted ? static_cast<double>(c.rounds) : 1;
  double flops = 2 * (3 * rounds + 1) * d * d + attention_flops_per_token(c, causal);
  if (boosted && c.gate == Gate::linear) flops += (rounds - 1) * 4 * d * d;
  if (boosted && c.gate == Gate::mlp) flops += (rounds - 1) * 2 * ((2 * d + 1) * h + h * d);
  return flops;
}

/// Forward of one token in each part of the model, all layers together.
struct ForwardFlops {
  double attention, feed_forward, output;
};
inline ForwardFlops forward_flops_per_token(const TransformerConfig& c) {
  const double d = static_cast<double>(c.d_model), layers = static_cast<double>(c.layers);
  return {layers * attention_layer_flops_per_token(c), layers * 4 * static_cast<double>(c.mlp_ratio) * d * d,
          2 * d * static_cast<double>(c.vocab)};
}

/// The same of all nodes of one op, by its name: its part of the model; 0 for ops without matrix products.
inline double op_forward_flops_per_token(const TransformerConfig& c, std::string_view op) {
  const ForwardFlops f = forward_flops_per_token(c);
  return op == "linear_cross_entropy"                ? f.output
         : op.find("attention") != std::string::npos ? f.attention
         : op.find("linear") != std::string::npos    ? f.feed_forward
                                                     : 0;
}

/// Forward and backward of one token in a sequence of seq_len tokens.
inline double flops_per_token(const TransformerConfig& c) {
  const ForwardFlops f = forward_flops_per_token(c);
  return 3 * (f.attention + f.feed_forward + f.output);
}

}  // namespace bg
