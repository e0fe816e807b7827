// Small language models for tests.
#pragma once

#include "models/transformer.h"

namespace bg::test {

/// Two layers, two heads, d 8, 12 positions, 17 tokens.
inline TransformerConfig tiny_config() {
  TransformerConfig c;
  c.vocab = 17;
  c.d_model = 8;
  c.layers = 2;
  c.heads = 2;
  c.seq_len = 12;
  return c;
}

struct Variant {
  std::string label;
  TransformerConfig config;
};

/// Every kind of attention with both norms; boosted with both key/value sources and all gates.
inline std::vector<Variant> all_variants() {
  std::vector<Variant> all;
  for (const auto norm : {nn::NormPlace::pre, nn::NormPlace::post}) {
    TransformerConfig c = tiny_config();
    c.norm = norm;
    const std::string end = ", " + nn::kNormNames.name(norm);
    for (const auto kind : {nn::AttentionKind::standard, nn::AttentionKind::twicing}) {
      c.model = kind;
      all.push_back({nn::kAttentionNames.name(kind) + end, c});
    }
    c.model = nn::AttentionKind::boosted;
    c.rounds = 3;
    for (const auto kv : {Kv::input, Kv::residual})
      for (const auto gate : {Gate::none, Gate::scalar, Gate::linear, Gate::mlp}) {
        c.kv = kv;
        c.gate = gate;
        all.push_back({"boosted, kv " + nn::kKvNames.name(kv) + ", gate " + nn::kGateNames.name(gate) + end, c});
      }
  }
  return all;
}

/// Replaces all parameters, biases included, by N(0, 1 / 8), so that no part of the model is negligible.
inline void enliven(Module& model, Rng& rng) {
  for (NamedParameter& p : model.parameters())
    p.var.value().copy_from(Tensor::randn(p.var.shape(), rng, p.var.dtype(), 0.35));
}

inline Tensor random_ids(int64_t batch, int64_t time, int64_t vocab, Rng& rng) {
  std::vector<int64_t> ids(static_cast<size_t>(batch * time));
  for (int64_t& id : ids) id = static_cast<int64_t>(rng.below(static_cast<uint64_t>(vocab)));
  return Tensor::of(std::move(ids), {batch, time});
}

}  // namespace bg::test
