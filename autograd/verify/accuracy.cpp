#include "autograd/verify/accuracy.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "autograd/ops/boosted_attention.h"
#include "autograd/verify/subject.h"
#include "core/format.h"
#include "core/hash.h"

namespace bg {
namespace {

using verifier::Point;
using verifier::Subject;

struct Errors {
  std::vector<double> ulp, relative;

  ErrorSummary summary() {
    ErrorSummary s;
    s.elements = static_cast<int64_t>(ulp.size());
    if (ulp.empty()) return s;
    std::sort(ulp.begin(), ulp.end());
    std::sort(relative.begin(), relative.end());
    s.median_ulp = ulp[ulp.size() / 2];
    s.max_ulp = ulp.back();
    s.median_relative = relative[relative.size() / 2];
    s.max_relative = relative.back();
    return s;
  }
};

struct Row {
  Errors f64, f32, composed_f32, bf16;
};

enum class Mode { f64, f32, bf16 };

Tensor rounded(const Tensor& t, Mode mode) {
  if (!t.defined() || !is_float(t.dtype()) || mode == Mode::f64) return t;
  return mode == Mode::f32 ? t.to(DType::f32) : t.to(DType::bf16).to(DType::f32);
}

Tensors rounded(const Tensors& in, Mode mode) {
  Tensors out;
  for (const Tensor& t : in) out.push_back(rounded(t, mode));
  return out;
}

// Evenly spread positions, at most `count` of them.
std::vector<int64_t> spread(int64_t n, int64_t count) {
  std::vector<int64_t> out;
  for (int64_t k = 0; k < std::min(n, count); ++k) out.push_back(n <= count ? k : k * n / count);
  return out;
}

void add(Errors& e, double got, long double exact, long double largest, double epsilon) {
  const long double size = std::max(std::abs(exact), largest / 1000);
  if (size == 0) return;
  const long double error = std::abs(static_cast<long double>(got) - exact);
  e.relative.push_back(static_cast<double>(error / size));
  e.ulp.push_back(static_cast<double>(error / (std::exp2(std::floor(std::log2(size))) * epsilon)));
}

double epsilon_of(Mode mode) {
  return mode == Mode::f64 ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
}

// <v, J e_k> in long double.
long double exact_element(const Point& point, const Tensors& in, const Tensors& outputs, const Tensors& v, size_t input,
                          int64_t k) {
  auto x = verifier::to_arrs<Dual<long double>>(in);
  x[input][k].d = 1;
  const auto y = point.reference(x);
  long double total = 0;
  for (size_t o = 0; o < y.size(); ++o) {
    if (!is_float(outputs[o].dtype())) continue;
    const std::vector<double> vo = v[o].to_vector<double>();
    for (size_t j = 0; j < vo.size(); ++j) total += static_cast<long double>(vo[j]) * y[o].v[j].d;
  }
  return total;
}

// The gradients through compose, where there is one.
Tensors composed(const Subject& s, const Tensors& in, const Tensors& v) {
  const std::vector<size_t> wanted = s.differentiable();
  Vars all, leaves;
  for (size_t i = 0; i < in.size(); ++i) {
    const bool leaf = std::find(wanted.begin(), wanted.end(), i) != wanted.end();
    all.emplace_back(in[i], leaf);
    if (leaf) leaves.push_back(all.back());
  }
  const Vars out = s.point.compose(all);
  Vars reached, cotangents;
  for (size_t k = 0; k < out.size(); ++k)
    if (out[k].requires_grad()) {
      reached.push_back(out[k]);
      cotangents.emplace_back(v[k]);
    }
  const Vars g = grad(reached, leaves, cotangents);
  Tensors result(in.size());
  for (size_t k = 0; k < wanted.size(); ++k) result[wanted[k]] = g[k].value();
  return result;
}

class Measurement {
 public:
  Measurement(const verifier::Entry& entry, const Subject& s, const Tensors& v, std::vector<std::string>& order,
              std::map<std::string, Row>& rows)
      : entry_(entry), s_(s), v_(v), order_(order), rows_(rows) {}

