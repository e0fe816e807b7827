// Studies: what a model's name means, which width matches, grids that go on, tables, and runs that are repeated.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/atomic_file.h"
#include "core/folder_lock.h"
#include "core/format.h"
#include "models/builtin_text.h"
#include "models/footprint.h"
#include "models/gnuplot.h"
#include "models/study.h"
#include "models/study_plot.h"
#include "tests/catch.h"
#include "tests/file_size_limit.h"
#include "tests/match.h"
#include "tests/models/run_support.h"

using namespace bg;
using namespace bg::test;
namespace fs = std::filesystem;

namespace {

StudyOptions small_study(const fs::path& out) {
  StudyOptions o;
  o.train = small_run(6);
  o.train.model.d_model = 8;
  o.train.model.layers = 1;
  o.models = {"standard", "boosted-residual"};
  o.seeds = {1, 2};
  o.out = out;
  return o;
}

std::string content(const fs::path& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

// Replaces the first `from` of a file.
void edit(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = content(path);
  REQUIRE(text.find(from) != std::string::npos);
  text.replace(text.find(from), from.size(), to);
  write_file_atomically(path, text);
}

}  // namespace

TEST_CASE("a model's name says what differs from the base") {
  TransformerConfig base;
  base.kv = Kv::residual;
  base.gate = Gate::scalar;
  CHECK(study_model("standard", base) == base);
  CHECK(study_model("twicing", base).model == nn::AttentionKind::twicing);
  TransformerConfig c = study_model("boosted", base);
  CHECK((c.model == nn::AttentionKind::boosted && c.rounds == 2 && c.kv == Kv::residual && c.gate == Gate::scalar));
  c = study_model("post-boosted-m3-input-mlp", base);
  CHECK((c.norm == nn::NormPlace::post && c.rounds == 3 && c.kv == Kv::input && c.gate == Gate::mlp));
  CHECK(study_model("boosted-none", base).gate == Gate::none);
  CHECK(study_model("post-standard", base).norm == nn::NormPlace::post);
  for (const char* bad :
       {"", "standart", "standard-m2", "twicing-input", "boosted-", "boosted-m", "boosted-mx", "boosted-m02",
        "boosted-input-m3", "boosted-input-residual", "post", "post-", "boosted-linear-x"})
    CHECK_THROWS_WITH(study_model(bad, base), Contains("no such model") && Contains("wider"));
  CHECK_THROWS_AS(study_model("boosted-m0", base), UsageError);
}

TEST_CASE("the wider model: the paper's width, that of the preset mini, and other heads") {
  TransformerConfig paper;
  paper.vocab = 16384;
  const TransformerConfig wider = study_model("wider", paper);
  CHECK(wider.d_model == 288);
  CHECK(wider.model == nn::AttentionKind::standard);
  CHECK(parameter_count(wider) == 8789184);
  CHECK(parameter_count(study_model("boosted", paper)) == 8734208);
  TransformerConfig mini;
  mini.vocab = 4096;
  mini.d_model = 128;
  CHECK(study_model("wider", mini).d_model == 148);
  CHECK(study_model("wider-m3", mini).d_model > 148);
  CHECK(study_model("wider-m3", mini).rounds == mini.rounds);  // as the standard model keeps it
  CHECK(study_model("wider-scalar", mini).d_model < 148);
  for (const int64_t heads : {1, 2, 3, 6, 8, 12}) {
    TransformerConfig c = paper;
    c.d_model = 48;
    c.heads = heads;
    const TransformerConfig w = study_model("wider", c);
    CHECK(w.d_model % heads == 0);
    CHECK(w.d_model % 4 == 0);
    CHECK(parameter_count(w) >= parameter_count(study_model("boosted", c)));
    TransformerConfig narrower = w;  // one step of both 4 and the heads less is too narrow
    for (narrower.d_model -= 4; narrower.d_model % heads != 0;) narrower.d_model -= 4;
    CHECK(parameter_count(narrower) < parameter_count(study_model("boosted", c)));
  }
}

TEST_CASE("a study trains each model and seed, and an interrupted one ends with the same bytes") {
  Scratch whole, broken;
  CHECK(run_study(small_study(whole.path), {}));
  TrainProgress p;
  int stops = 0, calls = 0;
  p.stop = [&](int64_t step) { return step > 0 && ++calls % 700 == 0; };  // a validation has 625 batches
  while (!run_study(small_study(broken.path), p)) REQUIRE(++stops < 20);
  CHECK(stops > 2);
  const Study a = read_study(whole.path), b = read_study(broken.path);
  REQUIRE(a.rows.size() == 2);
  CHECK(a.rows[0].name == "standard");
  CHECK(a.rows[1].runs.size() == 2);
  CHECK(a.to_string() == b.to_string());
  CHECK_THAT(a.to_string(), Contains("| boosted-residual |") && Contains("+-"));
  for (const char* run : {"standard-s1", "boosted-residual-s2"})
    CHECK(content(whole.path / run / "model.safetensors") == content(broken.path / run / "model.safetensors"));
}

TEST_CASE("the figure of a study has each row, the curves' distance step by step, and where they end") {
  Scratch out;
  REQUIRE(run_study(small_study(out.path), {}));
  const Study study = read_study(out.path);
  const std::string program = study_plot(study);
  double mean = 0, loss = 0;
  for (const int seed : {0, 1}) {
    const double standard = study.rows[0].runs[seed].curve[2].train_loss,
                 boosted = study.rows[1].runs[seed].curve[2].train_loss;
    loss += boosted / 2;
    mean += (boosted - standard) / 2;
  }
  CHECK_THAT(program, Contains(formatted("\n3 %.6g\n", loss)));
  CHECK_THAT(program, Contains(formatted("\n3 %.6g\n", 100 * std::expm1(mean))));
  for (const StudyRow& row : study.rows) CHECK_THAT(program, Contains("\"" + row.name + ", 0.0"));
  if (std::system("command -v gnuplot >/dev/null 2>&1") != 0) return;
  const std::string svg = gnuplot(program);
  for (const char* part : {"<svg", "standard, 0.0", "boosted-residual, 0.0", "against the standard model", "</svg>"})
    CHECK_THAT(svg, Contains(part));

  const Study alone = read_study(out.path, {"boosted-residual"}, {1});  // nothing to compare it with
  CHECK_THAT(study_plot(alone), !Contains("against the standard model"));
  CHECK_THAT(gnuplot(study_plot(alone)), Contains("boosted-residual, 0.0"));
  CHECK_THROWS_WITH(study_plot(Study()), Contains("nothing to draw"));
}

TEST_CASE("a run that train made is a row of the study, and its own results are those of an older build") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  TrainOptions hand = o.train;
  hand.model.model = nn::AttentionKind::boosted;
  hand.model.kv = Kv::residual;
  hand.seed = 2;
  const fs::path run = study.path / "boosted-residual-s2";
  train(hand, run, false, {});
  const std::string results = content(run / "results.json");
  fs::remove(run / "results.json");
  const auto before = fs::last_write_time(run / "model.safetensors");
  CHECK(run_study(o, {}));
  CHECK(fs::last_write_time(run / "model.safetensors") == before);  // taken, not trained again
  nlohmann::json made = nlohmann::json::parse(results), found = nlohmann::json::parse(content(run / "results.json"));
  CHECK(made["peak_bytes"].get<int64_t>() > 0);
  CHECK(!found.contains("peak_bytes"));  // which cannot be known any more
  made.erase("peak_bytes");
  CHECK(made == found);
}

