// boostgrad bench: speed against the machine's own peaks, measured in the same run.
#include <cstdio>
#include <iostream>

#include "examples/boostgrad/bench_flags.h"

namespace bg {

void run_cases(const std::string& bench, const bench::Cases& cases, const BenchFlags& flags, bool extra_memory) {
  const bench::MeasureOptions options = flags.apply();
  bench::Cases selected;
  std::vector<std::string> names;
  for (const bench::Case& c : cases) {
    names.push_back(c.name);
    if (c.name.find(flags.only) != std::string::npos) selected.push_back(c);
  }
  if (selected.empty())
    fail<UsageError>(str("bench ", bench), "no such case", str("'", flags.only, "'"), "part of a case's name",
                     str("--only \"", near_names(flags.only, names)[0], "\""));
  bench::Yardstick yardstick(options);
  if (!flags.common.json) std::cout << bench::table_head() << "\n";
  for (size_t i = 0; i < selected.size(); ++i) {
    const bench::Case& c = selected[i];
    if (flags.common.json)
      std::fprintf(stderr, "%zu/%zu %s %s %s\n", i + 1, selected.size(), c.name.c_str(), c.shape.c_str(),
                   c.pass.c_str());
    std::optional<int64_t> extra;
    if (extra_memory) extra = bench::extra_bytes(c);
    const bench::Measurement m = bench::measure(c, options, yardstick);
    if (flags.common.json) {
      nlohmann::ordered_json j = bench::to_json(bench, c, m);
      if (extra) j["extra_bytes"] = *extra;
      std::cout << j.dump() << std::endl;
    } else {
      std::cout << bench::table_row(c, m);
      if (extra) std::cout << str(", ", static_cast<double>(*extra) / 1e6, " MB extra");
      std::cout << std::endl;
    }
  }
}

namespace {

const Command command("bench", "speed against the machine's own peaks, measured in the same run",
                      [](CLI::App& app) -> Command::Run {
                        auto chosen = std::make_shared<Command::Run>();
                        auto add = [&](const char* name, const char* what, const Command::SetUp& set_up) {
                          CLI::App* sub = app.add_subcommand(name, what);
                          sub->callback([chosen, run = set_up(*sub)] { *chosen = run; });
                        };
                        app.require_subcommand(1);
                        add("gemm", "every matrix product of a model's training step", set_up_bench_gemm);
                        add("attention", "attention, forward and backward, and its memory", set_up_bench_attention);
                        add("ops", "the memory-bound ops against the speed of a copy", set_up_bench_ops);
                        add("step", "a whole training step", set_up_bench_step);
                        return [chosen] { return (*chosen)(); };
                      });

}  // namespace
}  // namespace bg
