// What a run folder tells: of a finished run, a killed one, and one without its weights.
#include <filesystem>
#include <fstream>

#include "core/atomic_file.h"
#include "models/run_log.h"
#include "tests/catch.h"
#include "tests/match.h"
#include "tests/models/run_support.h"

using namespace bg;
using namespace bg::test;
namespace fs = std::filesystem;

TEST_CASE("a run log holds the options, the build and every step of a finished run") {
  Scratch run;
  TrainOptions o = small_run(12);
  o.eval_every = 4;
  const TrainResult r = train(o, run.path, false, {});
  const RunLog log = read_run_log(run.path);
  CHECK(log.options.to_json() == run_options(run.path).to_json());
  CHECK(log.finished);
  CHECK(log.steps() == 12);
  REQUIRE(log.curve.size() == 12);
  CHECK(log.curve[11].train_loss == r.train_loss);
  CHECK(log.curve[11].val_loss == r.val_loss);
  CHECK(log.curve[3].val_loss.has_value());
  CHECK(!log.curve[4].val_loss.has_value());
  CHECK(log.curve[0].lr == 0);
  CHECK(log.curve[5].grad_norm > 0);
  CHECK(median_step_seconds(log.curve, log.options) > 0);
  CHECK(log.build.contains("blas"));
}

TEST_CASE("the curve of a killed run is read: half a line is none, and a step done twice counts once") {
  Scratch run;
  fs::create_directories(run.path);
  write_file_atomically(run.path / "metrics.jsonl",
                        "{\"step\":1,\"train_loss\":3.5,\"lr\":0.1,\"grad_norm\":2,\"tokens_per_s\":10}\n"
                        "{\"step\":2,\"train_loss\":3.0}\n{\"step\":3,\"train_loss\":2.5}\n"
                        "{\"step\":2,\"train_loss\":3.0,\"val_loss\":4}\n{\"step\":3,\"train_loss\":null}\n"
                        "{\"step\":3,\"train_loss\":\"2\"}\n{\"step\":3,\"train_l\n" +
                            std::string(100'000, '['));
  const std::vector<CurvePoint> curve = read_curve(run.path);
  REQUIRE(curve.size() == 2);
  CHECK(curve[0].tokens_per_s == 10);
  CHECK(curve[1].train_loss == 3.0);
  CHECK(curve[1].val_loss == 4.0);
  CHECK(read_curve(run.path / "nowhere").empty());
}

TEST_CASE("a run without steps, and a folder that is no run") {
  Scratch run;
  TrainProgress p;
  struct Stop {};
  p.say = [](const std::string&) { throw Stop(); };
  CHECK_THROWS_AS(train(small_run(4), run.path, false, p), Stop);
  const RunLog log = read_run_log(run.path);
  CHECK(!log.finished);
  CHECK(log.steps() == 0);
  CHECK(median_step_seconds(log.curve, log.options) == 0);
  CHECK_THROWS_WITH(read_run_log(run.path / "checkpoints"), Contains("not a run folder"));
}