TEST_CASE("results: validation by last and best weights, test by the best, and a build without them") {
  Scratch text, run;
  fs::create_directories(text.path);
  const Corpus corpus = load_corpus("builtin:");
  write_file_atomically(text.path / "train.txt", corpus.train.substr(0, 20000));
  write_file_atomically(text.path / "valid.txt", corpus.valid.substr(0, 3000));
  write_file_atomically(text.path / "test.txt", corpus.valid.substr(3000, 3000));
  TrainOptions o = small_run(12);
  o.data = text.path.string();
  o.eval_every = 3;
  o.lr = 2;  // so large that the last weights are not the best
  const TrainResult t = train(o, run.path, false, {});
  const RunLog log = read_run_log(run.path);
  REQUIRE(log.results.has_value());
  const RunResults r = *log.results;
  REQUIRE(t.best_step < 12);
  CHECK(r.best_step == t.best_step);
  CHECK(r.valid_last.loss == t.val_loss);
  CHECK(r.valid_best.loss == t.best_val_loss);
  REQUIRE(r.test.has_value());
  CHECK(r.test->loss == t.test_loss);
  CHECK(r.test->bytes == 2999);  // all but the first
  CHECK(r.test->tokens == 2999);
  CHECK(r.counted());
  CHECK(r.steps == 12);
  CHECK(r.parameters == t.parameters);
  CHECK(r.step_seconds > 0);
  const std::string results = content(run.path / "results.json"), metrics = content(run.path / "metrics.jsonl");
  nlohmann::json bad = nlohmann::json::parse(results);
  for (const auto& [place, value] : std::vector<std::pair<std::string, nlohmann::json>>{{"/parameters", 0},
                                                                                        {"/steps", 13},
                                                                                        {"/steps", 11.5},
                                                                                        {"/best_step", 13},
                                                                                        {"/train_loss", nullptr},
                                                                                        {"/valid_last/loss", -3},
                                                                                        {"/valid_best/tokens", 0},
                                                                                        {"/test/bytes", -1},
                                                                                        {"/counts", "all"},
                                                                                        {"/step_seconds", "1"}}) {
    bad = nlohmann::json::parse(results);
    bad[nlohmann::json::json_pointer(place)] = value;
    write_file_atomically(run.path / "results.json", bad.dump());
    CHECK_THROWS_WITH(read_run_log(run.path), Contains("damaged") && Contains(run.path.string()));
  }
  write_file_atomically(run.path / "results.json", std::string(100'000, '['));
  CHECK_THROWS_WITH(read_run_log(run.path), Contains("results.json is nested too deeply"));
  fs::remove(run.path / "results.json");
  const std::string cut = metrics.substr(0, metrics.rfind('\n', metrics.size() - 2) + 1);
  for (const std::string& damaged : {std::string(), cut, cut + "{\"step\":12,\"train_loss\":3,\"val_loss\":null}\n"}) {
    write_file_atomically(run.path / "metrics.jsonl", damaged);
    CHECK_THROWS_WITH(complete_results(run.path), Contains("damaged") && Contains("metrics.jsonl"));
  }
  write_file_atomically(run.path / "metrics.jsonl", metrics);
  {
    const FileSizeLimit full(0);
    CHECK(complete_results(run.path).test->loss == r.test->loss);
  }
  CHECK(!fs::exists(run.path / "results.json"));
  const RunResults again = complete_results(run.path);
  CHECK(again.test->loss == r.test->loss);
  CHECK(again.valid_best.loss == r.valid_best.loss);
  CHECK(again.best_step == r.best_step);
  fs::remove(run.path / "model.safetensors");  // what a folder of logs has is enough
  CHECK(complete_results(run.path).test->loss == r.test->loss);
  fs::remove(run.path / "results.json");
  CHECK_THROWS_WITH(complete_results(run.path), Contains("not finished"));
}

TEST_CASE("results are written only where no other process is writing") {
  Scratch run;
  train(small_run(4), run.path, false, {});
  fs::remove(run.path / "results.json");
  {
    const FolderLock other(run.path);
    CHECK(complete_results(run.path).steps == 4);
    CHECK_FALSE(fs::exists(run.path / "results.json"));
  }
  complete_results(run.path);
  CHECK(fs::exists(run.path / "results.json"));
}

TEST_CASE("an evaluation for results ends before its next batch") {
  const TemporaryFolder texts;
  for (const char* name : {"train.txt", "valid.txt", "test.txt"})
    write_file_atomically(texts.path() / name, builtin_text(2000, name[1]));
  Scratch run;
  TrainOptions o = small_run(4);
  o.data = texts.path().string();
  train(o, run.path, false, {});
  fs::remove(run.path / "results.json");
  int asked = 0;
  CHECK_THROWS_AS(complete_results(run.path, {}, [&] { return ++asked == 2; }), Interrupted);
  CHECK(asked == 2);
  CHECK_FALSE(fs::exists(run.path / "results.json"));
}

TEST_CASE("a run whose config.json was edited is not shown with the figures of another one") {
  Scratch run;
  train(small_run(4), run.path, false, {});
  const std::string config = content(run.path / "config.json");
  const auto refusal = [&](const char* path, const nlohmann::json& value) {
    nlohmann::json edited = nlohmann::json::parse(config);
    edited[nlohmann::json::json_pointer(path)] = value;
    write_file_atomically(run.path / "config.json", edited.dump());
    std::string message = "accepted";
    try {
      read_run_log(run.path);
    } catch (const UsageError& e) {
      message = e.what();
    }
    return message;
  };
  CHECK(refusal("/options/data", "elsewhere.txt") == "accepted");
  CHECK_THAT(refusal("/options/lr", 0.5),
             Contains("belongs to another configuration: got options.lr 0.5, expected 0.01"));
  CHECK_THAT(refusal("/options/model/vocab", 300), Contains("config.json differ: got 300, expected 256"));
  for (const char* weights : {"model.safetensors", "checkpoints"}) fs::remove_all(run.path / weights);  // logs alone
  CHECK(refusal("/options/lr", 0.01) == "accepted");
  CHECK_THAT(refusal("/options/steps", 8),
             Contains("results.json belongs to another configuration: got 4 steps, expected 8"));
  CHECK_THAT(refusal("/options/model/layers", 3), Contains("parameters, expected"));
}

TEST_CASE("results that count the whole text are counted again, or their words and bytes are not known") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  o.models = {"standard"};
  o.seeds = {1};
  CHECK(run_study(o, {}));
  const fs::path run = study.path / "standard-s1";
  const std::string results = content(run / "results.json");
  const auto old = [&] {  // as older builds wrote it
    nlohmann::json j = nlohmann::json::parse(results);
    j.erase("counts");
    for (const char* text : {"valid_last", "valid_best"}) {
      j[text]["words"] = j[text]["words"].get<int64_t>() + 1000;
      j[text]["bytes"] = j[text]["bytes"].get<int64_t>() + 1000;
    }
    write_file_atomically(run / "results.json", j.dump());
  };
  const std::string table = read_study(study.path).to_string();
  old();
  CHECK(!read_run_log(run).results->counted());
  CHECK(read_study(study.path).to_string() == table);
  CHECK(nlohmann::json::parse(content(run / "results.json")) == nlohmann::json::parse(results));

  old();
  const fs::path other = study.folder.path() / "other";
  write_file_atomically(other, builtin_text(2000, 1));
  CHECK_THROWS_WITH(read_study(study.path, {}, {}, other.string()), Contains("was trained on another text"));
  CHECK_THROWS_WITH(read_study(study.path, {}, {}, "nowhere.txt"), Contains("nowhere.txt"));
  fs::remove(run / "tokenizer.json");
  const Study unknown = read_study(study.path);
  const RunResults& r = *unknown.rows[0].runs[0].results;
  CHECK(!r.counted());
  CHECK(!r.valid_last.word_ppl());
  CHECK(!r.valid_last.byte_ppl());
  CHECK(r.valid_last.loss == nlohmann::json::parse(results)["valid_last"]["loss"].get<double>());
  CHECK(unknown.uncounted == std::vector<std::string>{"standard-s1"});
  CHECK_THAT(unknown.to_string(), Contains("Not known a word and a byte: standard-s1"));
  for (const nlohmann::ordered_json& line : unknown.to_json())
    CHECK(line.dump().find("byte_perplexity") == std::string::npos);
}

TEST_CASE("a token cache that cannot be read is made again") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  o.models = {"standard"};
  o.seeds = {1};
  CHECK(run_study(o, {}));
  fs::remove_all(study.path / "shared");
  const fs::path cache = study.path / "standard-s1" / "cache" / "train.tokens";
  fs::remove(cache);
  fs::create_directories(cache);  // no file
  o.seeds = {1, 2};
  CHECK(run_study(o, {}));
  CHECK(read_study(study.path).rows[0].runs.size() == 2);
}

TEST_CASE("a study refuses rows of other options or another text before it trains") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  o.models = {"standard", "twicing"};
  o.seeds = {1};
  TrainOptions other = o.train;
  other.model.model = nn::AttentionKind::twicing;
  other.seed = 1;
  other.lr = 0.5;
  train(other, study.path / "twicing-s1", false, {});
  CHECK_THROWS_WITH(run_study(o, {}), Contains("twicing-s1") && Contains("another lr"));
  CHECK(!is_run(study.path / "standard-s1"));
  other = o.train;
  other.seed = 1;
  train(other, study.path / "boosted-s1", false, {});
  CHECK_THROWS_WITH(read_study(study.path), Contains("another lr"));
  o.seeds = {1, 1};
  CHECK_THROWS_WITH(run_study(o, {}), Contains("twice"));
  o.seeds = {};
  CHECK_THROWS_WITH(run_study(o, {}), Contains("--seeds"));
  CHECK_THROWS_WITH(read_study(study.path, {"standard", "standard"}), Contains("twice"));
  CHECK_THROWS_WITH(read_study(study.path, {"nonsense"}), Contains("no such model"));
  Scratch second;
  o = small_study(second.path);
  o.models = {"standard"};
  o.seeds = {1};
  CHECK(run_study(o, {}));
  o.train.tokenizer = "bpe:300";
  CHECK_THROWS_WITH(run_study(o, {}), Contains("another text or tokenizer"));
  fs::remove_all(second.path / "shared");
  CHECK_THROWS_WITH(run_study(o, {}), Contains("standard-s1") && Contains("another --tokenizer"));
  fs::remove_all(second.path / "standard-s1");  // whose tokenizer was not taken for another
  CHECK(run_study(o, {}));
  CHECK(read_run_log(second.path / "standard-s1").options.model.vocab == 300);
}

