// Tutorial 5: from one pass of attention through twicing to boosting, in numbers that one can follow; nn/README.md
// tells the same story with pictures. With a folder as argument it also draws those of the last part into it (needs
// gnuplot).
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "autograd/ops/all.h"
#include "core/atomic_file.h"
#include "models/gnuplot.h"
#include "nn/optim.h"

using namespace bg;

namespace {

// -- Three kinds of attention, written out ----------------------------------------------------------------------------

// A (T, T): how much each token takes of every other; rows sum to one.
Var weights(const Var& queries, const Var& keys) {
  return softmax(matmul(queries, transpose(keys, 0, 1)) * (1 / std::sqrt(static_cast<double>(keys.size(-1)))));
}

// The smallest setting that shows the difference: four tokens, the last of which no query finds.
struct FourTokens {
  Var x, w_q, w_k, w_v;         // the first pass
  Var w_q1, w_k1, w_v1, query;  // the second: projections of its own; `query` is a bias
  explicit FourTokens(Rng& r) {
    x = Tensor::of({1, 0, 0, 1,  //
                    0, 1, 0, 1,  //
                    1, 1, 0, 1,  //
                    1, 0, 1, 1},
                   {4, 4});  // columns: two features, "rare", a constant
    const Tensor one = Tensor::of({1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}, {4, 4});
    w_q = one;
    w_k = Tensor::of({1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, -80, 0, 0, 0, 0}, {4, 4});  // rare: a key far from all queries
    w_v = one;
    w_q1 = Tensor::randn({4, 4}, r, DType::f64, 0.5);
    w_k1 = one;
    w_v1 = one;
    query = Tensor::of({0, 0, 3, 0}, {4});
  }
  Var first_weights() const { return weights(matmul(x, w_q), matmul(x, w_k)); }
};

Var single(const FourTokens& t, const Var& values) { return matmul(t.first_weights(), values); }

Var twicing(const FourTokens& t, const Var& values) {  // the same weights, a second time, on what they missed
  const Var a = t.first_weights(), f = matmul(a, values);
  return f + matmul(a, values - f);
}

Var boosted(const FourTokens& t,
            const Var& values) {  // other weights: from the residual, with projections of their own
  const Var f = single(t, values), r = t.x - f;
  const Var c = matmul(weights(matmul(r, t.w_q1) + t.query, matmul(t.x, t.w_k1)), matmul(values, t.w_v1));
  return f + 0.5 * c;  // 0.5: a fixed gate
}

double largest(const Tensor& t) { return num::max_abs(t); }

bool four_tokens() {
  Rng rng(1);
  const FourTokens t(rng);
  const Var v = matmul(t.x, t.w_v);

  const Var a = t.first_weights();
  std::printf("1. One pass. Weights of token 0 on the four tokens: %.3f %.3f %.3f %.3f\n", a.value().at({0, 0}),
              a.value().at({0, 1}), a.value().at({0, 2}), a.value().at({0, 3}));

  const Var f(single(t, v).value(), true);
  (0.5 * sum(square(t.x - f))).backward();
  const double gap = largest(num::add(f.grad(), num::sub(t.x.value(), f.value())));
  std::printf("2. The residual x - F is minus the gradient of |x - F|^2 / 2: largest difference %.1e\n", gap);

  const Var twice = matmul(2 * a - matmul(a, a), v);
  const double same = largest(num::sub(twicing(t, v).value(), twice.value()));
  std::printf("3. Twicing is (2A - A^2) V: largest difference %.1e\n", same);

  // What does token 0 learn of token 3's value? Change that value and look.
  Tensor other = v.value().clone();
  other.select(0, 3).copy_from(num::scale(v.value().select(0, 3), 2));
  std::printf("4. Token 3's value doubled moves token 0's output by\n");
  double moved[3];
  int i = 0;
  for (auto& [name, attend] : {std::pair{"one pass", &single}, {"twicing", &twicing}, {"boosted", &boosted}}) {
    moved[i] = largest(num::sub(attend(t, other).value(), attend(t, v).value()).select(0, 0));
    std::printf("     %-9s %.6f\n", name, moved[i++]);
  }
  return gap < 1e-12 && same < 1e-12 && moved[0] < 1e-6 && moved[1] < 1e-6 && moved[2] > 0.01;
}

// -- What the residual is good for: two things at once ----------------------------------------------------------------
//
// A query is one pattern plus half of another plus noise; wanted are both at full strength. A single pass has one
// softmax for both. Two rounds can do what matching pursuit does: find the strong one, subtract it, find the weak one.

constexpr int64_t kPatterns = 24, kDim = 16, kBatch = 256;
constexpr int kSteps = 1200;

Tensor unit_rows(Tensor t) {
  for (int64_t k = 0; k < t.size(0); ++k) {
    Tensor row = t.select(0, k);
    row.copy_from(num::scale(row, 1 / std::sqrt(num::dot(row, row))));
  }
  return t;
}

struct Mixtures {
  Tensor seen, wanted;  // (B, 1, d)
  std::vector<int64_t> strong, weak;
};
Mixtures draw(const Tensor& patterns, Rng& r, int64_t count) {
  Mixtures m{Tensor::randn({count, 1, kDim}, r, DType::f32, 0.05), Tensor::zeros({count, 1, kDim}), {}, {}};
  for (int64_t b = 0; b < count; ++b) {
    const auto s = static_cast<int64_t>(r.below(kPatterns));
    const auto w = (s + 1 + static_cast<int64_t>(r.below(kPatterns - 1))) % kPatterns;
    m.strong.push_back(s);
    m.weak.push_back(w);
    Tensor wanted = m.wanted.select(0, b), seen = m.seen.select(0, b);
    wanted.copy_from(num::add(patterns.slice(0, s, s + 1), patterns.slice(0, w, w + 1)));
    seen.copy_from(num::add(seen, num::add(patterns.slice(0, s, s + 1), num::scale(patterns.slice(0, w, w + 1), 0.5))));
  }
  return m;
}

// The project's own node, with the patterns as memory.
class Restorer : public Module {
 public:
  Restorer(int rounds, int heads, Rng& r) {
    args_ = {.heads = heads, .memory = true, .bias = false, .project_out = heads > 1, .learned_scale = true};
    args_.rounds = rounds;
    args_.gate = Gate::scalar;
    const AttentionLayout& at = attention_layout(args_);
    const int64_t width = kDim * heads;
    for (size_t i = 2; i < at.inputs.size(); ++i) {  // 0 and 1 are the query and the patterns
      const std::string& name = at.inputs[i].name;
      const bool number = name.ends_with("log_scale") || name.ends_with("gate");
      const Shape shape = number ? Shape{1} : name == "w_out" ? Shape{width, kDim} : Shape{kDim, width};
      const double bound = 1 / std::sqrt(static_cast<double>(shape[0]));
      parameters_.push_back(
          register_parameter(name, number ? Tensor::full(shape, 1) : Tensor::rand(shape, r, -bound, bound)));
    }
  }
  Var forward(const Tensor& seen, const Tensor& patterns) const {
    Vars in{Var(seen), Var(patterns.unsqueeze(0))};
    in.insert(in.end(), parameters_.begin(), parameters_.end());
    return boosted_attention(in, args_);
  }

