#include "models/study.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/atomic_file.h"
#include "core/folder_lock.h"
#include "core/format.h"
#include "core/io/json.h"
#include "core/read_file.h"
#include "core/temporary_folder.h"
#include "models/flops.h"
#include "models/footprint.h"
#include "models/new_files.h"
#include "models/run_folder.h"
#include "models/spread.h"

namespace bg {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

// -- Names ------------------------------------------------------------------------------------------------------------

namespace {

template <class E, size_t N>
bool take(std::vector<std::string>& words, const EnumNames<E, N>& names, E& value) {
  if (words.empty() || std::find(names.names.begin(), names.names.end(), words[0]) == names.names.end()) return false;
  value = names.parse(words[0]);
  words.erase(words.begin());
  return true;
}

// mROUNDS
bool take_rounds(std::vector<std::string>& words, int64_t& rounds) {
  if (words.empty() || words[0].size() < 2 || words[0][0] != 'm') return false;
  const char *begin = words[0].data() + 1, *end = words[0].data() + words[0].size();
  const auto [stop, error] = std::from_chars(begin, end, rounds);
  if (error != std::errc() || stop != end || words[0] != str('m', rounds)) return false;  // one name a model: no m02
  words.erase(words.begin());
  return true;
}

// The boosted model of a name, or the standard or twicing one, and whether it is the wider one that is meant.
struct Named {
  TransformerConfig config;
  bool wider = false;
};

Named parse_name(const std::string& name, const TransformerConfig& base) {
  auto bad = [&] { fail<UsageError>("study", "no such model", str("'", name, "'"), kStudyModelForms); };
  std::vector<std::string> words(1);
  for (const char c : name) {
    if (c == '-')
      words.emplace_back();
    else
      words.back() += c;
  }
  Named n{base};
  if (words[0] == "post") {
    n.config.norm = nn::NormPlace::post;
    words.erase(words.begin());
  }
  n.wider = !words.empty() && words[0] == "wider";
  if (n.wider) {
    words.erase(words.begin());
    n.config.model = nn::AttentionKind::boosted;
  } else if (!take(words, nn::kAttentionNames, n.config.model)) {
    bad();
  }
  if (n.config.model == nn::AttentionKind::boosted) {
    take_rounds(words, n.config.rounds);
    take(words, nn::kKvNames, n.config.kv);
    take(words, nn::kGateNames, n.config.gate);
  }
  if (!words.empty()) bad();
  return n;
}

// "boosted-residual-s42"
std::string run_name(const std::string& model, uint64_t seed) { return str(model, "-s", seed); }

struct RunName {
  std::string model;
  uint64_t seed = 0;
};
std::optional<RunName> parse_run_name(const std::string& folder) {
  const size_t at = folder.rfind("-s");
  if (at == std::string::npos) return {};
  RunName n{folder.substr(0, at)};
  const char *begin = folder.data() + at + 2, *end = folder.data() + folder.size();
  const auto [stop, error] = std::from_chars(begin, end, n.seed);
  if (error != std::errc() || stop != end || run_name(n.model, n.seed) != folder) return {};
  try {
    parse_name(n.model, {});
  } catch (const UsageError&) {
    return {};
  }
  return n;
}

}  // namespace

int64_t wider_width(const TransformerConfig& boosted) {
  TransformerConfig c = boosted;
  c.model = nn::AttentionKind::standard;
  const double least = parameter_count(boosted);
  while (parameter_count(c) < least || c.d_model % c.heads != 0) c.d_model += 4;
  return c.d_model;
}

TransformerConfig study_model(const std::string& name, const TransformerConfig& base) {
  Named n = parse_name(name, base);
  n.config.validate();
  if (!n.wider) return n.config;
  TransformerConfig c = base;
  c.norm = n.config.norm;
  c.model = nn::AttentionKind::standard;
  c.d_model = wider_width(n.config);
  c.validate();
  return c;
}

// -- What a folder holds ----------------------------------------------------------------------------------------------

namespace {

// Models in the order of the paper's table: pre-norm first, then by kind.
bool before(const std::string& a, const std::string& b) {
  auto rank = [](const std::string& name) {
    const Named n = parse_name(name, {});
    const int kind = n.wider ? 2 : n.config.model == nn::AttentionKind::boosted ? 3 : static_cast<int>(n.config.model);
    return std::tuple(n.config.norm == nn::NormPlace::post, kind, name);
  };
  return rank(a) < rank(b);
}

// A folder in which a training was begun, and nothing else, is none yet; one that holds more has lost its
// configuration.
bool holds_run(const fs::path& folder) {
  if (is_run(folder)) return true;
  for (const char* part : {"metrics.jsonl", "results.json", "model.safetensors"})
    BG_CHECK(!is_there(folder / part), "study", "a run has no config.json", folder.string(),
             str("config.json beside ", part), "a copy of it, or train the run again");
  return false;
}

// All runs in the folder of a study: model by model, by rising seed.
std::vector<RunName> find_runs(const fs::path& out) {
  std::vector<RunName> all;
  for (const fs::path& folder : list_folder(out))
    if (const auto n = parse_run_name(folder.filename()); n && holds_run(folder)) all.push_back(*n);
  std::sort(all.begin(), all.end(), [](const RunName& a, const RunName& b) {
    return a.model == b.model ? a.seed < b.seed : before(a.model, b.model);
  });
  return all;
}

// A run folder that was renamed must not pass for another row or another seed.
void check_named_right(const RunLog& log, const RunName& n) {
  const TransformerConfig& got = log.options.model;
  Named meant = parse_name(n.model, got);
  if (meant.wider) {  // of a width that the boosted model gave: CommonOptions
    meant.config = got;
    meant.config.model = nn::AttentionKind::standard;
  }
  if (log.options.seed == n.seed && meant.config == got) return;
  fail<UsageError>("study", "a run folder does not hold what its name says",
                   str(log.folder.string(), " with seed ", log.options.seed, " and model ", got.to_json().dump()),
                   str("seed ", n.seed, ", ", n.model), "the name that it was trained under");
}

// The runs of a study differ in nothing but the seed and what the model's name says.
class CommonOptions {
 public:
  void add(const RunName& n, const TrainOptions& options, const json& text) {
    const bool wider = parse_name(n.model, {}).wider;
    const std::string folder = run_name(n.model, n.seed);
    json j = options.to_json(), model = options.model.to_json();
    for (const char* own : {"data", "model", "seed", "save_every"}) j.erase(own);
    for (const char* named : {"model", "rounds", "kv", "gate", "norm"}) model.erase(named);
    if (wider) {
      widths_[folder] = {n.model, options.model};
      model.erase("d_model");
    }
    j.update(model);
    for (const auto& [key, value] : j.items()) {
      const auto [first, is_first] = seen_.try_emplace(key, value, folder);
      if (!is_first && first->second.first != value)
        fail<UsageError>("study", str("the run ", folder, " has another ", key, " than ", first->second.second),
                         value.dump(), first->second.first.dump(), "a folder for each study");
    }
    if (const auto [row, is_first] = rows_.try_emplace(n.model, options.model, folder);
        !is_first && !(row->second.first == options.model))
      fail<UsageError>("study", str("the run ", folder, " is of another model than ", row->second.second),
                       options.model.to_json().dump(), row->second.first.to_json().dump(), "a folder for each study");
    if (text_ && !same_text(text, text_->first))
      fail<UsageError>("study", str("the run ", folder, " is of another text than ", text_->second), text.dump(),
                       text_->first.dump(), "a folder for each study");
    if (!text_ || text.size() > text_->first.size()) text_ = {text, folder};  // the one that knows more
  }