TEST_CASE("runs of another machine go on, and what differs is said") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  o.models = {"standard"};
  o.seeds = {1};
  TrainProgress p;
  int calls = 0;
  p.stop = [&](int64_t step) { return step > 0 && ++calls == 4; };
  CHECK(!run_study(o, p));
  const fs::path config = study.path / "standard-s1" / "config.json";
  edit(config, build_facts()["simd"].get<std::string>(), "ELSEWHERE");
  std::string said;
  p.stop = [](int64_t) { return false; };
  p.say = [&](const std::string& text) { said += text + "\n"; };
  CHECK(run_study(o, p));
  CHECK_THAT(said, Contains("standard-s1") && Contains("SIMD target ELSEWHERE, now") && !Contains("BLAS core"));
  CHECK_THAT(said, Contains("resumed at step 4"));
  nlohmann::json older = build_facts();
  older.erase("simd");  // as before it was recorded
  CHECK(build_difference(older).empty());
  older["blas"] = "another";
  CHECK_THAT(build_difference(older), Contains("BLAS core another, now "));
}

TEST_CASE("a text is known by its three parts, of which an older build did not record the test text") {
  const std::string a = "some text", b = "other text";
  const auto facts = [](std::string_view train, std::string_view valid, std::string_view test) {
    Corpus corpus;
    corpus.train = train, corpus.valid = valid, corpus.test = test;
    return text_facts(corpus);
  };
  const nlohmann::json known = facts(a, b, a);
  CHECK(same_text(known, facts(a, b, a)));
  CHECK(!same_text(known, facts(a, b, b)));
  CHECK(!same_text(known, facts(a, b, "")));
  CHECK(!same_text(known, facts(a, a, a)));
  CHECK(!same_text(known, facts(b, b, a)));
  nlohmann::json older = known;
  older.erase("test_bytes");
  older.erase("test_crc32");
  CHECK(same_text(older, known));
  CHECK(same_text(facts(a, b, b), older));
  CHECK(!same_text(older, facts(b, b, a)));
}

