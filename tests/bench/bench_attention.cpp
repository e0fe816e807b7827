// Attention of every kind over lengths, head widths and masks.
#include "tests/bench/google.h"

int main(int argc, char** argv) {
  using namespace bg::bench;
  Cases all;
  for (const std::string& kind : kAttentionKinds)
    for (const int64_t seq_len : {64, 256, 1024, 4096})
      for (const int64_t d_head : {32, 64, 128})
        for (const bool causal : {true, false})
          for (Case& c : attention_cases({.kind = kind, .seq_len = seq_len, .d_head = d_head, .causal = causal}))
            all.push_back(std::move(c));
  return run_google_benchmarks(argc, argv, all);
}
