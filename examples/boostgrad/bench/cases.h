// What is benchmarked, each case written once: `boostgrad bench` and the programs of tests/bench/ both run these lists.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "autograd/var.h"
#include "models/transformer.h"

namespace bg::bench {

enum class Unit { flops, bytes };

/// One measurable piece of work. Nothing is allocated until prepare().
struct Case {
  std::string name;       ///< what it is, such as qkv or layer_norm
  std::string shape;      ///< of what, such as "8192 x 768 x 256" or "B 8, T 1024, H 4, d_h 64, causal"
  std::string pass = {};  ///< forward, backward, both; dX or dW of a product; update of an optimizer
  DType dtype = DType::f32;
  Unit unit = Unit::flops;
  double work = 0;  ///< of one run: floating-point operations as models/flops.h counts them, or useful bytes
  /// Allocates and fills the inputs; the function it returns runs the work once and returns the results.
  std::function<std::function<Vars()>()> prepare = {};
};
using Cases = std::vector<Case>;

/// The matrix products of the models' training step on `rows` tokens (batch times length): of their attention, their
/// feed-forward parts and their output, which works on `head_rows` tokens at a time. Each product forward, dX and dW;
/// shapes are m x n x k. Products of one shape are one case, whose name joins theirs.
Cases gemm_cases(const std::vector<TransformerConfig>& models, int64_t rows, int64_t head_rows, DType dtype);

struct AttentionOptions {
  std::string kind = "standard";  ///< standard or twicing: of given q, k, v; or a layer with its projections:
                                  ///< standard_layer, twicing_layer, boosted (which is nothing without them)
  int64_t tokens = 8192;          ///< in the batch: it has tokens / seq_len sequences, at least one
  int64_t seq_len = 256, d_head = 64, width = 256;  ///< width / d_head heads, at least one
  bool causal = true;
  int rounds = 2;  ///< of boosted
};
inline const std::vector<std::string> kAttentionKinds{"standard", "twicing", "standard_layer", "twicing_layer",
                                                      "boosted"};

/// Self-attention, f32, without dropout: forward, backward alone, and both.
Cases attention_cases(const AttentionOptions& options);

/// Memory-bound work on f32 tensors of about `tensor_bytes`, rows of `width`. Useful bytes: every input read once,
/// every output written once, whatever a kernel reads or writes besides. Backward cases are of the graph's node alone.
Cases op_cases(int64_t tensor_bytes, int64_t width, int64_t vocab);

}  // namespace bg::bench
