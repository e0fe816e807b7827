// A run folder and its files: one writer, nothing cut before all is read, weights that belong to their configuration.
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "core/atomic_file.h"
#include "core/io/safetensors.h"
#include "core/read_file.h"
#include "models/checkpoint.h"
#include "models/run_folder.h"
#include "models/run_log.h"
#include "models/study.h"
#include "models/trainer.h"
#include "tests/catch.h"
#include "tests/match.h"
#include "tests/models/run_support.h"

using namespace bg;
using namespace bg::test;
namespace fs = std::filesystem;

namespace {

std::string bytes(const fs::path& path) { return read_file(path, FileKind::data); }

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "no error";
}

// What another program does when step `at` is done.
TrainProgress meanwhile(int64_t at, std::function<void()> act) {
  TrainProgress p;
  p.state = [at, act = std::move(act)](const TrainState& s) {
    if (s.step == at && !s.validating) act();
  };
  return p;
}

// A run of six steps whose validation comes each third step, with checkpoints each second.
TrainOptions short_run(uint64_t seed = 42) {
  TrainOptions o = small_run(6);
  o.save_every = 2;
  o.eval_every = 3;
  o.seed = seed;
  return o;
}

void edit_config(const fs::path& run, const std::function<void(nlohmann::json&)>& change) {
  nlohmann::json config = nlohmann::json::parse(bytes(run / "config.json"));
  change(config["options"]);
  write_file_atomically(run / "config.json", config.dump());
}

}  // namespace

TEST_CASE("a run that replaces another one in its folder is not touched by the forgotten process") {
  for (const int64_t at : {1, 2, 3, 5}) {
    Scratch run, alone;
    train(short_run(7), alone.path, false, {});
    std::string first;
    const std::string message = message_of([&] {
      train(short_run(), run.path, false, meanwhile(at, [&] {
              fs::remove_all(run.path);
              train(short_run(7), run.path, false, {});
            }));
    });
    CHECK_THAT(message, Contains("was removed, moved or replaced") && Contains(run.path.string()));
    for (const char* file : {"model.safetensors", "config.json", "checkpoints/best.safetensors"}) {
      INFO(file);
      const bool same = bytes(run.path / file) == bytes(alone.path / file);
      CHECK(same);
    }
    CHECK(read_run_log(run.path).steps() == 6);
  }
}

TEST_CASE("a run whose folder or log is removed or moved stops, and leaves no other folder") {
  const std::pair<const char*, std::function<void(const fs::path&, const fs::path&)>> acts[] = {
      {"removed", [](const fs::path& run, const fs::path&) { fs::remove_all(run); }},
      {"moved", [](const fs::path& run, const fs::path& to) { fs::rename(run, to); }},
  };
  for (const auto& [name, act] : acts)
    for (const int64_t at : {1, 2, 6}) {
      INFO(name << " at step " << at);
      Scratch run, moved;
      CHECK_THAT(
          message_of([&] { train(short_run(), run.path, false, meanwhile(at, [&] { act(run.path, moved.path); })); }),
          Contains("removed, moved or replaced"));
      CHECK(!fs::exists(run.path));
    }
  for (const bool replaced : {false, true}) {
    Scratch run;
    const fs::path log = run.path / "metrics.jsonl";
    CHECK_THAT(message_of([&] {
                 train(short_run(), run.path, false, meanwhile(3, [&] {
                         fs::remove(log);
                         if (replaced) write_file_atomically(log, "another's\n");
                       }));
               }),
               Contains("metrics.jsonl was removed, moved or replaced"));
    if (replaced) CHECK(bytes(log) == "another's\n");
  }
  const std::pair<const char*, std::function<void(const fs::path&)>> changes[] = {
      {"metrics.jsonl was cut or written to by another program: got 0 bytes",
       [](const fs::path& run) { fs::resize_file(run / "metrics.jsonl", 0); }},
      {"config.json was removed", [](const fs::path& run) { fs::remove(run / "config.json"); }},
  };
  for (const auto& [message, change] : changes) {
    Scratch run;
    CHECK_THAT(message_of([&, &change = change] {
                 train(short_run(), run.path, false, meanwhile(3, [&] { change(run.path); }));
               }),
               Contains(message));
    CHECK(!fs::exists(run.path / "model.safetensors"));
  }
}

