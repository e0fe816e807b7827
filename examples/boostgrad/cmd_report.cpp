// boostgrad report: one self-contained page about runs.
#include <cstdio>
#include <iostream>

#include "core/atomic_file.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "examples/boostgrad/train_command.h"
#include "models/gnuplot.h"
#include "models/report.h"
#include "models/unicode.h"

namespace bg {
namespace {

struct Flags {
  CommonFlags common;
  std::vector<std::string> runs;
  std::string out;
  ReportOptions report;
};

std::string report_command(const Flags& f) {
  const ReportOptions &o = f.report, usual;
  std::string text = "boostgrad report";
  for (const std::string& run : f.runs) text += " " + shell_word(run);
  text += " --out " + shell_word(f.out);
  const auto add = [&](const char* name, const auto& value, const auto& before) {
    if (value != before) text += str(" ", name, " ", shell_word(str(value)));
  };
  add("--data", o.data, usual.data);
  add("--tokens", o.analysis.tokens, usual.analysis.tokens);
  for (const std::string& sentence : o.sentences) text += " --sentence " + shell_word(sentence);
  add("--prompt", o.prompt, usual.prompt);
  add("--seed", o.analysis.seed, usual.analysis.seed);
  return text;
}

int run(const Flags& f) {
  f.common.apply();
  check_writable(f.out);
  require_gnuplot();
  Report report = make_report({f.runs.begin(), f.runs.end()}, f.report,
                              [](const std::string& text) { std::fprintf(stderr, "%s\n", printable(text).c_str()); });
  report.command = report_command(f);
  for (ReportedRun& run : report.runs) run.command = train_command(run.log.options, run.name);
  std::fprintf(stderr, "drawing the page\n");
  write_file_atomically(f.out, report_page(report));
  for (const ReportedRun& run : report.runs)
    if (f.common.json) print_json(to_json(run));
  if (!f.common.json) std::printf("%s\n", printable(f.out).c_str());
  return 0;
}

const Command command(
    "report", "one page with curves, analysis and samples of runs", [](CLI::App& app) -> Command::Run {
      auto f = std::make_shared<Flags>();
      ReportOptions& o = f->report;
      app.add_option("runs", f->runs, "run folders")->required()->type_name("RUN");
      app.add_option("--out", f->out, "the page to write, which needs nothing from the network")
          ->required()
          ->type_name("FILE");
      app.add_option(
          "--data", o.data,
          "look at the models on this text: a folder's valid.txt, a file's last 10 % (default: each run's own)");
      app.add_option("--tokens", o.analysis.tokens, "predictions to look at")->capture_default_str();
      app.add_option("--sentence", o.sentences, "map the attention among its tokens (may be given several times)")
          ->type_name("TEXT")
          ->allow_extra_args(false);
      app.add_option("--prompt", o.prompt, "what the samples go on from")->capture_default_str();
      app.add_option("--seed", o.analysis.seed, "seed of the windows and the samples")->capture_default_str();
      f->common.add(app);
      return [f] { return run(*f); };
    });

}  // namespace
}  // namespace bg
