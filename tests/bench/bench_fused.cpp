// Speed of the fused ops, forward and backward through the graph, on the shapes of the paper's language model: as
// ratios to the copy or FMA peak measured in between. Usage: bench_fused [threads] [rounds] [only this op]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "autograd/engine.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/softmax.h"
#include "core/gemm.h"
#include "core/kernels/peak.h"

using namespace bg;

namespace {

int threads, rounds;
std::string only;

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<std::ptrdiff_t>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

enum class Unit { bytes, flops };

// Median milliseconds of f, and its speed as a share of the peak. `work` is in bytes read and written at least, or in
// floating-point operations.
void report(const std::string& name, Unit unit, double work, const std::function<void()>& f) {
  if (name.find(only) == std::string::npos) return;
  using Clock = std::chrono::steady_clock;
  std::vector<double> ms, share;
  f();
  for (int r = 0; r < rounds; ++r) {
    const double peak = unit == Unit::bytes ? copy_peak_gbytes(threads, 0.02) : fma_peak_gflops(threads, 0.02);
    set_num_threads(threads);
    const auto start = Clock::now();
    f();
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    ms.push_back(seconds * 1e3);
    share.push_back(work / seconds * 1e-9 / peak);
  }
  std::printf("%-44s %8.2f ms  %5.2f of the %s peak\n", name.c_str(), median(ms), median(share),
              unit == Unit::bytes ? "copy" : "FMA");
}

// Forward without a graph, and both directions, of y = op(inputs): with a random cotangent, or 1 for a loss.
void op_case(const std::string& name, Unit unit, double forward_work, double backward_work, const Vars& inputs,
             const std::function<Var(const Vars&)>& op) {
  Vars wanted;
  for (const Var& v : inputs)
    if (v.requires_grad()) wanted.push_back(v);
  Rng rng(2);
  const Var y = op(inputs);
  const Var dy(y.rank() == 0 ? Tensor::scalar(1) : Tensor::randn(y.shape(), rng));
  report(name + " forward", unit, forward_work, [&] {
    NoGrad off;
    op(inputs);
  });
  report(name + " both", unit, forward_work + backward_work, [&] { grad({op(inputs)}, wanted, {dy}); });
}

void row_ops(int64_t rows, int64_t d) {
  Rng rng(1);
  const Var x(Tensor::randn({rows, d}, rng), true), gamma(Tensor::randn({d}, rng), true),
      beta(Tensor::randn({d}, rng), true);
  const double bytes = 4.0 * static_cast<double>(rows * d);
  const std::string shape = str(" ", x.shape());
  op_case("softmax" + shape, Unit::bytes, 2 * bytes, 3 * bytes, {x}, [](const Vars& in) { return softmax(in[0]); });
  op_case("log_softmax" + shape, Unit::bytes, 2 * bytes, 3 * bytes, {x},
          [](const Vars& in) { return log_softmax(in[0]); });
  op_case("layer_norm" + shape, Unit::bytes, 2 * bytes, 3 * bytes, {x, gamma, beta},
          [](const Vars& in) { return layer_norm(in[0], in[1], in[2]); });
  op_case("rms_norm" + shape, Unit::bytes, 2 * bytes, 3 * bytes, {x, gamma},
          [](const Vars& in) { return rms_norm(in[0], in[1]); });
  op_case("dropout" + shape, Unit::bytes, 2 * bytes, 2 * bytes, {x}, [](const Vars& in) {
    return dropout(in[0], 0.1, {1, 2});
  });
}

void linear_case(int64_t rows, int64_t in, int64_t out) {
  Rng rng(1);
  const Var x(Tensor::randn({rows, in}, rng), true), w(Tensor::randn({in, out}, rng), true),
      b(Tensor::randn({out}, rng), true);
  const double flops = 2.0 * static_cast<double>(rows * in * out);
  const std::string shape = str(" ", x.shape(), " ", w.shape());
  op_case("linear" + shape, Unit::flops, flops, 2 * flops, {x, w, b},
          [](const Vars& v) { return linear(v[0], v[1], v[2]); });
  Tensor y = Tensor::empty({rows, out});
  report("  product alone" + shape, Unit::flops, flops, [&] {
    gemm<float>(Trans::no, Trans::no, rows, out, in, 1, x.value().data<float>(), in, w.value().data<float>(), out, 0,
                y.mutable_data<float>("bench"), out);
  });
}

void token_ops(int64_t rows, int64_t d, int64_t vocabulary) {
  Rng rng(1);
  std::vector<int64_t> ids(static_cast<size_t>(rows));
  for (int64_t& i : ids) i = static_cast<int64_t>(rng.below(static_cast<uint64_t>(vocabulary)));
  const Tensor tokens = Tensor::of(ids, {rows});
  const Var table(Tensor::randn({vocabulary, d}, rng, DType::f32, 0.02), true), h(Tensor::randn({rows, d}, rng), true);
  const double n = 4.0 * static_cast<double>(rows * d), v = 4.0 * static_cast<double>(vocabulary * d);
  op_case(str("embedding (", rows, ",) of ", table.shape()), Unit::bytes, 2 * n, 2 * n + v, {table},
          [&](const Vars& in) { return embedding(tokens, in[0]); });
  const double product = 2.0 * static_cast<double>(rows * d * vocabulary);
  op_case(str("linear_cross_entropy ", h.shape(), " ", table.shape()), Unit::flops, product, 2 * product, {h, table},
          [&](const Vars& in) { return linear_cross_entropy(in[0], in[1], tokens); });
  const int64_t some = std::min<int64_t>(rows, 1024);  // whole logits only of a part
  const Var logits(Tensor::randn({some, vocabulary}, rng), true);
  const double bytes = 4.0 * static_cast<double>(some * vocabulary);
  op_case(str("cross_entropy ", logits.shape()), Unit::bytes, bytes, 2 * bytes, {logits},
          [&](const Vars& in) { return cross_entropy(in[0], tokens.slice(0, 0, some)); });
}

}  // namespace

int main(int argc, char** argv) {
  threads = argc > 1 ? std::atoi(argv[1]) : num_threads();
  rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  only = argc > 3 ? argv[3] : "";
  set_num_threads(threads);
  std::printf("%s, %d threads, FMA peak %.1f GFLOP/s, copy %.1f GB/s\n", blas_description().c_str(), threads,
              fma_peak_gflops(threads, 0.2), copy_peak_gbytes(threads, 0.2));
  row_ops(8192, 256);
  row_ops(8192, 1024);
  linear_case(8192, 256, 256);
  linear_case(8192, 256, 1024);
  linear_case(8192, 1024, 256);
  token_ops(8192, 256, 16384);
}
