#include "models/analysis.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/norm.h"
#include "core/parallel.h"
#include "models/batches.h"
#include "models/hull.h"

namespace bg {
namespace {

using Values = std::vector<double>;

Values values_of(const Tensor& t) { return t.to_vector<double>(); }

Values difference(std::span<const double> a, std::span<const double> b) {
  Values c(a.size());
  for (size_t i = 0; i < a.size(); ++i) c[i] = a[i] - b[i];
  return c;
}

// `count` of the numbers below n, rising, each equally likely.
std::vector<int64_t> sample(int64_t n, int64_t count, Rng rng) {
  std::vector<int64_t> all(static_cast<size_t>(n));
  std::iota(all.begin(), all.end(), int64_t{0});
  count = std::min(count, n);
  for (int64_t i = 0; i < count; ++i)
    std::swap(all[static_cast<size_t>(i)], all[static_cast<size_t>(i) + rng.below(static_cast<uint64_t>(n - i))]);
  all.resize(static_cast<size_t>(count));
  std::sort(all.begin(), all.end());
  return all;
}

// x without its mean and with length 1; empty when it is constant up to rounding.
Values standardised(Values x) {
  constexpr double kConstant = 1e-12;  // relative spread that is rounding
  const double n = static_cast<double>(x.size()), mean = std::accumulate(x.begin(), x.end(), 0.0) / n;
  for (double& v : x) v -= mean;
  const double size = norm2(x);
  if (size <= kConstant * std::sqrt(n) * std::abs(mean)) return {};
  for (double& v : x) v /= size;
  return x;
}

double correlation(const Values& a, const Values& b) {
  const Values x = standardised(a), y = standardised(b);
  if (x.empty() || y.empty()) return std::numeric_limits<double>::quiet_NaN();
  return std::inner_product(x.begin(), x.end(), y.begin(), 0.0);
}

std::vector<OpennessBin> binned(const Values& entropy, const Values& openness) {
  constexpr size_t kBins = 10;
  std::vector<size_t> order(entropy.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return entropy[a] < entropy[b]; });
  std::vector<OpennessBin> bins(std::min(kBins, order.size()));
  for (size_t i = 0; i < order.size(); ++i) {
    OpennessBin& bin = bins[i * bins.size() / order.size()];
    bin.entropy.add(entropy[order[i]]);
    bin.openness.add(openness[order[i]]);
  }
  return bins;
}

// One layer over all windows. A trace has one batch row here: sizes below are (T, d) and (H, T).
class LayerCollector {
 public:
  void add(const nn::AttentionTrace& trace, const std::vector<int64_t>& hull_tokens) {
    openness_.resize(trace.rounds.size());
    look_.rounds.resize(trace.rounds.size());
    d_ = static_cast<size_t>(trace.input.size(2));
    heads_ = static_cast<size_t>(trace.rounds[0].weights.size(1));
    add_first_entropy(trace);
    for (size_t m = 0; m < trace.rounds.size(); ++m) {
      add_entropy(m, trace.rounds[m]);
      add_residual(m, trace);
      if (trace.rounds[m].gate.defined()) add_gate(m, trace.rounds[m]);
      if (m > 0) add_hull(m, trace, hull_tokens);
    }
  }

  LayerLook finish() {
    for (size_t m = 0; m < openness_.size(); ++m) {
      if (openness_[m].empty()) continue;
      look_.rounds[m].openness = binned(first_entropy_, openness_[m]);
      look_.rounds[m].openness_correlation = correlation(first_entropy_, openness_[m]);
    }
    return std::move(look_);
  }

 private:
  void add_first_entropy(const nn::AttentionTrace& trace) {
    const Values entropy = values_of(trace.rounds[0].entropy);
    const size_t T = entropy.size() / heads_;
    for (size_t t = 0; t < T; ++t) {
      double sum = 0;
      for (size_t h = 0; h < heads_; ++h) sum += entropy[h * T + t];
      first_entropy_.push_back(sum / static_cast<double>(heads_));
    }
  }