TEST_CASE("what a resume needs and does not find stops it before anything is cut") {
  struct Loss {
    const char* what;
    std::function<void(const fs::path&)> act;
    const char* message;
  };
  const Loss losses[] = {
      {"no log", [](const fs::path& run) { fs::remove(run / "metrics.jsonl"); }, "the log of the run is missing"},
      {"a folder for a log",
       [](const fs::path& run) {
         fs::remove(run / "metrics.jsonl");
         fs::create_directory(run / "metrics.jsonl");
       },
       "metrics.jsonl: it is a folder"},
      {"a log without its middle",
       [](const fs::path& run) {
         std::string log = bytes(run / "metrics.jsonl");
         const size_t second = log.find('\n') + 1;
         log.erase(second, log.find('\n', second) + 1 - second);
         write_file_atomically(run / "metrics.jsonl", log);
       },
       "damaged"},
      {"an empty log", [](const fs::path& run) { write_file_atomically(run / "metrics.jsonl", ""); }, "steps 1 to 0"},
      {"no checkpoints", [](const fs::path& run) { fs::remove_all(run / "checkpoints"); }, "of the run are gone"},
      {"a file for checkpoints",
       [](const fs::path& run) {
         fs::remove_all(run / "checkpoints");
         write_file_atomically(run / "checkpoints", "");
       },
       "cannot read the folder"},
      {"a pipe for a checkpoint",
       [](const fs::path& run) {
         const fs::path last = run / "checkpoints" / "step-00000006.safetensors";
         fs::remove(last);
         mkfifo(last.c_str(), 0600);
       },
       "it is a pipe"},
      {"only damaged checkpoints",
       [](const fs::path& run) {
         for (const char* name : {"step-00000006.safetensors", "step-00000004.safetensors"})
           write_file_atomically(run / "checkpoints" / name, "x");
       },
       "all checkpoints of the run are damaged"},
      {"no config.json", [](const fs::path& run) { fs::remove(run / "config.json"); }, "without its config.json"},
  };
  for (const Loss& loss : losses) {
    INFO(loss.what);
    Scratch run;
    train(short_run(), run.path, false, {});
    loss.act(run.path);
    const bool has_log = fs::is_regular_file(run.path / "metrics.jsonl");
    const std::string log = has_log ? bytes(run.path / "metrics.jsonl") : "";
    const std::string weights = bytes(run.path / "model.safetensors");
    CHECK_THAT(message_of([&] { train(short_run(), run.path, true, {}); }), Contains(loss.message));
    CHECK(fs::is_regular_file(run.path / "metrics.jsonl") == has_log);
    if (has_log) CHECK(bytes(run.path / "metrics.jsonl") == log);
    CHECK(bytes(run.path / "model.safetensors") == weights);
  }
}

TEST_CASE("a resume without permission to read the checkpoints or the log changes nothing") {
  const bool root = geteuid() == 0;  // whom permissions do not bind, and who becomes a user whom they do
  const auto become = [root](uid_t user) { REQUIRE((!root || seteuid(user) == 0)); };
  constexpr uid_t kNobody = 65534;
  Scratch run;
  train(short_run(), run.path, false, {});
  const std::string log = bytes(run.path / "metrics.jsonl");
  for (const auto& entry : fs::recursive_directory_iterator(run.path)) fs::permissions(entry, fs::perms::all);
  for (const fs::path& folder : {run.path, run.path.parent_path()}) fs::permissions(folder, fs::perms::all);
  for (const char* locked : {"checkpoints", "metrics.jsonl", "checkpoints/step-00000006.safetensors"}) {
    INFO(locked);
    fs::permissions(run.path / locked, fs::perms::none);
    become(kNobody);
    const std::string message = message_of([&] { train(short_run(), run.path, true, {}); });
    become(0);
    fs::permissions(run.path / locked, fs::perms::all);
    CHECK_THAT(message, Contains("Permission denied") && Contains(locked));
    CHECK(bytes(run.path / "metrics.jsonl") == log);
  }
  CHECK(train(short_run(), run.path, true, {}).resumed_at == 6);
}

