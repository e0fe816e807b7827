// Looking inside a model: the layers in plain steps against the fused nodes, distances to hulls, and quantities whose
// values are known.
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "autograd/watch.h"
#include "core/tensor_ops.h"
#include "models/analysis.h"
#include "models/hull.h"
#include "tests/match.h"
#include "tests/models/lm_support.h"

using namespace bg;
using namespace bg::test;

namespace {

double difference(const Tensor& got, const Tensor& want) {
  return num::max_abs(num::sub(got, want)) / std::max(1.0, num::max_abs(want));
}

// What the attention of every block gave in a forward pass, by scope.
std::map<std::string, Tensor> attention_outputs(const Transformer& model, const Tensor& ids) {
  std::map<std::string, Tensor> outputs;
  const WatchOutputs watch([&](const std::string& scope, const Vars& y) {
    if (scope.ends_with(".attn")) outputs[scope] = y[0].value();
  });
  model.hidden(ids);
  return outputs;
}

std::unique_ptr<Transformer> make(const TransformerConfig& config, uint64_t seed = 1, DType dtype = DType::f64) {
  Rng rng(seed);
  auto model = std::make_unique<Transformer>(config, rng);
  model->to(dtype);
  enliven(*model, rng);
  model->eval();
  return model;
}

TransformerConfig boosted(Gate gate, int64_t rounds = 2) {
  TransformerConfig c = tiny_config();
  c.model = nn::AttentionKind::boosted;
  c.gate = gate;
  c.rounds = rounds;
  return c;
}

// Sets every parameter whose path ends so.
void fill(Transformer& model, const std::string& end, double value) {
  int found = 0;
  for (NamedParameter& p : model.parameters())
    if (p.path.ends_with(end)) {
      p.var.value().fill(value);
      ++found;
    }
  REQUIRE(found > 0);
}

Windows some_windows(int64_t count, int64_t length) {
  Rng rng(9);
  Windows w;
  for (int64_t i = 0; i < count; ++i) {
    w.inputs.push_back(random_ids(1, length, 17, rng));
    w.targets.push_back(random_ids(1, length, 17, rng));
  }
  return w;
}

// Seventeen one-byte tokens, the last one no character of its own.
struct TestTokenizer : Tokenizer {
  int64_t vocab_size() const override { return 17; }
  std::string describe() const override { return "test"; }
  std::string to_json() const override { return "{}"; }
  std::vector<int32_t> encode_valid(std::string_view text) const override {
    std::vector<int32_t> ids;
    for (char c : text) ids.push_back(c - 'a');
    return ids;
  }
  std::string_view token_bytes(int32_t id) const override {
    return std::string_view("abcdefghijklmnop\xff").substr(static_cast<size_t>(id), 1);
  }
};

double total(const std::vector<double>& x) {
  double s = 0;
  for (double v : x) s += v;
  return s;
}

}  // namespace

TEST_CASE("attention in plain steps equals the fused node: every kind, norm, kv source and gate, one to three rounds") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const Variant& v : all_variants())
      for (int64_t rounds = 1; rounds <= 3; ++rounds) {
        TransformerConfig c = v.config;
        if (c.model != nn::AttentionKind::boosted && rounds > 1) continue;
        c.rounds = rounds;
        const auto model = make(c, 1, dtype);
        Rng rng(2);
        const Tensor ids = random_ids(2, 11, 17, rng);
        const std::map<std::string, Tensor> fused = attention_outputs(*model, ids);
        const std::vector<nn::AttentionTrace> traces = model->trace_attention(ids);
        INFO(v.label << ", rounds " << rounds << ", " << dtype);
        REQUIRE(fused.size() == traces.size());
        for (size_t l = 0; l < traces.size(); ++l) {
          const nn::AttentionTrace& t = traces[l];
          CHECK(difference(t.output, fused.at(str("blocks.", l, ".attn"))) < (dtype == DType::f32 ? 2e-5 : 1e-12));
          const size_t expected = c.model == nn::AttentionKind::twicing   ? 2
                                  : c.model == nn::AttentionKind::boosted ? static_cast<size_t>(rounds)
                                                                          : 1;
          CHECK(t.rounds.size() == expected);
          CHECK(difference(t.rounds[0].output, t.rounds[0].correction) == 0);
        }
      }
}