  void add_entropy(size_t m, const nn::AttentionTrace::Round& round) {
    std::vector<Spread>& by_head = look_.rounds[m].entropy;
    by_head.resize(heads_);
    const Values entropy = values_of(round.entropy);
    const size_t T = entropy.size() / heads_;
    for (size_t i = 0; i < entropy.size(); ++i) by_head[i / T].add(entropy[i]);
  }

  void add_residual(size_t m, const nn::AttentionTrace& trace) {
    const Values x = values_of(trace.input), f = values_of(trace.rounds[m].output);
    for (size_t at = 0; at < x.size(); at += d_) {
      const std::span<const double> token{x.data() + at, d_};
      if (const double size = norm2(token); size > 0)
        look_.rounds[m].residual.add(norm2(difference(token, {f.data() + at, d_})) / size);
    }
  }

  void add_gate(size_t m, const nn::AttentionTrace::Round& round) {
    RoundLook& look = look_.rounds[m];
    look.gate_by_dimension.resize(d_);
    const Values g = values_of(round.gate);
    for (size_t at = 0; at < g.size(); at += d_) {
      double sum = 0;
      for (size_t i = 0; i < d_; ++i) {
        look.gate.add(g[at + i]);
        look.gate_by_dimension[i].add(g[at + i]);
        sum += g[at + i];
      }
      openness_[m].push_back(sum / static_cast<double>(d_));
    }
  }

  void add_hull(size_t m, const nn::AttentionTrace& trace, const std::vector<int64_t>& tokens) {
    const Values v = values_of(trace.rounds[0].values), first = values_of(trace.rounds[0].output),
                 f = values_of(trace.rounds[m].output);
    const size_t width = d_ / heads_, n = tokens.size() * heads_;
    Values shares(n);
    parallel_for(static_cast<int64_t>(n), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        const auto t = static_cast<size_t>(tokens[i / heads_]);
        const size_t h = i % heads_;
        const auto head = [&](const Values& rows, size_t row) {
          return std::span<const double>{rows.data() + row * d_ + h * width, width};
        };
        Values corners;
        for (size_t j = 0; j <= t; ++j) corners.insert(corners.end(), head(v, j).begin(), head(v, j).end());
        const double added = norm2(difference(head(f, t), head(first, t)));
        // F_0 is a point of the hull itself, so the nearest one is no farther
        shares[i] = added > 0 ? std::min(distance_to_hull(head(f, t), corners).distance, added) / added : 0;
      }
    });
    std::vector<HullShare>& by_head = look_.rounds[m].hull;
    by_head.resize(heads_);
    for (size_t i = 0; i < n; ++i) {
      by_head[i % heads_].share.add(shares[i]);
      by_head[i % heads_].outside += shares[i] > HullShare::kOutside;
    }
  }

  size_t d_ = 0, heads_ = 0;
  LayerLook look_;
  Values first_entropy_;          // by token, mean over heads
  std::vector<Values> openness_;  // by round and token
};

}  // namespace

void AnalysisOptions::validate() const {
  const auto check = [](const char* option, int64_t value, int64_t least) {
    constexpr int64_t kMost = 10'000'000;
    if (value < least || value > kMost)
      fail<UsageError>("analysis", str("bad ", option), str(value), str(least, " to ", kMost));
  };
  check("tokens", tokens, 1);
  check("hull_tokens", hull_tokens, 0);
  check("shown_tokens", shown_tokens, 0);
  check("shown_context", shown_context, 1);
}

Windows draw_windows(const TokenStream& text, int64_t length, const AnalysisOptions& options) {
  options.validate();
  const auto predictions = static_cast<int64_t>(text.size()) - 1;
  check_text_length(static_cast<int64_t>(text.size()), 2);
  length = std::min(length, predictions);
  Windows windows;
  for (const int64_t place : sample(predictions / length, (options.tokens + length - 1) / length, Rng(options.seed))) {
    std::vector<int64_t> ids(static_cast<size_t>(length) + 1);
    text.read(static_cast<size_t>(place * length), ids);
    windows.inputs.push_back(Tensor::of(std::vector<int64_t>(ids.begin(), ids.end() - 1), {1, length}));
    windows.targets.push_back(Tensor::of(std::vector<int64_t>(ids.begin() + 1, ids.end()), {1, length}));
  }
  return windows;
}

