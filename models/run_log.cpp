#include "models/run_log.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/atomic_file.h"
#include "core/folder_lock.h"
#include "core/format.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/read_file.h"
#include "models/checkpoint.h"
#include "models/footprint.h"
#include "models/run_folder.h"

namespace bg {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

json read_object(const fs::path& path) {
  json j = parse_json(read_file(path, FileKind::settings), "run", path.string());
  BG_CHECK(j.is_object(), "run", str("damaged ", path.filename().string()), path.string(), "the JSON that train wrote",
           "a copy, or train the run again");
  return j;
}

double number_or(const json& j, const char* key, double otherwise) {
  const auto found = j.find(key);
  return found != j.end() && found->is_number() ? found->get<double>() : otherwise;
}

// What results.json calls its words and bytes. Older builds counted the whole text and said nothing.
constexpr const char* kCounts = "counts";
constexpr const char* kPredicted = "predicted";

json evaluation_json(const Evaluation& e) {
  json j{{"loss", e.loss}, {"tokens", e.tokens}, {"perplexity", e.token_ppl()}};
  if (!e.counted()) return j;
  j["words"] = e.words;
  j["bytes"] = e.bytes;
  if (const auto ppl = e.word_ppl()) j["word_perplexity"] = *ppl;
  j["byte_perplexity"] = *e.byte_ppl();
  return j;
}

Evaluation evaluation_of(const json& j, bool counted) {
  const JsonFields f(j, "run", "an evaluation");
  Evaluation e;
  e.loss = f.number("loss", 0);
  e.tokens = f.whole("tokens", 1);
  if (!counted) return e;
  e.words = f.whole("words", 0);
  e.bytes = f.whole("bytes", 1);
  return e;
}

}  // namespace

json RunResults::to_json() const {
  json j{{"parameters", parameters},
         {"steps", steps},
         {"best_step", best_step},
         {"train_loss", train_loss},
         {"valid_last", evaluation_json(valid_last)},
         {"valid_best", evaluation_json(valid_best)},
         {"step_seconds", step_seconds}};
  if (counted()) j[kCounts] = kPredicted;
  if (test) j["test"] = evaluation_json(*test);
  if (peak_bytes) j["peak_bytes"] = *peak_bytes;
  return j;
}

RunResults RunResults::from_json(const json& j) {
  const JsonFields f(j, "run", "the whole");
  RunResults r;
  r.parameters = f.whole("parameters", 1);
  r.steps = f.whole("steps", 1);
  r.best_step = f.whole("best_step", 1);
  r.train_loss = f.number("train_loss", 0);
  const bool counted = j.contains(kCounts);
  BG_CHECK(!counted || j[kCounts] == kPredicted, "run", str("bad ", kCounts), j[kCounts].dump(), kPredicted,
           "a newer build");
  r.valid_last = evaluation_of(f.at("valid_last"), counted);
  r.valid_best = evaluation_of(f.at("valid_best"), counted);
  r.step_seconds = f.number("step_seconds", 0);
  if (j.contains("test")) r.test = evaluation_of(j["test"], counted);
  if (j.contains("peak_bytes")) r.peak_bytes = f.whole("peak_bytes", 0);
  BG_CHECK(r.best_step <= r.steps, "run", "bad best_step", str(r.best_step), str("at most ", r.steps));
  return r;
}

double median_step_seconds(const std::vector<CurvePoint>& curve, const TrainOptions& options) {
  const int64_t predicted = options.model.seq_len - (options.window == Window::t ? 1 : 0);
  std::vector<double> seconds;
  for (const CurvePoint& p : curve)
    if (p.tokens_per_s > 0) seconds.push_back(static_cast<double>(options.batch_size * predicted) / p.tokens_per_s);
  if (seconds.empty()) return 0;
  const auto middle = seconds.begin() + static_cast<std::ptrdiff_t>(seconds.size() / 2);
  std::nth_element(seconds.begin(), middle, seconds.end());
  return *middle;
}

void write_results(const fs::path& folder, const RunResults& results) {
  write_file_atomically(folder / "results.json", results.to_json().dump(2) + "\n");
}