 private:
  AttentionLayerArgs args_;
  Vars parameters_;
};

// The two patterns most alike to each output: both right, in percent.
double both_found(const Tensor& y, const Mixtures& m, const Tensor& patterns) {
  const int64_t n = y.size(0);
  const Tensor score = num::matmul(y.reshape({n, kDim}), patterns.transpose(0, 1));
  int64_t right = 0;
  for (int64_t b = 0; b < n; ++b) {
    auto at = [&](int64_t k) { return score.at({b, k}); };
    const int64_t s = m.strong[static_cast<size_t>(b)], w = m.weak[static_cast<size_t>(b)];
    bool best = true;
    for (int64_t k = 0; k < kPatterns; ++k) best = best && (k == s || k == w || at(k) < std::min(at(s), at(w)));
    right += best;
  }
  return 100.0 * static_cast<double>(right) / static_cast<double>(n);
}

struct Curve {
  const char* name;
  std::vector<double> loss;
  double found = 0;
};

Curve train(const char* name, int rounds, int heads, const Tensor& patterns) {
  Rng rng(7);
  Restorer model(rounds, heads, rng);
  Adam optimizer(model.parameters());
  Curve curve{name, {}};
  for (int step = 0; step < kSteps; ++step) {
    const Mixtures m = draw(patterns, rng, kBatch);
    const Var loss = sum(square(model.forward(m.seen, patterns) - Var(m.wanted))) * (1.0 / kBatch);
    loss.backward();
    optimizer.step(0.5 * 1e-2 * (1 + std::cos(std::acos(-1.0) * step / kSteps)));
    model.zero_grad();
    curve.loss.push_back(loss.item());
  }
  NoGrad off;
  const Mixtures fresh = draw(patterns, rng, 2000);
  curve.found = both_found(model.forward(fresh.seen, patterns).value(), fresh, patterns);
  std::printf("     %-24s %5lld parameters  loss %.3f  both found %5.1f %%\n", name,
              static_cast<long long>(model.parameter_count()), curve.loss.back(), curve.found);
  return curve;
}

std::string plot(const std::vector<Curve>& curves) {
  static constexpr const char* kColors[] = {"#3b6ea5", "#7a7a7a", "#c2662d", "#2e8b57"};
  std::string script =
      "set terminal svg size 720,380 dynamic font 'sans-serif,14' background '#ffffff'\n"
      "set logscale y\nset yrange [0.1:2]\nset ytics (0.1, 0.2, 0.5, 1, 2)\nset grid lc rgb '#dddddd' lt 1\nset border "
      "3 lc rgb '#666666'\nset tics nomirror\n"
      "set xlabel 'training step'\nset ylabel 'squared distance to both patterns'\nset key top right\n";
  std::string lines;
  for (size_t i = 0; i < curves.size(); ++i) {
    script += str("$c", i, " << END\n");
    constexpr size_t kMean = 10;
    for (size_t k = 0; k + kMean <= curves[i].loss.size(); k += kMean) {
      double sum = 0;
      for (size_t j = k; j < k + kMean; ++j) sum += curves[i].loss[j];
      script += str(k + kMean / 2, " ", sum / kMean, "\n");
    }
    script += "END\n";
    lines += str(i == 0 ? "plot " : ", ", "$c", i, " with lines lw 2 dt ", i + 1, " lc rgb '", kColors[i], "' title '",
                 curves[i].name, "'");
  }
  return script + lines + "\n";
}

}  // namespace

int main(int argc, char** argv) {
  const bool as_told = four_tokens();
  std::printf("5. Two patterns at once, one at half strength; wanted: both at full strength\n");
  Rng rng(3);
  const Tensor patterns = unit_rows(Tensor::randn({kPatterns, kDim}, rng));
  std::vector<Curve> curves;
  curves.push_back(train("one round", 1, 1, patterns));
  curves.push_back(train("one round, three heads", 1, 3, patterns));
  curves.push_back(train("two rounds", 2, 1, patterns));
  curves.push_back(train("three rounds", 3, 1, patterns));
  if (argc > 1) write_file_atomically(std::filesystem::path(argv[1]) / "two_at_once.svg", gnuplot(plot(curves)));
  return as_told && curves[2].found > curves[0].found + 5 && curves[3].found > curves[1].found ? 0 : 1;
}
