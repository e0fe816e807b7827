// Speed of the matrix products and of attention on the shapes of the paper's language model, as ratios to the FMA peak
// measured in between. Usage: bench_gemm_attention [threads] [rounds]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>
#include <vector>

#include "core/gemm.h"
#include "core/kernels/attention.h"
#include "core/kernels/peak.h"
#include "core/parallel.h"

namespace {

using bg::Trans;

int threads, rounds;

std::vector<float> randoms(int64_t n) {
  std::mt19937 g(1);
  std::uniform_real_distribution<float> d(-1, 1);
  std::vector<float> v(n);
  for (float& x : v) x = d(g);
  return v;
}

double median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + v.size() / 2, v.end());
  return v[v.size() / 2];
}

// Prints the median speed of f, which does `flops` operations, and its ratio to the peaks measured in between.
template <class F>
void report(const char* name, double flops, F&& f) {
  using Clock = std::chrono::steady_clock;
  std::vector<double> speed, ratio;
  f();
  for (int r = 0; r < rounds; ++r) {
    const double peak = bg::fma_peak_gflops(threads, 0.01);
    bg::set_num_threads(threads);
    const auto start = Clock::now();
    int64_t calls = 0;
    double elapsed = 0;
    do {
      f();
      ++calls;
      elapsed = std::chrono::duration<double>(Clock::now() - start).count();
    } while (elapsed < 0.02);
    speed.push_back(flops * static_cast<double>(calls) / elapsed * 1e-9);
    ratio.push_back(speed.back() / peak);
  }
  std::printf("%-34s %8.1f GFLOP/s  %5.3f of the FMA peak\n", name, median(speed), median(ratio));
}

void gemm_case(const char* what, Trans ta, Trans tb, int64_t m, int64_t n, int64_t k) {
  const auto a = randoms(m * k), b = randoms(n * k);
  std::vector<float> c(m * n);
  char name[80];
  std::snprintf(name, sizeof name, "%-7s %5d x %5d x %5d", what, static_cast<int>(m), static_cast<int>(n),
                static_cast<int>(k));
  report(name, 2.0 * m * n * k, [&] {
    bg::gemm<float>(ta, tb, m, n, k, 1.0f, a.data(), ta == Trans::yes ? m : k, b.data(), tb == Trans::yes ? k : n, 0.0f,
                    c.data(), n);
  });
}

void linear_layer(int64_t rows, int64_t in, int64_t out) {
  gemm_case("y", Trans::no, Trans::no, rows, out, in);
  gemm_case("dx", Trans::no, Trans::yes, rows, in, out);
  gemm_case("dW", Trans::yes, Trans::no, in, out, rows);
}

// Causal self-attention on one packed (B, T, 3, H, d) buffer; only the visible half is counted.
void attention_case(int64_t batch, int64_t heads, int64_t time, int64_t d, double dropout) {
  const int64_t width = heads * d, row = 3 * width;
  const auto qkv = randoms(batch * time * row), d_o = randoms(batch * time * width);
  std::vector<float> d_qkv(qkv.size()), o(d_o.size()), row_max(batch * heads * time), log_sum(row_max.size());
  bg::AttentionShape s;
  s.batch = batch, s.heads = heads, s.queries = s.keys = time, s.d_key = s.d_value = d;
  s.causal = true, s.scale = 1 / std::sqrt(static_cast<double>(d)), s.dropout = dropout;
  auto in = [&](int which) { return bg::HeadView<const float>{qkv.data() + which * width, time * row, row, d}; };
  auto out = [&](int which) { return bg::HeadView<float>{d_qkv.data() + which * width, time * row, row, d}; };
  const bg::HeadView<float> o_out{o.data(), time * width, width, d};
  const bg::HeadView<const float> o_in{o.data(), time * width, width, d}, d_o_in{d_o.data(), time * width, width, d};
  const double product = 2.0 * batch * heads * d * (time * (time + 1) / 2);
  char name[80];
  auto label = [&](const char* what) {
    std::snprintf(name, sizeof name, "attention %-8s T %d B*H %d%s", what, static_cast<int>(time),
                  static_cast<int>(batch * heads), dropout > 0 ? " dropout" : "");
    return name;
  };
  auto forward = [&] {
    bg::attention_forward<float>(s, in(0), in(1), in(2), o_out, row_max.data(), log_sum.data(), nullptr);
  };
  auto backward = [&] {
    bg::attention_backward<float>(s, in(0), in(1), in(2), o_in, row_max.data(), log_sum.data(), d_o_in, nullptr, out(0),
                                  out(1), out(2), false);
  };
  report(label("forward"), 2 * product, forward);
  report(label("backward"), 5 * product, backward);
  report(label("both"), 7 * product, [&] { forward(), backward(); });
}

}  // namespace

int main(int argc, char** argv) {
  threads = argc > 1 ? std::atoi(argv[1]) : bg::num_threads();
  rounds = argc > 2 ? std::atoi(argv[2]) : 9;
  bg::set_num_threads(threads);
  std::printf("%s, %d threads, FMA peak %.1f GFLOP/s (f64 %.1f), copy %.1f GB/s\n", bg::blas_description().c_str(),
              threads, bg::fma_peak_gflops(threads, 0.2), bg::fma_peak_gflops_f64(threads, 0.2),
              bg::copy_peak_gbytes(threads, 0.2));
  for (auto [in, out] : {std::pair<int64_t, int64_t>{256, 768}, {256, 512}, {256, 256}, {256, 1024}, {1024, 256}})
    linear_layer(8192, in, out);
  gemm_case("logits", Trans::no, Trans::yes, 512, 16384, 256);  // a chunk of rows against the tied embedding
  gemm_case("dh", Trans::no, Trans::no, 512, 256, 16384);
  gemm_case("dE", Trans::yes, Trans::no, 16384, 256, 512);
  attention_case(32, 4, 256, 64, 0);
  attention_case(8, 4, 1024, 64, 0);
  attention_case(32, 4, 256, 64, 0.1);
}
