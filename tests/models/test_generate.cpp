// Generation: cached logits against the full forward, the sliding window, sampling.
#include <algorithm>
#include <cmath>
#include <limits>

#include "core/tensor_ops.h"
#include "models/generate.h"
#include "tests/match.h"
#include "tests/models/lm_support.h"

using namespace bg;
using namespace bg::test;

namespace {

/// Largest difference in units of max(1, max |logit|).
double difference(const Tensor& got, const Tensor& want) {
  return num::max_abs(num::sub(got, want)) / std::max(1.0, num::max_abs(want));
}

std::vector<int64_t> part(const Tensor& ids, int64_t begin, int64_t end) {
  return ids.slice(1, begin, end).to_vector<int64_t>();
}

}  // namespace

TEST_CASE("Generation: cached logits equal the full forward's on every token [R34]") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Variant& v : all_variants()) {
      Rng rng(1);
      Transformer model(v.config, rng);
      model.to(dtype);
      enliven(model, rng);
      model.eval();
      const Tensor ids = random_ids(1, 12, 17, rng), full = model.logits(ids);
      Transformer::Cache cache = model.make_cache();
      for (const auto& [begin, end] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 5}, {5, 6}, {6, 7}, {7, 10}, {10, 11}, {11, 12}}) {
        const Tensor logits = model.project(model.extend(part(ids, begin, end), cache));
        INFO(v.label << ", " << dtype << ", tokens " << begin << " to " << end);
        CHECK(difference(logits, full.slice(1, begin, end)) < (dtype == DType::f32 ? 1e-5 : 1e-12));
      }
      CHECK(cache.length() == 12);
      CHECK_THROWS_WITH(model.extend({1}, cache), Contains("sequence too long: got 13 tokens"));
    }
}

TEST_CASE("Decoder: past the window, logits are those of the last seq_len tokens") {
  for (const Variant& v : all_variants()) {
    Rng rng(2);
    Transformer model(v.config, rng);
    model.to(DType::f64);
    enliven(model, rng);
    const Tensor ids = random_ids(1, 30, 17, rng);
    const auto last_logits = [&](int64_t end) {
      const int64_t begin = std::max<int64_t>(0, end - 12);
      return model.logits(ids.slice(1, begin, end)).select(1, end - begin - 1).reshape({17});
    };
    Decoder decoder(model);
    INFO(v.label);
    CHECK(difference(decoder.feed(part(ids, 0, 10)), last_logits(10)) < 1e-12);
    for (int64_t end = 11; end <= 16; ++end)
      CHECK(difference(decoder.feed(part(ids, end - 1, end)), last_logits(end)) < 1e-12);
    CHECK(decoder.tokens() == part(ids, 0, 16));
    CHECK(difference(Decoder(model).feed(part(ids, 0, 30)), last_logits(30)) < 1e-12);
  }
}

TEST_CASE("Sampling: temperature, top-k, ties, seeds") {
  const Tensor logits = Tensor::of({1, 3, 2, 3, -1}, {5});
  Rng rng(3);
  CHECK(sample_token(logits, {.temperature = 0}, rng) == 1);
  CHECK(rng == Rng(3));
  for (int i = 0; i < 50; ++i) CHECK(sample_token(logits, {.top_k = 1}, rng) == 1);
  std::vector<double> seen(5), cold(5);
  for (int i = 0; i < 20000; ++i) {
    ++seen[static_cast<size_t>(sample_token(logits, {.top_k = 3}, rng))];
    ++cold[static_cast<size_t>(sample_token(logits, {.temperature = 0.5}, rng))];
  }
  const double e = std::exp(1.0), total = 2 * e + 1;
  CHECK(seen[0] + seen[4] == 0);
  CHECK(close(seen[1] / 20000, e / total, 0, 0.015));
  CHECK(close(seen[2] / 20000, 1 / total, 0, 0.015));
  const double cold_total = 2 * std::pow(e, 4) + std::pow(e, 2) + 1 + std::pow(e, -4);
  CHECK(close(cold[3] / 20000, std::pow(e, 4) / cold_total, 0, 0.015));
  CHECK(close(cold[0] / 20000, 1 / cold_total, 0, 0.005));

  const double inf = std::numeric_limits<double>::infinity();
  CHECK(sample_token(Tensor::of({-inf, 0, -inf}, {3}), {}, rng) == 1);
  for (const Tensor& bad : {Tensor::of({0, std::nan("")}, {2}), Tensor::of({0, inf}, {2}), Tensor::of({-inf}, {1})})
    CHECK_THROWS_WITH(sample_token(bad, {}, rng), Contains("logits cannot be sampled from"));
  CHECK_THROWS_AS(sample_token(logits, {.temperature = -1}, rng), UsageError);
  CHECK_THROWS_AS(sample_token(logits, {.top_k = -1}, rng), UsageError);
}

TEST_CASE("generate: the seed decides, the callback sees each token, greedy follows the logits") {
  Rng rng(4);
  Transformer model(tiny_config(), rng);
  enliven(model, rng);
  Rng a(5), b(5);
  std::vector<int64_t> seen;
  const std::vector<int64_t> first = generate(model, {1, 2, 3}, 20, {}, a, [&](int64_t t) { seen.push_back(t); });
  CHECK(first.size() == 20);
  CHECK(first == seen);
  CHECK(generate(model, {1, 2, 3}, 20, {}, b) == first);
  CHECK(generate(model, {1, 2, 3}, 20, {}, a) != first);
  CHECK(generate(model, {1}, 0, {}, a).empty());

  const std::vector<int64_t> greedy = generate(model, {1, 2, 3}, 1, {.temperature = 0}, a);
  const std::vector<double> logits =
      model.logits(Tensor::of<int64_t>({1, 2, 3}, {1, 3})).select(1, 2).to_vector<double>();
  CHECK(greedy[0] == std::max_element(logits.begin(), logits.end()) - logits.begin());

  CHECK_THROWS_AS(generate(model, {}, 1, {}, a), UsageError);
  CHECK_THROWS_AS(generate(model, {1}, -1, {}, a), UsageError);
  CHECK_THROWS_AS(generate(model, {17}, 1, {}, a), Error);
}
