// A training on a disk that fails: each system call that changes a file fails once. Each time there is one clear
// sentence, nothing is half-written, and a resume ends with the bits of a training that nothing disturbed.
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

#include "core/atomic_file.h"
#include "core/file_calls.h"
#include "core/read_file.h"
#include "models/study.h"
#include "models/trainer.h"
#include "tests/catch.h"
#include "tests/match.h"
#include "tests/models/run_support.h"

using namespace bg;
using namespace bg::test;
using nlohmann::json;
namespace fs = std::filesystem;

namespace {

// Where flushing costs nothing, if there is such a place.
struct Disk {
  TemporaryFolder folder{access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ""};
  fs::path path = folder.path();
  ~Disk() { file_calls::plant({}); }
};

TrainOptions tiny_run(const fs::path& disk) {
  TrainOptions o = small_run(5);
  o.data = (disk / "text").string();
  o.model.d_model = 8;
  o.model.layers = 1;
  o.model.seq_len = 8;
  o.batch_size = 2;
  o.save_every = 2;
  o.eval_every = 2;
  std::string text;
  for (int i = 0; i < 60; ++i) text += str("line ", i * i, " of a text\n");
  write_file_atomically(o.data, text);
  return o;
}

json without(json j, std::initializer_list<const char*> keys) {
  for (const char* key : keys) j.erase(key);
  return j;
}

// All that a run leaves, without what depends on the clock.
std::string outcome(const fs::path& run) {
  std::string all = read_file(run / "model.safetensors", FileKind::data);
  for (const char* name :
       {"config.json", "tokenizer.json", "cache/train.tokens", "cache/valid.tokens", "checkpoints/best.safetensors"})
    all += read_file(run / name, FileKind::data);
  const json results = json::parse(read_file(run / "results.json", FileKind::settings));
  all += without(results, {"step_seconds", "peak_bytes"}).dump();
  std::istringstream log(read_file(run / "metrics.jsonl", FileKind::log));
  for (std::string line; std::getline(log, line);) all += without(json::parse(line), {"tokens_per_s"}).dump() + "\n";
  return all;
}

std::string train_with(const TrainOptions& o, const fs::path& run, std::optional<file_calls::Fault> fault) {
  file_calls::plant(fault);
  std::string message;
  try {
    train(o, run, false, {});
  } catch (const Error& e) {
    message = e.what();
  }
  return message;
}

void check_no_temporaries(const fs::path& folder) {
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.path().string().find(".tmp-") != std::string::npos) FAIL(entry.path().string());
}

}  // namespace

TEST_CASE("each system call of a training fails once: one sentence, and a resume with the same bits") {
  const Disk disk;
  const TrainOptions o = tiny_run(disk.path);
  const fs::path whole = disk.path / "whole", broken = disk.path / "broken";
  REQUIRE(train_with(o, whole, {}).empty());
  const int64_t calls = file_calls::count();
  const std::string expected = outcome(whole);
  CHECK(calls > 80);  // three checkpoints, three validations, tokenizer, caches, log, weights, results
  struct Kind {
    int error;
    bool lasting;
  };
  for (const Kind& kind : {Kind{ENOSPC, false}, Kind{EIO, false}, Kind{ENOSPC, true}, Kind{0, false}})
    for (int64_t at = 1; at <= calls; ++at) {
      INFO("call " << at << " of " << calls << ", error " << kind.error << (kind.lasting ? ", lasting" : ""));
      fs::remove_all(broken);
      const std::string message =
          train_with(o, broken, file_calls::Fault{.at = at, .error = kind.error, .lasting = kind.lasting});
      file_calls::plant({});
      INFO(message);
      if (kind.error == 0) {  // fewer bytes than asked for are no failure
        CHECK(message.empty());
      } else {
        CHECK_THAT(message, Contains("[file] cannot ") && Contains(std::strerror(kind.error)));
        CHECK_THAT(message, Contains(broken.string()));
        if (fs::exists(broken)) check_no_temporaries(broken);
        train(o, broken, true, {});
      }
      if (outcome(broken) != expected) FAIL("a resumed run ends otherwise");
    }
}

TEST_CASE("a study on a disk that fails goes on where it stopped") {
  const Disk disk;
  StudyOptions s;
  s.train = tiny_run(disk.path);
  s.models = {"standard", "boosted-residual"};
  s.seeds = {1};
  s.out = disk.path / "whole";
  file_calls::plant({});
  REQUIRE(run_study(s, {}));
  const int64_t calls = file_calls::count();
  const std::string expected = read_study(s.out).to_string();
  s.out = disk.path / "broken";
  for (int64_t at = 1; at <= calls; at += 7) {
    INFO("call " << at << " of " << calls);
    fs::remove_all(s.out);
    file_calls::plant(file_calls::Fault{.at = at, .error = ENOSPC});
    std::string message;
    try {
      run_study(s, {});
    } catch (const Error& e) {
      message = e.what();
    }
    file_calls::plant({});
    CHECK_THAT(message, Contains("No space left on device"));
    REQUIRE(run_study(s, {}));
    CHECK(read_study(s.out).to_string() == expected);
  }
}
