#include "models/footprint.h"

#include "core/machine.h"

namespace bg {
namespace {

double later_rounds(const TransformerConfig& c) {
  return c.model == nn::AttentionKind::boosted ? static_cast<double>(c.rounds - 1) : 0;
}

double gate_parameters(const TransformerConfig& c) {
  const double d = static_cast<double>(c.d_model), h = static_cast<double>(nn::SelfAttentionOptions().gate_hidden);
  switch (c.gate) {
    case Gate::none:
      return 0;
    case Gate::scalar:
      return 1;
    case Gate::linear:
      return 2 * d * d + d;
    case Gate::mlp:
      break;
  }
  return (2 * d + 1) * h + h + h * d + d;
}

}  // namespace

double parameter_count(const TransformerConfig& c) {
  const double d = static_cast<double>(c.d_model), hidden = d * static_cast<double>(c.mlp_ratio);
  const double square = d * d + d;  // a projection and its bias
  double layer = 3 * square * (1 + later_rounds(c)) + square + later_rounds(c) * gate_parameters(c);
  layer += 2 * d * hidden + hidden + d;  // feed-forward
  layer += 4 * d;                        // both norms
  double n = static_cast<double>(c.layers) * layer;
  n += d * static_cast<double>(c.vocab) * (c.tied ? 1 : 2) + d * static_cast<double>(c.seq_len);
  if (c.norm == nn::NormPlace::pre) n += 2 * d;  // the last norm
  return n;
}

double saved_bytes_per_token(const TransformerConfig& c) {
  const double d = static_cast<double>(c.d_model), mlp = d * static_cast<double>(c.mlp_ratio);
  double floats = 2 * d;  // the inputs of both norms; what the norms give is computed again
  floats += 3 * d + d;    // q, k, v, attention output
  floats += later_rounds(c) * (3 * d + d + (c.gate == Gate::none || c.gate == Gate::scalar ? 0 : d));
  if (c.model == nn::AttentionKind::twicing) floats += d;
  floats += mlp;  // before GELU; what follows is computed again
  return 4 * floats * static_cast<double>(c.layers);
}

void check_memory(std::string_view who, const TransformerConfig& c, double training_tokens) {
  const double copies = training_tokens > 0 ? 4 : 1;  // with gradients and two moments
  const double needed = 4 * copies * parameter_count(c) + training_tokens * saved_bytes_per_token(c);
  const double available = static_cast<double>(machine_bytes());
  if (needed <= available) return;
  fail(who, "the model does not fit into memory",
       str("at least ", needed / 1e9, " GB for ", parameter_count(c), " parameters",
           training_tokens > 0 ? str(" and steps of ", training_tokens, " tokens") : ""),
       str("at most ", available / 1e9, " GB"),
       training_tokens > 0 ? "a smaller model, --batch-size or --seq-len" : "a smaller model");
}

}  // namespace bg
