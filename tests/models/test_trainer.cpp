// Training: the same bits for any thread count and across interruptions; what is refused; what a failure leaves behind.
#include <filesystem>
#include <fstream>

#include "core/atomic_file.h"
#include "core/io/safetensors.h"
#include "core/tensor_ops.h"
#include "models/builtin_text.h"
#include "models/checkpoint.h"
#include "models/run_log.h"
#include "models/trainer.h"
#include "tests/catch.h"
#include "tests/match.h"
#include "tests/models/run_support.h"

using namespace bg;
using namespace bg::test;
namespace fs = std::filesystem;

namespace {

struct Stop {};  // thrown out of a running training: an interruption at a known step

TrainProgress stopping_at(int64_t step) {
  TrainProgress p;
  p.state = [step](const TrainState& s) {
    if (s.step == step) throw Stop();
  };
  return p;
}

std::vector<double> losses(const fs::path& run) {
  std::vector<double> out;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) out.push_back(nlohmann::json::parse(line)["train_loss"]);
  return out;
}

// What metrics.jsonl says of the steps, but for their speed.
std::vector<nlohmann::json> log_of(const fs::path& run) {
  std::vector<nlohmann::json> out;
  std::ifstream in(run / "metrics.jsonl");
  for (std::string line; std::getline(in, line);) {
    out.push_back(nlohmann::json::parse(line));
    CHECK(out.back().erase("tokens_per_s") == 1);
  }
  return out;
}

nlohmann::json results_of(const fs::path& run) {
  nlohmann::json results = nlohmann::json::parse(std::ifstream(run / "results.json"));
  CHECK(results.erase("step_seconds") == 1);
  CHECK(results.erase("peak_bytes") == 1);
  return results;
}

bool same_weights(const fs::path& a, const fs::path& b) {
  const auto x = read_safetensors(a / "model.safetensors").tensors,
             y = read_safetensors(b / "model.safetensors").tensors;
  if (x.size() != y.size() || x.empty()) return false;
  for (const auto& [name, t] : x)
    if (num::max_abs(num::sub(t, y.at(name))) != 0) return false;
  return true;
}

}  // namespace

TEST_CASE("[R30] 50 losses and the final weights are the same for 1, 2 and 4 threads, dropout on") {
  Scratch runs[3];
  TrainOptions o = small_run(50);  // large enough that every kernel cuts its work into chunks
  o.model.d_model = 64;
  o.model.seq_len = 32;
  o.batch_size = 8;
  int i = 0;
  for (int threads : {1, 2, 4}) {
    set_num_threads(threads);
    reset_distinct_workers();
    train(o, runs[i].path, false, {});
    CHECK(distinct_workers() == threads);
    ++i;
  }
  set_num_threads(2);
  CHECK(losses(runs[0].path).size() == 50);
  CHECK(losses(runs[0].path) == losses(runs[1].path));
  CHECK(losses(runs[0].path) == losses(runs[2].path));
  CHECK(same_weights(runs[0].path, runs[1].path));
  CHECK(same_weights(runs[0].path, runs[2].path));
}

TEST_CASE("[R36] interrupted runs end with the bits of an unbroken one") {
  Scratch whole, broken;
  train(small_run(14), whole.path, false, {});
  CHECK_THROWS_AS(train(small_run(14), broken.path, false, stopping_at(3)), Stop);  // before the first checkpoint
  std::string said;
  TrainProgress p = stopping_at(10);
  p.say = [&](const std::string& text) { said += text + "\n"; };
  CHECK_THROWS_AS(train(small_run(14), broken.path, true, p), Stop);
  CHECK_THAT(said, Contains("starting at step 0"));
  const TrainResult r = train(small_run(14), broken.path, true, {});
  CHECK(r.resumed_at == 8);
  CHECK(losses(whole.path) == losses(broken.path));
  CHECK(same_weights(whole.path, broken.path));
}