TEST_CASE("a trace's parts: causal weights, their entropy, gates between 0 and 1, sums of rounds") {
  const auto model = make(boosted(Gate::mlp, 3));
  Rng rng(3);
  for (const nn::AttentionTrace& t : model->trace_attention(random_ids(1, 9, 17, rng)))
    for (size_t m = 0; m < t.rounds.size(); ++m) {
      const nn::AttentionTrace::Round& r = t.rounds[m];
      for (int64_t h = 0; h < 2; ++h)
        for (int64_t i = 0; i < 9; ++i) {
          double sum = 0, entropy = 0;
          for (int64_t j = 0; j < 9; ++j) {
            const double p = r.weights.at({0, h, i, j});
            CHECK((j <= i ? p > 0 : p == 0));
            sum += p;
            if (p > 0) entropy -= p * std::log(p);
          }
          CHECK(close(sum, 1, 1e-12));
          CHECK(close(r.entropy.at({0, h, i}), entropy, 0, 1e-12));
        }
      if (m == 0) {
        CHECK(!r.gate.defined());
        continue;
      }
      const Tensor sum = num::add(t.rounds[m - 1].output, num::mul(r.gate.contiguous(), r.correction));
      CHECK(difference(r.output, sum) < 1e-12);
      for (double g : r.gate.to_vector<double>()) CHECK((g > 0 && g < 1));
    }
}

TEST_CASE("distance to a hull: cases with known answers") {
  using V = std::vector<double>;
  const V triangle{0, 0, 2, 0, 0, 2};
  const auto distance = [&](const V& point, const V& corners) {
    const HullDistance h = distance_to_hull(point, corners);
    V nearest(point.size());
    double sum = 0, squared = 0;
    for (size_t j = 0; j < h.weights.size(); ++j) {
      CHECK(h.weights[j] >= 0);
      sum += h.weights[j];
      for (size_t i = 0; i < point.size(); ++i) nearest[i] += h.weights[j] * corners[j * point.size() + i];
    }
    for (size_t i = 0; i < point.size(); ++i) squared += (nearest[i] - point[i]) * (nearest[i] - point[i]);
    CHECK(close(sum, 1, 1e-12));
    CHECK(close(h.distance, std::sqrt(squared), 1e-9, 1e-9));  // it is the distance to what the weights give
    CHECK(h.gap >= 0);
    return h.distance;
  };
  CHECK(close(distance({0.5, 0.5}, triangle), 0, 0, 1e-9));                   // inside
  CHECK(close(distance({1, 1}, triangle), 0, 0, 1e-9));                       // on an edge
  CHECK(close(distance({0, 2}, triangle), 0, 0, 1e-9));                       // a corner
  CHECK(close(distance({2, 2}, triangle), std::sqrt(2.0), 1e-9));             // nearest to the middle of an edge
  CHECK(close(distance({-3, -4}, triangle), 5, 1e-9));                        // nearest to a corner
  CHECK(close(distance({1, -0.25}, triangle), 0.25, 1e-9));                   // nearest to another edge
  CHECK(close(distance({3, 4}, {0, 0}), 5, 1e-12));                           // a single corner
  CHECK(distance({1, 2, 3}, {1, 2, 3}) == 0);                                 // at it
  CHECK(close(distance({0, 1}, {-1, 0, 1, 0, 1, 0, -1, 0, 0, 0}), 1, 1e-9));  // corners that coincide and align
  CHECK(close(distance({1e6, 1e6 + 1}, {1e6 - 1, 1e6, 1e6 + 1, 1e6}), 1, 1e-6));
  for (const double s : {1e-200, 1e200}) {  // whose squares are beyond double
    const V corners{0, 0, 2 * s, 0, 0, 2 * s};
    const HullDistance h = distance_to_hull(V{-3 * s, -4 * s}, corners);
    CHECK(close(h.distance, 5 * s, 1e-12));
    CHECK(h.weights == V{1, 0, 0});
    CHECK(close(distance_to_hull(V{2 * s, 2 * s}, corners).distance, std::sqrt(2.0) * s, 1e-9));
  }
  CHECK_THROWS_WITH(distance_to_hull(V{1, 2}, V{1, 2, 3}), Contains("sizes do not fit"));
  CHECK_THROWS_WITH(distance_to_hull(V{1, 2}, V{}), Contains("sizes do not fit"));
}

