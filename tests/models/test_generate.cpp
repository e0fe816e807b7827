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

TEST_CASE("Decoder: past the window, half of it is dropped at a time") {
  std::vector<int64_t> of_12, of_5;
  for (int64_t length = 10; length <= 26; ++length) of_12.push_back(Decoder::visible(length, 12));
  for (int64_t length = 4; length <= 12; ++length) of_5.push_back(Decoder::visible(length, 5));
  CHECK(of_12 == std::vector<int64_t>{10, 11, 12, 7, 8, 9, 10, 11, 12, 7, 8, 9, 10, 11, 12, 7, 8});
  CHECK(of_5 == std::vector<int64_t>{4, 5, 3, 4, 5, 3, 4, 5, 3});
  CHECK(Decoder::visible(9, 1) == 1);
  CHECK(Decoder::visible(9, 2) == 2);
}

TEST_CASE("Decoder: logits are those of a full forward on the visible tokens, however they were fed") {
  for (const Variant& v : all_variants()) {
    for (const DType dtype : {DType::f32, DType::f64}) {
      const double tolerance = dtype == DType::f32 ? 1e-5 : 1e-12;
      Rng rng(2);
      Transformer model(v.config, rng);
      model.to(dtype);
      enliven(model, rng);
      const Tensor ids = random_ids(1, 30, 17, rng);
      const auto last_logits = [&](int64_t end) {
        const int64_t begin = end - Decoder::visible(end, 12);
        return model.logits(ids.slice(1, begin, end)).select(1, end - begin - 1).reshape({17});
      };
      Decoder decoder(model);
      INFO(v.label << ", " << dtype);
      CHECK(difference(decoder.feed(part(ids, 0, 10)), last_logits(10)) < tolerance);
      for (int64_t end = 11; end <= 26; ++end)
        CHECK(difference(decoder.feed(part(ids, end - 1, end)), last_logits(end)) < tolerance);
      CHECK(decoder.tokens() == part(ids, 0, 26));
      CHECK(difference(decoder.feed(part(ids, 26, 30)), last_logits(30)) < tolerance);
      CHECK(difference(Decoder(model).feed(part(ids, 0, 30)), last_logits(30)) < tolerance);
    }
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

TEST_CASE("Sampling: candidates of top-p, top-k and the repetition penalty, exactly") {
  const auto is = [](const std::vector<Candidate>& got, const std::vector<std::pair<int64_t, double>>& want) {
    if (got.size() != want.size()) return false;
    for (size_t i = 0; i < got.size(); ++i)
      if (got[i].token != want[i].first || !close(got[i].probability, want[i].second, 1e-14)) return false;
    return true;
  };
  const auto logs = [](std::vector<double> p) {
    for (double& v : p) v = std::log(v);
    return Tensor::of(p, {std::ssize(p)});
  };
  // probabilities 1/16, 8/16, 2/16, 4/16, 1/16
  const Tensor logits = logs({1, 8, 2, 4, 1});
  CHECK(is(candidates(logits, {}), {{0, 1 / 16.}, {1, 8 / 16.}, {2, 2 / 16.}, {3, 4 / 16.}, {4, 1 / 16.}}));
  CHECK(is(candidates(logits, {.top_p = 0.4}), {{1, 1.}}));
  CHECK(is(candidates(logits, {.top_p = 0.6}), {{1, 8 / 12.}, {3, 4 / 12.}}));
  CHECK(is(candidates(logits, {.top_p = 0.9}), {{1, 8 / 15.}, {3, 4 / 15.}, {2, 2 / 15.}, {0, 1 / 15.}}));
  CHECK(is(candidates(logits, {.top_k = 2, .top_p = 0.6}), {{1, 1.}}));  // 8/12 of the two
  CHECK(is(candidates(logits, {.top_k = 3, .top_p = 0.6}), {{1, 8 / 12.}, {3, 4 / 12.}}));
  CHECK(is(candidates(logits, {.temperature = 0.5, .top_p = 0.9}), {{1, 64 / 80.}, {3, 16 / 80.}}));  // of 86
  CHECK(is(candidates(logits, {.temperature = 0, .top_p = 0.6}), {{1, 1.}}));

  // positive logits are divided, negative ones multiplied, each once
  const double log2 = std::log(2.0);
  const Tensor signs = Tensor::of({4 * log2, -log2, 2 * log2, 0}, {4});
  const std::vector<int64_t> seen{0, 1, 0, 3};
  CHECK(is(candidates(signs, {.repetition_penalty = 2}, seen),
           {{0, 16 / 37.}, {1, 1 / 37.}, {2, 16 / 37.}, {3, 4 / 37.}}));
  CHECK(is(candidates(signs, {.repetition_penalty = 0.5}, std::vector<int64_t>{1}),
           {{0, 16. / (21 + std::sqrt(0.5))},
            {1, std::sqrt(0.5) / (21 + std::sqrt(0.5))},
            {2, 4. / (21 + std::sqrt(0.5))},
            {3, 1. / (21 + std::sqrt(0.5))}}));
  CHECK(is(candidates(signs, {.repetition_penalty = 2}), {{0, 32 / 43.}, {1, 1 / 43.}, {2, 8 / 43.}, {3, 2 / 43.}}));

  Rng rng(3);
  std::vector<double> drawn(5);
  for (int i = 0; i < 20000; ++i) ++drawn[static_cast<size_t>(sample_token(logits, {.top_p = 0.6}, rng))];
  CHECK(drawn[0] + drawn[2] + drawn[4] == 0);
  CHECK(close(drawn[1] / 20000, 8 / 12., 0, 0.015));
  for (const SampleOptions& bad : {SampleOptions{.top_p = 0},
                                   {.top_p = 1.1},
                                   {.top_p = std::nan("")},
                                   {.repetition_penalty = 0},
                                   {.repetition_penalty = -2}})
    CHECK_THROWS_AS(candidates(logits, bad), UsageError);
  CHECK_THROWS_WITH(candidates(logits, {.top_p = 2}), Contains("bad --top-p: got 2, expected a number above 0"));
  CHECK_THROWS_WITH(candidates(signs, {.repetition_penalty = 2}, std::vector<int64_t>{4}), Contains("got 4"));
}

TEST_CASE("Sampling: the draws of a seed are those of a cumulative sum over weights, as ever") {
  Rng values(8), rng(9), same(9);
  for (int i = 0; i < 200; ++i) {
    const std::vector<double> x = Tensor::randn({50}, values, DType::f64, 2).to_vector<double>();
    const double largest = *std::max_element(x.begin(), x.end());
    std::vector<double> cumulative;
    double total = 0;
    for (const double v : x) cumulative.push_back(total += std::exp((v - largest) / 0.8));
    const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), same.uniform() * total);
    CHECK(sample_token(Tensor::of(x, {50}), {.temperature = 0.8}, rng) == chosen - cumulative.begin());
  }
}

