// A model's size before it exists: the same as when it does, and refused where memory has no room.
#include "models/footprint.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

TEST_CASE("the parameters are counted without the model") {
  for (auto kind : {nn::AttentionKind::standard, nn::AttentionKind::twicing, nn::AttentionKind::boosted})
    for (auto gate : {Gate::none, Gate::scalar, Gate::linear, Gate::mlp})
      for (int64_t rounds : {1, 2, 3})
        for (auto norm : {nn::NormPlace::pre, nn::NormPlace::post}) {
          TransformerConfig c{.model = kind, .d_model = 8, .layers = 2, .heads = 2, .seq_len = 5};
          c.gate = gate;
          c.rounds = rounds;
          c.norm = norm;
          c.tied = rounds != 2;
          Rng rng(1);
          CHECK(parameter_count(c) == static_cast<double>(Transformer(c, rng).parameter_count()));
        }
}

TEST_CASE("a model that memory cannot hold is refused before it is made") {
  TransformerConfig c;
  CHECK_NOTHROW(check_memory("test", c, 64));
  CHECK_THROWS_WITH(check_memory("test", c, 1e15), Contains("does not fit into memory") && Contains("--batch-size"));
  c.layers = 1 << 24;
  CHECK_THROWS_AS(check_memory("test", c, 0), Error);
}
