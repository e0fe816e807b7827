// boostgrad train: a language model on a text, into a run folder.
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <iostream>

#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "examples/boostgrad/presets.h"

namespace bg {
namespace {

struct Flags {
  ModelFlags model;
  CommonFlags common;
  std::string out;
  std::optional<std::string> data, preset_name, tokenizer, schedule;
  std::optional<int64_t> steps, epochs, batch_size, warmup, save_every, eval_every;
  std::optional<uint64_t> seed;
  std::optional<double> lr, min_lr, weight_decay, beta1, beta2, clip;
  bool resume = false;
};

TrainOptions options_of(const Flags& f) {
  if (f.steps && f.epochs) fail<UsageError>("train", "both --steps and --epochs", "", "one of them");
  if (f.resume && !f.data && !is_run(f.out))
    fail<UsageError>("train", "nothing to resume: not a run folder", str("'", f.out, "'"), "a folder with config.json",
                     "--data to start a run there");
  TrainOptions o = f.resume && is_run(f.out) ? run_options(f.out)
                   : f.preset_name           ? preset(*f.preset_name)
                                             : TrainOptions();
  if (!f.data && o.data.empty())
    fail<UsageError>("train", "no text", "no --data", "a folder with train.txt and valid.txt, or a file",
                     "--data builtin: for a small made-up language");
  f.model.apply(o.model);
  set(o.data, f.data);
  set(o.tokenizer, f.tokenizer);
  set(o.steps, f.steps);
  if (f.epochs) {
    o.epochs = *f.epochs;
    o.steps = 0;
  }
  set(o.batch_size, f.batch_size);
  if (f.schedule) o.schedule = kScheduleNames.parse(*f.schedule);
  set(o.lr, f.lr);
  set(o.min_lr, f.min_lr);
  set(o.warmup, f.warmup);
  set(o.weight_decay, f.weight_decay);
  set(o.beta1, f.beta1);
  set(o.beta2, f.beta2);
  set(o.clip, f.clip);
  set(o.save_every, f.save_every);
  set(o.eval_every, f.eval_every);
  set(o.seed, f.seed);
  if (f.steps && *f.steps < 1) fail<UsageError>("train", "bad --steps", str(*f.steps), "1 or more");
  return o;
}

// One line that is rewritten on a terminal; elsewhere a line every few seconds, so that logs stay short.
TrainProgress terminal_progress() {
  const bool live = isatty(STDERR_FILENO);
  auto last = std::make_shared<double>(-1e9);
  TrainProgress p;
  p.say = [live](const std::string& text) { std::fprintf(stderr, "%s%s\n", live ? "\r\033[K" : "", text.c_str()); };
  p.line = [live, last](const std::string& text) {
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    if (now - *last < (live ? 0.2 : 5)) return;
    *last = now;
    std::fprintf(stderr, live ? "\r\033[K%s" : "%s\n", text.c_str());
    std::fflush(stderr);
  };
  return p;
}

volatile std::sig_atomic_t g_interrupted = 0;

// Ctrl-C ends the training after the step at hand; once more ends the program at once.
void stop_gently_on_interrupt() {
  struct sigaction before {
  }, now{};
  sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;  // started in the background by a shell: not ours to take
  now.sa_handler = [](int) {
    g_interrupted = 1;
    constexpr char kText[] = "\ninterrupted: finishing the step and writing a checkpoint (again to quit at once)\n";
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
  };
  now.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &now, nullptr);
}

int run(const Flags& f) {
  constexpr int kInterrupted = 128 + SIGINT;  // as shells count it
  f.common.apply();
  const TrainOptions o = options_of(f);
  stop_gently_on_interrupt();
  TrainProgress progress = terminal_progress();
  progress.stop = [] { return g_interrupted != 0; };
  const TrainResult r = train(o, f.out, f.resume, progress);
  if (isatty(STDERR_FILENO)) std::fprintf(stderr, "\n");
  if (r.interrupted) {
    const std::string text = error_text("train", str("interrupted after step ", r.steps, ", which a checkpoint keeps"),
                                        {}, {}, str("boostgrad train --out ", f.out, " --resume"));
    std::fprintf(stderr, "boostgrad: %s\n", text.c_str());
    return kInterrupted;
  }
  if (f.common.json) {
    nlohmann::ordered_json j{{"run", f.out},
                             {"model", nn::kAttentionNames.name(o.model.model)},
                             {"parameters", r.parameters},
                             {"steps", r.steps},
                             {"resumed_at", r.resumed_at},
                             {"train_loss", r.train_loss},
                             {"val_loss", r.val_loss},
                             {"best_val_loss", r.best_val_loss},
                             {"best_step", r.best_step},
                             {"seconds", r.seconds},
                             {"tokens_per_s", r.tokens_per_s},
                             {"seed", o.seed}};
    if (r.test_loss >= 0) j["test_loss"] = r.test_loss;
    std::cout << j.dump() << "\n";
    return 0;
  }
  std::printf(
      "%s: %lld steps, %.0f tokens/s\n  training loss    %.4f\n  validation loss  %.4f (best %.4f at step %lld)\n",
      f.out.c_str(), static_cast<long long>(r.steps), r.tokens_per_s, r.train_loss, r.val_loss, r.best_val_loss,
      static_cast<long long>(r.best_step));
  if (r.test_loss >= 0) std::printf("  test loss        %.4f\n", r.test_loss);
  return 0;
}

const Command command("train", "train a language model on a text", [](CLI::App& app) -> Command::Run {
  auto f = std::make_shared<Flags>();
  flag(app, "--data", f->data,
       "folder with train.txt, valid.txt, test.txt; or a file (first 90 % trains); or builtin:");
  app.add_option("--out", f->out, "run folder to make")->required();
  flag(app, "--preset", f->preset_name, "quick, mini or paper-small");
  f->model.add(app);
  flag(app, "--tokenizer", f->tokenizer, "byte, bpe:SIZE or a tokenizer.json (default byte)");
  flag(app, "--steps", f->steps, "training steps on random windows");
  flag(app, "--epochs", f->epochs, "passes over the text (default 1)");
  flag(app, "--batch-size", f->batch_size, "sequences in a batch");
  flag(app, "--lr", f->lr, "peak learning rate");
  flag(app, "--min-lr", f->min_lr, "learning rate at the end (default 0)");
  flag(app, "--warmup", f->warmup, "steps of linear warm-up");
  flag(app, "--schedule", f->schedule, "cosine, linear or constant");
  flag(app, "--weight-decay", f->weight_decay, "AdamW's decoupled decay (default 0.01)");
  flag(app, "--beta1", f->beta1, "AdamW's first decay rate (default 0.9)");
  flag(app, "--beta2", f->beta2, "AdamW's second decay rate (default 0.999)");
  flag(app, "--clip", f->clip, "largest norm of the gradient (default 1)");
  flag(app, "--save-every", f->save_every, "steps between checkpoints (default 100)");
  flag(app, "--eval-every", f->eval_every, "steps between validations");
  flag(app, "--seed", f->seed, "seed of all random numbers (default 42)");
  app.add_flag("--resume", f->resume, "go on with the run in --out");
  f->common.add(app);
  return [f] { return run(*f); };
});

}  // namespace
}  // namespace bg
