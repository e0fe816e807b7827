#include "models/transformer.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "autograd/checkpoint.h"
#include "core/io/json.h"
#include "core/tensor_ops.h"

namespace bg {
namespace {

void check_size(std::string_view option, int64_t value) {
  constexpr int64_t kLargest = int64_t{1} << 24;
  if (value < 1 || value > kLargest)
    fail<UsageError>("transformer", str("bad --", option), str(value), str("1 to ", kLargest));
}

nn::BlockOptions block_options(const TransformerConfig& c) {
  nn::BlockOptions o;
  o.attention.kind = c.model;
  o.attention.d = c.d_model;
  o.attention.heads = static_cast<int>(c.heads);
  o.attention.dropout = c.dropout;
  o.attention.rounds = static_cast<int>(c.rounds);
  o.attention.kv = c.kv;
  o.attention.gate = c.gate;
  o.norm = c.norm;
  o.mlp_hidden = c.mlp_ratio * c.d_model;
  o.dropout = c.dropout;
  return o;
}

const TransformerConfig& validated(const TransformerConfig& c) {
  c.validate();
  return c;
}

// The largest divisor of n that is at most `limit`.
int64_t largest_divisor(int64_t n, int64_t limit) {
  int64_t d = std::min(n, limit);
  while (n % d != 0) --d;
  return d;
}

}  // namespace

// -- Configuration ----------------------------------------------------------------------------------------------------

void TransformerConfig::validate() const {
  check_size("vocab", vocab);
  check_size("d-model", d_model);
  check_size("layers", layers);
  check_size("heads", heads);
  check_size("seq-len", seq_len);
  check_size("mlp-ratio", mlp_ratio);
  check_size("rounds", rounds);
  if (d_model % heads != 0)
    fail<UsageError>(
        "transformer", "--heads does not divide --d-model", str("--d-model ", d_model, ", --heads ", heads),
        "a multiple of --heads",
        str("--heads ", largest_divisor(d_model, heads), ", or --d-model ", (d_model / heads + 1) * heads));
  if (!(dropout >= 0 && dropout < 1))
    fail<UsageError>("transformer", "bad --dropout", str(dropout), "at least 0 and below 1");
}

nlohmann::json TransformerConfig::to_json() const {
  return {{"model", nn::kAttentionNames.name(model)},
          {"rounds", rounds},
          {"kv", nn::kKvNames.name(kv)},
          {"gate", nn::kGateNames.name(gate)},
          {"norm", nn::kNormNames.name(norm)},
          {"vocab", vocab},
          {"d_model", d_model},
          {"layers", layers},
          {"heads", heads},
          {"seq_len", seq_len},
          {"mlp_ratio", mlp_ratio},
          {"dropout", dropout},
          {"tied", tied}};
}

TransformerConfig TransformerConfig::from_json(const nlohmann::json& json) {
  const nlohmann::json known = TransformerConfig().to_json();
  const JsonFields fields(json, "config", "a model");
  for (const auto& [key, value] : json.items())
    BG_CHECK(known.contains(key), "config", "unknown field", in_quotes(key), "the fields of a model");
  TransformerConfig c;
  c.model = nn::kAttentionNames.parse(fields.word("model"));
  c.rounds = fields.whole("rounds");
  c.kv = nn::kKvNames.parse(fields.word("kv"));
  c.gate = nn::kGateNames.parse(fields.word("gate"));
  c.norm = nn::kNormNames.parse(fields.word("norm"));
  c.vocab = fields.whole("vocab");
  c.d_model = fields.whole("d_model");
  c.layers = fields.whole("layers");
  c.heads = fields.whole("heads");
  c.seq_len = fields.whole("seq_len");
  c.mlp_ratio = fields.whole("mlp_ratio");
  c.dropout = fields.number("dropout");
  c.tied = fields.flag("tied");
  c.validate();
  return c;
}

// -- Model ------------------------------------------------------------------------------------------------------------

Transformer::Transformer(const TransformerConfig& config, Rng& rng)
    : config_(validated(config)),
      tokens_(add_child<nn::Embedding>("tokens", config.vocab, config.d_model, Init::normal(rng))),
      positions_(add_child<nn::Embedding>("positions", config.seq_len, config.d_model, Init::normal(rng))),
      drop_(add_child<nn::Dropout>("drop", config.dropout)) {
  const Init init = Init::normal(rng);
  for (int64_t i = 0; i < config.layers; ++i)
    blocks_.push_back(&add_child<nn::Block>(str("blocks.", i), block_options(config), init));
  if (config.norm == nn::NormPlace::pre) norm_ = &add_child<nn::LayerNorm>("norm", config.d_model);
  if (!config.tied) head_ = &register_parameter("head", init.weight({config.vocab, config.d_model}, config.d_model));
}

Var Transformer::embed(const Tensor& ids, int64_t first_position, const Context& context) const {
  BG_CHECK(ids.defined() && ids.rank() == 2 && is_index(ids.dtype()), "transformer", "wrong token ids",
           ids.defined() ? str(ids.dtype(), " ", ids.shape()) : "no tensor", "i32 or i64 of shape (batch, time)");
  const int64_t end = first_position + ids.size(1);
  BG_CHECK(end <= config_.seq_len, "transformer", "sequence too long", str(end, " tokens"),
           str("at most seq_len = ", config_.seq_len), "the last seq_len tokens alone");
  const Tensor places = Tensor::arange(end).slice(0, first_position, end);
  return drop_.forward(tokens_.forward(ids) + positions_.forward(places), context);
}

Var Transformer::run_block(const nn::Block& block, const Var& x, const Context& context) const {
  if (!checkpointing_ || !grad_enabled()) return block.forward(x, context);
  auto run = [&block, context, mode = training()](const Vars& in) {
    BG_CHECK(block.training() == mode, "checkpoint", "the mode changed between forward and backward",
             mode ? "eval()" : "train()", "the mode of the forward pass");
    return Vars{block.forward(in[0], context)};
  };
  return checkpoint(run, {x}, vars_of(block.parameters()), context.rng)[0];
}

Var Transformer::hidden(const Tensor& ids, const Context& context) const {
  const Scope here = enter();
  Var x = embed(ids, 0, context);
  for (const nn::Block* block : blocks_) x = run_block(*block, x, context);
  return norm_ ? norm_->forward(x) : x;
}

Var Transformer::loss(const Tensor& ids, const Tensor& targets, const Context& context) const {
  return linear_cross_entropy(hidden(ids, context), output_table(), targets);
}

Transformer::CountedLoss Transformer::loss_and_count(const Tensor& ids, const Tensor& targets,
                                                     const Context& context) const {
  const Var sum = linear_cross_entropy(hidden(ids, context), output_table(), targets, {.reduction = Reduction::sum});
  return {sum, detail::count_targets(targets.to(DType::i64).contiguous(), kIgnoreIndex)};
}

LossSum Transformer::loss_sum(const Tensor& ids, const Tensor& targets) const {
  const NoGrad off;
  return linear_cross_entropy_sum(hidden(ids).value(), output_table().value(), targets);
}

Tensor Transformer::project(const Tensor& hidden) const {
  return num::matmul(hidden, output_table().value().transpose(0, 1));
}

Var Transformer::logits(const Tensor& ids, const Context& context) const {
  return matmul(hidden(ids, context), transpose(output_table(), 0, 1));
}

Tensor Transformer::logits(const Tensor& ids) const {
  const NoGrad off;
  return project(hidden(ids).value());
}

std::vector<nn::AttentionTrace> Transformer::trace_attention(const Tensor& ids) const {
  const Scope here = enter();
  const NoGrad off;
  std::vector<nn::AttentionTrace> traces;
  Var x = embed(ids, 0, {});
  for (const nn::Block* block : blocks_) {
    traces.push_back(block->trace_attention(x));
    x = block->forward(x, {});
  }
  return traces;
}

Transformer::Cache Transformer::make_cache() const {
  Cache cache;
  for (const nn::Block* block : blocks_) cache.blocks.push_back(block->attention().make_cache(config_.seq_len));
  return cache;
}

Tensor Transformer::extend(const std::vector<int64_t>& ids, Cache& cache) const {
  const Scope here = enter();
  const NoGrad off;
  const auto n = static_cast<int64_t>(ids.size());
  Var x = embed(Tensor::of<int64_t>(ids, {1, n}), cache.length(), {});
  for (size_t i = 0; i < blocks_.size(); ++i) x = blocks_[i]->extend(x, cache.blocks[i]);
  return (norm_ ? norm_->forward(x) : x).value();
}

}  // namespace bg
