// Training a language model into a run folder, and reading it back.
//
// A run folder holds config.json (all options), tokenizer.json, metrics.jsonl (one line a step), checkpoints/ (the last
// two and the best), and at the end model.safetensors (the weights with the best validation loss) and results.json
// (models/run_log.h reads these). Every random number is a function of (seed, step): a run that was killed and resumed
// has the bits of one that was not.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "models/batches.h"
#include "models/corpus.h"
#include "models/on_progress.h"
#include "models/tokenizer.h"
#include "models/transformer.h"
#include "nn/schedule.h"

namespace bg {

/// What AdamW's weight decay shrinks: every parameter, as the boosted-attention paper has it, or matrices and
/// embeddings alone, without biases and gains, as nanoGPT has it (nn/optim.h).
enum class Decay { all, matrices };
inline constexpr EnumNames<Decay, 2> kDecayNames{"decay", {"all", "matrices"}};

struct TrainOptions {
  std::string data;  ///< folder or file (models/corpus.h), or builtin: for a small made-up language
  TransformerConfig model;
  std::string tokenizer = "byte";  ///< byte, bpe:SIZE or a tokenizer.json
  int64_t steps = 0;               ///< random windows; 0: epochs decide
  int64_t epochs = 1;              ///< each window once an epoch, shuffled
  int64_t batch_size = 32;
  Window window = Window::t_plus_1;
  Schedule::Kind schedule = Schedule::Kind::cosine;
  double lr = 3e-4, min_lr = 0;
  int64_t warmup = 0;
  double weight_decay = 0.01;
  Decay decay = Decay::matrices;  ///< a config.json without it is of a version that had `all` alone
  double beta1 = 0.9, beta2 = 0.999, clip = 1;
  int64_t save_every = 100;  ///< steps between checkpoints
  int64_t eval_every = 0;    ///< steps between validations; 0: once an epoch, or five times in all
  uint64_t seed = 42;