TEST_CASE("distance to a hull: certified in many dimensions, zero for averages") {
  constexpr size_t d = 16;
  for (const size_t n : {1, 2, 10, 100}) {
    Rng rng(n);
    std::vector<double> corners(n * d), weights(n), average(d), point(d);
    for (double& x : corners) x = rng.normal();
    for (double& w : weights) w = -std::log(1 - rng.uniform());
    const double sum = total(weights);
    for (size_t j = 0; j < n; ++j)
      for (size_t i = 0; i < d; ++i) average[i] += weights[j] / sum * corners[j * d + i];
    CHECK(distance_to_hull(average, corners).distance < 1e-5);
    for (double& x : point) x = 2 * rng.normal();
    const HullDistance h = distance_to_hull(point, corners);
    CHECK(h.gap < 1e-9);
    // Against every corner: no closer one than the hull; and what the gap means, from the nearest point itself.
    double closest = 1e9;
    for (size_t j = 0; j < n; ++j) {
      double squared = 0;
      for (size_t i = 0; i < d; ++i) squared += std::pow(corners[j * d + i] - point[i], 2);
      closest = std::min(closest, std::sqrt(squared));
    }
    CHECK(h.distance <= closest * (1 + 1e-12));
    CHECK(h.distance > 0);
  }
}

TEST_CASE("analysis: uniform attention has the entropy of its width, a scalar gate one value") {
  const auto model = make(boosted(Gate::scalar));
  fill(*model, "rounds.0.w_q", 0);
  fill(*model, "rounds.0.b_q", 0);
  fill(*model, ".gate", 0.4);
  const Windows windows = some_windows(3, 12);
  const Analysis a = analyse(*model, windows, {});
  CHECK(a.tokens == 36);
  CHECK(a.windows == 3);
  double want = 0;
  for (int t = 1; t <= 12; ++t) want += std::log(t) / 12;
  REQUIRE(a.layers.size() == 2);
  for (const LayerLook& layer : a.layers) {
    REQUIRE(layer.rounds.size() == 2);
    const RoundLook &first = layer.rounds[0], &second = layer.rounds[1];
    REQUIRE(first.entropy.size() == 2);
    for (const Spread& s : first.entropy) CHECK(close(s.mean(), want, 1e-12));
    CHECK(first.gate.count() == 0);
    CHECK(first.hull.empty());
    CHECK(close(second.gate.mean(), 1 / (1 + std::exp(-0.4)), 1e-12));
    CHECK(second.gate.sd() < 1e-12);
    CHECK(second.gate_by_dimension.size() == 8);
    CHECK(std::isnan(second.openness_correlation));
    CHECK(second.openness.size() == 10);
    CHECK(second.residual.count() == 36);
  }
  CHECK(to_json(a)["layers"][0][1]["openness_correlation"].is_null());
  double loss = 0;
  for (size_t w = 0; w < 3; ++w) loss += model->loss(windows.inputs[w], windows.targets[w]).item() / 3;
  CHECK(close(a.loss, loss, 1e-12));
}

TEST_CASE("analysis: openness follows the entropy where the gate reads nothing else") {
  const auto model = make(boosted(Gate::mlp));
  for (NamedParameter& p : model->parameters())
    if (p.path.ends_with(".w_1")) {  // (2 d + 1, hidden): the last row reads the entropy
      p.var.value().fill(0);
      p.var.value().slice(0, 16, 17).fill(1);
    }
  fill(*model, ".b_1", 2);
  fill(*model, ".w_2", 0.005);  // little, so that the sigmoid is nearly straight
  fill(*model, ".b_2", 0);
  const Analysis a = analyse(*model, some_windows(4, 12), {});
  for (const LayerLook& layer : a.layers) {
    const RoundLook& r = layer.rounds[1];
    CHECK(r.openness_correlation > 0.95);
    CHECK(r.openness_correlation <= 1 + 1e-12);
    int64_t count = 0;
    for (size_t b = 0; b < r.openness.size(); ++b) {
      count += r.openness[b].entropy.count();
      if (b > 0) CHECK(r.openness[b].openness.mean() >= r.openness[b - 1].openness.mean() - 1e-12);
    }
    CHECK(count == 48);
  }
}

