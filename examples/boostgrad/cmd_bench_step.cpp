// boostgrad bench step: one whole training step - forward, backward, clipping, AdamW - against the machine's peaks,
// measured in between the steps. With --serve, a step for each line on standard input, for comparisons in turns.
#include <cstdio>
#include <iostream>
#include <map>

#include "autograd/profile.h"
#include "core/atomic_file.h"
#include "core/io/safetensors.h"
#include "core/storage.h"
#include "examples/boostgrad/bench/train_step.h"
#include "examples/boostgrad/bench_flags.h"
#include "models/flops.h"

namespace bg {
namespace {

using nlohmann::ordered_json;

struct Flags {
  ModelFlags model;
  BenchFlags bench;
  int64_t batch_size = 32, vocab = 16384;
  bool serve = false;
  std::string snapshot, trace;
  bool profile = false;
};

constexpr int kWarmUp = 2;  // steps until every buffer of a steady step exists

struct Steps {
  bench::PeakSamples peak, copy;
  std::vector<bench::StepTimes> times;
  size_t allocations = 0;  // of the last step

  double median(double bench::StepTimes::*phase) const {
    std::vector<double> v;
    for (const bench::StepTimes& t : times) v.push_back(t.*phase);
    return bench::median(v);
  }
  double seconds() const {
    std::vector<double> v;
    for (const bench::StepTimes& t : times) v.push_back(t.total());
    return bench::median(v);
  }
};

Steps measure_steps(bench::TrainStep& step, const bench::MeasureOptions& options, bench::Yardstick& yardstick) {
  return bench::steadiest("step", [&] {
    Steps s;
    for (int i = 0; i < options.rounds; ++i) {
      s.peak.values.push_back(yardstick.gflops(DType::f32));
      s.copy.values.push_back(yardstick.gbytes());
      const size_t before = memory_stats().system_allocations;
      s.times.push_back(step.run());
      s.allocations = memory_stats().system_allocations - before;
      std::fprintf(stderr, "step %d: %.3f s, peak %.1f GFLOP/s\n", i + 1, s.times.back().total(), s.peak.values.back());
    }
    s.peak.values.push_back(yardstick.gflops(DType::f32));
    return s;
  });
}

ordered_json describe(const Flags& f, const bench::TrainStep& step) {
  return {{"bench", "step"},
          {"model", nn::kAttentionNames.name(step.model().config().model)},
          {"batch_size", f.batch_size},
          {"seq_len", step.model().config().seq_len},
          {"threads", num_threads()},
          {"parameters", step.model().parameter_count()}};
}

// One step and one line {step_s, loss} for each line read; at the end the memory that all took.
int serve(const Flags& f, bench::TrainStep& step) {
  std::cout << describe(f, step).dump() << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    const bench::StepTimes t = step.run();
    std::cout
        << ordered_json{{"step_s", t.total()}, {"loss", t.loss}, {"peak_rss_bytes", bench::peak_rss_bytes()}}.dump()
        << std::endl;
  }
  return 0;
}

void print_table(const ordered_json& j) {
  auto number = [&](const char* key) { return j[key].get<double>(); };
  std::printf("%s, batch %lld x %lld, %d threads\n", j["model"].get<std::string>().c_str(),
              j["batch_size"].get<long long>(), j["seq_len"].get<long long>(), j["threads"].get<int>());
  std::printf("  step      %.3f s (forward %.3f, backward %.3f, clip %.3f, update %.3f), %.0f tokens/s\n",
              number("step_s"), number("forward_s"), number("backward_s"), number("clip_s"), number("update_s"),
              number("tokens_per_s"));
  std::printf("  speed     %.1f GFLOP/s = %.2f of the peak of %.1f\n", number("gflops"), number("mfu"),
              number("fma_peak_gflops"));
  std::printf("  memory    %.0f MB resident at most, %lld allocations in a step\n", number("peak_rss_bytes") / 1e6,
              j["allocations_per_step"].get<long long>());
}

constexpr int kProfiled = 3;  // steps

// Time by phase and op, a mean over a few steps, and the trace file.
//
// linear_cross_entropy forms its gradients in the pass of its forward: all its operations are counted there.
void profile_steps(const Flags& f, bench::TrainStep& step) {
  Profile profile;
  for (int i = 0; i < kProfiled; ++i) step.run();
  if (!f.trace.empty()) write_file_atomically(f.trace, profile.chrome_trace());
  if (!f.profile) return;
  const std::vector<Profile::Row> rows = profile.summary();
  std::map<std::string, double> phases;
  for (const Profile::Row& r : rows) phases[r.phase] += r.seconds;
  auto flops = [&](const Profile::Row& r) {
    const bool both = r.name == "linear_cross_entropy";
    const double once = op_forward_flops_per_token(step.model().config(), r.name) * static_cast<double>(step.tokens());
    return r.kind == Profile::Kind::forward             ? (both ? 3 : 1) * once
           : r.kind == Profile::Kind::backward && !both ? 2 * once
                                                        : 0;
  };
  if (!f.bench.common.json)
    std::printf("\n  %-9s %-22s %-10s %6s %10s %7s %8s\n", "phase", "op", "pass", "calls", "ms", "share", "GFLOP/s");
  for (const Profile::Row& r : rows) {
    const std::string name = r.kind == Profile::Kind::phase ? "(between ops)" : r.name;
    const double seconds = r.seconds / kProfiled, share = r.seconds / phases[r.phase],
                 gflops = flops(r) / seconds * 1e-9;
    if (f.bench.common.json) {
      ordered_json j{
          {"bench", "profile"},           {"phase", r.phase},          {"op", name},    {"pass", name_of(r.kind)},
          {"count", r.count / kProfiled}, {"total_ms", seconds * 1e3}, {"share", share}};
      if (gflops > 0) j["gflops"] = gflops;
      std::cout << j.dump() << std::endl;
    } else {
      std::printf("  %-9s %-22s %-10s %6lld %10.3f %6.1f%%", r.phase.c_str(), name.c_str(),
                  std::string(name_of(r.kind)).c_str(), static_cast<long long>(r.count / kProfiled), seconds * 1e3,
                  100 * share);
      std::printf(gflops > 0 ? " %8.1f\n" : "\n", gflops);
    }
  }
}

int run(const Flags& f) {
  bench::MeasureOptions options = f.bench.apply();
  options.peak_seconds = 0.1;  // short against a step, long against other work's bursts
  TransformerConfig c;
  c.dropout = 0.1;
  f.model.apply(c);
  c.vocab = f.vocab;
  if (!f.trace.empty()) check_writable(f.trace);
  bench::TrainStep step(c, f.batch_size);
  if (!f.snapshot.empty()) write_safetensors(f.snapshot, {step.snapshot(), {}});
  if (f.serve) return serve(f, step);

  for (int i = 0; i < kWarmUp; ++i) step.run();
  step.run();                                        // a steady one
  const int64_t resident = bench::peak_rss_bytes();  // before the buffers of the copy exist
  bench::Yardstick yardstick(options);
  const Steps s = measure_steps(step, options, yardstick);

  const double seconds = s.seconds(), gflops = step.flops() / seconds * 1e-9, peak = s.peak.typical();
  ordered_json j = describe(f, step);
  j.update({{"step_s", seconds},
            {"forward_s", s.median(&bench::StepTimes::forward)},
            {"backward_s", s.median(&bench::StepTimes::backward)},
            {"clip_s", s.median(&bench::StepTimes::clip)},
            {"update_s", s.median(&bench::StepTimes::update)},
            {"tokens_per_s", static_cast<double>(step.tokens()) / seconds},
            {"gflops", gflops},
            {"fma_peak_gflops", peak},
            {"copy_peak_gbs", s.copy.typical()},
            {"peak_spread", s.peak.spread()},
            {"mfu", gflops / peak},
            {"peak_rss_bytes", resident},
            {"peak_tensor_bytes", memory_stats().peak_bytes},
            {"allocations_per_step", s.allocations}});
  if (f.bench.common.json)
    std::cout << j.dump() << std::endl;
  else
    print_table(j);
  if (f.profile || !f.trace.empty()) profile_steps(f, step);
  return 0;
}

}  // namespace

Command::Run set_up_bench_step(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  f->model.add(app);
  app.add_option("--batch-size", f->batch_size, "sequences in a step (default 32)");
  app.add_option("--vocab", f->vocab, "vocabulary (default 16384)");
  app.add_flag("--serve", f->serve, "one step, and one line of JSON, for each line on standard input");
  app.add_option("--snapshot", f->snapshot, "write the first weights, inputs and targets to this safetensors file");
  app.add_flag("--profile", f->profile, "also time by phase and op");
  app.add_option("--trace", f->trace, "write the ops of a few steps to this file, for chrome://tracing or Perfetto");
  f->bench.add(app, false);
  return [f] { return run(*f); };
}

}  // namespace bg
