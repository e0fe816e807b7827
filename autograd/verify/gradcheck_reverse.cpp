#include "autograd/verify/gradcheck_reverse.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "autograd/engine.h"
#include "autograd/jvp.h"
#include "autograd/verify/subject.h"

namespace bg::verifier {

// -- Small tools ------------------------------------------------------------------------------------------------------

Tensors values_of(const Vars& v) {
  Tensors out;
  for (const Var& x : v) out.push_back(x.value());
  return out;
}

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (!is_float(a.dtype())) return a.to_vector<int64_t>() == b.to_vector<int64_t>();
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  return x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
}

// An element that is finite in one of them alone comes before all others.
Farthest farthest(const Tensor& got, const Tensor& want) {
  const std::vector<double> a = flatten({got}), b = flatten({want});
  Farthest f;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_strange = !std::isfinite(a[i]) && !std::isfinite(b[i]);
    const double off = both_strange || a[i] == b[i] ? 0 : std::abs(a[i] - b[i]);
    const double error = std::isnan(off) ? std::numeric_limits<double>::infinity() : off;
    if (f.at < 0 || error > f.error) f = {static_cast<int64_t>(i), error};
  }
  return f;
}

// -- Reverse ----------------------------------------------------------------------------------------------------------

void Reverse::check_count(size_t count) const {
  BG_CHECK(count == point.size(), "gradcheck", "f gives another number of outputs when it runs again", str(count),
           str(point.size()));
}

std::vector<double> Reverse::row(const Tensors& run) const {
  check_count(run.size());
  std::vector<double> y;
  y.reserve(weight.size());
  for (const Output& o : outputs) {
    const std::vector<double> part = run[static_cast<size_t>(o.index)].to_vector<double>();
    y.insert(y.end(), part.begin(), part.end());
  }
  BG_CHECK(y.size() == weight.size(), "gradcheck", "outputs change their shape when an input is moved",
           str(y.size(), " elements"), str(weight.size()));
  for (size_t j = 0; j < y.size(); ++j) y[j] *= weight[j];
  return y;
}

Tensors Reverse::as_cotangents(const std::vector<double>& v) const {
  Tensors out;
  for (const Output& o : outputs) {
    const Tensor& y = point[static_cast<size_t>(o.index)];
    std::vector<double> part(v.begin() + static_cast<int64_t>(o.begin), v.begin() + static_cast<int64_t>(o.end));
    for (size_t j = 0; j < part.size(); ++j) part[j] *= weight[o.begin + j];
    out.push_back(Tensor::of(std::move(part), y.shape()).to(y.dtype()));
  }
  return out;
}

Tensors Reverse::gradients(const Vars& run, const Vars& leaves, const Tensors& v, Group group) const {
  check_count(run.size());
  Vars y;
  Tensors part;
  for (size_t k = group.begin; k < group.end; ++k) {
    y.push_back(run[static_cast<size_t>(outputs[k].index)]);
    part.push_back(v[k]);
  }
  Tensors out;
  for (const Var& x : grad(y, leaves, Vars(part.begin(), part.end()), {.retain_graph = true})) out.push_back(x.value());
  return out;
}

namespace {
constexpr int kTries = 3;
// Near 1, and no short binary number: what is linear comes out the same when it is multiplied by one before and divided
// by it behind, but for its rounding, which falls otherwise.
constexpr double kFactors[kTries + 1] = {1, 1 + 1.2345e-6, 1 - 2.7183e-6, 1 + 3.1416e-6};

// Other last places.
Tensor nudged(const Tensor& t, Rng& rng) {
  std::vector<double> x = t.to_vector<double>();
  for (double& e : x) e *= 1 + std::numeric_limits<double>::epsilon() * (static_cast<double>(rng.below(5)) - 2);
  return Tensor::of(std::move(x), t.shape()).to(t.dtype());
}
}  // namespace

