// boostgrad denoise: the paper's synthetic task, each of its tables over many model seeds beside the published figures.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "core/clock.h"
#include "core/format.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "examples/boostgrad/progress_line.h"
#include "models/denoise/study.h"

namespace bg {
namespace {

using namespace denoise;
using nlohmann::ordered_json;

struct Flags {
  std::string table = "all", patterns = "fixed";
  int64_t seeds = 10;
  CommonFlags common;
};

/// Shows how far a study is.
StudyProgress shown_on(ProgressLine& line) {
  const double start = seconds_now();
  return [&line, start](int64_t done, int64_t total, double share) {
    const double seconds = seconds_now() - start;
    line.show(formatted("%lld of %lld trainings, %.1f per second, %.0f s left", static_cast<long long>(done),
                        static_cast<long long>(total), static_cast<double>(done) / seconds,
                        std::max(0.0, seconds / share - seconds)));
  };
}

ordered_json json_of(const Figure& f) {
  ordered_json j{{"mean", f.mean}};
  if (f.sd) j["sd"] = *f.sd;
  return j;
}

ordered_json json_of(const Row& r, const Flags& f) {
  ordered_json j{{"table", r.table},         {"row", r.label},
                 {"d", r.setting.d},         {"patterns", r.setting.patterns},
                 {"sigma", r.setting.sigma}, {"pattern_draw", f.patterns},
                 {"seeds", f.seeds}};
  for (const Metric& m : r.metrics) {
    ordered_json& of = j[m.name] = {{"mean", m.spread().mean()}};
    if (m.values.size() > 1) of["sd"] = m.spread().sd();
    of["values"] = m.values;
    if (m.paper) of["paper"] = json_of(*m.paper);
    if (m.rerun) of["rerun"] = json_of(*m.rerun);
  }
  return j;
}

// -- As a table -------------------------------------------------------------------------------------------------------

struct Heading {
  const char* table;
  const char* text;
};
constexpr Heading kHeadings[] = {
    {"rounds", "Rounds of boosting, gate mlp: accuracy in %, gain over M = 1 of the same seed"},
    {"gates", "Gates, M = 2: accuracy in %, gain over M = 1 of the same seed"},
    {"difficulty", "Difficulty: accuracy in % with one round and with two (gate mlp), gain of the second"},
    {"iterate",
     "Attention iterated: accuracy in % (chance is 100 / K); what a last step changes, steps needed, distinct fixed "
     "points that the queries reach, spectral radius there"},
    {"control", "Positive control: fixed points that must move to targets; the loss before and after training"},
    {"routing",
     "Routing between one step and its fixed point, by what the gate sees: accuracy in % of the gate (routed), and of "
     "choosing the better of the two each time (best); trained otherwise than above (paper: no gate beats one step)"}};

// Percentages as such, whatever their size.
bool is_percentage(const std::string& metric) {
  for (const char* other : {"residual", "iterations", "distinct", "radius", "loss_before", "loss_after"})
    if (metric == other) return false;
  return true;
}

std::string cell(const Metric& m, double mean, std::optional<double> sd) {
  const bool percentage = is_percentage(m.name);
  const std::string text = formatted(!percentage ? "%.3g" : m.name == "gain" ? "%+.1f" : "%.1f", mean);
  return sd ? text + formatted(percentage ? " +- %.1f" : " +- %.2g", *sd) : text;
}

/// The rows of one table, as cells: label, setting, every metric, and published figures where a row has some.
TableLines cells_of(const std::vector<const Row*>& rows) {
  std::vector<std::string> names;
  for (const Row* r : rows)
    for (const Metric& m : r->metrics)
      if (std::find(names.begin(), names.end(), m.name) == names.end()) names.push_back(m.name);
  TableLines out{{"", "d, K, sigma"}};
  for (const std::string& name : names) {
    out[0].push_back(name);
    const auto any = [&](std::optional<Figure> Metric::*figure) {
      return std::any_of(rows.begin(), rows.end(), [&](const Row* r) {
        const Metric* m = r->find(name);
        return m && (m->*figure).has_value();
      });
    };
    if (any(&Metric::paper)) out[0].push_back("paper");
    if (any(&Metric::rerun)) out[0].push_back("rerun");
  }
  for (const Row* r : rows) {
    std::vector<std::string> line{r->label, str(r->setting.d, ", ", r->setting.patterns, ", ", r->setting.sigma)};
    const Metric* m = nullptr;
    for (size_t c = 2; c < out[0].size(); ++c) {
      const std::string& title = out[0][c];
      const bool figure = title == "paper" || title == "rerun";
      if (!figure) m = r->find(title);
      const std::optional<Figure> from = m && figure ? (title == "paper" ? m->paper : m->rerun) : std::nullopt;
      if (figure)
        line.push_back(from ? cell(*m, from->mean, from->sd) : "");
      else
        line.push_back(
            m ? cell(*m, m->spread().mean(), m->values.size() > 1 ? std::optional(m->spread().sd()) : std::nullopt)
              : "");
    }
    out.push_back(std::move(line));
  }
  return out;
}

int run(const Flags& f) {
  f.common.apply();
  if (f.seeds < 1 || f.seeds > 10'000) fail<UsageError>("denoise", "bad --seeds", str(f.seeds), "1 to 10,000");
  StudyOptions options{.tables = {}, .seeds = static_cast<int>(f.seeds), .patterns = kPatternsNames.parse(f.patterns)};
  if (f.table == "all")
    options.tables = {Table::rounds, Table::gates, Table::difficulty, Table::iterate, Table::routing};
  else if (std::find(kTableNames.names.begin(), kTableNames.names.end(), f.table) == kTableNames.names.end())
    fail<UsageError>("denoise", "unknown --table", str("'", f.table, "'"), kTableNames.choices() + ", or all");
  else
    options.tables = {kTableNames.parse(f.table)};
  ProgressLine line;
  const std::vector<Row> rows = run_study(options, shown_on(line));
  line.end();
  if (f.common.json) {
    for (const Row& r : rows) print_json(json_of(r, f));
    return 0;
  }
  std::cout << (f.seeds == 1 ? str("Model seed 1") : str("Mean +- standard deviation over model seeds 1 to ", f.seeds))
            << ", patterns " << (options.patterns == Patterns::fixed ? "from one seed" : "drawn anew with each")
            << ".\n"
            << "paper: its published single run. rerun: its own code with five model seeds.\n";
  for (const Heading& h : kHeadings) {
    std::vector<const Row*> own;
    for (const Row& r : rows)
      if (r.table == h.table) own.push_back(&r);
    if (own.empty()) continue;
    std::cout << "\n" << h.text << "\n\n";
    std::cout << markdown_table(cells_of(own), 2);
  }
  return 0;
}

const Command command(
    "denoise", "the paper's synthetic task: its tables over many seeds, beside its figures",
    [](CLI::App& app) -> Command::Run {
      auto f = std::make_shared<Flags>();
      app.add_option("--table", f->table, kTableNames.choices() + ", or all")->capture_default_str();
      app.add_option("--seeds", f->seeds, "model seeds: 1 to this number, at most 10,000")->capture_default_str();
      app.add_option("--patterns", f->patterns, "fixed: one draw for all seeds; vary: one for each")
          ->capture_default_str();
      f->common.add(app);
      return [f] { return run(*f); };
    });

}  // namespace
}  // namespace bg
