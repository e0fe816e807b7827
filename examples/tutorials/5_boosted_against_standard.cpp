// Tutorial 5: what a second round of attention buys. The paper's retrieval task, small: a noisy query must find the
// pattern that it came from. One round averages patterns; the second attends from the residual and corrects.
#include <cmath>
#include <cstdio>

#include "autograd/engine.h"
#include "autograd/ops/boosted_attention.h"
#include "nn/optim.h"

using namespace bg;

namespace {

constexpr int64_t kPatterns = 16, kDim = 32, kKey = 32, kBatch = 256;
constexpr double kNoise = 0.3;

// One boosted layer whose keys and values are the patterns: rounds = 1 is standard attention.
class Retriever : public Module {
 public:
  Retriever(int rounds, Rng& r) {
    args_ = {.heads = 1, .memory = true, .bias = false, .project_out = false, .learned_scale = true};
    args_.rounds = rounds;
    args_.gate = Gate::scalar;
    const double bound = 1 / std::sqrt(static_cast<double>(kDim));
    const AttentionLayout& at = attention_layout(args_);
    for (size_t i = 2; i < at.inputs.size(); ++i) {  // 0 and 1 are the query and the patterns
      const std::string& name = at.inputs[i].name;
      const bool scale = name.ends_with("log_scale"), gate = name.ends_with("gate");
      const Shape shape = scale || gate ? Shape{1} : name.ends_with("w_v") ? Shape{kDim, kDim} : Shape{kDim, kKey};
      parameters_.push_back(register_parameter(name, scale  ? Tensor::full(shape, std::log(2.0))
                                                     : gate ? Tensor::full(shape, 0.5)
                                                            : Tensor::rand(shape, r, -bound, bound)));
    }
  }
  Var forward(const Var& query, const Var& patterns) const {
    Vars in{query, patterns};
    in.insert(in.end(), parameters_.begin(), parameters_.end());
    return boosted_attention(in, args_);
  }

 private:
  AttentionLayerArgs args_;
  Vars parameters_;
};

// Noisy copies of random patterns, (B, 1, d), and which they were.
struct Queries {
  Tensor noisy, clean;
  std::vector<int64_t> which;
};
Queries draw(const Tensor& patterns, Rng& r, int64_t count) {
  Queries q{Tensor::randn({count, 1, kDim}, r, DType::f32, kNoise), Tensor::zeros({count, 1, kDim}), {}};
  for (int64_t b = 0; b < count; ++b) {
    const auto k = static_cast<int64_t>(r.below(kPatterns));
    q.which.push_back(k);
    Tensor row = q.clean.select(0, b);
    row.copy_from(patterns.slice(0, k, k + 1));
  }
  q.noisy = num::add(q.noisy, q.clean);
  return q;
}

double accuracy(const Retriever& model, const Tensor& patterns, Rng& r) {
  NoGrad off;
  const Queries q = draw(patterns, r, 2000);
  const Tensor y = model.forward(Var(q.noisy), Var(patterns.unsqueeze(0))).value();
  const Tensor scores = num::matmul(y.reshape({2000, kDim}), patterns.transpose(0, 1));  // nearest: unit patterns
  int right = 0;
  for (int64_t b = 0; b < 2000; ++b) {
    int64_t best = 0;
    for (int64_t k = 1; k < kPatterns; ++k)
      if (scores.at({b, k}) > scores.at({b, best})) best = k;
    right += best == q.which[static_cast<size_t>(b)];
  }
  return right / 20.0;
}

double train(int rounds) {
  Rng rng(3);
  Tensor patterns = Tensor::randn({kPatterns, kDim}, rng);
  for (int64_t k = 0; k < kPatterns; ++k) {
    Tensor row = patterns.select(0, k);
    row.copy_from(num::scale(row, 1 / std::sqrt(num::dot(row, row))));
  }
  Retriever model(rounds, rng);
  Adam optimizer(model.parameters());
  for (int step = 0; step < 120; ++step) {
    const Queries q = draw(patterns, rng, kBatch);
    const Var gap = model.forward(Var(q.noisy), Var(patterns.unsqueeze(0))) - Var(q.clean);
    sum(gap * gap * (1.0 / kBatch)).backward();
    optimizer.step(3e-3);
    model.zero_grad();
  }
  return accuracy(model, patterns, rng);
}

}  // namespace

int main() {
  std::printf("retrieval of %d patterns in %d dimensions, noise %.1f a coordinate (chance %.1f %%)\n",
              static_cast<int>(kPatterns), static_cast<int>(kDim), kNoise, 100.0 / kPatterns);
  double best = 0;
  for (int rounds : {1, 2, 3}) {
    const double a = train(rounds);
    best = std::max(best, a);
    std::printf("%d round%s  %.1f %%\n", rounds, rounds == 1 ? " (standard attention)" : "s", a);
  }
  return best > 2 * 100.0 / kPatterns ? 0 : 1;
}
