// Runs cases of `boostgrad bench` under Google Benchmark: its filters, repetitions, statistics and output formats.
#pragma once

#include <benchmark/benchmark.h>

#include "examples/boostgrad/bench/measure.h"

namespace bg::bench {

// Counters: the speed in GFLOP/s or GB/s, the machine's peak around the run, and their ratio.
inline void run_case(benchmark::State& state, const Case& c, Yardstick& yardstick) {
  const auto run = c.prepare();
  run();
  double seconds = 0;
  PeakSamples peak{{yardstick.of(c)}};
  for (auto _ : state) {
    const double start = seconds_now();
    run();
    const double took = seconds_now() - start;
    state.SetIterationTime(took);
    seconds += took;
  }
  peak.values.push_back(yardstick.of(c));
  const double speed = c.work * static_cast<double>(state.iterations()) / seconds * 1e-9;
  state.counters[c.unit == Unit::flops ? "GFLOP/s" : "GB/s"] = speed;
  state.counters["peak"] = peak.typical();
  state.counters["of_peak"] = speed / peak.typical();
}

inline int run_google_benchmarks(int argc, char** argv, const Cases& cases) {
  Yardstick yardstick({});
  for (const Case& c : cases)
    benchmark::RegisterBenchmark(str(c.name, " ", c.shape, " ", c.dtype, " ", c.pass).c_str(),
                                 [&c, &yardstick](benchmark::State& state) { run_case(state, c, yardstick); })
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace bg::bench
