// The parts of analysis.h that follow single tokens: which predictions the corrections change, and who attends to whom.
#include <algorithm>
#include <cmath>

#include "autograd/ops/softmax.h"
#include "models/analysis.h"

namespace bg {
namespace {

// Losses of one window's predictions, in nats.
std::vector<double> token_losses(const Transformer& model, const Tensor& inputs, const Tensor& targets) {
  const NoGrad off;
  const Tensor log_p = log_softmax(Var(model.logits(inputs))).value();  // (1, T, vocab)
  std::vector<double> losses;
  for (int64_t t = 0; t < inputs.size(1); ++t)
    losses.push_back(-log_p.at({0, t, static_cast<int64_t>(targets.flat(t))}));
  return losses;
}

// Weights (T, T) row by row, mean over heads; of the tokens [begin, T) and the rows [first_row, T) alone.
std::vector<double> mean_weights(const nn::AttentionTrace::Round& round, int64_t first_row, int64_t begin) {
  const int64_t H = round.weights.size(1), T = round.weights.size(2);
  const std::vector<double> p = round.weights.slice(2, first_row, T).slice(3, begin, T).to_vector<double>();
  std::vector<double> mean(p.size() / static_cast<size_t>(H));
  for (size_t i = 0; i < p.size(); ++i) mean[i % mean.size()] += p[i] / static_cast<double>(H);
  return mean;
}

double total_variation(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += std::abs(a[i] - b[i]);
  return sum / 2;
}

struct Prediction {
  size_t window;
  int64_t position;
  double loss, reference_loss;
  double gain() const { return reference_loss - loss; }
};

TokenLook look_at(const Prediction& p, const Transformer& model, const Tokenizer& tokenizer, const Windows& windows,
                  int64_t most) {
  const auto text = [&](double id) { return tokenizer.token_text(static_cast<int32_t>(id)); };
  const Tensor &inputs = windows.inputs[p.window], &targets = windows.targets[p.window];
  const int64_t end = p.position + 1, begin = std::max<int64_t>(0, end - most);
  TokenLook look;
  look.loss = p.loss;
  look.reference_loss = p.reference_loss;
  look.target = text(targets.flat(p.position));
  for (int64_t t = begin; t < end; ++t) look.context.push_back(text(inputs.flat(t)));
  double largest = -1;
  for (const nn::AttentionTrace& trace : model.trace_attention(inputs.slice(1, 0, end))) {
    std::vector<std::vector<double>> rounds;
    for (const auto& round : trace.rounds) rounds.push_back(mean_weights(round, end - 1, begin));
    if (const double change = total_variation(rounds.front(), rounds.back()); change > largest) {
      largest = change;
      look.telling_layer = look.attention.size();
    }
    look.attention.push_back(std::move(rounds));
  }
  return look;
}

}  // namespace

TokenLooks compare_tokens(const Transformer& model, const Transformer& reference, const Tokenizer& tokenizer,
                          const Windows& windows, const AnalysisOptions& options) {
  options.validate();
  BG_CHECK(model.config().vocab == reference.config().vocab, "analysis", "the models have different vocabularies",
           str(model.config().vocab, " and ", reference.config().vocab, " tokens"), "the same tokenizer");
  TokenLooks looks;
  std::vector<Prediction> all;
  for (size_t w = 0; w < windows.inputs.size(); ++w) {
    const std::vector<double> ours = token_losses(model, windows.inputs[w], windows.targets[w]),
                              theirs = token_losses(reference, windows.inputs[w], windows.targets[w]);
    for (size_t t = 0; t < ours.size(); ++t) {
      all.push_back({w, static_cast<int64_t>(t), ours[t], theirs[t]});
      looks.gain.add(all.back().gain());
      looks.better += all.back().gain() > 0;
    }
  }
  looks.better /= static_cast<double>(all.size());
  std::stable_sort(all.begin(), all.end(), [](auto& a, auto& b) { return a.gain() > b.gain(); });
  const size_t shown = std::min(static_cast<size_t>(options.shown_tokens), all.size());
  for (size_t i = 0; i < shown; ++i) {
    const Prediction &best = all[i], &worst = all[all.size() - 1 - i];
    if (best.gain() > 0) looks.helped.push_back(look_at(best, model, tokenizer, windows, options.shown_context));
    if (worst.gain() < 0) looks.hurt.push_back(look_at(worst, model, tokenizer, windows, options.shown_context));
  }
  return looks;
}

std::unique_ptr<Transformer> without_corrections(const Transformer& model) {
  TransformerConfig config = model.config();
  BG_CHECK(
      config.model == nn::AttentionKind::twicing || (config.model == nn::AttentionKind::boosted && config.rounds > 1),
      "analysis", "a model without corrections to leave out", nn::kAttentionNames.name(config.model),
      "twicing, or boosted with two rounds or more");
  config.model = nn::AttentionKind::standard;  // round 0 by itself, whose parameters have the same names
  Rng rng(0);
  auto plain = std::make_unique<Transformer>(config, rng);
  plain->to(model.output_table().dtype());
  const StateDict all = model.state_dict();
  StateDict kept;
  for (const auto& [path, value] : plain->state_dict()) kept[path] = all.at(path);
  plain->load_state_dict(kept, "analysis");
  plain->eval();
  return plain;
}

AttentionMaps attention_maps(const Transformer& model, const Tokenizer& tokenizer, std::string_view sentence,
                             int64_t most) {
  std::vector<int32_t> ids = tokenizer.encode(sentence);
  BG_CHECK(!ids.empty() && most > 0, "analysis", "no tokens to map", str("'", sentence, "'"), "a sentence");
  const auto n = std::min({static_cast<int64_t>(ids.size()), most, model.config().seq_len});
  ids.resize(static_cast<size_t>(n));
  AttentionMaps maps;
  for (int32_t id : ids) maps.tokens.push_back(tokenizer.token_text(id));
  const Tensor inputs = Tensor::of(std::vector<int64_t>(ids.begin(), ids.end()), {1, n});
  for (const nn::AttentionTrace& trace : model.trace_attention(inputs)) {
    maps.layers.emplace_back();
    for (const auto& round : trace.rounds) maps.layers.back().push_back(mean_weights(round, 0, 0));
  }
  return maps;
}

}  // namespace bg