TEST_CASE(
    "an interrupted validation or test ends before its next batch, and, resumed, the run has the bits of an unbroken "
    "one") {
  const TemporaryFolder texts;
  for (const char* name : {"train.txt", "valid.txt", "test.txt"})
    write_file_atomically(texts.path() / name, builtin_text(2000, name[1]));
  TrainOptions o = small_run(14);
  o.data = texts.path().string();
  o.eval_every = 5;
  o.save_every = 1000;
  Scratch whole;
  train(o, whole.path, false, {});
  REQUIRE(log_of(whole.path).size() == 14);

  const auto [step, in_test] =
      GENERATE(std::pair(5, false), std::pair(10, false), std::pair(14, false), std::pair(14, true));
  CAPTURE(step, in_test);
  Scratch broken;
  bool evaluating = false;
  int asked = 0;
  TrainProgress p;
  p.state = [&](const TrainState& s) { evaluating = s.step == step && s.validating != in_test; };
  p.stop = [&](int64_t) { return evaluating && ++asked == 2; };
  TrainResult r = train(o, broken.path, false, p);
  CHECK(r.interrupted);
  CHECK(r.steps == step);
  CHECK(asked == 2);
  CHECK(log_of(broken.path).size() == static_cast<size_t>(step));
  CHECK(log_of(broken.path).back().contains("val_loss") == in_test);
  CHECK_FALSE(read_run_log(broken.path).finished);

  p = {};  // again, in what is done again; and ended there in another way
  p.stop = [](int64_t steps) { return steps > 0; };
  CHECK(train(o, broken.path, true, p).interrupted);
  p.stop = [](int64_t steps) { return steps > 0 ? throw Stop() : false; };
  CHECK_THROWS_AS(train(o, broken.path, true, p), Stop);
  CHECK(log_of(broken.path).size() == static_cast<size_t>(step));
  p.stop = [&](int64_t steps) { return steps > step ? throw Stop() : false; };  // once it is done
  if (step < 14) CHECK_THROWS_AS(train(o, broken.path, true, p), Stop);

  r = train(o, broken.path, true, {});
  CHECK_FALSE(r.interrupted);
  CHECK(r.resumed_at == step);
  CHECK(log_of(broken.path) == log_of(whole.path));
  CHECK(results_of(broken.path) == results_of(whole.path));
  CHECK(same_weights(whole.path, broken.path));
  const nlohmann::json done = log_of(broken.path);
  train(o, broken.path, true, {});
  CHECK(nlohmann::json(log_of(broken.path)) == done);
}

TEST_CASE("a run of a version that decayed every parameter and had one count of steps goes on with the same bits") {
  Scratch whole, broken, matrices;
  TrainOptions o = small_run(14);
  CHECK(o.decay == Decay::matrices);
  o.weight_decay = 0.5;  // at warm-up rates 0.01 alone is lost in f32
  train(o, matrices.path, false, {});
  o.decay = Decay::all;
  train(o, whole.path, false, {});
  CHECK_FALSE(same_weights(whole.path, matrices.path));
  CHECK_THROWS_AS(train(o, broken.path, false, stopping_at(10)), Stop);

  const fs::path file = broken.path / "config.json", last = broken.path / "checkpoints" / "step-00000008.safetensors";
  nlohmann::json config = nlohmann::json::parse(std::ifstream(file));
  CHECK(config["options"]["decay"] == "all");
  config["options"].erase("decay");
  write_file_atomically(file, config.dump());
  Checkpoint c = load_checkpoint(last);
  CHECK(std::erase_if(c.optimizer, [](const auto& entry) { return entry.first.starts_with("steps."); }) > 30);
  save_checkpoint(last, c);

  const TrainOptions old = run_options(broken.path);
  CHECK(old.decay == Decay::all);
  o.decay = Decay::matrices;
  CHECK_THROWS_WITH(train(o, broken.path, true, {}),
                    Contains("was started with another --decay: got matrices, expected all. Try: --decay all, or"));
  CHECK(train(old, broken.path, true, {}).resumed_at == 8);
  CHECK(losses(whole.path) == losses(broken.path));
  CHECK(same_weights(whole.path, broken.path));
}

