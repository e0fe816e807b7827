// V6: what must hold of any backward, whatever its formula.
#include <algorithm>
#include <cmath>
#include <optional>

#include "autograd/engine.h"
#include "autograd/verify/checks.h"

namespace bg::verifier {
namespace {

constexpr Step kStep = Step::V6;

Tensors combine(double a, const Tensors& x, double b, const Tensors& y) {
  Tensors out;
  for (size_t k = 0; k < x.size(); ++k) {
    if (x[k].defined() && is_float(x[k].dtype()))
      out.push_back(num::add(num::scale(x[k], a), num::scale(y[k], b)));
    else
      out.push_back(x[k]);
  }
  return out;
}

// The size below which a gradient is compared in absolute terms: 0, but for one that is rounding and nothing else.
double floor_of(const Subject& s, size_t input, const Tensor& want) {
  constexpr double kRounding = 1e-12;
  return s.declared_zero(input) || largest(want) < kRounding * s.unit() ? s.unit() : 0;
}

void compare(Recorder& r, const Subject& s, const std::string& what, const Tensors& got, const Tensors& want,
             double tolerance = kTolerance.structure) {
  for (size_t i : s.differentiable())
    r.expect_close(kStep, what, s.point.inputs[i].name, got[i], want[i], tolerance, floor_of(s, i, want[i]));
}

void compare_outputs(Recorder& r, const std::string& what, const Tensors& got, const Tensors& want) {
  for (size_t k = 0; k < want.size(); ++k)
    r.expect_close(kStep, what, str("output ", k), got[k], want[k], kTolerance.structure);
}

// B(a) + B(b) = B(a + b), on the scale of the largest of the three: sums may cancel.
void expect_sum(Recorder& r, const Subject& s, const std::string& what, const Tensors& a, const Tensors& b,
                const Tensors& whole) {
  for (size_t i : s.differentiable()) {
    const double floor = std::max({floor_of(s, i, whole[i]), largest(a[i]), largest(b[i])});
    r.expect_close(kStep, what, s.point.inputs[i].name, num::add(a[i], b[i]), whole[i], kTolerance.structure, floor);
  }
}

// A threshold or a clamp on gradients shows only far from unit scale.
void scales(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g) {
  constexpr double kFar = 0x1p100, kRoom = 1e270;  // powers of two: nothing is rounded
  for (const double by : {kFar, 1 / kFar}) {
    for (const Tensor& x : g)
      if (x.defined() && (largest(x) * by > kRoom || (largest(x) > 0 && largest(x) * by < 1 / kRoom))) {
        r.skip("V6: a cotangent scaled by 2^100 or 2^-100, whose gradients would leave the range of double");
        return;
      }
    const Tensors got = s.backward(f, combine(by, d.v, 0, d.v), s.need_all());
    for (size_t i : s.differentiable())
      r.expect_close(
          kStep, str("linear in the cotangent: B(2^", by > 1 ? "" : "-", "100 v) = 2^", by > 1 ? "" : "-", "100 B(v)"),
          s.point.inputs[i].name, num::scale(got[i], 1 / by), g[i], kTolerance.structure, floor_of(s, i, g[i]));
  }
}

// Which elements of a cotangent are kept; the others are zero.
struct Split {
  std::string name;
  std::function<bool(size_t output, int64_t element)> keep;
};

// By row: one row alone, for the first, the last and one between. By element: the same, and random halves.
std::vector<Split> splits(const Tensors& outputs, bool quick, Rng& rng) {
  std::vector<Split> all;
  for (size_t k = 0; k < outputs.size(); ++k) {
    const Tensor& y = outputs[k];
    const int64_t n = y.numel(), width = y.rank() ? y.size(-1) : 1;
    if (!is_float(y.dtype()) || n == 0) continue;
    const int64_t rows = n / width, between = static_cast<int64_t>(rng.uniform() * static_cast<double>(n));
    if (outputs.size() > 1)
      all.push_back({str("output ", k, " alone"), [k](size_t output, int64_t) { return output == k; }});
    for (const int64_t row : {int64_t{0}, rows - 1, between / width})
      if (rows > 1 && (!quick || row == 0))
        all.push_back({str("row ", row, " of output ", k),
                       [=](size_t output, int64_t e) { return output == k && e / width == row; }});
    for (const int64_t element : {int64_t{0}, n - 1, between})
      if (n > 1 && (!quick || element != between))
        all.push_back({str("element ", element, " of output ", k),
                       [=](size_t output, int64_t e) { return output == k && e == element; }});
  }
  for (int half = 0; half < (quick ? 1 : 2); ++half) {
    const uint64_t key = static_cast<uint64_t>(rng.uniform() * 0x1p53);
    all.push_back({"a random half", [key](size_t output, int64_t e) {
                     return Rng(key, output).fork(static_cast<uint64_t>(e)).uniform() < 0.5;
                   }});
  }
  all.push_back({"every second element", [](size_t, int64_t e) { return e % 2 == 0; }});
  return all;
}

// The cotangent, with the elements that a split keeps (or those that it does not) times `by`.
Tensors masked(const Tensors& v, const Split& split, bool kept, double by = 0) {
  Tensors out;
  for (size_t k = 0; k < v.size(); ++k) {
    Tensor part = v[k].clone();
    if (is_float(part.dtype())) {
      double* p = part.mutable_data<double>("split cotangent");
      for (int64_t e = 0; e < part.numel(); ++e)
        if (split.keep(k, e) != kept) p[e] *= by;
    }
    out.push_back(std::move(part));
  }
  return out;
}

// Rows of value(0), value(1), ...; the last element of a row of odd length stays zero.
Tensors filled(const Tensors& like, double (*value)(int64_t), double unit) {
  Tensors out;
  for (const Tensor& t : like) {
    Tensor x = Tensor::zeros(t.shape(), t.dtype());
    if (is_float(x.dtype())) {
      double* p = x.mutable_data<double>("cotangent");
      const int64_t width = t.rank() && t.size(-1) > 0 ? t.size(-1) : 1;
      for (int64_t e = 0; e < x.numel(); ++e)
        if (e % width < width - width % 2) p[e] = unit * value(e % width);
    }
    out.push_back(std::move(x));
  }
  return out;
}

// `break` for `continue` at a zero, a row skipped because it starts with one, a threshold relative to the largest:
// wrong where parts of a cotangent are zero or small.
void sparse(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g, Rng& rng) {
  auto backward = [&](const Tensors& v) { return s.backward(f, v, s.need_all()); };
  for (const Split& split : splits(f.out, r.options().quick, rng))
    expect_sum(r, s, str("linear in the cotangent: B(part) + B(rest) = B(v), the part being ", split.name),
               backward(masked(d.v, split, true)), backward(masked(d.v, split, false)), g);
  // cotangents of a special form, whose rows sum to zero, or are constant
  for (const auto& [name, value] : {std::pair<const char*, double (*)(int64_t)>{
                                        "differences of neighbours", [](int64_t e) { return e % 2 ? -1.0 : 1.0; }},
                                    {"ones", [](int64_t) { return 1.0; }}}) {
    const Tensors form = filled(d.v, value, s.unit());
    expect_sum(r, s, str("linear in the cotangent: B(part) + B(rest) = B(v), the part being ", name), backward(form),
               backward(combine(1, d.v, -1, form)), g);
  }
  constexpr double kSmall = 0x1p-20;
  const Split second{"", [](size_t, int64_t e) { return e % 2 == 0; }};
  const Tensors mixed = masked(d.v, second, true, kSmall), large = masked(d.v, second, true);
  expect_sum(r, s, "linear in the cotangent: every second element a million times smaller", backward(large),
             backward(combine(1, mixed, -1, large)), backward(mixed));
}

void linear(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g, Rng& rng) {
  const Tensors zero = map_all(f.out, [](const Tensor& y) { return Tensor::zeros(y.shape(), y.dtype()); });
  const Tensors g0 = s.backward(f, zero, s.need_all());
  for (size_t i : s.differentiable()) {
    const std::vector<double> x = flatten({g0[i]});
    const auto bad = std::find_if(x.begin(), x.end(), [](double e) { return !(e == 0); });
    const double value = bad == x.end() ? 0 : *bad;
    Failure* e = r.expect(kStep, "a zero cotangent gives an exactly zero gradient", s.point.inputs[i].name, value, 0,
                          std::abs(value), 0);
    if (e) e->index = describe_index(g0[i].shape(), bad - x.begin());
  }
  if (!r.entry().nonlinear.empty()) {
    r.report().na["linearity"] = r.entry().nonlinear;
    return;
  }
  const Tensors w = random_cotangents(f.out, rng);
  const Tensors gw = s.backward(f, w, s.need_all());
  expect_sum(r, s, "linear in the cotangent: B(0.7 v - 1.3 w) = 0.7 B(v) - 1.3 B(w)", combine(0.7, g, 0, g),
             combine(-1.3, gw, 0, gw), s.backward(f, combine(0.7, d.v, -1.3, w), s.need_all()));
  scales(r, s, f, d, g);
  sparse(r, s, f, d, g, rng);
}

// All 2^n - 1 masks for few inputs; singles, their complements and some random ones for many.
std::vector<std::vector<bool>> masks(size_t n, bool quick, Rng& rng) {
  constexpr size_t kAllUpTo = 6;
  constexpr int kRandom = 8;
  std::vector<std::vector<bool>> out;
  if (n <= (quick ? 2 : kAllUpTo)) {
    for (size_t bits = 1; bits < (size_t{1} << n); ++bits) {
      std::vector<bool> m(n);
      for (size_t k = 0; k < n; ++k) m[k] = bits >> k & 1;
      out.push_back(std::move(m));
    }
    return out;
  }
  for (size_t k = 0; k < n; ++k) {
    std::vector<bool> only(n, false), all_but(n, true);
    only[k] = true;
    all_but[k] = false;
    out.push_back(std::move(only));
    out.push_back(std::move(all_but));
  }
  for (int i = 0; i < (quick ? 0 : kRandom); ++i) {
    std::vector<bool> m(n);
    for (size_t k = 0; k < n; ++k) m[k] = rng.uniform() < 0.5;
    if (std::find(m.begin(), m.end(), true) != m.end()) out.push_back(std::move(m));
  }
  return out;
}

void needs(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g, Rng& rng) {
  const std::vector<size_t> wanted = s.differentiable();
  for (const std::vector<bool>& mask : masks(wanted.size(), r.options().quick, rng)) {
    std::vector<bool> need(s.point.inputs.size(), false);
    std::string names;
    for (size_t k = 0; k < wanted.size(); ++k) {
      need[wanted[k]] = mask[k];
      if (mask[k]) names += (names.empty() ? "" : ", ") + s.point.inputs[wanted[k]].name;
    }
    const Tensors got = s.backward(f, d.v, Need(need));
    for (size_t k = 0; k < wanted.size(); ++k)
      if (mask[k])
        r.expect_close(kStep, str("the same gradient when only these are needed: ", names),
                       s.point.inputs[wanted[k]].name, got[wanted[k]], g[wanted[k]], kTolerance.structure,
                       floor_of(s, wanted[k], g[wanted[k]]));
  }
}

// Expanded layouts change the numbers: what they give is compared with a contiguous copy of themselves.
std::vector<Layout> expanded_layouts(bool quick) {
  std::vector<Layout> all{{"expanded (stride 0 everywhere)", [](const Tensor& t) { return expanded_layout(t, -1); }}};
  if (quick) return all;
  all.push_back({"expanded (stride 0 in the first dimension)", [](const Tensor& t) { return expanded_layout(t, 0); }});
  all.push_back({"expanded (stride 0 in the last dimension)",
                 [](const Tensor& t) { return expanded_layout(t, std::max(0, t.rank() - 1)); }});
  return all;
}

// Repeating a row can make a matrix singular, or leave the domain otherwise: such numbers prove nothing.
std::optional<Forward> sensible(const Subject& s, const Forward& f, const Tensors& in) {
  constexpr double kBlownUp = 1e3;
  for (size_t i : s.differentiable())
    if (s.point.inputs[i].domain == Domain::symmetric) return std::nullopt;
  try {
    Forward plain = s.forward(in);
    for (size_t k = 0; k < plain.out.size(); ++k)
      if (!describe_non_finite(plain.out[k]).empty() ||
          largest(plain.out[k]) > kBlownUp * std::max(1.0, largest(f.out[k])))
        return std::nullopt;
    return plain;
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

class Strides {
 public:
  Strides(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g)
      : r_(r), s_(s), f_(f), d_(d), g_(g) {}

  void check(const Layout& layout, bool same_numbers) const {
    const Tensors v = map_all(d_.v, layout.make);
    const Tensors want = same_numbers ? g_ : s_.backward(f_, clones(v), s_.need_all());
    compare(r_, s_, layout.name + " cotangent", s_.backward(f_, v, s_.need_all()), want);
    inputs(layout.name + " inputs", map_all(f_.in, layout.make), same_numbers);
    if (r_.options().quick || f_.in.size() < 2) return;
    for (size_t i = 0; i < f_.in.size(); ++i) {
      Tensors in = f_.in;
      in[i] = layout.make(in[i]);
      inputs(layout.name + " input " + s_.point.inputs[i].name, in, same_numbers);
    }
  }

 private:
  void inputs(const std::string& what, const Tensors& in, bool same_numbers) const {
    const std::optional<Forward> plain = same_numbers ? f_ : sensible(s_, f_, clones(in));
    if (!plain) return r_.skip("V6: expanded inputs, where the function is not finite or singular");
    const Tensors want = same_numbers ? g_ : s_.backward(*plain, d_.v, s_.need_all());
    if (!same_numbers && !finite(want))  // the deviation of equal numbers has no slope
      return r_.skip("V6: expanded inputs, where the gradient is not finite");
    const Forward laid = s_.forward(in);
    compare_outputs(r_, what, laid.out, plain->out);
    compare(r_, s_, what, s_.backward(laid, d_.v, s_.need_all()), want);
  }

  static bool finite(const Tensors& tensors) {
    return std::all_of(tensors.begin(), tensors.end(),
                       [](const Tensor& t) { return !t.defined() || describe_non_finite(t).empty(); });
  }

  Recorder& r_;
  const Subject& s_;
  const Forward& f_;
  const Draw& d_;
  const Tensors& g_;
};

// Nothing that others may hold is written to: inputs, saved values, cotangents.
void purity(Recorder& r, const Subject& s, const Draw& d) {
  const Tensors in = clones(s.point.values), v = clones(d.v);
  auto sums = [](const Tensors& t) {
    std::vector<uint64_t> out;
    for (const Tensor& x : t) out.push_back(checksum(x));
    return out;
  };
  auto expect = [&](std::string_view what, const std::vector<uint64_t>& before, const std::vector<uint64_t>& after,
                    auto name) {
    for (size_t i = 0; i < before.size(); ++i)
      r.expect(kStep, what, name(i), static_cast<double>(after[i] != before[i]), 0, after[i] != before[i], 0);
  };
  auto input_name = [&](size_t i) { return s.point.inputs[i].name; };
  auto numbered = [](std::string_view what) { return [what](size_t i) { return str(what, " ", i); }; };

  const auto in_before = sums(in), v_before = sums(v);
  const Forward f = s.forward(in);
  expect("forward leaves its inputs alone", in_before, sums(in), input_name);
  const Tensors& kept = f.kept;
  const auto kept_before = sums(kept), out_before = sums(f.out);
  const Tensors g = s.backward(f, v, s.need_all());
  expect("backward leaves the inputs alone", in_before, sums(in), input_name);
  expect("backward leaves the saved values alone", kept_before, sums(kept), numbered("saved"));
  expect("backward leaves the outputs alone", out_before, sums(f.out), numbered("output"));
  expect("backward leaves the cotangents alone", v_before, sums(v), numbered("cotangent"));
}

void repeats(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g) {
  auto same = [&](std::string_view what, const std::string& name, const Tensor& a, const Tensor& b) {
    Failure* e = r.expect_same(kStep, what, name, a, b);
    if (e && e->note.empty())
      e->note = "perhaps state is kept between calls (a cache, a counter), or random numbers are drawn without a key";
  };
  const Forward again = s.forward(f.in), unrecorded = s.forward(f.in, /*recording=*/false);
  for (size_t k = 0; k < f.out.size(); ++k) {
    same("two forwards give the same bits", str("output ", k), again.out[k], f.out[k]);
    same("forward gives the same bits when nothing is recorded", str("output ", k), unrecorded.out[k], f.out[k]);
  }
  const Tensors one = s.backward(f, d.v, s.need_all()), two = s.backward(again, d.v, s.need_all());
  for (size_t i : s.differentiable()) {
    same("two backwards give the same bits", s.point.inputs[i].name, one[i], g[i]);
    same("a second forward and backward give the same bits", s.point.inputs[i].name, two[i], g[i]);
  }
}

// The node and the engine around the op hand out the same gradients, and add them up when inputs are used twice.
void engine(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g, Rng& rng) {
  const std::vector<size_t> wanted = s.differentiable();
  Vars in, leaves;
  for (size_t i = 0; i < s.point.values.size(); ++i) {
    const bool leaf = std::find(wanted.begin(), wanted.end(), i) != wanted.end();
    in.emplace_back(s.point.values[i], leaf);
    if (leaf) leaves.push_back(in.back());
  }
  const Tensors w = random_cotangents(f.out, rng);
  Vars reached, cotangents;
  auto use = [&](const Tensors& v) {
    const Vars out = s.point.apply(in);
    for (size_t k = 0; k < out.size(); ++k) {
      if (!out[k].requires_grad()) continue;
      reached.push_back(out[k]);
      cotangents.emplace_back(v[k]);
    }
  };
  auto expect = [&](std::string_view what, const Tensors& want) {
    const Vars got = grad(reached, leaves, cotangents, {.retain_graph = true});
    for (size_t k = 0; k < wanted.size(); ++k)
      r.expect_close(kStep, what, s.point.inputs[wanted[k]].name, got[k].value(), want[wanted[k]], kTolerance.structure,
                     floor_of(s, wanted[k], g[wanted[k]]));
  };
  use(d.v);
  if (reached.empty()) return;
  expect("the same gradient through node and engine", g);
  use(w);
  expect("both gradients of inputs that are used twice", combine(1, g, 1, s.backward(f, w, s.need_all())));
}

}  // namespace

void check_structure(Recorder& r, const Subject& s, const Forward& f, const Draw& d, Rng& rng) {
  const Tensors g = s.backward(f, d.v, s.need_all());
  linear(r, s, f, d, g, rng);
  needs(r, s, f, d, g, rng);
  const Strides strides(r, s, f, d, g);
  for (const Layout& layout : layouts()) strides.check(layout, true);
  for (const Layout& layout : expanded_layouts(r.options().quick)) strides.check(layout, false);
  purity(r, s, d);
  repeats(r, s, f, d, g);
  if (s.point.has.node) engine(r, s, f, d, g, rng);
}

}  // namespace bg::verifier