Analysis analyse(const Transformer& model, const Windows& windows, const AnalysisOptions& options) {
  options.validate();
  const auto count = static_cast<int64_t>(windows.inputs.size());
  BG_CHECK(count > 0, "analysis", "no windows", "", "one or more");
  Analysis a;
  a.windows = count;
  std::vector<LayerCollector> layers(static_cast<size_t>(model.config().layers));
  const Rng rng(options.seed, 1);
  for (int64_t w = 0; w < count; ++w) {
    const Tensor &inputs = windows.inputs[static_cast<size_t>(w)], &targets = windows.targets[static_cast<size_t>(w)];
    const LossSum loss = model.loss_sum(inputs, targets);
    a.loss += loss.sum;
    a.tokens += loss.count;
    const int64_t hulls = options.hull_tokens * (w + 1) / count - options.hull_tokens * w / count;
    const std::vector<int64_t> hull_tokens = sample(inputs.size(1), hulls, rng.fork(static_cast<uint64_t>(w)));
    const std::vector<nn::AttentionTrace> traces = model.trace_attention(inputs);
    for (size_t l = 0; l < traces.size(); ++l) layers[l].add(traces[l], hull_tokens);
  }
  a.loss /= static_cast<double>(a.tokens);
  for (LayerCollector& layer : layers) a.layers.push_back(layer.finish());
  return a;
}

// -- JSON -------------------------------------------------------------------------------------------------------------

namespace {

using Json = nlohmann::ordered_json;

Json json_of(const Spread& s) { return {{"mean", s.mean()}, {"sd", s.sd()}, {"count", s.count()}}; }

template <class T, class F>
Json list_of(const std::vector<T>& all, F&& of) {
  Json list = Json::array();
  for (const T& x : all) list.push_back(of(x));
  return list;
}

Json json_of(const OpennessBin& b) { return {{"entropy", json_of(b.entropy)}, {"openness", json_of(b.openness)}}; }
Json json_of(const HullShare& h) {
  return {{"share", json_of(h.share)}, {"outside", h.outside}, {"points", h.share.count()}};
}

Json json_of(const RoundLook& r) {
  const auto each = [](const auto& x) { return json_of(x); };
  Json j{{"entropy_by_head", list_of(r.entropy, each)}, {"residual", json_of(r.residual)}};
  if (r.gate.count() > 0) {
    j["gate"] = json_of(r.gate);
    j["gate_by_dimension"] = list_of(r.gate_by_dimension, each);
    j["openness_by_entropy"] = list_of(r.openness, each);
    j["openness_correlation"] = std::isfinite(r.openness_correlation) ? Json(r.openness_correlation) : Json();
  }
  if (!r.hull.empty()) j["hull_by_head"] = list_of(r.hull, each);
  return j;
}

Json json_of(const TokenLook& t) {
  return {{"context", t.context},
          {"target", t.target},
          {"loss", t.loss},
          {"reference_loss", t.reference_loss},
          {"telling_layer", t.telling_layer},
          {"attention", t.attention}};
}

}  // namespace

Json to_json(const Analysis& a) {
  return {{"tokens", a.tokens}, {"windows", a.windows}, {"loss", a.loss}, {"layers", list_of(a.layers, [](auto& layer) {
                                                                             return list_of(layer.rounds, [](auto& r) {
                                                                               return json_of(r);
                                                                             });
                                                                           })}};
}

Json to_json(const TokenLooks& t) {
  const auto each = [](const TokenLook& x) { return json_of(x); };
  return {{"gain", json_of(t.gain)},
          {"better", t.better},
          {"helped", list_of(t.helped, each)},
          {"hurt", list_of(t.hurt, each)}};
}

Json to_json(const AttentionMaps& m) { return {{"tokens", m.tokens}, {"layers", m.layers}}; }

}  // namespace bg