TEST_CASE("the table: mean and spread over seeds, the paired difference, what is missing") {
  Scratch study;
  auto row = [&](const std::string& model, uint64_t seed, double valid_ppl, double test_ppl) {
    const fs::path run = study.path / str(model, "-s", seed);
    fs::create_directories(run);
    TrainOptions o = small_run(6);
    o.seed = seed;
    o.model = study_model(model, o.model);
    write_file_atomically(run / "config.json", nlohmann::json{{"options", o.to_json()}}.dump());
    RunResults r;
    r.parameters = static_cast<int64_t>(parameter_count(o.model));
    r.steps = r.best_step = 6;
    write_file_atomically(run / "metrics.jsonl", "{\"step\":6,\"train_loss\":3}\n");
    r.valid_last.loss = r.valid_best.loss = std::log(valid_ppl);
    r.valid_last.tokens = r.valid_best.tokens = 10;
    r.valid_last.words = r.valid_best.words = 5;
    r.valid_last.bytes = r.valid_best.bytes = 20;
    r.test = r.valid_last;
    r.test->loss = std::log(test_ppl);
    write_results(run, r);
  };
  const auto parameters = [](const char* model) {
    return formatted("%10.0f", parameter_count(study_model(model, small_run(6).model)));
  };
  row("standard", 1, 10, 20);
  row("standard", 2, 12, 40);
  row("boosted-input", 1, 9, 18);
  row("boosted-input", 2, 11, 38);
  fs::create_directories(study.path / "notes-s1");  // no model's name
  StudyTiming timing;
  timing.threads = 3;
  timing.models["standard"] = {study_model("standard", small_run(6).model), {0.5, 100'000'000}};
  timing.models["boosted-input"] = {study_model("boosted-input", small_run(6).model), {0.625, 123'000'000}};
  timing.save(study.path);
  const Study s = read_study(study.path);
  const std::string table = s.to_string();
  CHECK_THAT(table, Contains("| standard      | " + parameters("standard") +
                             " |   1 2 |  11.00 +- 1.41 | 30.00 +- 14.14 |              - |"));
  CHECK_THAT(table, Contains("| boosted-input | " + parameters("boosted-input") +
                             " |   1 2 |  10.00 +- 1.41 | 28.00 +- 14.14 |  -7.50 +- 3.54 |"));
  CHECK_THAT(table, Contains("0.625 |          1.25 |        123 |") && Contains("3 threads"));
  CHECK_THAT(table, Contains("3.3132"));  // a byte: (sqrt(10) + sqrt(12)) / 2
  const auto json = s.to_json();
  REQUIRE(json.size() == 6);
  CHECK(close(json[1]["difference_percent"]["mean"].get<double>(), -7.5, 1e-12));
  CHECK(json[1]["step_ratio"].get<double>() == 1.25);
  CHECK(json[5]["kind"] == "run");
  CHECK(close(json[5]["test"]["perplexity"].get<double>(), 38, 1e-12));
  const Study asked = read_study(study.path, {"standard", "twicing"}, {1});
  CHECK(asked.rows.size() == 1);
  CHECK(asked.rows[0].runs.size() == 1);
  CHECK_THAT(asked.to_string(), Contains("Not finished: twicing-s1 (not begun)"));
  timing.models["standard"].first.layers = 7;  // measured of another model
  timing.save(study.path);
  CHECK(!read_study(study.path).rows[0].timing.has_value());
  timing.models["standard"].second.step_seconds = 0;
  timing.save(study.path);
  CHECK_THROWS_WITH(read_study(study.path), Contains("damaged timing.json") && Contains("impossible times"));
}