namespace {

RunResults read_results(const fs::path& path) {
  const json j = read_object(path);
  try {
    return RunResults::from_json(j);
  } catch (const Error& e) {
    fail("run", str("damaged ", path.string()), e.what(), "what train wrote",
         "remove it: study and report compute it again, from the weights");
  }
}

// A finished run has been validated after its last step. Cut short, it would pass for another with other perplexities.
void check_whole(const RunLog& log) {
  const auto last =
      log.results ? std::optional(log.results->steps) : CheckpointFolder(log.folder / "checkpoints").newest_step();
  const bool whole =
      !log.curve.empty() && (!last || log.steps() == *last) && (log.results || log.curve.back().val_loss.has_value());
  BG_CHECK(whole, "run", str("damaged ", (log.folder / "metrics.jsonl").string()),
           log.curve.empty() ? "no step" : str("step ", log.steps(), " as its last"),
           str("step ", last ? str(*last) : "and validation of the end"), "a copy, or train the run again");
}

// What the weights say that they belong to, if they are here and whole.
json owner_in(const fs::path& file) {
  try {
    const TensorFileHeader header = read_safetensors_header(file);
    const auto owner = header.metadata.find(kOwnerKey);
    return owner == header.metadata.end() ? json() : parse_json_or_null(owner->second);
  } catch (const Error&) {
    return {};
  }
}

// A config.json that was edited after the training, or came from another run, is not what the figures are of.
void check_unedited(const RunLog& log, const json& tokenizer) {
  for (const fs::path& file : {log.folder / "model.safetensors", log.folder / "checkpoints" / "best.safetensors"})
    check_owner(owner_in(file), owner_facts(log.options, tokenizer), OwnerPart::all, file.string());
  if (!log.results) return;
  const auto check = [&](const char* what, int64_t results, int64_t config) {
    if (results != config)
      fail<UsageError>("run", str((log.folder / "results.json").string(), " belongs to another configuration"),
                       str(results, " ", what), str(config, ", as config.json has it"),
                       "the config.json that train wrote");
  };
  check("parameters", log.results->parameters, static_cast<int64_t>(parameter_count(log.options.model)));
  if (log.options.steps > 0) check("steps", log.results->steps, log.options.steps);
}

// Where the run's text lies now, and that it is the run's.
Corpus corpus_of(const RunLog& log, const std::string& data) {
  const std::string place = data.empty() ? log.options.data : data;
  check_text_is_there(place, log.folder);
  Corpus corpus = load_corpus(place);
  if (const json now = text_facts(corpus); !same_text(now, log.text))
    fail<UsageError>("run", str("the run in ", log.folder.string(), " was trained on another text"),
                     str(place, " ", now.dump()), log.text.dump(), "--data with the text of the run");
  return corpus;
}

// A folder that cannot be changed, or to which another process is writing: its results are found anew each time.
void try_to_write(const fs::path& folder, const RunResults& results) {
  try {
    const FolderLock lock(folder);
    write_results(folder, results);
  } catch (const Error&) {
  }
}

// Words and bytes of an older build's results, which are of the whole text, counted again from text and tokenizer.
RunResults recounted(const RunLog& log, const Corpus& corpus) {
  RunResults r = *log.results;
  const std::unique_ptr<Tokenizer> tokenizer = run_tokenizer(log.folder);
  const auto count = [&](Evaluation& e, std::string_view text) {
    Evaluation counts = count_evaluated(TokenStream(text, *tokenizer), *tokenizer, text, log.options);
    BG_CHECK(counts.tokens == e.tokens, "run", str("the results of ", log.folder.string(), " are of another text"),
             str(e.tokens, " predicted tokens"), str(counts.tokens));
    counts.loss = e.loss;
    e = counts;
  };
  count(r.valid_last, corpus.valid);
  count(r.valid_best, corpus.valid);
  if (r.test) count(*r.test, corpus.test);
  return r;
}

}  // namespace

