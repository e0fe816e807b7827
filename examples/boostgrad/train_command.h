// From the options of a run back to the command line that gives them.
#pragma once

#include "core/format.h"
#include "examples/boostgrad/presets.h"
#include "models/run_log.h"

namespace bg {

/// "boostgrad train ..." with every option that is not the default's. `out` is the new run's folder.
inline std::string train_command(const TrainOptions& o, const std::string& out) {
  // windows of T tokens are the preset's alone
  const bool paper = o.window == Window::t;
  const TrainOptions base = paper ? preset("paper-small") : TrainOptions();
  std::string text = "boostgrad train --data " + shell_word(o.data) + " --out " + shell_word(out);
  if (paper) text += " --preset paper-small";
  const auto add = [&](const char* name, const auto& value, const auto& usual) {
    if (value == usual) return;
    const nlohmann::json j = value;  // numbers with as many digits as they need to be read back
    text += str(" --", name, " ", j.is_string() ? shell_word(j.get<std::string>()) : j.dump());
  };
  const TransformerConfig &m = o.model, &usual = base.model;
  text += " --model " + nn::kAttentionNames.name(m.model);
  if (m.model == nn::AttentionKind::boosted) {
    add("rounds", m.rounds, usual.rounds);
    text += " --kv " + nn::kKvNames.name(m.kv);
    add("gate", nn::kGateNames.name(m.gate), nn::kGateNames.name(usual.gate));
  }
  add("norm", nn::kNormNames.name(m.norm), nn::kNormNames.name(usual.norm));
  add("d-model", m.d_model, usual.d_model);
  add("layers", m.layers, usual.layers);
  add("heads", m.heads, usual.heads);
  add("seq-len", m.seq_len, usual.seq_len);
  add("dropout", m.dropout, usual.dropout);
  add("tokenizer", o.tokenizer, base.tokenizer);
  if (o.steps > 0)
    add("steps", o.steps, int64_t{0});
  else
    text += str(" --epochs ", o.epochs);
  add("batch-size", o.batch_size, base.batch_size);
  add("lr", o.lr, base.lr);
  add("min-lr", o.min_lr, base.min_lr);
  add("warmup", o.warmup, base.warmup);
  add("schedule", kScheduleNames.name(o.schedule), kScheduleNames.name(base.schedule));
  add("weight-decay", o.weight_decay, base.weight_decay);
  add("decay", kDecayNames.name(o.decay), kDecayNames.name(base.decay));
  add("beta1", o.beta1, base.beta1);
  add("beta2", o.beta2, base.beta2);
  add("clip", o.clip, base.clip);
  add("save-every", o.save_every, base.save_every);
  add("eval-every", o.eval_every, base.eval_every);
  return text + str(" --seed ", o.seed);
}

}  // namespace bg