TEST_CASE("runs of another shape are refused before the training, and a width that the rule does not give") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  o.models = {"standard", "wider", "boosted-input"};
  o.seeds = {1};
  REQUIRE(run_study(o, {}));
  StudyOptions more = o;
  more.models = {"twicing"};
  auto refused = [&](const char* option, auto& value, auto other) {
    const auto before = value;
    value = other;
    CHECK_THROWS_WITH(run_study(more, {}), Contains("twicing-s1") && Contains(str("another ", option, " than")));
    value = before;
    CHECK(!fs::exists(study.path / "twicing-s1"));
  };
  TransformerConfig& m = more.train.model;
  refused("d_model", m.d_model, int64_t{16});
  refused("layers", m.layers, int64_t{2});
  refused("heads", m.heads, int64_t{1});
  refused("seq_len", m.seq_len, m.seq_len / 2);
  refused("dropout", m.dropout, 0.25);
  refused("lr", more.train.lr, 0.5);
  refused("batch_size", more.train.batch_size, more.train.batch_size + 1);
  CHECK(run_study(more, {}));
  CHECK(read_study(study.path).rows.size() == 4);
  more.models = {"standard"};  // the same name with another seed is the same model
  more.seeds = {2};
  m.norm = nn::NormPlace::post;
  CHECK_THROWS_WITH(run_study(more, {}), Contains("standard-s2 is of another model than standard-s1"));
  CHECK(!fs::exists(study.path / "standard-s2"));

  auto renamed = [&](const char* from, const char* to, const char* message) {  // a folder with another's name
    Scratch other;
    fs::create_directories(other.path);
    fs::copy(study.path / from, other.path / to, fs::copy_options::recursive);
    fs::copy(study.path / "boosted-input-s1", other.path / "boosted-input-s1", fs::copy_options::recursive);
    CHECK_THROWS_WITH(read_study(other.path), Contains(message));
  };
  renamed("standard-s1", "wider-s1", "wider-s1 has another width than the rule");
  renamed("wider-s1", "standard-s1", "has another d_model than");
}

