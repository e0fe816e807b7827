// What the kinds of `boostgrad bench` share: options, and the loop over cases.
#pragma once

#include "examples/boostgrad/bench/measure.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"

namespace bg {

struct BenchFlags {
  CommonFlags common;
  std::optional<int> rounds;
  std::string only;

  /// `rounds` and `seconds` are what the kind does by itself; of whole steps there is nothing to select.
  void add(CLI::App& app, bool cases = true) {
    flag(app, "--repeats", rounds, "measurements, of which the median counts (default 5)");
    if (cases) app.add_option("--only", only, "only cases with this in their name");
    common.add(app);
  }
  bench::MeasureOptions apply() const {
    common.apply();
    bench::MeasureOptions options;
    if (rounds && *rounds < 1) fail<UsageError>("bench", "bad --repeats", str(*rounds), "1 or more");
    set(options.rounds, rounds);
    return options;
  }
};

/// Measures and prints every selected case; with `extra_memory` its extra bytes too. Throws UsageError when none is
/// selected.
void run_cases(const std::string& bench, const bench::Cases& cases, const BenchFlags& flags, bool extra_memory = false);

/// The kinds: each sets up its options.
Command::Run set_up_bench_gemm(CLI::App& app);
Command::Run set_up_bench_attention(CLI::App& app);
Command::Run set_up_bench_ops(CLI::App& app);
Command::Run set_up_bench_step(CLI::App& app);

}  // namespace bg
