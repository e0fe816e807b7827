// boostgrad bench step: one whole training step - forward, backward, clipping, AdamW - against the machine's own peak
// of multiply-adds, measured in between the steps.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>

#include "autograd/engine.h"
#include "core/kernels/peak.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "models/flops.h"
#include "models/footprint.h"
#include "nn/optim.h"

namespace bg {
namespace {

struct Flags {
  ModelFlags model;
  CommonFlags common;
  std::string kind;
  int64_t batch_size = 32, vocab = 16384, repeats = 5;
};

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

// Largest resident size of the process so far.
int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

int run(const Flags& f) {
  if (f.kind != "step") fail<UsageError>("bench", "unknown benchmark", f.kind, "step");
  if (f.batch_size < 1) fail<UsageError>("bench", "bad --batch-size", str(f.batch_size), "1 or more");
  if (f.repeats < 1) fail<UsageError>("bench", "bad --repeats", str(f.repeats), "1 or more");
  f.common.apply();
  TransformerConfig c;
  c.dropout = 0.1;
  f.model.apply(c);
  c.vocab = f.vocab;
  c.validate();
  check_memory("bench", c, static_cast<double>(f.batch_size) * static_cast<double>(c.seq_len));
  Rng rng(1);
  Transformer model(c, rng);
  AdamW optimizer(model.parameters());
  std::vector<int64_t> ids(static_cast<size_t>(f.batch_size * c.seq_len));
  auto draw = [&] {
    for (int64_t& id : ids) id = static_cast<int64_t>(rng.below(static_cast<uint64_t>(c.vocab)));
    return Tensor::of(ids, {f.batch_size, c.seq_len});
  };
  std::vector<double> seconds, forward, backward, update, peaks;
  size_t allocations = 0;
  auto now = [] { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); };
  for (int64_t i = -2; i < f.repeats; ++i) {  // two steps to warm up
    const Tensor inputs = draw(), targets = draw();
    const size_t before = memory_stats().system_allocations;
    const double t0 = now();
    const Var loss = model.loss(inputs, targets, {.rng = &rng});
    const double t1 = now();
    loss.backward();
    const double t2 = now();
    clip_grad_norm(model.parameters(), 1);
    optimizer.step(1e-4);
    model.zero_grad();
    const double t3 = now();
    if (i < 0) continue;
    allocations = memory_stats().system_allocations - before;
    seconds.push_back(t3 - t0);
    forward.push_back(t1 - t0);
    backward.push_back(t2 - t1);
    update.push_back(t3 - t2);
    peaks.push_back(fma_peak_gflops(num_threads(), 0.2));
    if (!f.common.json)
      std::fprintf(stderr, "step %lld: %.3f s, peak %.1f GFLOP/s\n", static_cast<long long>(i + 1), t3 - t0,
                   peaks.back());
  }
  const double tokens = static_cast<double>(f.batch_size * c.seq_len), s = median(seconds), peak = median(peaks);
  const double gflops = tokens * flops_per_token(c) / s / 1e9;
  const double spread =
      *std::max_element(peaks.begin(), peaks.end()) / *std::min_element(peaks.begin(), peaks.end()) - 1;
  const int64_t rss = peak_rss_bytes();
  if (f.common.json) {
    std::cout << nlohmann::ordered_json{{"bench", "step"},
                                        {"model", nn::kAttentionNames.name(c.model)},
                                        {"batch_size", f.batch_size},
                                        {"threads", num_threads()},
                                        {"parameters", model.parameter_count()},
                                        {"step_s", s},
                                        {"forward_s", median(forward)},
                                        {"backward_s", median(backward)},
                                        {"update_s", median(update)},
                                        {"tokens_per_s", tokens / s},
                                        {"gflops", gflops},
                                        {"fma_peak_gflops", peak},
                                        {"peak_spread", spread},
                                        {"mfu", gflops / peak},
                                        {"peak_rss_bytes", rss},
                                        {"peak_tensor_bytes", memory_stats().peak_bytes},
                                        {"allocations_per_step", allocations}}
                     .dump()
              << "\n";
  } else {
    std::printf(
        "%s, batch %lld x %lld, %d threads\n  step      %.3f s (forward %.3f, backward %.3f, update %.3f), %.0f "
        "tokens/s\n"
        "  speed     %.1f GFLOP/s = %.2f of the peak of %.1f\n  memory    %.0f MB resident at most\n",
        nn::kAttentionNames.name(c.model).c_str(), static_cast<long long>(f.batch_size),
        static_cast<long long>(c.seq_len), num_threads(), s, median(forward), median(backward), median(update),
        tokens / s, gflops, gflops / peak, peak, static_cast<double>(rss) / 1e6);
  }
  if (spread > 0.2)
    std::fprintf(stderr, "the peak itself wandered by %.0f %% during the run: other work disturbs this machine\n",
                 100 * spread);
  return 0;
}

const Command command("bench", "speed against the machine's own peak, measured in the same run",
                      [](CLI::App& app) -> Command::Run {
                        auto f = std::make_shared<Flags>();
                        app.add_option("kind", f->kind, "step")->required();
                        f->model.add(app);
                        app.add_option("--batch-size", f->batch_size, "sequences in a step (default 32)");
                        app.add_option("--vocab", f->vocab, "vocabulary (default 16384)");
                        app.add_option("--repeats", f->repeats, "measured steps (default 5)");
                        f->common.add(app);
                        return [f] { return run(*f); };
                      });

}  // namespace
}  // namespace bg