TEST_CASE("stop texts: the first that is complete ends the text, in any pieces") {
  const auto until = [](const std::vector<std::string>& stops, const std::string& text, size_t piece) {
    StopText stop(stops);
    std::string out;
    for (size_t i = 0; i < text.size(); i += piece) out += stop.feed(text.substr(i, piece));
    out += stop.finish();
    return out + (stop.found() ? "|" : "");
  };
  for (const size_t piece : {1, 2, 3, 5, 100}) {
    INFO(piece << " bytes a piece");
    CHECK(until({"end"}, "the endless end", piece) == "the |");
    CHECK(until({"end"}, "e en ene enend", piece) == "e en ene en|");
    CHECK(until({"end"}, "an en", piece) == "an en");
    CHECK(until({}, "text", piece) == "text");
    CHECK(until({"aab"}, "aaab", piece) == "a|");
    CHECK(until({"abc", "b"}, "abc", piece) == "a|");  // b is complete first
    CHECK(until({"bc", "abc"}, "abc", piece) == "|");  // both at once: the longer
    CHECK(until({"xyz", "\n"}, "xy\nz", piece) == "xy|");
    CHECK(until({"\xc3\xa9"}, "caf\xc3\xa9!", piece) == "caf|");
  }
  StopText early({"end"});
  CHECK(early.feed("text e") == "text ");
  CHECK(early.feed("x") == "ex");
  CHECK_THROWS_AS(StopText({"a", ""}), UsageError);
}

TEST_CASE("generate: the seed decides, the callback sees each token, greedy follows the logits") {
  Rng rng(4);
  Transformer model(tiny_config(), rng);
  enliven(model, rng);
  Rng a(5), b(5);
  std::vector<int64_t> seen;
  const std::vector<int64_t> first = generate(model, {1, 2, 3}, 20, {}, a, [&](int64_t t) {
    seen.push_back(t);
    return true;
  });
  CHECK(first.size() == 20);
  CHECK(first == seen);
  CHECK(generate(model, {1, 2, 3}, 20, {}, b) == first);
  CHECK(generate(model, {1, 2, 3}, 20, {}, a) != first);
  CHECK(generate(model, {1}, 0, {}, a).empty());
  const auto begin_of_first = [&](int64_t n) { return std::vector<int64_t>(first.begin(), first.begin() + n); };
  Rng c(5), d(5);
  int64_t calls = 0;
  CHECK(generate(model, {1, 2, 3}, 20, {}, c, [&](int64_t) { return ++calls < 4; }) == begin_of_first(4));
  const auto place = std::find(first.begin(), first.end(), first[9]) - first.begin();
  CHECK(generate(model, {1, 2, 3}, 20, {}, d, {}, {first[9]}) == begin_of_first(place));
  CHECK_THROWS_AS(generate(model, {1}, 1, {}, d, {}, {17}), UsageError);
  // the penalty counts the prompt and what was made
  std::vector<int64_t> text{1, 2, 3};
  const SampleOptions penalised{.repetition_penalty = 1.5, .temperature = 0};
  for (int i = 0; i < 8; ++i) {
    const int64_t n = std::ssize(text);
    const Tensor last = model.logits(Tensor::of(text, {1, n})).select(1, n - 1).reshape({17});
    text.push_back(candidates(last, penalised, text)[0].token);
  }
  CHECK(generate(model, {1, 2, 3}, 8, penalised, a) == std::vector<int64_t>(text.begin() + 3, text.end()));
  CHECK(generate(model, {1, 2, 3}, 8, {.temperature = 0}, a) != std::vector<int64_t>(text.begin() + 3, text.end()));

  const std::vector<int64_t> greedy = generate(model, {1, 2, 3}, 1, {.temperature = 0}, a);
  const std::vector<double> logits =
      model.logits(Tensor::of<int64_t>({1, 2, 3}, {1, 3})).select(1, 2).to_vector<double>();
  CHECK(greedy[0] == std::max_element(logits.begin(), logits.end()) - logits.begin());

  CHECK_THROWS_AS(generate(model, {}, 1, {}, a), UsageError);
  CHECK_THROWS_AS(generate(model, {1}, -1, {}, a), UsageError);
  CHECK_THROWS_AS(generate(model, {17}, 1, {}, a), Error);
}