double Reverse::forward_spread(size_t leaf, const Tensor& u, const std::vector<double>& v, Group group) const {
  Rng rng = Rng(seed).fork(4000);
  const auto nudge = [&rng](const Tensor& t) { return nudged(t, rng); };
  double most = 0, base = 0;
  for (int k = 0; k <= kTries; ++k) {
    try {
      target.elsewhere(k == 0 ? given : map_all(given, nudge), [&](const Vars& leaves, const Vars& run) {
        Tensors along;
        for (size_t i = 0; i < leaves.size(); ++i)
          along.push_back(i == leaf ? num::scale(k == 0 ? u : nudge(u), kFactors[k])
                                    : Tensor::zeros(leaves[i].shape(), DType::f64));
        const std::vector<double> tangent = row(bg::detail::tangents_of(run, leaves, along));
        double q = 0;
        for (size_t j = outputs[group.begin].begin; j < outputs[group.end - 1].end; ++j)
          q += v[j] * tangent[j] / kFactors[k];
        if (k == 0) base = q;
        if (std::abs(q - base) > most) most = std::abs(q - base);
      });
    } catch (const std::exception&) {  // beyond the domain
    }
  }
  return most;
}

Tensors Reverse::spread(const Tensors& at, const Tensors& v, Group group) const {
  Tensors most, base;
  Rng rng = Rng(seed).fork(3000);
  const auto nudge = [&rng](const Tensor& t) { return nudged(t, rng); };
  for (int k = 0; k <= kTries; ++k) {
    try {
      target.elsewhere(k == 0 ? at : map_all(at, nudge), [&](const Vars& leaves, const Vars& run) {
        const Tensors g = gradients(
            run, leaves, k == 0 ? v : map_all(v, [&](const Tensor& t) { return num::scale(nudge(t), kFactors[k]); }),
            group);
        for (size_t i = 0; i < g.size(); ++i) {
          if (k == 0) {
            base.push_back(g[i]);
            most.push_back(Tensor::zeros(g[i].shape(), DType::f64));
            continue;
          }
          const std::vector<double> x = flatten({g[i]}), y = flatten({base[i]});
          double* m = most[i].mutable_data<double>("gradcheck");
          for (size_t j = 0; j < x.size(); ++j)
            if (const double off = std::abs(x[j] / kFactors[k] - y[j]); off > m[j]) m[j] = off;
        }
      });
    } catch (const std::exception&) {  // beyond the domain
    }
  }
  for (size_t i = most.size(); i < at.size(); ++i) most.push_back(Tensor::zeros(at[i].shape(), DType::f64));
  return most;
}

namespace {

// -- The same gradients in other ways ---------------------------------------------------------------------------------

class Repeater {
 public:
  Repeater(const Reverse& reverse, const Vars& run, const std::vector<double>& v)
      : r_(reverse), run_(run), v_(v), cotangents_(reverse.as_cotangents(v)) {}

  Repeats repeat(const std::string& nonlinear) {
    const Tensors& v = cotangents_;
    const Tensors kept = clones(v), whole = gradients(v);
    for (size_t k = 0; k < v.size(); ++k)
      if (!same_bits(v[k], kept[k]))
        out_.refused.push_back({.what = "a backward writes to the cotangent that it is handed",
                                .output = r_.outputs[k].name(),
                                .note = "others may hold the same memory; write to a clone"});
    const auto again = [&](std::string what, const Tensors& cotangents, const Tensors& want) {
      attempt(std::move(what), want, [&] { return gradients(cotangents); });
    };
    attempt(
        "the same gradient when it is computed again", whole, [&] { return gradients(kept); }, true);
    attempt("the same gradient when no other is needed", whole, [&] {
      Tensors g;
      for (const Var& leaf : r_.target.leaves) g.push_back(r_.gradients(run_, {leaf}, kept, r_.all())[0]);
      return g;
    });
    for (const Layout& layout : layouts())
      again(str("the same gradient for a ", layout.name, " cotangent"), map_all(kept, layout.make), whole);
    const Tensors expanded = map_all(kept, [](const Tensor& t) { return expanded_layout(t, -1); });
    again("the same gradient for an expanded cotangent (stride 0)", expanded, gradients(clones(expanded)));
    if (nonlinear.empty())
      scaled_and_split(whole);
    else
      out_.left_out.push_back("scaled and split cotangents: declared nonlinear, " + nonlinear);
    if (r_.target.layouts) elsewhere(whole);
    for (size_t i = 0; i < r_.given.size(); ++i)
      if (!same_bits(r_.target.leaves[i].value(), r_.given[i]))
        fail("gradcheck", str("f or its backward writes to ", r_.target.names[i]), "other values than before",
             "the same", "write to a clone");
    return std::move(out_);
  }

