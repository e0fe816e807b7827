// The paper's five tables on the synthetic task, each over many model seeds: what is trained, and the figures to hold
// the results against.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "core/enum_names.h"
#include "models/denoise/task.h"
#include "models/spread.h"

namespace bg::denoise {

enum class Table { rounds, gates, difficulty, iterate, routing };
inline constexpr EnumNames<Table, 5> kTableNames{"table", {"rounds", "gates", "difficulty", "iterate", "routing"}};

enum class Patterns { fixed, vary };  ///< one draw for all model seeds of a setting, or a new one with each
inline constexpr EnumNames<Patterns, 2> kPatternsNames{"patterns", {"fixed", "vary"}};

/// A figure from elsewhere.
struct Figure {
  double mean;
  std::optional<double> sd;
};

/// One quantity over the model seeds.
struct Metric {
  std::string name;
  std::vector<double> values;   ///< by seed
  std::optional<Figure> paper;  ///< the published single run
  std::optional<Figure> rerun;  ///< the paper's own code, five model seeds
  Spread spread() const { return Spread(values); }
};

struct Row {
  std::string table, label;  ///< the table may be "control", which comes with iterate
  Setting setting;
  std::vector<Metric> metrics;

  const Metric* find(std::string_view name) const;
};

struct StudyOptions {
  std::vector<Table> tables;
  int seeds = 10;  ///< model seeds 1, 2, ...
  Patterns patterns = Patterns::fixed;
};

/// How far a study is: trainings, and the share of the work, which differ in length. Called after each training, from
/// any thread, one call at a time.
using StudyProgress = std::function<void(int64_t done, int64_t total, double share)>;

/// Runs all trainings, in parallel over model seeds and rows, and returns the tables' rows in order. What several rows
/// need is trained once. Accuracies are percentages.
///
///   rounds       accuracy; gain: over one round with the same seed; best_possible: of the pattern nearest to the query
///   gates        accuracy, gain
///   difficulty   one_round, two_rounds, gain, best_possible
///   iterate      accuracy; for fixed points also, at 5,000 fresh queries: residual and iterations as trained (30
///                iterations, tolerance 1e-5); distinct: how many fixed points 500 queries end in when iterated until
///                they stay, in f64; radius: the largest spectral radius of the step's Jacobian at one of them
///   control      loss_before, loss_after, radius: can the implicit gradient move a fixed point where it should go?
///   routing      one_step, fixed_point, best: of the two outputs and of always choosing right; accuracy, gain over one
///                step, and routed: the percentage sent to the fixed point, with a gate of the row's features
std::vector<Row> run_study(const StudyOptions& options, const StudyProgress& progress = {});

}  // namespace bg::denoise