TEST_CASE("analysis: residuals and hulls of corrections that are known") {
  const auto model = make(boosted(Gate::none));
  fill(*model, "rounds.1.w_v", 0);
  fill(*model, "rounds.1.b_v", 0);  // no correction
  const AnalysisOptions all{.hull_tokens = 24};
  for (const LayerLook& layer : analyse(*model, some_windows(2, 12), all).layers) {
    CHECK(close(layer.rounds[1].residual.mean(), layer.rounds[0].residual.mean(), 1e-12));
    for (const HullShare& h : layer.rounds[1].hull) {
      CHECK(h.share.count() == 24);
      CHECK(h.share.mean() == 0);
      CHECK(h.outside == 0);
    }
  }
  fill(*model, "rounds.1.b_v", 1e4);  // far away in one direction: all but nothing of it is in the hull
  for (const LayerLook& layer : analyse(*model, some_windows(2, 12), all).layers)
    for (const HullShare& h : layer.rounds[1].hull) {
      CHECK(close(h.share.mean(), 1, 0, 1e-2));
      CHECK(h.outside == 24);
    }
  // The first token sees itself alone: its hull is a point, F_0, and the whole correction is outside.
  for (const LayerLook& layer : analyse(*make(boosted(Gate::linear)), some_windows(5, 1), {.hull_tokens = 5}).layers)
    for (const HullShare& h : layer.rounds[1].hull) CHECK(close(h.share.mean(), 1, 1e-9));
}

TEST_CASE("analysis: standard and twicing models have what makes sense for them") {
  TransformerConfig c = tiny_config();
  const Analysis standard = analyse(*make(c), some_windows(2, 12), {});
  CHECK(standard.layers[0].rounds.size() == 1);
  CHECK(standard.layers[0].rounds[0].residual.count() == 24);
  c.model = nn::AttentionKind::twicing;
  const Analysis twicing = analyse(*make(c), some_windows(2, 12), {});
  REQUIRE(twicing.layers[0].rounds.size() == 2);
  CHECK(twicing.layers[0].rounds[1].gate.count() == 0);
  CHECK(twicing.layers[0].rounds[1].entropy[0].mean() == twicing.layers[0].rounds[0].entropy[0].mean());
  CHECK(twicing.layers[0].rounds[1].hull.size() == 2);
}

TEST_CASE("windows: drawn by the seed, distinct, in order, one token apart from their targets") {
  std::string text;
  for (int i = 0; i < 103; ++i) text += static_cast<char>(i);
  const TokenStream stream(text, ByteTokenizer());
  const auto starts = [&](int64_t length, const AnalysisOptions& o) {
    const Windows w = draw_windows(stream, length, o);
    std::vector<int64_t> first;
    for (size_t i = 0; i < w.inputs.size(); ++i) {
      first.push_back(static_cast<int64_t>(w.inputs[i].flat(0)));
      for (int64_t t = 0; t < w.inputs[i].numel(); ++t) CHECK(w.targets[i].flat(t) == w.inputs[i].flat(t) + 1);
    }
    return first;
  };
  const std::vector<int64_t> five = starts(10, {.tokens = 41});
  CHECK(five.size() == 5);
  CHECK(std::is_sorted(five.begin(), five.end()));
  CHECK(std::set<int64_t>(five.begin(), five.end()).size() == 5);
  CHECK(five == starts(10, {.tokens = 50}));
  CHECK(starts(10, {.tokens = 1000}).size() == 10);
  CHECK(starts(10, {.tokens = 1000}).back() == 90);
  CHECK(starts(10, {.tokens = 50, .seed = 2}) != five);
  CHECK(draw_windows(stream, 500, {}).inputs[0].shape() == Shape{1, 102});
  CHECK_THROWS_AS(draw_windows(TokenStream("x", ByteTokenizer()), 10, {}), Error);
  CHECK_THROWS_AS(draw_windows(stream, 10, {.tokens = 0}), UsageError);
}

