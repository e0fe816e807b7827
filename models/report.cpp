#include "models/report.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/read_file.h"
#include "models/corpus.h"
#include "models/footprint.h"
#include "models/generate.h"
#include "models/unicode.h"

namespace bg {

namespace fs = std::filesystem;

namespace {

constexpr const char* kSentence = "The old man looked at the sea, and the sea looked back at the old man.";
constexpr int64_t kMapTokens = 24;

std::string valid_utf8(std::string_view text) {
  Utf8Stream stream;
  return stream.feed(text) + stream.finish();
}

void check_words(const std::string& text, std::string_view option) {
  if (text.empty() || find_invalid_utf8(text) != std::string_view::npos)
    fail<UsageError>("report", str("bad --", option), str("'", printable(text), "'"), "some text in UTF-8");
}

// The last `parts` folders of each path; more where two are alike.
std::vector<std::string> short_names(const std::vector<fs::path>& folders) {
  std::vector<std::string> names;
  for (int parts = 1;; ++parts) {
    names.clear();
    bool longer = false;
    for (const fs::path& folder : folders) {
      fs::path path = fs::absolute(folder).lexically_normal(), name;
      if (!path.has_filename()) path = path.parent_path();  // a/b/ is a/b
      for (int i = 0; i < parts && path.has_filename(); ++i, path = path.parent_path()) name = path.filename() / name;
      longer |= path.has_filename();
      names.push_back(valid_utf8(name.has_filename() ? name.string() : name.parent_path().string()));
    }
    if (!longer || std::set<std::string>(names.begin(), names.end()).size() == names.size()) return names;
  }
}

class ReportMaker {
 public:
  ReportMaker(const ReportOptions& options, const std::function<void(const std::string&)>& say) : say_(say) {
    report_.options = options;
    if (report_.options.sentences.empty()) report_.options.sentences = {kSentence};
  }

  Report make(const std::vector<fs::path>& folders) {
    open(folders);
    for (size_t i = 0; i < models_.size(); ++i) {
      read_losses(i);
      if (models_[i]) look_inside(i);
    }
    return std::move(report_);
  }

 private:
  void open(const std::vector<fs::path>& folders) {
    if (!report_.options.data.empty()) corpus(report_.options.data);  // is it there? Asked before the work
    std::set<fs::path> seen;
    for (const fs::path& folder : folders)
      if (run_options(folder); !seen.insert(fs::canonical(folder)).second)
        fail<UsageError>("report", "a run is named twice", str("'", folder.string(), "'"), "each run once");
    const std::vector<std::string> names = short_names(folders);
    for (size_t i = 0; i < folders.size(); ++i) {
      ReportedRun run;
      run.name = names[i];
      run.log = read_run_log(folders[i]);
      run.parameters = static_cast<int64_t>(parameter_count(run.log.options.model));
      if (!run.log.finished) run.missing.push_back(str("Not finished: ", run.log.steps(), " steps so far."));
      models_.push_back(load(run));
      report_.runs.push_back(std::move(run));
    }
  }

  static std::optional<Run> load(ReportedRun& run) try {
    if (!is_there(run.log.folder / "tokenizer.json")) {
      run.missing.push_back("No look inside: only the logs of the run are here, without its weights.");
      return {};
    }
    Run loaded = load_run(run.log.folder);
    run.weights = loaded.weights;
    return loaded;
  } catch (const Error& e) {
    run.missing.push_back(str("No look inside: ", e.what()));
    return {};
  }

