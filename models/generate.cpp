#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace bg {

Tensor Decoder::feed(const std::vector<int64_t>& tokens) {
  BG_CHECK(!tokens.empty(), "generate", "no tokens", "", "at least one");
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const int64_t seq_len = model_.config().seq_len;
  std::vector<int64_t> fresh = tokens;
  if (cache_.length() + std::ssize(tokens) > seq_len) {
    cache_ = model_.make_cache();
    fresh.assign(tokens_.end() - std::min(seq_len, std::ssize(tokens_)), tokens_.end());
  }
  const Tensor hidden = model_.extend(fresh, cache_);
  return model_.project(hidden.slice(1, hidden.size(1) - 1, hidden.size(1))).reshape({model_.config().vocab});
}

void SampleOptions::validate() const {
  if (!(temperature >= 0 && std::isfinite(temperature)))
    fail<UsageError>("generate", "bad temperature", str(temperature), "0 or a positive number");
  if (top_k < 0) fail<UsageError>("generate", "bad top_k", str(top_k), "0 (all tokens) or a positive number");
}

int64_t sample_token(const Tensor& logits, const SampleOptions& options, Rng& rng) {
  options.validate();
  const std::vector<double> x = logits.to_vector<double>();
  const double largest = x.empty() ? 0 : *std::max_element(x.begin(), x.end());
  const bool numbers = std::none_of(x.begin(), x.end(), [](double v) { return std::isnan(v); });
  BG_CHECK(!x.empty() && numbers && std::isfinite(largest), "generate", "logits cannot be sampled from",
           x.empty() ? "none"
           : numbers ? str("a largest one of ", largest)
                     : "NaN",
           "finite numbers", "an earlier checkpoint");
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto likelier = [&](int64_t a, int64_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  if (options.temperature == 0) return *std::min_element(order.begin(), order.end(), likelier);
  if (options.top_k > 0 && options.top_k < std::ssize(order)) {
    std::partial_sort(order.begin(), order.begin() + options.top_k, order.end(), likelier);
    order.resize(options.top_k);
  }
  std::vector<double> cumulative;
  double total = 0;
  for (int64_t i : order) cumulative.push_back(total += std::exp((x[i] - largest) / options.temperature));
  const auto chosen = std::upper_bound(cumulative.begin(), cumulative.end(), rng.uniform() * total);
  return order[std::min(chosen - cumulative.begin(), std::ssize(order) - 1)];
}

std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt, int64_t count,
                              const SampleOptions& options, Rng& rng, const std::function<void(int64_t token)>& seen) {
  if (prompt.empty()) fail<UsageError>("generate", "empty prompt", "", "at least one token");
  if (count < 0) fail<UsageError>("generate", "bad number of tokens", str(count), "0 or more");
  options.validate();
  Decoder decoder(model);
  std::vector<int64_t> made;
  std::vector<int64_t> next = prompt;
  while (std::ssize(made) < count) {
    made.push_back(sample_token(decoder.feed(next), options, rng));
    next = {made.back()};
    if (seen) seen(made.back());
  }
  return made;
}

}  // namespace bg
