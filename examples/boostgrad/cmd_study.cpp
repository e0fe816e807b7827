// boostgrad study: grids of language models, and whether their runs can be repeated.
#include <cstdio>
#include <iostream>
#include <set>

#include "core/atomic_file.h"
#include "core/storage.h"
#include "examples/boostgrad/bench/measure.h"
#include "examples/boostgrad/bench/train_step.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/train_flags.h"
#include "examples/boostgrad/train_terminal.h"
#include "models/gnuplot.h"
#include "models/study.h"
#include "models/study_plot.h"
#include "models/unicode.h"

namespace bg {
namespace {

// -- study lm ---------------------------------------------------------------------------------------------------------

struct LmFlags {
  TrainFlags train;
  CommonFlags common;
  std::string out, svg;
  std::vector<std::string> models;
  std::vector<uint64_t> seeds;
  bool table_only = false, timing = false, no_timing = false;
};

// Training steps of all models in turns: what else the machine does then meets all of them alike. Nothing when `stop`
// ended it.
std::optional<StudyTiming> measure_in_turns(const Study& study, const std::function<bool(int64_t)>& stop) {
  constexpr int kWarmUp = 2, kRounds = 7;
  std::vector<std::unique_ptr<bench::TrainStep>> steps;
  std::vector<std::vector<double>> seconds(study.rows.size());
  StudyTiming timing;
  timing.threads = num_threads();
  timing.build = build_facts();
  for (const StudyRow& row : study.rows) {
    const size_t before = memory_stats().live_bytes;
    reset_peak_bytes();
    if (stop(0)) return {};
    steps.push_back(std::make_unique<bench::TrainStep>(row.config, study.batch_size));
    for (int i = 0; i < kWarmUp; ++i) steps.back()->run();
    timing.models[row.name] = {row.config, {0, static_cast<int64_t>(memory_stats().peak_bytes - before)}};
  }
  for (int round = 0; round < kRounds; ++round) {
    std::fprintf(stderr, "step times, round %d of %d\n", round + 1, kRounds);
    for (size_t i = 0; i < steps.size(); ++i) {
      if (stop(0)) return {};
      seconds[i].push_back(steps[i]->run().total());
    }
  }
  for (size_t i = 0; i < steps.size(); ++i)
    timing.models[study.rows[i].name].second.step_seconds = bench::median(seconds[i]);
  return timing;
}

int interrupted(const char* what) {
  const std::string text = error_text("study", what, {}, {}, "the same command again");
  std::fprintf(stderr, "boostgrad: %s\n", printable(text).c_str());
  return interrupted_code();
}

int run_lm(const LmFlags& f) {
  f.common.apply();
  if (!f.svg.empty()) {
    check_writable(f.svg);
    require_gnuplot();
  }
  const std::string data = f.train.data.value_or("");
  std::error_code ignored;
  if (f.table_only && !std::filesystem::is_directory(f.out, ignored))
    fail<UsageError>("study", "no such folder", str("'", f.out, "'"), "the --out of a study");
  StudyTiming::load(f.out);  // a damaged one is refused before the work, not after it
  const TrainProgress progress = terminal_progress();
  if (!f.table_only) {
    StudyOptions o;
    o.train = f.train.start();
    f.train.apply(o.train);
    if (!f.models.empty()) o.models = f.models;
    if (!f.seeds.empty()) o.seeds = f.seeds;
    o.out = f.out;
    const bool done = run_study(o, progress);
    end_progress_line();
    if (!done) return interrupted("interrupted: what was trained is kept");
  }
  const std::vector<std::string> models = f.table_only || !f.models.empty() ? f.models : StudyOptions().models;
  const std::vector<uint64_t> seeds = f.table_only || !f.seeds.empty() ? f.seeds : StudyOptions().seeds;
  auto read = [&] { return read_study(f.out, models, seeds, data); };
  Study study = read();
  if (f.table_only && study.rows.empty())
    fail("study", "no finished run", str("'", f.out, "'"), "run folders such as standard-s42 in it",
         study.unfinished.empty() ? "" : str("the command without --table-only to train ", study.unfinished[0]));
  const bool timed =
      std::all_of(study.rows.begin(), study.rows.end(), [](const auto& r) { return r.timing.has_value(); });
  const bool measure = f.timing || (!f.table_only && !f.no_timing && !timed);
  if (measure && !study.rows.empty()) {
    // all rows: times compare only within one measurement
    const auto measured = measure_in_turns(read_study(f.out, {}, {}, data), progress.stop);
    if (!measured) return interrupted("interrupted while step times were measured: all trainings are done");
    measured->save(f.out);
    study = read();
  }
  if (f.no_timing)
    for (StudyRow& row : study.rows) row.timing.reset();
  if (f.common.json) {
    for (const nlohmann::ordered_json& j : study.to_json()) print_json(j);
  } else {
    std::cout << study.to_string() << std::flush;
  }
  if (!f.svg.empty()) write_file_atomically(f.svg, gnuplot(study_plot(study)));
  return 0;
}

// A table of what is there takes no options of a training.
void check_trains_nothing(const CLI::App& app) {
  const std::set<std::string> used{"--out",    "--models",    "--seeds", "--data", "--table-only",
                                   "--timing", "--no-timing", "--svg",   "--json", "--threads"};
  for (const CLI::Option* option : app.get_options())
    if (option->count() > 0 && !used.contains(option->get_name()))
      fail<UsageError>("study", "--table-only trains nothing", option->get_name(), "none of the options of a training");
}

Command::Run set_up_lm(CLI::App& app) {
  auto f = std::make_shared<LmFlags>();
  app.add_option("--out", f->out, "folder of the study, with a run folder for each model and seed")->required();
  app.add_option(
         "--models", f->models,
         str("comma-separated: ", kStudyModelForms,
             "; wider: standard with a boosted model's parameters (default standard,twicing,wider,boosted-input,"
             "boosted-residual)"))
      ->delimiter(',');
  app.add_option("--seeds", f->seeds, "comma-separated (default 42,123)")->delimiter(',');
  f->train.add(app, false);
  app.add_flag("--table-only", f->table_only, "only the table of the runs that are finished, all of them by default");
  CLI::Option* timing =
      app.add_flag("--timing", f->timing, "measure step times and memory (again), whatever is finished");
  app.add_flag("--no-timing", f->no_timing, "without step times and memory, which are measured once at the end")
      ->excludes(timing);
  app.add_option("--svg", f->svg, "also draw curves and final perplexities into this file (with gnuplot)")
      ->type_name("FILE");
  f->common.add(app);
  return [f, &app] {
    if (f->table_only) check_trains_nothing(app);
    return run_lm(*f);
  };
}

// -- study check ------------------------------------------------------------------------------------------------------

struct CheckFlags {
  CommonFlags common;
  std::string run, data;
  int64_t steps = 200;
};

int run_check(const CheckFlags& f) {
  f.common.apply();
  const TrainProgress progress = terminal_progress();
  const RunCheck c = check_run(f.run, f.steps, f.data, progress);
  end_progress_line();
  if (progress.stop(c.steps)) return interrupted("interrupted before the comparison was done");
  const bool same = c.first_different == 0;
  if (f.common.json) {
    nlohmann::ordered_json j{{"run", f.run}, {"steps", c.steps}, {"compared", c.compared}, {"equal", same}};
    if (!same) {
      j["first_different"] = c.first_different;
      j["stored"] = c.stored;
      j["now"] = c.now;
    }
    if (!c.other_build.empty()) j["other_build"] = c.other_build;
    print_json(j);
  } else {
    const std::string run = printable(f.run);
    if (same)
      std::printf("%s: of the first %lld steps, all %lld training losses%s are equal to the bit\n", run.c_str(),
                  static_cast<long long>(c.steps), static_cast<long long>(c.compared),
                  c.compared < c.steps ? " that the run has kept" : "");
    else
      std::printf("%s: step %lld is the first that differs: training loss %.17g in the run, %.17g now\n", run.c_str(),
                  static_cast<long long>(c.first_different), c.stored, c.now);
    if (!c.other_build.empty())
      std::printf("  the run was made by another build or machine: %s\n", c.other_build.c_str());
  }
  return same ? 0 : 1;
}

Command::Run set_up_check(CLI::App& app) {
  auto f = std::make_shared<CheckFlags>();
  app.add_option("run", f->run, "run folder")->required();
  app.add_option("--data", f->data, "where the text of the run lies (default: where it was)");
  app.add_option("--steps", f->steps, "steps to train again (default 200)");
  f->common.add(app);
  return [f] { return run_check(*f); };
}

const Command command("study", "grids of language models, and repeating their runs", [](CLI::App& app) -> Command::Run {
  auto chosen = std::make_shared<Command::Run>();
  auto add = [&](const char* name, const char* what, const Command::SetUp& set_up) {
    CLI::App* sub = app.add_subcommand(name, what);
    sub->callback([chosen, run = set_up(*sub)] { *chosen = run; });
  };
  app.require_subcommand(1);
  add("lm", "train a grid of models and seeds, or go on with it, and print its table", set_up_lm);
  add("check", "train the first steps of a run again and compare the losses, bit by bit", set_up_check);
  return [chosen] { return (*chosen)(); };
});

}  // namespace
}  // namespace bg
