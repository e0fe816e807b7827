// Speed of the matrix products and of attention on the shapes of the paper's language model, as ratios to the FMA peak
// measured in between. Usage: bench_gemm_attention [threads] [rounds]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "core/gemm.h"
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
}