  void run() {
    for (Mode mode : {Mode::f64, Mode::f32, Mode::bf16}) {
      const Tensors x = rounded(s_.point.values, mode);
      const verifier::Forward f = s_.forward(x);
      // bf16's error is that of rounding the inputs: the truth is at the inputs before
      const Tensors& truth_at = mode == Mode::bf16 ? s_.point.values : x;
      const Tensors v = rounded(v_, mode == Mode::f64 ? Mode::f64 : Mode::f32);
      outputs(mode, f, truth_at);
      gradients(mode, f, truth_at, v);
    }
  }

 private:
  static constexpr int64_t kElements = 24;

  Row& row(const std::string& what) {
    if (!rows_.count(what)) order_.push_back(what);
    return rows_[what];
  }
  static Errors& errors(Row& r, Mode mode) { return mode == Mode::f64 ? r.f64 : mode == Mode::f32 ? r.f32 : r.bf16; }

  void outputs(Mode mode, const verifier::Forward& f, const Tensors& truth_at) {
    const Arrs<long double> y = s_.point.reference(verifier::to_arrs<long double>(truth_at));
    for (size_t o = 0; o < y.size(); ++o) {
      if (!is_float(f.out[o].dtype())) continue;
      long double largest = 0;
      for (long double e : y[o].v) largest = std::max(largest, std::abs(e));
      Errors& e = errors(row(y.size() > 1 ? str("output ", o) : "output"), mode);
      for (int64_t k : spread(y[o].numel(), kElements)) add(e, f.out[o].flat(k), y[o][k], largest, epsilon_of(mode));
    }
  }

  void gradients(Mode mode, const verifier::Forward& f, const Tensors& truth_at, const Tensors& v) {
    const Tensors g = s_.backward(f, v, s_.need_all());
    const bool compare = mode == Mode::f32 && entry_.composed;
    const Tensors c = compare ? composed(s_, f.in, v) : Tensors(g.size());
    for (size_t i : s_.differentiable()) {
      if (s_.declared_zero(i)) continue;
      Row& r = row("d " + s_.point.inputs[i].name);
      Row* all = entry_.composed ? &row("all gradients") : nullptr;
      const long double largest = num::max_abs(g[i]);
      for (int64_t k : spread(g[i].numel(), kElements)) {
        const long double exact = exact_element(s_.point, truth_at, f.out, v, i, k);
        const double composed_value = compare ? c[i].flat(k) : 0;
        for (Row* into : {&r, all}) {
          if (!into) continue;
          add(errors(*into, mode), g[i].flat(k), exact, largest, epsilon_of(mode));
          if (compare) add(into->composed_f32, composed_value, exact, largest, epsilon_of(mode));
        }
      }
    }
  }