 private:
  static constexpr std::string_view kElement = "element", kRow = "row";

  Tensors gradients(const Tensors& v) const { return r_.gradients(run_, r_.target.leaves, v, r_.all()); }

  // A backward that refuses what the engine may hand to it is as bad as a wrong one.
  void attempt(std::string what, const Tensors& want, const std::function<Tensors()>& run, bool exact = false,
               const Tensors* at = nullptr) {
    try {
      size_ = 0;
      const Tensors got = run();
      compare(what, got, want, at ? *at : r_.given, exact);
    } catch (const std::exception& e) {
      const auto same = [&](const GradcheckFailure& f) { return f.note.ends_with(e.what()); };
      if (std::any_of(out_.refused.begin(), out_.refused.end(), same)) return;
      out_.refused.push_back({.what = std::move(what),
                              .input = r_.target.leaves.size() == 1 ? r_.target.names[0] : "",
                              .note = str("the backward throws: ", e.what())});
    }
  }

  // Keeps only what differs: a model's gradients are large.
  void compare(const std::string& what, const Tensors& got, const Tensors& want, const Tensors& at, bool exact) {
    for (size_t i = 0; i < got.size(); ++i) {
      if (want[i].numel() == 0) continue;
      ++out_.comparisons;
      double size = std::max(largest(want[i]), size_);
      const double tolerance = exact ? 0 : kTolerance.structure;
      if (size < kTolerance.structure) size = 1;  // rounding of sums of unit size, as behind a saturated softmax
      const Farthest f = farthest(got[i], want[i]);
      if (f.error <= tolerance * size)
        out_.worst = std::max(out_.worst, size > 0 ? f.error / size : 0);
      else
        out_.differ.push_back({what, i, got[i], want[i], at, size, tolerance});
    }
  }

  // A backward is linear: in the scale of its cotangent, and over any split of it, however sparse the parts.
  void scaled_and_split(const Tensors& whole) {
    const auto by = [](const Tensors& t, double factor) {
      return map_all(t, [factor](const Tensor& x) { return num::scale(x, factor); });
    };
    for (const double scale : {0x1p100, 0x1p-100})
      attempt(str("the gradient for the cotangent scaled by 2^", scale > 1 ? "100" : "-100", ", over that factor"),
              whole, [&] { return by(gradients(by(cotangents_, scale)), 1 / scale); });
    const bool finite =
        std::all_of(whole.begin(), whole.end(), [](const Tensor& g) { return num::first_non_finite(g) < 0; });
    if (finite)
      attempt(
          "a gradient of zero for a cotangent of zeros", by(whole, 0), [&] { return gradients(by(cotangents_, 0)); },
          true);
    Rng rng = Rng(r_.seed).fork(2000);
    for (const auto& [what, parts] : splits(rng)) {
      attempt(str("the sum of the gradients for ", what), whole, [&] {
        Tensors sum;
        for (const std::vector<double>& v : parts) {
          const Tensors g = gradients(r_.as_cotangents(v));
          for (size_t i = 0; i < g.size(); ++i) {
            size_ = std::max(size_, largest(g[i]));
            if (i == sum.size())
              sum.push_back(g[i]);
            else
              sum[i] = num::add(sum[i], g[i]);
          }
        }
        return sum;
      });
    }
  }

  // Cotangents that add up to the first draw's: a few single blocks and the rest, a random half and the other.
  std::vector<std::pair<std::string, std::vector<std::vector<double>>>> splits(Rng& rng) const {
    const std::vector<double>& v = v_;
    std::vector<std::pair<std::string, std::vector<std::vector<double>>>> out;
    const auto add = [&](std::string what, size_t parts, const std::vector<size_t>& part_of) {
      std::vector<std::vector<double>> split(parts, std::vector<double>(v.size(), 0.0));
      for (size_t j = 0; j < v.size(); ++j) split[part_of[j]][j] = v[j];
      out.emplace_back(std::move(what), std::move(split));
    };
    if (v.size() < 2) return out;
    std::vector<size_t> part_of(v.size());
    for (size_t& p : part_of) p = rng.below(2);
    add("a random half of the cotangent and the other half", 2, part_of);
    for (const std::string_view block : {kElement, kRow, std::string_view("slice of the first dimension")}) {
      constexpr size_t kBlocks = 4;  // the first, the last, two more; then the rest
      bool any = false;
      for (const Output& o : r_.outputs) {
        const Shape& shape = r_.point[static_cast<size_t>(o.index)].shape();
        const size_t n = o.end - o.begin, size = block_size(shape, block), count = n / size;
        size_t pick[kBlocks] = {0, count - 1, rng.below(count), rng.below(count)};
        for (size_t j = 0; j < n; ++j) {
          const size_t* at = std::find(pick, pick + kBlocks, j / size);
          part_of[o.begin + j] = static_cast<size_t>(at - pick);
        }
        any = any || (count > 1 && (size > 1 || block == kElement));
      }
      if (any) add(str("single ", block, "s of the cotangent and the rest"), kBlocks + 1, part_of);
    }
    return out;
  }