  // Of a finished run from its results, which are made where an older build left none; else from the curve so far.
  void read_losses(size_t i) try {
    ReportedRun& run = report_.runs[i];
    if (run.log.finished) {
      if (!run.log.results) tell(i, "evaluating: this run has kept no results");
      run.log.results = complete_results(run.log.folder);
      run.best_step = run.log.results->best_step;
      run.valid = run.log.results->valid_best;
      run.test = run.log.results->test;
      if (!run.log.results->counted())
        run.missing.push_back(
            "No perplexities by word and byte: an older build counted the words and bytes of the "
            "whole text, and the text or the tokenizer of the run is not here.");
      return;
    }
    const CurvePoint* best = nullptr;
    for (const CurvePoint& p : run.log.curve)
      if (p.val_loss && (!best || *p.val_loss < *best->val_loss)) best = &p;
    if (!best || !models_[i]) return;
    const std::string_view text = corpus(run.log.options.data).valid;
    run.best_step = best->step;
    const Tokenizer& tokenizer = *models_[i]->tokenizer;
    run.valid = count_evaluated(TokenStream(text, tokenizer), tokenizer, text, run.log.options);
    run.valid->loss = *best->val_loss;
  } catch (const Error& e) {
    report_.runs[i].missing.push_back(str("No perplexities: ", e.what()));
  }

  const Corpus& corpus(const std::string& data) {
    const auto known = corpora_.find(data);
    return known != corpora_.end() ? known->second : corpora_.emplace(data, load_corpus(data)).first->second;
  }

  void look_inside(size_t i) try {
    ReportedRun& run = report_.runs[i];
    const Run& loaded = *models_[i];
    const Transformer& model = *loaded.model;
    const ReportOptions& o = report_.options;
    tell(i, "sentences and a sample");
    for (const std::string& sentence : o.sentences)
      run.maps.push_back(attention_maps(model, *loaded.tokenizer, sentence, kMapTokens));
    write_sample(run, loaded);

    const std::string& data = o.data.empty() ? run.log.options.data : o.data;
    tell(i, "looking inside on " + data);
    const TokenStream tokens(corpus(data).valid, *loaded.tokenizer);
    const Windows windows = draw_windows(tokens, window_length(run.log.options), o.analysis);
    run.analysis = analyse(model, windows, o.analysis);
    compare(i, windows);
  } catch (const Error& e) {
    report_.runs[i].missing.push_back(str("No further look inside: ", e.what()));
  }

  // With windows of T tokens the last position has never been trained.
  static int64_t window_length(const TrainOptions& o) {
    return std::max<int64_t>(1, o.model.seq_len - (o.window == Window::t ? 1 : 0));
  }

  void write_sample(ReportedRun& run, const Run& loaded) const {
    const ReportOptions& o = report_.options;
    const std::vector<int32_t> prompt = loaded.tokenizer->encode(o.prompt);
    Rng rng(o.analysis.seed);
    const std::vector<int64_t> ids =
        generate(*loaded.model, {prompt.begin(), prompt.end()}, o.sample_tokens, {.temperature = o.temperature}, rng);
    run.sample = valid_utf8(loaded.tokenizer->decode(std::vector<int32_t>(ids.begin(), ids.end())));
  }

  // Against the standard run most like it, else against itself with closed gates; nothing for a standard one.
  void compare(size_t i, const Windows& windows) {
    ReportedRun& run = report_.runs[i];
    const Transformer& model = *models_[i]->model;
    if (run.analysis->layers[0].rounds.size() < 2) return;
    const std::optional<size_t> peer = standard_peer(i);
    const std::unique_ptr<Transformer> closed = peer ? nullptr : without_corrections(model);
    run.reference = peer ? str("the standard run ", report_.runs[*peer].name, unlike(run, report_.runs[*peer]))
                         : "this model with its corrections left out (it was not trained to do without)";
    run.tokens = compare_tokens(model, peer ? *models_[*peer]->model : *closed, *models_[i]->tokenizer, windows,
                                report_.options.analysis);
  }

