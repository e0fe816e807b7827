// A grid of language models: the same text, options and seeds for each model, so that their perplexities compare.
//
// The folder of a study holds a run folder (models/trainer.h) for each model and seed, `boosted-residual-s42`, trained
// by train() as any other run: one made by hand with the same options is taken as it is, and a study goes on from its
// run folders wherever they were copied. Beside them lie shared/ (the tokenizer and the token cache, which can be made
// again) and timing.json (step times, which cannot be repeated to the bit).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/run_log.h"

namespace bg {

/// The forms of a model's name, for messages and help.
constexpr const char* kStudyModelForms =
    "[post-](standard | twicing | wider | boosted)[-mROUNDS][-input | -residual][-none | -scalar | -linear | -mlp]";

/// The model that a name stands for. What the name does not say is as in `base`, whose vocabulary must be the
/// tokenizer's. `wider` is the standard model of the width that wider_width() gives for the boosted one of the rest of
/// the name. Throws UsageError for any other name.
TransformerConfig study_model(const std::string& name, const TransformerConfig& base);

/// The paper's rule for a standard model to compare with a boosted one: the smallest width from the boosted model's on,
/// in steps of 4 and a multiple of the heads, with which the standard model has at least as many parameters.
int64_t wider_width(const TransformerConfig& boosted);

struct StudyOptions {
  TrainOptions train;  ///< of every run, but for what the model's name says, and the seed
  std::vector<std::string> models{"standard", "twicing", "wider", "boosted-input", "boosted-residual"};
  std::vector<uint64_t> seeds{42, 123};
  std::filesystem::path out;
};

/// Trains what is not finished yet, model by model for each seed, and completes missing results. Everything that can be
/// refused is refused before anything is trained: a run of other options or another text (UsageError). False when
/// progress.stop ended it; what was trained until then is kept.
bool run_study(const StudyOptions& options, const TrainProgress& progress);

struct Timing {
  double step_seconds = 0;  ///< median
  int64_t peak_bytes = 0;   ///< most bytes in tensors during a training step, with weights and optimizer
};

/// Measured in one phase for all models, in turns, because times of runs that were made at different hours do not
/// compare.
struct StudyTiming {
  int threads = 0;
  nlohmann::json build;
  std::map<std::string, std::pair<TransformerConfig, Timing>> models;  ///< by name

  /// That of the model in timing.json, if it was measured as it is now.
  std::optional<Timing> of(const std::string& name, const TransformerConfig& config) const;
  void save(const std::filesystem::path& study) const;
  static StudyTiming load(const std::filesystem::path& study);  ///< empty without timing.json
};

/// The finished runs of a model.
struct StudyRow {
  std::string name;
  TransformerConfig config;
  std::vector<RunLog> runs;  ///< with their results, by rising seed
  std::optional<Timing> timing;
};

struct Study {
  std::vector<StudyRow> rows;           ///< those with a finished run, in the order of the table
  std::vector<std::string> unfinished;  ///< what is missing, in words
  std::vector<std::string> uncounted;   ///< run folders whose words and bytes are not known (RunResults::counted)
  int64_t batch_size = 0;
  int threads = 0;  ///< with which the times were measured

  /// The row that `row` is compared with: the standard model with the same place of the norm; null without one.
  const StudyRow* baseline(const StudyRow& row) const;
  /// Whether every run has a test perplexity.
  bool has_test() const;
  /// Two tables in Markdown. The same runs give the same bytes, but for measured times.
  std::string to_string() const;
  /// An object for each row, then one for each run.
  std::vector<nlohmann::ordered_json> to_json() const;
};

/// What lies in the folder of a study: of the models and seeds given or, where none are, of all. `data` is as for
/// complete_results(). Throws UsageError when the runs were not trained with the same options.
Study read_study(const std::filesystem::path& out, const std::vector<std::string>& models = {},
                 const std::vector<uint64_t>& seeds = {}, const std::string& data = {});

/// Result of check_run.
struct RunCheck {
  int64_t steps = 0;            ///< trained again
  int64_t compared = 0;         ///< losses: fewer than steps when metrics.jsonl was thinned out
  int64_t first_different = 0;  ///< step; 0: none
  double stored = 0, now = 0;   ///< its training losses
  std::string other_build;      ///< build_difference() to the build that made the run
};

/// Trains the first `steps` steps of a run anew, in a folder that vanishes, and compares each training loss with that
/// of the run, to the bit. `data` is where the text lies now; empty: where it was.
RunCheck check_run(const std::filesystem::path& folder, int64_t steps, const std::string& data,
                   const TrainProgress& progress);

}  // namespace bg