  static size_t block_size(const Shape& shape, std::string_view block) {
    if (block == kElement || shape.rank() < 2) return 1;
    return static_cast<size_t>(block == kRow ? shape[shape.rank() - 1] : shape.numel() / shape[0]);
  }

  // The same inputs elsewhere in memory, all of them and each alone: same outputs, same gradients.
  void elsewhere(const Tensors& whole) {
    const Tensors& at = r_.given;
    constexpr size_t kEachAlone = 4;
    for (const Layout& layout : layouts()) {
      compare_elsewhere(layout.name + " inputs", map_all(at, layout.make), at, r_.point, whole);
      for (size_t i = 0; at.size() > 1 && at.size() <= kEachAlone && i < at.size(); ++i) {
        Tensors one = at;
        one[i] = layout.make(at[i]);
        compare_elsewhere(str(layout.name, " ", r_.target.names[i]), one, at, r_.point, whole);
      }
    }
    const Tensors expanded = map_all(at, [](const Tensor& t) { return t.rank() < 2 ? t : expanded_layout(t, 0); });
    const Tensors copied = clones(expanded);
    Tensors want, point;
    try {  // another point than the one that was given: the function may not like it
      r_.target.elsewhere(copied, [&](const Vars& leaves, const Vars& outputs) {
        want = r_.gradients(outputs, leaves, cotangents_, r_.all());
        point = clones(values_of(outputs));
        for (const Output& o : r_.outputs)
          if (num::first_non_finite(point[static_cast<size_t>(o.index)]) >= 0) want.clear();
      });
    } catch (const std::exception&) {
      return;
    }
    if (!want.empty()) compare_elsewhere("expanded inputs (stride 0)", expanded, copied, point, want);
  }

  // f may refuse a layout, which loses nothing; its backward may not.
  void compare_elsewhere(const std::string& what, const Tensors& elsewhere, const Tensors& at, const Tensors& point,
                         const Tensors& want) {
    try {
      r_.target.elsewhere(elsewhere, [&](const Vars& leaves, const Vars& outputs) {
        r_.check_count(outputs.size());
        same_outputs(what, values_of(outputs), point);
        attempt(
            "the same gradient for " + what, want, [&] { return r_.gradients(outputs, leaves, cotangents_, r_.all()); },
            false, &at);
      });
    } catch (const std::exception& e) {
      out_.left_out.push_back(str(what, ": f refuses them, ", e.what()));
    }
  }

  void same_outputs(const std::string& what, const Tensors& outputs, const Tensors& point) {
    for (const Output& o : r_.outputs) {
      const Tensor &got = outputs[static_cast<size_t>(o.index)], &want = point[static_cast<size_t>(o.index)];
      ++out_.comparisons;
      if (farthest(got, want).error <= kTolerance.structure * largest(want)) continue;
      out_.refused.push_back({.what = "f gives other outputs for " + what,
                              .output = o.name(),
                              .note = "the same numbers elsewhere in memory: it ignores strides or the offset"});
    }
  }

  const Reverse& r_;
  const Vars& run_;
  const std::vector<double>& v_;
  const Tensors cotangents_;
  double size_ = 0;  // of the summands, where a gradient is a sum
  Repeats out_;
};

}  // namespace

Repeats repeat_gradients(const Reverse& reverse, const Vars& run, const std::vector<double>& v,
                         const std::string& nonlinear) {
  return Repeater(reverse, run, v).repeat(nonlinear);
}

}  // namespace bg::verifier
