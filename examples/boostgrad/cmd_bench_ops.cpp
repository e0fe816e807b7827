// boostgrad bench ops: the memory-bound ops, forward and backward, against the speed of a copy.
#include "examples/boostgrad/bench_flags.h"

namespace bg {
namespace {

struct Flags {
  BenchFlags bench;
  int64_t tensor_mb = 128, width = 256, vocab = 16384;
};

int run(const Flags& f) {
  if (f.tensor_mb < 1 || f.tensor_mb > 4096)
    fail<UsageError>("bench ops", "bad --tensor-mb", str(f.tensor_mb), "1 to 4096");
  for (const auto& [name, value] : {std::pair{"--d-model", f.width}, {"--vocab", f.vocab}})
    if (value < 1 || value > (1 << 20)) fail<UsageError>("bench ops", str("bad ", name), str(value), "1 to 2^20");
  run_cases("ops", bench::op_cases(f.tensor_mb << 20, f.width, f.vocab), f.bench);
  return 0;
}

}  // namespace

Command::Run set_up_bench_ops(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("--tensor-mb", f->tensor_mb, "MiB of each large tensor: far more than the caches (default 128)");
  app.add_option("--d-model", f->width, "width of a row (default 256)");
  app.add_option("--vocab", f->vocab, "classes of the cross-entropy, rows of the embedding (default 16384)");
  f->bench.add(app);
  return [f] { return run(*f); };
}

}  // namespace bg