  // Two runs that were not trained alike compare less well, and that is said: " (of 300 steps; this one has 200)".
  static std::string unlike(const ReportedRun& ours, const ReportedRun& theirs) {
    std::string text;
    const auto add = [&](const auto& a, const auto& b, const char* before, const char* after) {
      if (a != b) text += str(text.empty() ? " (" : ", ", before, b, after, "; this one has ", a);
    };
    const TrainOptions &a = ours.log.options, &b = theirs.log.options;
    add(ours.log.steps(), theirs.log.steps(), "of ", " steps");
    add(a.seed, b.seed, "seed ", "");
    add(a.batch_size, b.batch_size, "batch size ", "");
    add(a.lr, b.lr, "learning rate ", "");
    return text.empty() ? text : text + ")";
  }

  // A standard run of the same text, tokenizer, window, width, depth and norm; of the same seed if there is one.
  std::optional<size_t> standard_peer(size_t i) const {
    std::optional<size_t> found;
    const TrainOptions& ours = report_.runs[i].log.options;
    for (size_t k = 0; k < models_.size(); ++k) {
      if (!models_[k] || models_[k]->tokenizer->fingerprint() != models_[i]->tokenizer->fingerprint()) continue;
      if (!same_text(report_.runs[k].log.text, report_.runs[i].log.text)) continue;
      const TrainOptions& theirs = report_.runs[k].log.options;
      const TransformerConfig &a = ours.model, &b = theirs.model;
      if (b.model != nn::AttentionKind::standard || a.d_model != b.d_model || a.layers != b.layers ||
          a.norm != b.norm || a.seq_len != b.seq_len || ours.window != theirs.window)
        continue;
      if (!found || theirs.seed == ours.seed) found = k;
      if (theirs.seed == ours.seed) break;
    }
    return found;
  }

  void tell(size_t i, const std::string& what) const {
    say_(str("[", i + 1, "/", models_.size(), "] ", report_.runs[i].name, ": ", what));
  }

  const std::function<void(const std::string&)>& say_;
  Report report_;
  std::vector<std::optional<Run>> models_;
  std::map<std::string, Corpus> corpora_;
};

}  // namespace

Report make_report(const std::vector<fs::path>& folders, const ReportOptions& options,
                   const std::function<void(const std::string&)>& say) {
  options.analysis.validate();
  if (folders.empty()) fail<UsageError>("report", "no runs", "", "one run folder or more");
  check_words(options.prompt, "prompt");
  for (const std::string& sentence : options.sentences) check_words(sentence, "sentence");
  return ReportMaker(options, say).make(folders);
}

std::string describe(const TransformerConfig& c) {
  std::string text = nn::kAttentionNames.name(c.model);
  if (c.model == nn::AttentionKind::boosted)
    text += str(", ", c.rounds, c.rounds == 1 ? " round" : " rounds", ", kv ", nn::kKvNames.name(c.kv), ", gate ",
                nn::kGateNames.name(c.gate));
  return text + str(", ", nn::kNormNames.name(c.norm), "-norm, d ", c.d_model, ", ", c.layers, " layers, ", c.heads,
                    " heads, T ", c.seq_len);
}

nlohmann::ordered_json to_json(const ReportedRun& r) {
  nlohmann::ordered_json j{{"run", r.name},
                           {"folder", r.log.folder.string()},
                           {"model", describe(r.log.options.model)},
                           {"options", r.log.options.to_json()},
                           {"build", r.log.build},
                           {"parameters", r.parameters},
                           {"steps", r.log.steps()},
                           {"finished", r.log.finished},
                           {"missing", r.missing},
                           {"command", r.command}};
  if (r.log.results) j["results"] = r.log.results->to_json();
  if (r.analysis) {
    j["weights"] = r.weights;
    j["analysis"] = to_json(*r.analysis);
    j["attention_maps"] = nlohmann::ordered_json::array();
    for (const AttentionMaps& m : r.maps) j["attention_maps"].push_back(to_json(m));
    j["sample"] = r.sample;
  }
  if (r.tokens) {
    j["reference"] = r.reference;
    j["tokens"] = to_json(*r.tokens);
  }
  return j;
}

}  // namespace bg
