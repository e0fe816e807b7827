#include "models/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <tuple>

namespace bg {

// -- Cached logits ----------------------------------------------------------------------------------------------------

int64_t Decoder::visible(int64_t length, int64_t seq_len) {
  const int64_t step = seq_len - seq_len / 2;  // tokens that are dropped at a time
  return length <= seq_len ? length : length - (length - seq_len + step - 1) / step * step;
}

Tensor Decoder::feed(const std::vector<int64_t>& tokens) {
  BG_CHECK(!tokens.empty(), "generate", "no tokens", "", "at least one");
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  const int64_t first = std::ssize(tokens_) - visible(std::ssize(tokens_), model_.config().seq_len);
  if (first != first_) {
    cache_ = model_.make_cache();
    first_ = first;
  }
  const Tensor hidden = model_.extend({tokens_.begin() + first_ + cache_.length(), tokens_.end()}, cache_);
  return model_.project(hidden.slice(1, hidden.size(1) - 1, hidden.size(1))).reshape({model_.config().vocab});
}

// -- Sampling ---------------------------------------------------------------------------------------------------------

void SampleOptions::validate() const {
  if (!(repetition_penalty > 0 && std::isfinite(repetition_penalty)))
    fail<UsageError>("generate", "bad --repetition-penalty", str(repetition_penalty), "a positive number");
  if (!(temperature >= 0 && std::isfinite(temperature)))
    fail<UsageError>("generate", "bad --temperature", str(temperature), "0 or a positive number");
  if (top_k < 0) fail<UsageError>("generate", "bad --top-k", str(top_k), "0 (all tokens) or a positive number");
  if (!(top_p > 0 && top_p <= 1))
    fail<UsageError>("generate", "bad --top-p", str(top_p), "a number above 0, at most 1 (all tokens)");
}

namespace {

double largest_of(const std::vector<double>& logits) {
  const double largest = logits.empty() ? 0 : *std::max_element(logits.begin(), logits.end());
  const bool numbers = std::none_of(logits.begin(), logits.end(), [](double v) { return std::isnan(v); });
  BG_CHECK(!logits.empty() && numbers && std::isfinite(largest), "generate", "logits cannot be sampled from",
           logits.empty() ? "none"
           : numbers      ? str("a largest one of ", largest)
                          : "NaN",
           "finite numbers", "an earlier checkpoint");
  return largest;
}

// Each token once, however often it was seen.
void penalise(std::vector<double>& logits, double penalty, std::span<const int64_t> seen) {
  std::vector<bool> done(logits.size());
  for (const int64_t token : seen) {
    BG_CHECK(token >= 0 && token < std::ssize(logits), "generate", "a token outside the vocabulary", str(token),
             str("0 to ", std::ssize(logits) - 1));
    const auto i = static_cast<std::size_t>(token);
    if (!done[i]) logits[i] = logits[i] > 0 ? logits[i] / penalty : logits[i] * penalty;
    done[i] = true;
  }
}

// Sum of the weights of candidates, in their order.
double sum_of(const std::vector<Candidate>& all) {
  double sum = 0;
  for (const Candidate& c : all) sum += c.probability;
  return sum;
}

// The likeliest of candidates by falling weight, as many as it takes to reach top_p of all.
void keep_top_p(std::vector<Candidate>& all, double top_p) {
  const double enough = top_p * sum_of(all);
  double sum = 0;
  auto end = all.begin();
  while (end != all.end() && sum < enough) sum += end++->probability;
  all.erase(end, all.end());
}

// candidates() before their probabilities are scaled to sum to 1.
std::vector<Candidate> weighted(const Tensor& logits, const SampleOptions& options, std::span<const int64_t> seen) {
  options.validate();
  std::vector<double> x = logits.to_vector<double>();
  largest_of(x);
  if (options.repetition_penalty != 1) penalise(x, options.repetition_penalty, seen);
  const double largest = largest_of(x);
  std::vector<int64_t> order(x.size());
  std::iota(order.begin(), order.end(), int64_t{0});
  const auto likelier = [&](int64_t a, int64_t b) { return x[a] > x[b] || (x[a] == x[b] && a < b); };
  if (options.temperature == 0) return {{*std::min_element(order.begin(), order.end(), likelier), 1.0}};
  const int64_t kept = options.top_k > 0 ? std::min<int64_t>(options.top_k, std::ssize(order)) : std::ssize(order);
  if (options.top_p < 1 || kept < std::ssize(order))
    std::partial_sort(order.begin(), order.begin() + kept, order.end(), likelier);
  order.resize(static_cast<std::size_t>(kept));
  std::vector<Candidate> all;
  for (const int64_t i : order) all.push_back({i, std::exp((x[i] - largest) / options.temperature)});
  if (options.top_p < 1) keep_top_p(all, options.top_p);
  return all;
}

}  // namespace

std::vector<Candidate> candidates(const Tensor& logits, const SampleOptions& options, std::span<const int64_t> seen) {
  std::vector<Candidate> all = weighted(logits, options, seen);
  const double total = sum_of(all);
  for (Candidate& c : all) c.probability /= total;
  return all;
}

int64_t sample_token(const Tensor& logits, const SampleOptions& options, Rng& rng, std::span<const int64_t> seen) {
  const std::vector<Candidate> all = weighted(logits, options, seen);
  if (options.temperature == 0) return all[0].token;
  const double drawn = rng.uniform() * sum_of(all);
  double below = 0;
  for (const Candidate& c : all)
    if (drawn < (below += c.probability)) return c.token;
  return all.back().token;
}

std::vector<int64_t> generate(const Transformer& model, const std::vector<int64_t>& prompt, int64_t count,
                              const SampleOptions& options, Rng& rng, const std::function<bool(int64_t token)>& go_on,
                              const std::vector<int64_t>& stop_tokens) {
  if (prompt.empty()) fail<UsageError>("generate", "empty prompt", "", "at least one token");
  if (count < 0) fail<UsageError>("generate", "bad number of tokens", str(count), "0 or more");
  for (const int64_t token : stop_tokens)
    if (token < 0 || token >= model.config().vocab)
      fail<UsageError>("generate", "bad stop token", str(token), str("0 to ", model.config().vocab - 1));
  options.validate();
  Decoder decoder(model);
  std::vector<int64_t> made;
  std::vector<int64_t> next = prompt;
  while (std::ssize(made) < count) {
    const Tensor logits = decoder.feed(next);
    const int64_t token = sample_token(logits, options, rng, decoder.tokens());
    if (std::find(stop_tokens.begin(), stop_tokens.end(), token) != stop_tokens.end()) break;
    made.push_back(token);
    next = {token};
    if (go_on && !go_on(token)) break;
  }
  return made;
}

// -- Stop texts -------------------------------------------------------------------------------------------------------

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    if (stop.empty()) fail<UsageError>("generate", "empty stop text", "", "at least one character");
}

std::string StopText::feed(std::string_view piece) {
  if (found_) return {};
  held_ += piece;
  std::size_t end = std::string::npos, stop_end = end;  // of what can be given, and of the stop text after it
  for (const std::string& stop : stops_)
    if (const std::size_t place = held_.find(stop); place != std::string::npos)
      std::tie(stop_end, end) = std::min(std::tuple(place + stop.size(), place), std::tuple(stop_end, end));
  found_ = end != std::string::npos;
  if (!found_) end = begin_of_stop();
  std::string out = held_.substr(0, end);
  held_.erase(0, found_ ? held_.size() : end);
  return out;
}

// Where the rest of the held text may be the beginning of a stop text.
std::size_t StopText::begin_of_stop() const {
  for (std::size_t begin = 0; begin < held_.size(); ++begin)
    for (const std::string& stop : stops_)
      if (stop.starts_with(std::string_view(held_).substr(begin))) return begin;
  return held_.size();
}

std::string StopText::finish() {
  std::string out;
  out.swap(held_);
  return out;
}

}  // namespace bg