  const verifier::Entry& entry_;
  const Subject& s_;
  const Tensors& v_;
  std::vector<std::string>& order_;
  std::map<std::string, Row>& rows_;
};

}  // namespace

std::vector<AccuracyRow> measure_accuracy(const verifier::Entry& entry, const VerifyOptions& options) {
  constexpr int64_t kSamples = 16;
  Rng rng(options.seed, hash_bytes(entry.name));
  const auto points = entry.samples(rng);
  std::vector<std::string> order;
  std::map<std::string, Row> rows;
  for (int64_t p : spread(static_cast<int64_t>(points.size()), kSamples)) {
    const Subject s(*points[static_cast<size_t>(p)]);
    Rng draw = rng.fork(static_cast<uint64_t>(p));
    const Tensors v = verifier::random_cotangents(s.forward(s.point.values).out, draw);
    Measurement(entry, s, v, order, rows).run();
  }
  std::vector<AccuracyRow> out;
  for (const std::string& what : order) {
    Row& r = rows[what];
    out.push_back({entry.name, what, r.f64.summary(), r.f32.summary(), r.composed_f32.summary(), r.bf16.summary()});
  }
  return out;
}

double AccuracyRow::f32_ratio() const {
  if (composed_f32.elements == 0) return -1;
  return composed_f32.median_ulp > 0 ? f32.median_ulp / composed_f32.median_ulp : f32.median_ulp == 0 ? 1 : INFINITY;
}

std::string accuracy_table(const std::vector<AccuracyRow>& rows) {
  std::string out =
      "op                    value                     f64 ulp med/max      f32 ulp med/max   composed f32 med/max  "
      "ratio"
      "   f32 relative med/max  bf16 inputs rel. med/max\n";
  for (const AccuracyRow& r : rows) {
    std::string composed = "-", ratio = "-";
    if (r.composed_f32.elements) {
      composed = formatted("%8.2f /%8.1f", r.composed_f32.median_ulp, r.composed_f32.max_ulp);
      ratio = formatted("%.2f", r.f32_ratio());
    }
    out += formatted("%-21s %-22s %8.2f /%8.1f   %8.2f /%8.1f   %-18s  %6s   %8.1e / %8.1e   %8.1e / %8.1e\n",
                     r.op.substr(0, 21).c_str(), r.what.substr(0, 22).c_str(), r.f64.median_ulp, r.f64.max_ulp,
                     r.f32.median_ulp, r.f32.max_ulp, composed.c_str(), ratio.c_str(), r.f32.median_relative,
                     r.f32.max_relative, r.bf16_inputs.median_relative, r.bf16_inputs.max_relative);
  }
  return out;
}

// -- Growth with the rounds -------------------------------------------------------------------------------------------

namespace {

Vars layer_gradients(const Tensors& in, const Tensor& v, const AttentionLayerArgs& args, DType dtype) {
  Vars leaves;
  for (const Tensor& t : in) leaves.emplace_back(t.to(dtype), true);
  return grad({boosted_attention(leaves, args)}, leaves, {Var(v.to(dtype))});
}

double worst_error(const AttentionLayerArgs& args, double gain, Rng rng) {
  auto layer = attn::layer_sample(rng, "", args, {.T = 8, .d = 8, .gain = gain});
  for (Tensor& t : layer.inputs) t = t.to(DType::f32);
  const Tensor v = Tensor::randn(layer.inputs[0].shape(), rng, DType::f32);
  const Vars a = layer_gradients(layer.inputs, v, args, DType::f32);
  const Vars b = layer_gradients(layer.inputs, v, args, DType::f64);
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const auto& zero = layer.zero_grads;
    if (std::find(zero.begin(), zero.end(), static_cast<int>(i)) != zero.end()) continue;
    const double error = num::max_abs(num::sub(a[i].value().to(DType::f64), b[i].value()));
    worst = std::max(worst, error / num::max_abs(b[i].value()));
  }
  return worst;
}

}  // namespace

std::vector<GrowthRow> measure_growth(uint64_t seed) {
  constexpr int kDraws = 8;
  std::vector<GrowthRow> rows;
  for (int rounds = 1; rounds <= 4; ++rounds) {
    auto measure = [&](double gain) {
      std::vector<double> errors;
      for (const Kv kv : {Kv::input, Kv::residual})
        for (const Gate gate : {Gate::none, Gate::linear})
          for (uint64_t draw = 0; draw < kDraws; ++draw) {
            AttentionLayerArgs args{.heads = 2};
            args.rounds = rounds;
            args.kv = kv;
            args.gate = gate;
            errors.push_back(worst_error(args, gain, Rng(seed, draw)));
          }
      std::sort(errors.begin(), errors.end());
      return GrowthRow::Error{errors[errors.size() / 2], errors.back()};
    };
    rows.push_back({rounds, measure(1), measure(2)});
  }
  return rows;
}

std::string growth_table(const std::vector<GrowthRow>& rows) {
  std::string out =
      "boosted_attention: largest f32 error of a gradient against f64, relative to its largest element\n"
      "rounds    unit gain med/max      twice unit gain med/max (the map itself turns chaotic)\n";
  for (const GrowthRow& r : rows) {
    out += formatted("%6d    %8.1e / %8.1e    %8.1e / %8.1e\n", r.rounds, r.unit_gain.median, r.unit_gain.max,
                     r.twice_gain.median, r.twice_gain.max);
  }
  return out;
}

}  // namespace bg
