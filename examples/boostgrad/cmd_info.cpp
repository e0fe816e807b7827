// boostgrad info: this build; or a model's parameters, work and memory.
#include <cstdio>
#include <iostream>

#include "autograd/verify/entry.h"
#include "core/gemm.h"
#include "core/kernels/simd.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/flags.h"
#include "models/flops.h"
#include "models/footprint.h"

namespace bg {
namespace {

struct Flags {
  ModelFlags model;
  CommonFlags common;
  std::optional<int64_t> vocab;
};

constexpr int64_t kListed = 100'000'000;  // of a larger model no list of parameters: that would allocate it

int model_info(const Flags& f) {
  TransformerConfig c;
  f.model.apply(c);
  set(c.vocab, f.vocab);
  c.validate();
  const auto n = static_cast<int64_t>(parameter_count(c));
  const double flops = flops_per_token(c), activations = saved_bytes_per_token(c);
  if (f.common.json) {
    nlohmann::ordered_json j{{"model", c.to_json()},           {"parameters", n},
                             {"flops_per_token", flops},       {"parameter_bytes", 4 * n},
                             {"training_state_bytes", 16 * n}, {"activation_bytes_per_token", activations}};
    std::cout << j.dump() << "\n";
    return 0;
  }
  std::printf("%s, d %lld, %lld layers, %lld heads, T %lld, vocabulary %lld\n",
              nn::kAttentionNames.name(c.model).c_str(), static_cast<long long>(c.d_model),
              static_cast<long long>(c.layers), static_cast<long long>(c.heads), static_cast<long long>(c.seq_len),
              static_cast<long long>(c.vocab));
  std::printf("  parameters   %lld\n  work         %.2f MFLOP a token, forward and backward\n",
              static_cast<long long>(n), flops / 1e6);
  std::printf("  memory       %.0f MB parameters, gradients and AdamW moments; %.1f KB of activations a token\n",
              16.0 * static_cast<double>(n) / 1e6, activations / 1e3);
  if (n > kListed) return 0;
  Rng rng(1);
  const Transformer model(c, rng);
  for (const auto& [path, var] : model.parameters())
    std::printf("  %-40s %s\n", path.c_str(), str(var.shape()).c_str());
  return 0;
}

int build_info(const Flags& f) {
  std::vector<std::string> ops;
  nlohmann::ordered_json table = nlohmann::ordered_json::array();
  for (const verifier::Entry& op : verifier::all_entries()) {
    const bool second = op.primitive || op.composed;
    ops.push_back(str(op.name, op.primitive ? "" : second ? " (fused)" : " (fused, first order only)"));
    table.push_back({{"op", op.name}, {"kind", op.primitive ? "primitive" : "fused"}, {"double_backward", second}});
  }
  if (f.common.json) {
    std::cout << nlohmann::ordered_json{{"version", BG_VERSION},
                                        {"compiler", __VERSION__},
                                        {"blas", blas_description()},
                                        {"blas_threads", blas_threads()},
                                        {"simd", simd_target()},
                                        {"threads", num_threads()},
                                        {"ops", table}}
                     .dump()
              << "\n";
    return 0;
  }
  std::printf("Boostgrad " BG_VERSION
              "\n  compiler  %s\n  BLAS      %s, %d thread of its own\n  SIMD      %s\n  threads   %d\n  ops    "
              "   %zu:",
              __VERSION__, blas_description().c_str(), blas_threads(), simd_target().c_str(), num_threads(),
              ops.size());
  for (size_t i = 0; i < ops.size(); ++i) std::printf("%s%s", i % 6 == 0 ? "\n    " : ", ", ops[i].c_str());
  std::printf("\n");
  return 0;
}

const Command command("info", "this build and its ops; or a model's parameters, work and memory",
                      [](CLI::App& app) -> Command::Run {
                        auto f = std::make_shared<Flags>();
                        f->model.add(app);
                        flag(app, "--vocab", f->vocab, "vocabulary (default 256)");
                        f->common.add(app);
                        return [f] {
                          f->common.apply();
                          const ModelFlags& m = f->model;
                          const bool model = m.model || m.rounds || m.d_model || m.layers || m.heads || m.seq_len ||
                                             m.kv || m.gate || m.norm || m.dropout || f->vocab;
                          return model ? model_info(*f) : build_info(*f);
                        };
                      });

}  // namespace
}  // namespace bg
