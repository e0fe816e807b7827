// A report of runs: what their folders tell, what an analysis of their weights finds, and one page that shows both.
#pragma once

#include <functional>
#include <optional>

#include "models/analysis.h"
#include "models/run_log.h"

namespace bg {

struct ReportOptions {
  std::string data;  ///< text to look at the models on; empty: each run's own validation text
  AnalysisOptions analysis;
  std::vector<std::string> sentences;  ///< for attention maps; empty: one that repeats its words
  std::string prompt = "The";
  int64_t sample_tokens = 120;
  double temperature = 0.8;
};

/// One run. What it does not have is empty, and `missing` says why.
struct ReportedRun {
  std::string name;  ///< of its folder, with as many of the folders above as tell it from the others
  RunLog log;
  int64_t parameters = 0;
  int64_t best_step = 0;                  ///< of the best validation; 0 before the first
  std::optional<Evaluation> valid, test;  ///< with the weights of that step
  std::string weights;                    ///< the file that the analysis took them from
  std::optional<Analysis> analysis;
  std::optional<TokenLooks> tokens;
  std::string reference;            ///< what `tokens` compares with, in words
  std::vector<AttentionMaps> maps;  ///< by sentence
  std::string sample;               ///< what goes on after the prompt, UTF-8
  std::vector<std::string> missing;
  std::string command;  ///< that makes the run again
};

struct Report {
  ReportOptions options;
  std::vector<ReportedRun> runs;
  std::string command;  ///< that makes the report again
};

/// Reads and analyses run folders. `say` is told what is being done. The commands are left to the caller, who knows the
/// command line. Throws UsageError when a folder is not a run or a text is empty or not UTF-8, Error when a run is
/// damaged.
Report make_report(const std::vector<std::filesystem::path>& folders, const ReportOptions& options,
                   const std::function<void(const std::string&)>& say);

/// "boosted, 2 rounds, kv residual, gate linear, pre-norm, d 128, 4 layers, 4 heads, T 256".
std::string describe(const TransformerConfig& config);

/// The whole page: one HTML document that loads nothing. Plots are drawn by gnuplot (Error without it).
std::string report_page(const Report& report);

nlohmann::ordered_json to_json(const ReportedRun& run);

}  // namespace bg
