// boostgrad train: a language model on a text, into a run folder.
#include <cstdio>
#include <iostream>

#include "core/format.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/train_flags.h"
#include "examples/boostgrad/train_terminal.h"
#include "models/unicode.h"

namespace bg {
namespace {

struct Flags {
  TrainFlags train;
  CommonFlags common;
  std::string out;
  std::optional<uint64_t> seed;
  bool resume = false;
};

TrainOptions options_of(const Flags& f) {
  const bool goes_on = f.resume && is_run(f.out);
  if (f.resume && !f.train.data && !goes_on)
    fail<UsageError>("train", "nothing to resume: not a run folder", str("'", f.out, "'"), "a folder with config.json",
                     "--data to start a run there");
  TrainOptions o = goes_on ? run_options(f.out) : f.train.start();
  f.train.apply(o);
  set(o.seed, f.seed);
  return o;
}

int run(const Flags& f) {
  f.common.apply();
  const TrainOptions o = options_of(f);
  const TrainResult r = train(o, f.out, f.resume, terminal_progress());
  end_progress_line();
  if (r.interrupted) {
    const std::string again = str("boostgrad train --out ", shell_word(f.out), " --resume");
    const std::string text =
        r.steps > 0
            ? error_text("train", str("interrupted after step ", r.steps, ", which a checkpoint keeps"), {}, {}, again)
        : is_run(f.out) ? error_text("train", "interrupted before the next step: the run is as it was", {}, {}, again)
                        : error_text("train", "interrupted before the first step: nothing is kept", {}, {},
                                     "the same command again");
    std::fprintf(stderr, "boostgrad: %s\n", printable(text).c_str());
    return interrupted_code();
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
    print_json(j);
    return 0;
  }
  const bool was_finished = r.resumed_at == r.steps;
  std::printf("%s: %lld steps, %s\n", printable(f.out).c_str(), static_cast<long long>(r.steps),
              was_finished ? "finished before" : formatted("%.0f tokens/s", r.tokens_per_s).c_str());
  std::printf("  training loss    %.4f\n  validation loss  %.4f (best %.4f at step %lld)\n", r.train_loss, r.val_loss,
              r.best_val_loss, static_cast<long long>(r.best_step));
  if (r.test_loss >= 0) std::printf("  test loss        %.4f\n", r.test_loss);
  return 0;
}

const Command command("train", "train a language model on a text", [](CLI::App& app) -> Command::Run {
  auto f = std::make_shared<Flags>();
  app.add_option("--out", f->out, "run folder to make")->required();
  f->train.add(app);
  flag(app, "--seed", f->seed, "seed of all random numbers (default 42)");
  app.add_flag("--resume", f->resume, "go on with the run in --out");
  f->common.add(app);
  return [f] { return run(*f); };
});

}  // namespace
}  // namespace bg