TEST_CASE("a damaged last checkpoint is named and the one before is used") {
  for (bool truncated : {true, false}) {
    Scratch whole, broken;
    train(small_run(14), whole.path, false, {});
    CHECK_THROWS_AS(train(small_run(14), broken.path, false, stopping_at(9)), Stop);
    const fs::path last = broken.path / "checkpoints" / "step-00000008.safetensors";
    if (truncated) {
      fs::resize_file(last, fs::file_size(last) / 2);
    } else {  // one flipped bit in the data
      std::fstream f(last, std::ios::in | std::ios::out | std::ios::binary);
      f.seekg(-100, std::ios::end);
      const char c = static_cast<char>(f.get() ^ 4);
      f.seekp(-100, std::ios::end);
      f.put(c);
    }
    std::string said;
    TrainProgress p;
    p.say = [&](const std::string& text) { said += text + "\n"; };
    CHECK(train(small_run(14), broken.path, true, p).resumed_at == 4);
    CHECK_THAT(said, Contains("step-00000008.safetensors"));
    CHECK(same_weights(whole.path, broken.path));
  }
}

TEST_CASE("a loss that is not finite stops training with its step and keeps the last checkpoint") {
  Scratch run;
  TrainOptions o = small_run(40);
  o.lr = 1e30;
  o.warmup = 8;
  o.schedule = Schedule::Kind::constant;
  o.save_every = 1;
  std::string message;
  try {
    train(o, run.path, false, {});
  } catch (const Error& e) {
    message = e.what();
  }
  CHECK_THAT(message, Contains("not finite") || Contains("NaN") || Contains("infinit"));
  CHECK_THAT(message, Contains("at step "));
  const auto kept = CheckpointFolder(run.path / "checkpoints").newest([](const std::string&) {});
  REQUIRE(kept.has_value());
  for (const auto& [path, t] : kept->model) CHECK(num::first_non_finite(t) < 0);
}

TEST_CASE("a run is not overwritten, and resumed only with its own options and text") {
  Scratch run;
  train(small_run(4), run.path, false, {});
  CHECK_THROWS_WITH(train(small_run(4), run.path, false, {}), Contains("already holds a run") && Contains("--resume"));
  TrainOptions other = small_run(4);
  other.lr = 0.5;
  CHECK_THROWS_WITH(train(other, run.path, true, {}), Contains("another --lr: got 0.5, expected 0.01. Try: --lr 0.01"));
  other = small_run(4);
  other.model.d_model = 32;
  CHECK_THROWS_WITH(train(other, run.path, true, {}), Contains("another --d-model"));
  Scratch text;
  fs::create_directories(text.path);
  write_file_atomically(text.path / "t.txt", std::string(4000, 'a') + "b");
  other = small_run(4);
  other.data = (text.path / "t.txt").string();
  CHECK_THROWS_WITH(train(other, run.path, true, {}), Contains("another text"));
}

TEST_CASE("a checkpoint of another shape, a folder that is no run, a short text: one clear sentence") {
  Scratch a, b, text;
  train(small_run(4), a.path, false, {});
  TrainOptions other = small_run(8);
  other.model.d_model = 32;
  CHECK_THROWS_AS(train(other, b.path, false, stopping_at(5)), Stop);
  fs::copy_file(a.path / "checkpoints" / "step-00000004.safetensors",
                b.path / "checkpoints" / "step-00000006.safetensors");
  CHECK_THROWS_WITH(train(other, b.path, true, {}), Contains("step 4"));
  CHECK_THROWS_WITH(load_run(text.path), Contains("not a run folder"));
  fs::create_directories(text.path);
  write_file_atomically(text.path / "t.txt", "too short");
  other = small_run(4);
  other.data = (text.path / "t.txt").string();
  Scratch c;
  CHECK_THROWS_AS(train(other, c.path, false, {}), Error);
  CHECK(!is_run(c.path / "x"));
}

TEST_CASE("a finished run loads, evaluates and resumes to nothing") {
  Scratch run;
  const TrainResult r = train(small_run(12), run.path, false, {});
  CHECK(r.best_step == 12);
  Run loaded = load_run(run.path);
  CHECK(!loaded.model->training());
  CHECK_THAT(loaded.weights, Contains("model.safetensors"));
  CHECK(train(small_run(12), run.path, true, {}).resumed_at == 12);
  for (const auto& entry : fs::recursive_directory_iterator(run.path))
    CHECK(entry.path().string().find(".tmp-") == std::string::npos);
}