TEST_CASE("tokens: gains against a reference, and a model with its corrections left out") {
  const auto model = make(boosted(Gate::scalar)), other = make(boosted(Gate::scalar), 7);
  const Windows windows = some_windows(3, 12);
  const TestTokenizer tokenizer;

  const TokenLooks same = compare_tokens(*model, *model, tokenizer, windows, {});
  CHECK(same.gain.count() == 36);
  CHECK(same.gain.mean() == 0);
  CHECK(same.helped.empty());
  CHECK(same.hurt.empty());

  const TokenLooks looks = compare_tokens(*model, *other, tokenizer, windows, {.shown_tokens = 3, .shown_context = 4});
  REQUIRE(looks.helped.size() == 3);
  REQUIRE(looks.hurt.size() == 3);
  double gain = 0;
  for (size_t w = 0; w < 3; ++w)
    gain += (other->loss(windows.inputs[w], windows.targets[w]).item() -
             model->loss(windows.inputs[w], windows.targets[w]).item()) /
            3;
  CHECK(close(looks.gain.mean(), gain, 1e-9));
  double last = 1e9;
  for (const TokenLook& t : looks.helped) {
    const double g = t.reference_loss - t.loss;
    CHECK((g > 0 && g <= last));
    last = g;
    CHECK((!t.context.empty() && t.context.size() <= 4));
    CHECK(!t.target.empty());
    REQUIRE(t.attention.size() == 2);
    REQUIRE(t.attention[0].size() == 2);
    CHECK(t.attention[0][0].size() == t.context.size());
    CHECK(total(t.attention[0][1]) <= 1 + 1e-12);
    CHECK(t.telling_layer < 2);
  }
  for (const TokenLook& t : looks.hurt) CHECK(t.reference_loss < t.loss);
  CHECK(to_json(looks)["helped"].size() == 3);

  // A gate that never opens leaves the corrections out, too.
  const auto plain = without_corrections(*model);
  fill(*model, ".gate", -1e4);
  const TokenLooks closed = compare_tokens(*model, *plain, tokenizer, windows, {});
  CHECK(std::abs(closed.gain.mean()) < 1e-12);
  CHECK(closed.gain.sd() < 1e-12);
  CHECK_THROWS_WITH(without_corrections(*plain), Contains("without corrections to leave out"));
  TransformerConfig small = tiny_config();
  small.vocab = 9;
  CHECK_THROWS_WITH(compare_tokens(*model, *make(small), tokenizer, windows, {}), Contains("different vocabularies"));
}

TEST_CASE("attention maps: a sentence's tokens, and rows that sum to one") {
  const auto model = make(boosted(Gate::linear));
  const TestTokenizer tokenizer;
  const AttentionMaps maps = attention_maps(*model, tokenizer, "abcabdq", 6);
  CHECK(maps.tokens == std::vector<std::string>{"a", "b", "c", "a", "b", "d"});
  REQUIRE(maps.layers.size() == 2);
  for (const auto& layer : maps.layers) {
    REQUIRE(layer.size() == 2);
    for (const auto& map : layer) {
      REQUIRE(map.size() == 36);
      for (size_t i = 0; i < 6; ++i) CHECK(close(total({map.begin() + i * 6, map.begin() + (i + 1) * 6}), 1, 1e-12));
      CHECK(map[1] == 0);
    }
  }
  CHECK(attention_maps(*model, tokenizer, "abcdefghijklmno", 100).tokens.size() == 12);  // seq_len
  CHECK(attention_maps(*model, tokenizer, "q", 100).tokens[0] == "\\xff");
  CHECK_THROWS_WITH(attention_maps(*model, tokenizer, "", 100), Contains("no tokens to map"));
  CHECK(to_json(maps)["layers"][1][0].size() == 36);
}
