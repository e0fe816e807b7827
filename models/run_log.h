// What a run folder (models/trainer.h) tells about its training, read once for whoever compares or shows runs: the
// options, the build, the curve, and how it ended. A run that is still going, was killed or lies here without its
// weights reads as well as a finished one.
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "models/trainer.h"

namespace bg {

/// How a finished run ended: the file results.json. What is not known (the run has no test text, or ended before its
/// build wrote results) is empty.
struct RunResults {
  int64_t parameters = 0, steps = 0, best_step = 0;
  double train_loss = 0;              ///< of the last step
  Evaluation valid_last;              ///< the validation text with the last weights
  Evaluation valid_best;              ///< the validation text with the best weights, which are those of best_step
  std::optional<Evaluation> test;     ///< the test text with the best weights
  std::optional<int64_t> peak_bytes;  ///< most bytes in tensors at once during the training
  double step_seconds = 0;            ///< median over all steps

  /// Whether words and bytes are known, as Evaluation has them. An older build's results.json has those of the whole
  /// text; they are not read. The field "counts": "predicted" tells one from the other.
  bool counted() const { return valid_last.counted(); }

  nlohmann::json to_json() const;
  /// Throws Error when something is missing, of a wrong type or impossible.
  static RunResults from_json(const nlohmann::json& json);
};

/// One step of a training: a line of metrics.jsonl.
struct CurvePoint {
  int64_t step = 0;                ///< from 1
  double train_loss = 0;           ///< nats a token
  std::optional<double> val_loss;  ///< after the step, where there was a validation
  double lr = 0, grad_norm = 0;    ///< the norm before clipping
  double tokens_per_s = 0;         ///< predicted tokens by the time of the step
};

struct RunLog {
  std::filesystem::path folder;
  TrainOptions options;           ///< model.vocab is that of the run's tokenizer
  nlohmann::json build, text;     ///< what made the run (build_facts), and sizes and checksum of its text
  std::vector<CurvePoint> curve;  ///< in the order of the steps, each once
  bool finished = false;          ///< all steps are done and the weights, or the results, are there
  std::optional<RunResults> results;

  int64_t steps() const { return curve.empty() ? 0 : curve.back().step; }
};

/// Throws Error when the folder is not a run, its config.json or results.json is damaged, or it is finished and
/// metrics.jsonl does not reach its last step; UsageError when weights or results are of another configuration. Half a
/// last line of metrics.jsonl, as a kill leaves it, is passed over.
RunLog read_run_log(const std::filesystem::path& folder);

/// The curve of a folder alone: empty without metrics.jsonl.
std::vector<CurvePoint> read_curve(const std::filesystem::path& folder);
std::vector<CurvePoint> parse_curve(std::string_view lines);  ///< of what metrics.jsonl holds
/// Median over all steps of the curve, by their tokens_per_s; 0 without steps.
double median_step_seconds(const std::vector<CurvePoint>& curve, const TrainOptions& options);

/// Replaces results.json, all or nothing.
void write_results(const std::filesystem::path& folder, const RunResults& results);

/// The results of a finished run; where results.json is missing, because an older build trained the run, they are found
/// from curve, weights and text, and written where the folder allows it. Where it has no counts that are of use, words
/// and bytes are counted again if text and tokenizer are there, and stay unknown if not. `data` is where the text lies
/// now; empty: where it was. Throws Error when the run is not finished, when a text is needed and `data` is not that of
/// the run, or when it has no results, and weights or text are not there or not those of the run; Interrupted when
/// `stop` ends its evaluation.
RunResults complete_results(const std::filesystem::path& folder, const std::string& data = {},
                            const ShouldStop& stop = {});

}  // namespace bg
