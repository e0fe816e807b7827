// The matrix products of the paper's models, standard and boosted, batch 32, in f32 and f64.
#include "tests/bench/google.h"

int main(int argc, char** argv) {
  using namespace bg;
  TransformerConfig standard;
  standard.vocab = 16384;
  TransformerConfig boosted = standard;
  boosted.model = nn::AttentionKind::boosted;
  bench::Cases all;
  for (const DType dtype : {DType::f32, DType::f64})
    for (bench::Case& c : bench::gemm_cases({standard, boosted}, 32 * standard.seq_len, 512, dtype))
      all.push_back(std::move(c));
  return bench::run_google_benchmarks(argc, argv, all);
}