  // Once all are added: the width of a wider model follows from that of the others.
  void check_widths() const {
    const auto width = seen_.find("d_model");
    if (width == seen_.end()) return;  // there are only wider ones
    for (const auto& [folder, run] : widths_) {
      const auto& [name, config] = run;
      TransformerConfig base = config;
      base.d_model = width->second.first.get<int64_t>();
      if (const int64_t expected = study_model(name, base).d_model; config.d_model != expected)
        fail<UsageError>("study", str("the run ", folder, " has another width than the rule for wider models gives"),
                         str(config.d_model), str(expected), "a folder for each study");
    }
  }

 private:
  std::map<std::string, std::pair<json, std::string>> seen_;  // by option: its value, and the first run that had it
  std::map<std::string, std::pair<std::string, TransformerConfig>> widths_;  // of wider models, by folder
  std::map<std::string, std::pair<TransformerConfig, std::string>> rows_;    // by the model's name
  std::optional<std::pair<json, std::string>> text_;
};

}  // namespace

// -- Training ---------------------------------------------------------------------------------------------------------

namespace {

struct Planned {
  TrainOptions options;
  fs::path folder;
  bool finished = false;
  int64_t steps = 0;  // done
};

// The tokenizer of all runs, in `shared`. It is a function of text and option, so one that an existing run has is as
// good as one made anew; and so is its token cache, which knows by checksums what it was made from.
std::unique_ptr<Tokenizer> shared_tokenizer(const StudyOptions& o, const Corpus& corpus, const json& facts,
                                            const TrainProgress& progress) {
  const fs::path shared = o.out / "shared", made = shared / "tokenizer.json", what = shared / "made_from.json";
  const json from{{"text", facts}, {"tokenizer", o.train.tokenizer}};
  make_folders(shared);
  remove_stale_temporaries(shared);
  if (is_there(what) && is_there(made)) {
    const json before = parse_json(read_file(what, FileKind::settings), "study", what.string());
    BG_CHECK(before.is_object() && before.contains("text") && before.contains("tokenizer"), "study",
             str("damaged ", what.string()), "", "the JSON that study wrote",
             str("remove ", shared.string(), ": it is made again from the runs"));
    if (!same_text(before["text"], facts) || before["tokenizer"] != from["tokenizer"])
      fail<UsageError>("study", str("the study in ", o.out.string(), " was started with another text or tokenizer"),
                       from.dump(), before.dump(), "another --out");
    return Tokenizer::load(made);
  }
  std::unique_ptr<Tokenizer> tokenizer;
  for (const std::string& model : o.models)
    for (const uint64_t seed : o.seeds) {
      const fs::path run = o.out / run_name(model, seed);
      if (tokenizer || !is_run(run)) continue;
      const RunLog log = read_run_log(run);
      if (!same_text(log.text, facts) || log.options.tokenizer != o.train.tokenizer) continue;  // is refused later
      tokenizer = Tokenizer::load(run / "tokenizer.json");
      make_folders(shared / "cache");
      try {
        for (const fs::path& file : list_folder(run / "cache"))
          if (file.extension() == ".tokens")
            write_file_atomically(shared / "cache" / file.filename(), read_file(file, FileKind::data));
      } catch (const UnreadableFile&) {  // without a cache it is made
      }
    }
  if (!tokenizer) {
    progress.say(str("tokenizer ", o.train.tokenizer, " of ", corpus.train.size(), " bytes"));
    tokenizer = make_tokenizer(o.train.tokenizer, corpus.train, while_preparing(progress));
  }
  tokenizer->save(made);
  write_file_atomically(what, from.dump() + "\n");
  return tokenizer;
}

std::vector<Planned> plan(const StudyOptions& o, const json& text, int64_t vocab, const TrainProgress& progress) {
  std::map<fs::path, RunLog> logs;
  CommonOptions common;  // with the runs that are there but not to be trained, too: they are rows of the same table
  for (const RunName& n : find_runs(o.out)) {
    RunLog log = read_run_log(o.out / run_name(n.model, n.seed));
    common.add(n, log.options, log.text);
    logs.emplace(log.folder, std::move(log));
  }
  std::vector<Planned> runs;
  TransformerConfig base = o.train.model;
  base.vocab = vocab;
  for (const uint64_t seed : o.seeds)
    for (const std::string& name : o.models) {
      Planned p{o.train, o.out / run_name(name, seed)};
      p.options.model = study_model(name, base);
      p.options.seed = seed;
      p.options.validate();
      if (const auto found = logs.find(p.folder); found != logs.end()) {
        const RunLog& log = found->second;
        check_same_options(p.options, p.folder);
        if (const std::string other = build_difference(log.build); !other.empty())
          progress.say(str(run_name(name, seed), " was started by another build or machine (", other,
                           "): bits may differ from a run that is made here"));
        p.finished = log.finished;
        p.steps = log.steps();
      }
      common.add({name, seed}, p.options, text);
      runs.push_back(std::move(p));
    }
  common.check_widths();
  return runs;
}

// Names that mean a model, each once, and each seed once.
void check_lists(const std::vector<std::string>& models, const std::vector<uint64_t>& seeds) {
  auto check = [](auto list, const char* option) {
    std::sort(list.begin(), list.end());
    const auto twice = std::adjacent_find(list.begin(), list.end());
    if (twice != list.end()) fail<UsageError>("study", str(option, " names one twice"), str(*twice), "each once");
  };
  for (const std::string& name : models) parse_name(name, {});
  check(models, "--models");
  check(seeds, "--seeds");
}

// Two names of one model would be two rows of one.
void check_distinct(const std::vector<std::string>& models, const TransformerConfig& base) {
  for (size_t i = 0; i < models.size(); ++i)
    for (size_t j = 0; j < i; ++j) {
      const Named a = parse_name(models[j], base), b = parse_name(models[i], base);
      if (a.wider == b.wider && a.config == b.config)
        fail<UsageError>("study", "two of --models are one model", str(models[j], " and ", models[i]), "each once");
    }
}

}  // namespace

bool run_study(const StudyOptions& o, const TrainProgress& progress) try {
  for (const auto& [option, empty] : {std::pair("--models", o.models.empty()), {"--seeds", o.seeds.empty()}})
    if (empty) fail<UsageError>("study", str("no ", option), "an empty list", "at least one");
  check_lists(o.models, o.seeds);
  check_distinct(o.models, o.train.model);
  for (const std::string& name : o.models) {
    TrainOptions of_model = o.train;
    of_model.model = study_model(name, o.train.model);
    of_model.validate();
  }
  std::optional<FolderLock> lock;
  std::vector<Planned> runs;
  NewFiles new_files;  // of a study that has not begun
  {
    const Corpus corpus = load_corpus(o.train.data);
    const json text = text_facts(corpus);
    new_files.add_folder(o.out);
    make_folders(o.out);
    lock.emplace(o.out);
    new_files.add_files(o.out, {"shared", "shared/tokenizer.json", "shared/made_from.json", "shared/cache",
                                "shared/cache/train.tokens", "shared/cache/valid.tokens", "shared/cache/test.tokens"});
    const int64_t vocab = shared_tokenizer(o, corpus, text, progress)->vocab_size();
    runs = plan(o, text, vocab, progress);
  }
  std::vector<std::string> failures;
  for (size_t i = 0; i < runs.size(); ++i) {
    Planned& run = runs[i];
    if (run.finished) {
      complete_results(run.folder, o.train.data, [&] { return progress.stop(0); });
      continue;
    }
    lock->check();
    const std::string label = str("run ", i + 1, "/", runs.size(), " ", run.folder.filename().string());
    progress.say(label);
    TrainProgress of_run = progress;
    of_run.say = [&](const std::string& text) { progress.say("  " + text); };
    of_run.state = [&](const TrainState& of_this) {
      TrainState s = of_this;
      s.run = label;
      // the others take time by their work: the same number of steps, of other models
      const double per_flop = s.seconds_left / std::max<double>(1, static_cast<double>(s.total - s.step)) /
                              flops_per_token(run.options.model);
      double others = 0;
      for (size_t j = i + 1; j < runs.size(); ++j)
        if (!runs[j].finished)
          others += flops_per_token(runs[j].options.model) * static_cast<double>(s.total - runs[j].steps);
      if (s.step < s.total) s.all_seconds_left = s.seconds_left + per_flop * others;
      progress.state(s);
    };
    try {
      const bool interrupted = train(run.options, run.folder, is_run(run.folder), of_run, o.out / "shared").interrupted;
      if (is_run(run.folder)) new_files.keep();
      if (interrupted || (progress.stop(0) && i + 1 < runs.size())) return false;
    } catch (const UsageError&) {
      throw;
    } catch (const Error& e) {  // such as a loss that is not finite: the others can still be trained
      if (is_run(run.folder)) new_files.keep();
      progress.say(str(label, " failed: ", e.what()));
      failures.push_back(str(run.folder.filename().string(), ": ", e.what()));
    }
  }
  BG_CHECK(failures.empty(), "study", str(failures.size(), " of ", runs.size(), " runs failed"), failures[0], "",
           failures.size() < runs.size() ? "--table-only for those that are done" : "");
  return true;
} catch (const Interrupted&) {
  return false;
}

// -- Timing -----------------------------------------------------------------------------------------------------------

std::optional<Timing> StudyTiming::of(const std::string& name, const TransformerConfig& config) const {
  const auto found = models.find(name);
  if (found == models.end() || !(found->second.first == config)) return {};
  return found->second.second;
}

void StudyTiming::save(const fs::path& study) const {
  json all = json::object();
  for (const auto& [name, model] : models)
    all[name] = {{"model", model.first.to_json()},
                 {"step_seconds", model.second.step_seconds},
                 {"peak_bytes", model.second.peak_bytes}};
  write_file_atomically(study / "timing.json",
                        json{{"threads", threads}, {"build", build}, {"models", all}}.dump(2) + "\n");
}

StudyTiming StudyTiming::load(const fs::path& study) {
  StudyTiming t;
  const fs::path path = study / "timing.json";
  if (!is_there(path)) return t;
  const std::string file = read_named_file(path, FileKind::settings);
  try {
    const json j = parse_json(file, "study", "the file");
    const JsonFields f(j, "study", "the file");
    t.threads = static_cast<int>(f.whole("threads", 1, std::numeric_limits<int>::max()));
    t.build = f.at("build");
    for (const auto& [name, m] : f.at("models").items()) {
      const JsonFields model(m, "study", "a model");
      const Timing timing{model.number("step_seconds"), model.whole("peak_bytes")};
      BG_CHECK(timing.step_seconds > 0 && std::isfinite(timing.step_seconds) && timing.peak_bytes > 0, "study",
               str("impossible times of ", name), m.dump());
      t.models[name] = {TransformerConfig::from_json(model.at("model")), timing};
    }
  } catch (const Error& e) {
    fail("study", "damaged timing.json", str(path.string(), ": ", e.what()), "what study wrote",
         "remove it: the times are measured again");
  }
  return t;
}

// -- The table --------------------------------------------------------------------------------------------------------

namespace {

std::string spread_text(const std::optional<Spread>& s, int digits, bool sign = false) {
  if (!s) return "-";
  const std::string mean = formatted(sign ? "%+.*f" : "%.*f", digits, s->mean());
  return s->count() > 1 ? mean + formatted(" +- %.*f", digits, s->sd()) : mean;
}

ordered_json spread_json(const Spread& s) {
  ordered_json j{{"mean", s.mean()}, {"n", s.count()}};
  if (s.count() > 1) j["sd"] = s.sd();
  return j;
}

using Ppl = std::optional<double> (*)(const Evaluation&);
constexpr Ppl kTokenPpl = [](const Evaluation& e) -> std::optional<double> { return e.token_ppl(); };
constexpr Ppl kWordPpl = [](const Evaluation& e) { return e.word_ppl(); };
constexpr Ppl kBytePpl = [](const Evaluation& e) { return e.byte_ppl(); };
constexpr std::pair<const char*, Ppl> kPpls[] = {
    {"perplexity", kTokenPpl}, {"word_perplexity", kWordPpl}, {"byte_perplexity", kBytePpl}};

// As the paper has it: validation by the last weights, test by the best.
const Evaluation& evaluation(const RunResults& r, bool test) { return test ? *r.test : r.valid_last; }

bool all_tested(const StudyRow& row) {
  return std::all_of(row.runs.begin(), row.runs.end(), [](const RunLog& run) { return run.results->test.has_value(); });
}

std::optional<Spread> ppl_spread(const StudyRow& row, Ppl ppl, bool test) {
  if (test && !all_tested(row)) return {};
  std::vector<double> v;
  for (const RunLog& run : row.runs) {
    const auto one = ppl(evaluation(*run.results, test));
    if (!one) return {};
    v.push_back(*one);
  }
  return Spread(v);
}

// Percent by which the row's perplexity a token is above the other's, seed by seed.
std::optional<Spread> difference(const StudyRow& row, const StudyRow& other, bool test) {
  std::vector<double> v;
  for (const RunLog& a : row.runs)
    for (const RunLog& b : other.runs)
      if (a.options.seed == b.options.seed)
        v.push_back(100 * std::expm1(evaluation(*a.results, test).loss - evaluation(*b.results, test).loss));
  return v.empty() ? std::nullopt : std::optional(Spread(v));
}

// Where some of the row's seeds have no run to compare with, the difference is not of all runs beside it.
std::string difference_text(const StudyRow& row, const std::optional<Spread>& difference) {
  const std::string text = spread_text(difference, 2, true);
  if (!difference || difference->count() == static_cast<int64_t>(row.runs.size())) return text;
  return str(text, " (", difference->count(), " of ", row.runs.size(), " seeds)");
}

using Lines = TableLines;

Lines token_lines(const Study& study, bool test, bool timed) {
  Lines lines{{"model", "parameters", "seeds", "validation ppl"}};
  if (test) lines[0].push_back("test ppl");
  lines[0].push_back("to standard, %");
  if (timed) lines[0].insert(lines[0].end(), {"step, s", "of standard's", "memory, MB"});
  for (const StudyRow& row : study.rows) {
    std::string seeds;
    for (const RunLog& run : row.runs) seeds += str(seeds.empty() ? "" : " ", run.options.seed);
    std::vector<std::string> line{row.name, str(row.runs[0].results->parameters), seeds};
    line.push_back(spread_text(ppl_spread(row, kTokenPpl, false), 2));
    if (test) line.push_back(spread_text(ppl_spread(row, kTokenPpl, true), 2));
    const StudyRow* base = study.baseline(row);
    line.push_back(base && base != &row ? difference_text(row, difference(row, *base, test)) : "-");
    if (timed && row.timing) {
      const Timing& t = *row.timing;
      line.push_back(formatted("%.3f", t.step_seconds));
      line.push_back(base && base->timing ? formatted("%.2f", t.step_seconds / base->timing->step_seconds) : "-");
      line.push_back(formatted("%.0f", static_cast<double>(t.peak_bytes) / 1e6));
    }
    line.resize(lines[0].size(), "-");
    lines.push_back(line);
  }
  return lines;
}

Lines word_and_byte_lines(const Study& study, bool test) {
  Lines lines{{"model", "validation a word", "a byte"}};
  if (test) lines[0].insert(lines[0].end(), {"test a word", "a byte"});
  for (const StudyRow& row : study.rows) {
    lines.push_back({row.name});
    for (const bool of_test : {false, true}) {
      if (of_test && !test) continue;
      lines.back().push_back(spread_text(ppl_spread(row, kWordPpl, of_test), 2));
      lines.back().push_back(spread_text(ppl_spread(row, kBytePpl, of_test), 4));
    }
  }
  return lines;
}

}  // namespace

const StudyRow* Study::baseline(const StudyRow& row) const {
  const std::string name = row.name.starts_with("post-") ? "post-standard" : "standard";
  for (const StudyRow& r : rows)
    if (r.name == name) return &r;
  return nullptr;
}

bool Study::has_test() const { return !rows.empty() && std::all_of(rows.begin(), rows.end(), all_tested); }

std::string Study::to_string() const {
  std::string text = "No finished run.\n";
  if (!rows.empty()) {
    const bool test = has_test();
    const bool timed = std::any_of(rows.begin(), rows.end(), [](const StudyRow& r) { return r.timing.has_value(); });
    text = str(markdown_table(token_lines(*this, test, timed)), "\n", markdown_table(word_and_byte_lines(*this, test)),
               "\nPerplexity (ppl) of validation by the last weights",
               test ? ", of test by those of the best validation" : "",
               "; mean +- standard deviation over the seeds. The difference is of the ", test ? "test" : "validation",
               " perplexity a token, seed by seed, to the standard model with the same place of the norm.\n");
    if (timed)
      text += str("Step: median of training steps of ", batch_size, " sequences, the models in turns, on ", threads,
                  threads == 1 ? " thread" : " threads", "; memory: most bytes in tensors during one.\n");
  }
  for (const std::string& run : uncounted)
    text += str("Not known a word and a byte: ", run,
                " (an older build counted the whole text; --data with its text counts what was predicted, where the "
                "run has its tokenizer.json)\n");
  for (const std::string& missing : unfinished) text += "Not finished: " + missing + "\n";
  return text;
}

std::vector<ordered_json> Study::to_json() const {
  std::vector<ordered_json> all;
  const bool test = has_test();
  for (const StudyRow& row : rows) {
    ordered_json j{{"kind", "row"}, {"model", row.name}, {"parameters", row.runs[0].results->parameters}};
    j["seeds"] = ordered_json::array();
    for (const RunLog& run : row.runs) j["seeds"].push_back(run.options.seed);
    for (const bool of_test : {false, true})
      for (const auto& [key, ppl] : kPpls)
        if (const auto s = ppl_spread(row, ppl, of_test)) j[of_test ? "test" : "valid"][key] = spread_json(*s);
    const StudyRow* base = baseline(row);
    if (base && base != &row)
      if (const auto d = difference(row, *base, test)) {
        j["difference_percent"] = spread_json(*d);
        j["difference_percent"]["against"] = base->name;
        j["difference_percent"]["text"] = test ? "test" : "valid";
      }
    if (row.timing) {
      j["step_seconds"] = row.timing->step_seconds;
      if (base && base->timing) j["step_ratio"] = row.timing->step_seconds / base->timing->step_seconds;
      j["peak_bytes"] = row.timing->peak_bytes;
      j["timing_threads"] = threads;
    }
    all.push_back(j);
  }
  for (const StudyRow& row : rows)
    for (const RunLog& run : row.runs) {
      const uint64_t seed = run.options.seed;
      ordered_json j{{"kind", "run"}, {"model", row.name}, {"seed", seed}, {"folder", run_name(row.name, seed)}};
      const json results = run.results->to_json();
      for (const auto& [key, value] : results.items()) j[key] = value;
      all.push_back(j);
    }
  return all;
}

Study read_study(const fs::path& out, const std::vector<std::string>& given_models,
                 const std::vector<uint64_t>& given_seeds, const std::string& data) {
  std::vector<std::string> models = given_models;
  std::vector<uint64_t> seeds = given_seeds;
  const bool named = !models.empty();
  check_lists(models, seeds);
  for (const RunName& n : find_runs(out)) {  // models each once, in order
    if (!named && (models.empty() || models.back() != n.model)) models.push_back(n.model);
    if (given_seeds.empty()) seeds.push_back(n.seed);
  }
  std::sort(seeds.begin(), seeds.end());
  seeds.erase(std::unique(seeds.begin(), seeds.end()), seeds.end());
  const StudyTiming timing = StudyTiming::load(out);
  Study study;
  study.threads = timing.threads;
  CommonOptions common;
  for (const std::string& name : models) {
    StudyRow row;
    row.name = name;
    for (const uint64_t seed : seeds) {
      const std::string folder = run_name(name, seed);
      if (!is_run(out / folder)) {
        if (named) study.unfinished.push_back(folder + " (not begun)");
        continue;
      }
      RunLog log = read_run_log(out / folder);
      check_named_right(log, {name, seed});
      common.add({name, seed}, log.options, log.text);
      study.batch_size = log.options.batch_size;
      if (!log.finished) {
        study.unfinished.push_back(str(folder, " (", log.steps(), " steps)"));
        continue;
      }
      row.config = log.options.model;
      if (!log.results || !log.results->counted()) log.results = complete_results(out / folder, data);
      if (!log.results->counted()) study.uncounted.push_back(folder);
      row.runs.push_back(std::move(log));
    }
    if (row.runs.empty()) continue;
    row.timing = timing.of(name, row.config);
    study.rows.push_back(std::move(row));
  }
  common.check_widths();
  return study;
}

// -- Rerunning --------------------------------------------------------------------------------------------------------

RunCheck check_run(const fs::path& folder, int64_t steps, const std::string& data, const TrainProgress& progress) {
  if (steps < 1) fail<UsageError>("study", "bad --steps", str(steps), "1 or more");
  const RunLog log = read_run_log(folder);
  steps = std::min(steps, log.steps());
  BG_CHECK(steps > 0, "study", str("the run in ", folder.string(), " has no steps yet"), "", "", "");
  TrainOptions o = log.options;
  if (!data.empty()) o.data = data;
  check_text_is_there(o.data, folder);
  // a tokenizer that came from a file: the run has a copy, wherever the file is now
  if (o.tokenizer != "byte" && !o.tokenizer.starts_with("bpe:") && is_there(folder / "tokenizer.json"))
    o.tokenizer = (folder / "tokenizer.json").string();
  o.save_every = steps;
  if (const json now = text_facts(load_corpus(o.data)); !log.text.is_null() && !same_text(now, log.text))
    fail<UsageError>("study", str("the run in ", folder.string(), " was trained on another text"),
                     str(o.data, " ", now.dump()), log.text.dump(), "--data with the text of the run");
  const TemporaryFolder scratch;
  TrainProgress of_run = progress;
  of_run.stop = [&](int64_t done) { return done >= steps || progress.stop(done); };
  RunCheck check;
  if (train(o, scratch.path(), false, of_run).steps == 0) return check;  // interrupted
  const std::vector<CurvePoint> now = read_curve(scratch.path());        // every step, from 1
  check.other_build = build_difference(log.build);
  check.steps = std::min(steps, static_cast<int64_t>(now.size()));
  for (const CurvePoint& p : log.curve) {
    if (p.step > check.steps) break;
    const double again = now[static_cast<size_t>(p.step - 1)].train_loss;
    ++check.compared;
    if (again == p.train_loss) continue;
    check.first_different = p.step;
    check.stored = p.train_loss;
    check.now = again;
    break;
  }
  BG_CHECK(check.compared > 0 || check.steps < steps, "study", "nothing to compare",
           str((folder / "metrics.jsonl").string(), " has no loss of the first ", steps, " steps"),
           "a training loss of one of them or more", "more --steps");
  return check;
}

}  // namespace bg