TEST_CASE("damaged best weights are named, and a finished run reports its losses again") {
  Scratch run;
  const TrainResult r = train(small_run(12), run.path, false, {});
  fs::resize_file(run.path / "checkpoints" / "best.safetensors", 100);
  std::string said;
  TrainProgress p;
  p.say = [&](const std::string& text) { said += text + "\n"; };
  const TrainResult again = train(small_run(12), run.path, true, p);
  CHECK_THAT(said, Contains("best.safetensors"));
  CHECK(again.train_loss == r.train_loss);
  CHECK(again.val_loss == r.val_loss);
}

TEST_CASE("what is refused leaves no run behind, and what is not an option is no option") {
  Scratch run;
  TrainOptions o = small_run(4);
  o.epochs = 1;
  o.steps = 0;
  o.warmup = 1'000'000'000;  // known to be too long once the text is read
  CHECK_THROWS_AS(train(o, run.path, false, {}), UsageError);
  CHECK(!is_run(run.path));
  nlohmann::json j = small_run(4).to_json();
  j["steps"] = 4.5;
  CHECK_THROWS_WITH(TrainOptions::from_json(j), Contains("whole number"));
  j = small_run(4).to_json();
  j["seed"] = -1;
  CHECK_THROWS_WITH(TrainOptions::from_json(j), Contains("seed"));
}

TEST_CASE("a second process in the same folder, and a tokenizer of another run, are refused") {
  Scratch run;
  TrainProgress p;
  std::string message;
  p.state = [&](const TrainState&) {
    try {
      train(small_run(4), run.path, true, {});
    } catch (const Error& e) {
      message = e.what();
    }
  };
  train(small_run(4), run.path, false, p);
  CHECK_THAT(message, Contains("another process"));
  make_tokenizer("bpe:300", "the text of the tokens, the texts of the token")->save(run.path / "tokenizer.json");
  CHECK_THROWS_WITH(load_run(run.path), Contains("not the tokenizer of this run"));
  CHECK_THROWS_WITH(train(small_run(4), run.path, true, {}), Contains("not the tokenizer of this run"));
}

TEST_CASE("a vocabulary that was edited is config.json's fault, and what a folder of results lacks is named") {
  Scratch run;
  train(small_run(4), run.path, false, {});
  const nlohmann::json config = nlohmann::json::parse(std::ifstream(run.path / "config.json"));
  for (const char* path : {"/tokenizer/vocab", "/options/model/vocab"}) {
    nlohmann::json edited = config;
    edited[nlohmann::json::json_pointer(path)] = 999;
    write_file_atomically(run.path / "config.json", edited.dump());
    CHECK_THROWS_WITH(load_run(run.path),
                      Contains("the vocabulary in " + (run.path / "config.json").string() +
                               " was changed: got 999, expected 256, as in tokenizer.json. Try: the config.json"));
  }
  write_file_atomically(run.path / "config.json", config.dump());
  for (const char* part : {"model.safetensors", "checkpoints"}) fs::remove_all(run.path / part);
  CHECK_THROWS_WITH(load_run(run.path), Contains("the run has no weights") && Contains("Try: a copy of the whole run"));
  fs::remove(run.path / "tokenizer.json");
  CHECK_THROWS_WITH(load_run(run.path),
                    Contains("the run has no ") && Contains("tokenizer.json. Try: a copy of the whole"));
}

TEST_CASE("a checkpoint whose metadata are wrong is named, not believed") {
  Scratch run;
  train(small_run(4), run.path, false, {});
  const fs::path file = run.path / "checkpoints" / "step-00000004.safetensors";
  Checkpoint c = load_checkpoint(file);
  for (const char* meta : {R"({"step": 4})", R"({"step": 4, "best_step": "x"})", R"({"step": -4, "best_step": 0})",
                           R"({"step": 99, "best_step": 0})"}) {
    c.meta = nlohmann::json::parse(meta);
    save_checkpoint(file, c);
    CHECK_THROWS_WITH(train(small_run(4), run.path, true, {}), Contains("[checkpoint]"));
  }
}
