// boostgrad bench step: one whole training step - forward, backward, clipping, AdamW - against the machine's peaks,
// measured in between the steps. With --serve, a step for each line on standard input, for comparisons in turns.
#include <cstdio>
#include <iostream>

#include "core/io/safetensors.h"
#include "core/storage.h"
#include "examples/boostgrad/bench/train_step.h"
#include "examples/boostgrad/bench_flags.h"

namespace bg {
namespace {

using nlohmann::ordered_json;

struct Flags {
  ModelFlags model;
  BenchFlags bench;
  int64_t batch_size = 32, vocab = 16384;
  bool serve = false;
  std::string snapshot;
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

int run(const Flags& f) {
  bench::MeasureOptions options = f.bench.apply();
  options.peak_seconds = 0.1;  // short against a step, long against other work's bursts
  TransformerConfig c;
  c.dropout = 0.1;
  f.model.apply(c);
  c.vocab = f.vocab;
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
  f->bench.add(app, false);
  return [f] { return run(*f); };
}

}  // namespace bg
