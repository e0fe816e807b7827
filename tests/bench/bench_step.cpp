// A whole training step of the paper's models, batch 32, dropout 0.1.
#include "examples/boostgrad/bench/train_step.h"
#include "tests/bench/google.h"

int main(int argc, char** argv) {
  using namespace bg;
  bench::Cases all;
  for (const auto model : {nn::AttentionKind::standard, nn::AttentionKind::twicing, nn::AttentionKind::boosted}) {
    TransformerConfig c;
    c.model = model;
    c.vocab = 16384;
    c.dropout = 0.1;
    all.push_back(bench::step_case(c, 32));
  }
  return bench::run_google_benchmarks(argc, argv, all);
}
