// Options that several sub-commands share. Only what the user gave overrides a preset or a stored run, so every flag is
// optional.
#pragma once

#include <CLI/CLI.hpp>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>

#include "core/parallel.h"
#include "models/trainer.h"

namespace bg {

/// Adds `--name` for an optional value.
template <class T>
void flag(CLI::App& app, const std::string& name, std::optional<T>& value, const std::string& help) {
  app.add_option(name, value, help);
}

template <class T, class U>
void set(U& target, const std::optional<T>& value) {
  if (value) target = static_cast<U>(*value);
}

/// --model, --rounds, ... : the shape of a language model. What only boosted models have is kept but unused for others,
/// so that one command line can compare models.
struct ModelFlags {
  std::optional<std::string> model, kv, gate, norm;
  std::optional<int64_t> rounds, d_model, layers, heads, seq_len;
  std::optional<double> dropout;

  /// `with_model` is off where the command itself says which models there are.
  void add(CLI::App& app, bool with_model = true) {
    if (with_model) flag(app, "--model", model, "standard, twicing or boosted");
    flag(app, "--rounds", rounds, "attention rounds of a boosted model (default 2)");
    flag(app, "--kv", kv, "boosted: keys and values of later rounds, input or residual");
    flag(app, "--gate", gate, "boosted: none, scalar, linear or mlp");
    flag(app, "--norm", norm, "LayerNorm before (pre) or after (post) each part");
    flag(app, "--d-model", d_model, "width of the model");
    flag(app, "--layers", layers, "number of blocks");
    flag(app, "--heads", heads, "attention heads; must divide --d-model");
    flag(app, "--seq-len", seq_len, "tokens in a sequence");
    flag(app, "--dropout", dropout, "dropout probability");
  }
  bool any() const { return model || kv || gate || norm || rounds || d_model || layers || heads || seq_len || dropout; }
  void apply(TransformerConfig& c) const {
    if (model) c.model = nn::kAttentionNames.parse(*model);
    if (kv) c.kv = nn::kKvNames.parse(*kv);
    if (gate) c.gate = nn::kGateNames.parse(*gate);
    if (norm) c.norm = nn::kNormNames.parse(*norm);
    set(c.rounds, rounds);
    set(c.d_model, d_model);
    set(c.layers, layers);
    set(c.heads, heads);
    set(c.seq_len, seq_len);
    set(c.dropout, dropout);
  }
};

/// A line of JSON on standard output. Paths may be any bytes, JSON may not: what is no UTF-8 is replaced.
template <class Json>
void print_json(const Json& j) {
  std::cout << j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

/// --threads and --json.
struct CommonFlags {
  std::optional<int64_t> threads;
  bool json = false;

  void add(CLI::App& app, bool with_json = true) {
    flag(app, "--threads", threads, "threads (default: all cores); results do not depend on it");
    if (with_json) app.add_flag("--json", json, "one JSON object a line on standard output, and nothing else there");
  }
  void apply() const {
    if (!threads) return;
    if (*threads < 1 || *threads > 1024) fail<UsageError>("threads", "bad --threads", str(*threads), "1 to 1024");
    set_num_threads(static_cast<int>(*threads));
  }
};

}  // namespace bg
