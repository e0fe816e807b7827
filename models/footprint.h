// What a language model needs of memory, known before anything is allocated.
#pragma once

#include <string_view>

#include "models/transformer.h"

namespace bg {

/// Numbers in all parameters; a double, because a mistyped size may exceed any integer.
double parameter_count(const TransformerConfig& config);

/// Bytes of activations that one token leaves for backward, by what the nodes say they save (autograd/ops/*.h):
/// residual stream and norms, projections, attention outputs and gates, feed-forward.
double saved_bytes_per_token(const TransformerConfig& config);

/// Throws Error when this machine (or the process's limit of address space) cannot hold the model: its parameters
/// alone or, with `training_tokens` in a step, gradients, AdamW moments and activations too. `who` names the caller in
/// the error.
void check_memory(std::string_view who, const TransformerConfig& config, double training_tokens);

}  // namespace bg