TEST_CASE("a difference over fewer seeds than the row has says so") {
  Scratch study;
  REQUIRE(run_study(small_study(study.path), {}));
  CHECK_THAT(read_study(study.path).to_string(), !Contains("seeds)"));
  fs::remove_all(study.path / "standard-s1");
  CHECK_THAT(read_study(study.path).to_string(), Contains(" (1 of 2 seeds) |"));
}

TEST_CASE("a run that fails does not keep the others from being trained") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  o.seeds = {1};
  REQUIRE(run_study(o, {}));
  fs::remove(study.path / "standard-s1" / "model.safetensors");
  fs::remove(study.path / "standard-s1" / "results.json");
  edit(study.path / "standard-s1" / "tokenizer.json", "{", "");
  o.seeds = {1, 2};
  CHECK_THROWS_WITH(run_study(o, {}), Contains("1 of 4 runs failed") && Contains("standard-s1"));
  CHECK(read_run_log(study.path / "standard-s2").finished);
}

TEST_CASE("a run folder that was renamed does not pass for another seed or model") {
  Scratch study;
  StudyOptions o = small_study(study.path);
  o.models = {"standard", "wider", "boosted-input"};
  o.seeds = {1};
  CHECK(run_study(o, {}));
  CHECK(read_study(study.path).rows.size() == 3);
  fs::rename(study.path / "standard-s1", study.path / "standard-s2");
  CHECK_THROWS_WITH(read_study(study.path), Contains("standard-s2 with seed 1") && Contains("what its name says"));
  fs::remove_all(study.path / "standard-s2");
  for (const char* other : {"boosted-residual-s1", "wider-s1", "boosted-m3-s1"}) {
    fs::remove_all(study.path / "wider-s1");
    fs::rename(study.path / "boosted-input-s1", study.path / other);
    CHECK_THROWS_WITH(read_study(study.path), Contains(other) && Contains("what its name says"));
    fs::rename(study.path / other, study.path / "boosted-input-s1");
  }
}

