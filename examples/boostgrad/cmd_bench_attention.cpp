// boostgrad bench attention: forward and backward over lengths, head widths and kinds, and the memory beyond inputs and
// results.
#include <algorithm>

#include "examples/boostgrad/bench_flags.h"

namespace bg {
namespace {

struct Flags {
  BenchFlags bench;
  std::vector<std::string> kinds{"standard", "twicing", "boosted"};
  std::vector<int64_t> seq_lens{64, 256, 1024, 4096}, d_heads{32, 64, 128};
  std::string causal = "both";
  int64_t tokens = 8192, width = 256, rounds = 2;
};

void check_range(const char* name, int64_t value, int64_t largest) {
  if (value < 1 || value > largest)
    fail<UsageError>("bench attention", str("bad ", name), str(value), str("1 to ", largest));
}

int run(const Flags& f) {
  for (const int64_t t : f.seq_lens) check_range("--seq-len", t, 1 << 20);
  for (const int64_t d : f.d_heads) check_range("--d-head", d, 1 << 12);
  check_range("--tokens", f.tokens, 1 << 24);
  check_range("--d-model", f.width, 1 << 14);
  check_range("--rounds", f.rounds, 64);
  if (f.causal != "yes" && f.causal != "no" && f.causal != "both")
    fail<UsageError>("bench attention", "bad --causal", str("'", f.causal, "'"), "yes, no or both");
  bench::Cases all;
  for (const std::string& kind : f.kinds) {
    const auto& known = bench::kAttentionKinds;
    if (std::find(known.begin(), known.end(), kind) == known.end()) {
      std::string list;
      for (const std::string& name : known) list += (list.empty() ? "" : ", ") + name;
      fail<UsageError>("bench attention", "unknown --kind", str("'", kind, "'"), str("one of ", list),
                       near_names(kind, known)[0]);
    }
    for (const int64_t seq_len : f.seq_lens)
      for (const int64_t d_head : f.d_heads)
        for (const bool causal : {true, false}) {
          if (f.causal == (causal ? "no" : "yes")) continue;
          const bench::Cases some = bench::attention_cases({.kind = kind,
                                                            .tokens = f.tokens,
                                                            .seq_len = seq_len,
                                                            .d_head = d_head,
                                                            .width = f.width,
                                                            .causal = causal,
                                                            .rounds = static_cast<int>(f.rounds)});
          all.insert(all.end(), some.begin(), some.end());
        }
  }
  run_cases("attention", all, f.bench, true);
  return 0;
}

}  // namespace

Command::Run set_up_bench_attention(CLI::App& app) {
  auto f = std::make_shared<Flags>();
  app.add_option("--kind", f->kinds,
                 "standard or twicing: of given q, k and v; standard_layer, twicing_layer or boosted: with projections "
                 "(default standard twicing boosted)");
  app.add_option("--seq-len", f->seq_lens, "lengths (default 64 256 1024 4096)");
  app.add_option("--d-head", f->d_heads, "widths of a head (default 32 64 128)");
  app.add_option("--causal", f->causal, "yes, no or both (default)");
  app.add_option("--tokens", f->tokens, "in a batch, which has tokens / length sequences (default 8192)");
  app.add_option("--d-model", f->width, "width of all heads together (default 256)");
  app.add_option("--rounds", f->rounds, "rounds of boosted attention (default 2)");
  f->bench.add(app);
  return [f] { return run(*f); };
}

}  // namespace bg
