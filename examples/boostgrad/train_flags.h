// The options of a training, which `train` and `study` share. What the user does not give comes from a preset, or from
// a stored run.
#pragma once

#include "examples/boostgrad/flags.h"
#include "examples/boostgrad/presets.h"

namespace bg {

struct TrainFlags {
  ModelFlags model;
  std::optional<std::string> data, preset_name, tokenizer, schedule, decay;
  std::optional<int64_t> steps, epochs, batch_size, warmup, save_every, eval_every;
  std::optional<double> lr, min_lr, weight_decay, beta1, beta2, clip;

  /// `with_model` is off where the command itself says which models there are.
  void add(CLI::App& app, bool with_model = true) {
    flag(app, "--data", data, "folder with train.txt, valid.txt, test.txt; or a file (first 90 % trains); or builtin:");
    flag(app, "--preset", preset_name, "quick, mini or paper-small");
    model.add(app, with_model);
    flag(app, "--tokenizer", tokenizer, "byte, bpe:SIZE or a tokenizer.json (default byte)");
    flag(app, "--steps", steps, "training steps on random windows");
    flag(app, "--epochs", epochs, "passes over the text (default 1)");
    flag(app, "--batch-size", batch_size, "sequences in a batch");
    flag(app, "--lr", lr, "peak learning rate");
    flag(app, "--min-lr", min_lr, "learning rate at the end (default 0)");
    flag(app, "--warmup", warmup, "steps of linear warm-up; the first has learning rate 0");
    flag(app, "--schedule", schedule, "cosine, linear or constant");
    flag(app, "--weight-decay", weight_decay, "AdamW's decoupled decay (default 0.01)");
    flag(app, "--decay", decay,
         "what decays: matrices (and embeddings; no biases, no gains; default) or all (paper-small's default)");
    flag(app, "--beta1", beta1, "AdamW's first decay rate (default 0.9)");
    flag(app, "--beta2", beta2, "AdamW's second decay rate (default 0.999)");
    flag(app, "--clip", clip, "largest norm of the gradient (default 1)");
    flag(app, "--save-every", save_every, "steps between checkpoints (default 100)");
    flag(app, "--eval-every", eval_every, "steps between validations");
  }

  /// What the user starts from without a stored run.
  TrainOptions start() const { return preset_name ? preset(*preset_name) : TrainOptions(); }

  /// Puts what the user gave into `o`. Throws UsageError for what contradicts itself.
  void apply(TrainOptions& o) const {
    if (steps && epochs) fail<UsageError>("train", "both --steps and --epochs", "", "one of them");
    if (steps && *steps < 1) fail<UsageError>("train", "bad --steps", str(*steps), "1 or more");
    if (!data && o.data.empty())
      fail<UsageError>("train", "no text", "no --data", "a folder with train.txt and valid.txt, or a file",
                       "--data builtin: for a small made-up language");
    model.apply(o.model);
    set(o.data, data);
    set(o.tokenizer, tokenizer);
    set(o.steps, steps);
    if (epochs) {
      o.epochs = *epochs;
      o.steps = 0;
    }
    set(o.batch_size, batch_size);
    if (schedule) o.schedule = kScheduleNames.parse(*schedule);
    set(o.lr, lr);
    set(o.min_lr, min_lr);
    set(o.warmup, warmup);
    set(o.weight_decay, weight_decay);
    if (decay) o.decay = kDecayNames.parse(*decay);
    set(o.beta1, beta1);
    set(o.beta2, beta2);
    set(o.clip, clip);
    set(o.save_every, save_every);
    set(o.eval_every, eval_every);
  }
};

}  // namespace bg