TEST_CASE("weights are used only with the configuration that they belong to") {
  Scratch run;
  train(short_run(), run.path, false, {});
  const std::string config = bytes(run.path / "config.json");
  edit_config(run.path, [](nlohmann::json& o) { o["model"]["heads"] = 4; });
  CHECK_THAT(message_of([&] { load_run(run.path); }),
             Contains("model.safetensors belongs to another configuration: got options.model.heads 4, expected 2"));
  CHECK_THAT(message_of([&] { train(run_options(run.path), run.path, true, {}); }),
             Contains("the checkpoint of step 6 belongs to another configuration"));
  fs::remove(run.path / "model.safetensors");
  CHECK_THAT(message_of([&] { load_run(run.path); }), Contains("best.safetensors belongs to another configuration"));
  fs::remove(run.path / "checkpoints" / "best.safetensors");
  CHECK_THAT(message_of([&] { load_run(run.path); }), Contains("belongs to another configuration"));

  write_file_atomically(run.path / "config.json", config);
  edit_config(run.path, [](nlohmann::json& o) { o["lr"] = 0.5; });  // the function is the same, the training is not
  load_run(run.path);
  CHECK_THAT(message_of([&] { train(run_options(run.path), run.path, true, {}); }), Contains("options.lr 0.5"));
}

TEST_CASE("weights of an older build, which say nothing of their configuration, load") {
  Scratch run;
  train(short_run(), run.path, false, {});
  TensorFile weights = read_safetensors(run.path / "model.safetensors");
  REQUIRE(weights.metadata.erase(kOwnerKey) == 1);
  write_safetensors(run.path / "model.safetensors", weights);
  load_run(run.path);
  const fs::path last = run.path / "checkpoints" / "step-00000006.safetensors";
  Checkpoint c = load_checkpoint(last);
  REQUIRE(c.meta.erase("run") == 1);
  save_checkpoint(last, c);
  CHECK(train(short_run(), run.path, true, {}).resumed_at == 6);
}

TEST_CASE("a text that is not where it was: the option that says where it is now") {
  Scratch run, text;
  fs::create_directories(text.path);
  const std::string data = (text.path / "t.txt").string();
  write_file_atomically(data, std::string(4000, 'a') + "b");
  TrainOptions o = short_run();
  o.data = data;
  train(o, run.path, false, {});
  fs::rename(data, data + ".moved");
  CHECK_THAT(message_of([&] { train(o, run.path, true, {}); }),
             Contains("is not where it was") && Contains(data) && Contains("--data with its place now"));
  fs::remove(run.path / "results.json");
  CHECK_THAT(message_of([&] { complete_results(run.path); }), Contains("--data with its place now"));
  o.data = data + ".moved";
  CHECK(train(o, run.path, true, {}).resumed_at == 6);
}

TEST_CASE("a study names a run that lost its config.json") {
  Scratch study;
  TrainOptions o = short_run(1);
  o.model.model = nn::AttentionKind::standard;
  train(o, study.path / "standard-s1", false, {});
  CHECK(read_study(study.path).rows.size() == 1);
  fs::remove(study.path / "standard-s1" / "config.json");
  CHECK_THROWS_WITH(read_study(study.path), Contains("no config.json") && Contains("standard-s1"));
}