  void validate() const;  ///< throws UsageError naming the option
  nlohmann::json to_json() const;
  static TrainOptions from_json(const nlohmann::json& json);
};

/// What a run's validation or test says: nats a token, and perplexity by token, word and byte. All of them are of what
/// was predicted, and of nothing else: exp(all nats / predicted tokens, words or bytes). A token is predicted, once,
/// where it has one before it in its window: with Window::t_plus_1 all but the text's first; with Window::t all but the
/// first of each window and what is left after the last whole one. Its bytes are predicted with it, and so is a word
/// (between white space) with its first byte: a word that a window's first token begins does not count, one that it
/// continues does. With a token for each byte, perplexity by token and by byte are the same.
struct Evaluation {
  double loss = 0;  ///< mean nats a predicted token
  int64_t tokens = 0, words = 0, bytes = 0;
  bool counted() const { return bytes > 0; }  ///< false: words and bytes are not known (models/run_log.h)
  double token_ppl() const;
  std::optional<double> word_ppl() const;  ///< none where no word was counted
  std::optional<double> byte_ppl() const;
};

/// What an evaluation of these tokens counts, without a loss. `text` is what was encoded. Throws Error when the tokens
/// do not spell it.
Evaluation count_evaluated(const TokenStream& tokens, const Tokenizer& tokenizer, std::string_view text,
                           const TrainOptions& options);

/// Thrown out of a work that a `stop` has ended. It is no error, and not to be caught as one.
struct Interrupted {};

/// End now? Called before each batch of an evaluation, which then throws Interrupted.
using ShouldStop = std::function<bool()>;

/// Mean nats of the tokens that count. The model is in the mode that it was in, also after an Interrupted.
double evaluated_loss(Transformer& model, const TokenStream& tokens, const TrainOptions& options,
                      const ShouldStop& stop = {});

/// Both.
Evaluation evaluate(Transformer& model, const TokenStream& tokens, const Tokenizer& tokenizer, std::string_view text,
                    const TrainOptions& options, const ShouldStop& stop = {});

struct TrainResult {
  int64_t steps = 0, resumed_at = 0;
  double train_loss = 0;                   ///< of the last step
  double val_loss = 0, best_val_loss = 0;  ///< last and best
  int64_t best_step = 0, parameters = 0;
  double test_loss = -1;                 ///< of the best weights; negative without a test text
  double seconds = 0, tokens_per_s = 0;  ///< all of it; the speed of training steps alone
  bool interrupted = false;              ///< stopped before its end, with a checkpoint, unless at step 0
};

/// Where a running training is.
struct TrainState {
  int64_t step = 0, total = 0;
  bool validating = false;  ///< the step is done, the validation after it is not
  double loss = 0;          ///< of the last step
  std::optional<double> val_loss;
  double tokens_per_s = 0, seconds_left = 0;
  std::span<const double> losses;          ///< of all steps so far; valid during the call
  std::string run;                         ///< of several: which one this is
  std::optional<double> all_seconds_left;  ///< of several: until the last one ends
  std::string text() const;                ///< in one line
};

/// "1h02m" or "3m07s".
std::string duration_text(double seconds);

/// Reports of a running training, for people, or nothing.
struct TrainProgress {
  std::function<void(const std::string&)> say = [](const std::string&) {};  ///< events: resumed, saved, warnings
  /// Before the first step: what is being done, and the share of it that is done, 0 to 1.
  OnProgress preparing = [](std::string_view, double) {};
  std::function<void(const TrainState&)> state = [](const TrainState&) {};  ///< after each step, and before validations
  /// End now, after so many steps, with a checkpoint? Called after each step, before each batch of a validation or of
  /// the test at the end, and, with 0, all along before the first step.
  std::function<bool(int64_t steps)> stop = [](int64_t) { return false; };
};

/// For the phases before the first step: reports them to `progress`, which must live as long, and throws Interrupted
/// when its `stop` says so.
OnProgress while_preparing(const TrainProgress& progress);

/// Trains into folder `out`. Without `resume` the folder must not hold a run; with it, training goes on from the newest
/// good checkpoint, or (and says so) from step 0 where the run has not come to its first one. A validation or a test at
/// the end that was broken off is then done again, whole. Throws Error when a loss
/// is not finite, naming the step; the last checkpoint stays. Counts the peak of tensor memory anew (core/storage.h).
///
/// Runs on one text with one tokenizer can share work: `shared` is a folder for their token cache, whose
/// tokenizer.json, if there is one, is taken for new runs in place of making the tokenizer. A run folder stays whole
/// without it.
TrainResult train(const TrainOptions& options, const std::filesystem::path& out, bool resume,
                  const TrainProgress& progress, const std::filesystem::path& shared = {});

/// Throws UsageError in one sentence when the run in `folder` was started with other options than these. Texts may lie
/// elsewhere, and the vocabulary follows from the tokenizer.
void check_same_options(const TrainOptions& options, const std::filesystem::path& folder);

/// Which program, libraries and instructions run here: bits are promised for one of these alone.
nlohmann::json build_facts();
/// What differs between the build facts of a run and those of this program, in a few words; empty when nothing does.
/// What an older build did not record counts as equal.
std::string build_difference(const nlohmann::json& before);

/// Sizes and checksums of training and validation text, and of the test text: by these a run knows its text, wherever
/// it lies.
nlohmann::json text_facts(const Corpus& corpus);
/// Whether they are of the same texts. An older build did not record the test text: then it counts as the same.
bool same_text(const nlohmann::json& a, const nlohmann::json& b);

/// A finished or running run, for evaluation and generation.
struct Run {
  TrainOptions options;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<Transformer> model;  ///< in evaluation mode, with the final, else the best, else the newest weights
  std::string weights;                 ///< the file that they came from
};
/// Throws Error when the folder is not a run, or has no weights yet.
Run load_run(const std::filesystem::path& folder);

/// The options with which a run was started. Throws Error when the folder is not a run.
TrainOptions run_options(const std::filesystem::path& folder);
bool is_run(const std::filesystem::path& folder);
/// The tokenizer of a run. Throws Error when it is not there or not the one that the run was trained with.
std::unique_ptr<Tokenizer> run_tokenizer(const std::filesystem::path& folder);

}  // namespace bg
