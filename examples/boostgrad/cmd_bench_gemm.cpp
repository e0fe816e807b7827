// boostgrad bench gemm: every matrix product of a model's training step.
#include "examples/boostgrad/bench_flags.h"

namespace bg {
namespace {

struct Flags {
  ModelFlags model;
  BenchFlags bench;
  int64_t batch_size = 32, vocab = 16384, head_rows = 512;
  std::string dtype = "both";
};

int run(const Flags& f) {
  for (const auto& [name, value] : {std::pair{"--batch-size", f.batch_size}, {"--head-rows", f.head_rows}})
    if (value < 1 || value > (int64_t{1} << 24))
      fail<UsageError>("bench gemm", str("bad ", name), str(value), "1 to 2^24");
  if (f.dtype != "f32" && f.dtype != "f64" && f.dtype != "both")
    fail<UsageError>("bench gemm", "bad --dtype", str("'", f.dtype, "'"), "f32, f64 or both");
  TransformerConfig c;
  c.vocab = f.vocab;
  f.model.apply(c);
  c.validate();
  std::vector<TransformerConfig> models{c};
  if (!f.model.model) {
    models.push_back(c);
    models.back().model = nn::AttentionKind::boosted;
  }
  bench::Cases all;
  for (const DType dtype : {DType::f32, DType::f64}) {
    if (f.dtype != "both" && f.dtype != str(dtype)) continue;
    const bench::Cases some = bench::gemm_cases(models, f.batch_size * c.seq_len, f.head_rows, dtype);
    all.insert(all.end(), some.begin(), some.end());
  }
  run_cases("gemm", all, f.bench);
  return 0;
}

}  // namespace

Command::Run set_up_bench_gemm(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  f->model.add(app);
  app.get_option("--model")->description("standard, twicing or boosted (default: standard and boosted)");
  app.add_option("--batch-size", f->batch_size, "sequences in a step (default 32)");
  app.add_option("--vocab", f->vocab, "vocabulary (default 16384)");
  app.add_option("--head-rows", f->head_rows, "tokens that the output works on at a time (default 512)");
  app.add_option("--dtype", f->dtype, "f32, f64 or both (default)");
  f->bench.add(app);
  return [f] { return run(*f); };
}

}  // namespace bg