RunResults complete_results(const fs::path& folder, const std::string& data, const ShouldStop& stop) {
  const RunLog log = read_run_log(folder);
  if (log.results) {
    if (log.results->counted()) return *log.results;
    std::optional<Corpus> corpus;
    if (!data.empty()) corpus = corpus_of(log, data);
    try {
      if (!corpus) corpus = corpus_of(log, {});
      const RunResults r = recounted(log, *corpus);
      try_to_write(folder, r);
      return r;
    } catch (const Error&) {  // without text or tokenizer: losses, and no words and bytes
      return *log.results;
    }
  }
  BG_CHECK(log.finished, "run", str("the run in ", folder.string(), " is not finished"), str("step ", log.steps()),
           "model.safetensors", str("boostgrad train --out ", shell_word(folder.string()), " --resume"));
  const Corpus corpus = corpus_of(log, data);
  Run run = load_run(folder);
  RunResults r;
  r.valid_last = r.valid_best =
      count_evaluated(TokenStream(corpus.valid, *run.tokenizer), *run.tokenizer, corpus.valid, run.options);
  for (const CurvePoint& p : log.curve) {
    if (!p.val_loss) continue;
    r.valid_last.loss = *p.val_loss;
    if (r.best_step == 0 || *p.val_loss < r.valid_best.loss) {
      r.valid_best.loss = *p.val_loss;
      r.best_step = p.step;
    }
  }
  if (!corpus.test.empty())
    r.test =
        evaluate(*run.model, TokenStream(corpus.test, *run.tokenizer), *run.tokenizer, corpus.test, run.options, stop);
  r.parameters = run.model->parameter_count();
  r.steps = log.steps();
  r.train_loss = log.curve.back().train_loss;
  r.step_seconds = median_step_seconds(log.curve, log.options);
  try_to_write(folder, r);
  return r;
}

std::vector<CurvePoint> read_curve(const fs::path& folder) {
  const fs::path path = folder / "metrics.jsonl";
  return is_there(path) ? parse_curve(read_file(path, FileKind::log)) : std::vector<CurvePoint>();
}

std::vector<CurvePoint> parse_curve(std::string_view lines) {
  std::vector<CurvePoint> curve;
  for (size_t at = 0, end; at < lines.size(); at = end + 1) {
    end = std::min(lines.find('\n', at), lines.size());
    const std::string_view line = lines.substr(at, end - at);
    const json j = parse_json_or_null(line);
    if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) continue;
    CurvePoint p;
    p.step = j["step"].get<int64_t>();  // beyond 2^63 it is negative
    p.train_loss = number_or(j, "train_loss", std::numeric_limits<double>::quiet_NaN());
    if (p.step < 1 || !std::isfinite(p.train_loss)) continue;
    if (const auto val = j.find("val_loss"); val != j.end() && val->is_number()) p.val_loss = val->get<double>();
    p.lr = number_or(j, "lr", 0);
    p.grad_norm = number_or(j, "grad_norm", 0);
    p.tokens_per_s = number_or(j, "tokens_per_s", 0);
    // a step that was done again after a kill counts as it was done last
    while (!curve.empty() && curve.back().step >= p.step) curve.pop_back();
    curve.push_back(p);
  }
  return curve;
}

RunLog read_run_log(const fs::path& folder) {
  RunLog log;
  log.folder = folder;
  log.options = run_options(folder);
  const json config = read_object(folder / "config.json");
  log.build = config.value("build", json());
  log.text = config.value("text", json());
  const json tokenizer = config.value("tokenizer", json());
  if (tokenizer.is_object()) {
    const int64_t vocab = JsonFields(tokenizer, "run", "the tokenizer").whole("vocab", 1);
    if (vocab != log.options.model.vocab)
      fail<UsageError>("run", str("the two vocabularies in ", (folder / "config.json").string(), " differ"),
                       str(log.options.model.vocab), str(vocab), "the config.json that train wrote");
  }
  log.curve = read_curve(folder);
  if (is_there(folder / "results.json")) log.results = read_results(folder / "results.json");
  log.finished = log.results.has_value() || is_there(folder / "model.safetensors");
  if (log.finished) check_whole(log);
  check_unedited(log, tokenizer);
  return log;
}

}  // namespace bg