TEST_CASE("the first steps of a run are repeated to the bit, and a difference is found") {
  Scratch run;
  train(small_run(10), run.path, false, {});
  RunCheck c = check_run(run.path, 4, {}, {});
  CHECK(c.compared == 4);
  CHECK(c.first_different == 0);
  CHECK(c.other_build.empty());
  CHECK(check_run(run.path, 200, {}, {}).compared == 10);
  const double third = read_curve(run.path)[2].train_loss;
  edit(run.path / "metrics.jsonl", nlohmann::json(third).dump(), nlohmann::json(std::nextafter(third, 0)).dump());
  c = check_run(run.path, 6, {}, {});
  CHECK(c.first_different == 3);
  CHECK(c.now == third);
  CHECK(c.compared == 3);
  Scratch thinned;  // as logs are kept: every fourth step, no weights
  fs::create_directories(thinned.path);
  fs::copy_file(run.path / "config.json", thinned.path / "config.json");
  std::ifstream in(run.path / "metrics.jsonl");
  std::string kept, line;
  for (int step = 1; std::getline(in, line); ++step)
    if (step % 4 == 1) kept += line + "\n";
  write_file_atomically(thinned.path / "metrics.jsonl", kept);
  c = check_run(thinned.path, 6, {}, {});
  CHECK(c.steps == 6);
  CHECK(c.compared == 2);
  CHECK(c.first_different == 0);
  CHECK_THROWS_AS(check_run(run.path, 0, {}, {}), UsageError);
  const fs::path other = thinned.path / "other.txt";  // would differ from the first step on
  write_file_atomically(other, std::string(4000, 'x'));
  CHECK_THROWS_WITH(check_run(run.path, 4, other.string(), {}), Contains("trained on another text"));
  CHECK_THROWS_WITH(check_run(run.path, 4, (thinned.path / "lost").string(), {}), Contains("not where it was"));
  write_file_atomically(thinned.path / "metrics.jsonl", "{\"step\":10,\"train_loss\":3}\n");
  CHECK_THROWS_WITH(check_run(thinned.path, 6, {}, {}), Contains("nothing to compare"));

  Scratch from_file;  // whose tokenizer's file is gone since
  TrainOptions o = small_run(4);
  o.tokenizer = (from_file.path / "made.json").string();
  fs::create_directories(from_file.path);
  fs::copy_file(run.path / "tokenizer.json", o.tokenizer);
  train(o, from_file.path / "run", false, {});
  fs::remove(o.tokenizer);
  CHECK(check_run(from_file.path / "run", 4, {}, {}).compared == 4);
}
