// V6: what must hold of any backward, whatever its formula.
#include <algorithm>
#include <cmath>

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

Tensors map_all(const Tensors& in, const std::function<Tensor(const Tensor&)>& f) {
  Tensors out;
  for (const Tensor& t : in) out.push_back(f(t));
  return out;
}

Tensors clones(const Tensors& in) {
  return map_all(in, [](const Tensor& t) { return t.clone(); });
}

void compare(Recorder& r, const Subject& s, const std::string& what, const Tensors& got, const Tensors& want,
             double tolerance = kTolerance.structure) {
  for (size_t i : s.differentiable()) r.expect_close(kStep, what, s.point.inputs[i].name, got[i], want[i], tolerance);
}

void compare_outputs(Recorder& r, const std::string& what, const Tensors& got, const Tensors& want) {
  for (size_t k = 0; k < want.size(); ++k)
    r.expect_close(kStep, what, str("output ", k), got[k], want[k], kTolerance.structure);
}

void linear(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g, Rng& rng) {
  const Tensors w = random_cotangents(f.out, rng);
  const Tensors gw = s.backward(f, w, s.need_all());
  compare(r, s, "linear in the cotangent: B(0.7 v - 1.3 w) = 0.7 B(v) - 1.3 B(w)",
          s.backward(f, combine(0.7, d.v, -1.3, w), s.need_all()), combine(0.7, g, -1.3, gw));
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
                       s.point.inputs[wanted[k]].name, got[wanted[k]], g[wanted[k]], kTolerance.structure);
  }
}

struct Layout {
  std::string name;
  std::function<Tensor(const Tensor&)> make;
  bool same_numbers;  // expanded layouts change the numbers: compare with a contiguous copy of themselves
};

std::vector<Layout> layouts(bool quick) {
  std::vector<Layout> all{
      {"transposed", reversed_layout, true},
      {"sliced with step 2", sliced_layout, true},
      {"expanded (stride 0 everywhere)", [](const Tensor& t) { return expanded_layout(t, -1); }, false}};
  if (!quick) {
    all.push_back(
        {"expanded (stride 0 in the first dimension)", [](const Tensor& t) { return expanded_layout(t, 0); }, false});
    all.push_back({"expanded (stride 0 in the last dimension)",
                   [](const Tensor& t) { return expanded_layout(t, std::max(0, t.rank() - 1)); }, false});
  }
  return all;
}

void strides(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g) {
  for (const Layout& layout : layouts(r.options().quick)) {
    const Tensors v = map_all(d.v, layout.make);
    const Tensors want = layout.same_numbers ? g : s.backward(f, clones(v), s.need_all());
    compare(r, s, layout.name + " cotangent", s.backward(f, v, s.need_all()), want);
    auto inputs = [&](const std::string& what, const Tensors& in) {
      const Forward laid = s.forward(in);
      const Forward plain = layout.same_numbers ? f : s.forward(clones(in));
      compare_outputs(r, what, laid.out, plain.out);
      compare(r, s, what, s.backward(laid, d.v, s.need_all()),
              layout.same_numbers ? g : s.backward(plain, d.v, s.need_all()));
    };
    inputs(layout.name + " inputs", map_all(f.in, layout.make));
    if (r.options().quick || f.in.size() < 2) continue;
    for (size_t i = 0; i < f.in.size(); ++i) {
      Tensors in = f.in;
      in[i] = layout.make(in[i]);
      inputs(layout.name + " input " + s.point.inputs[i].name, in);
    }
  }
}

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
  const Tensors kept = bg::detail::saved_tensors(f.saved, s.point.label);
  const auto kept_before = sums(kept), out_before = sums(f.out);
  const Tensors g = s.backward(f, v, s.need_all());
  expect("backward leaves the inputs alone", in_before, sums(in), input_name);
  expect("backward leaves the saved values alone", kept_before, sums(kept), numbered("saved"));
  expect("backward leaves the outputs alone", out_before, sums(f.out), numbered("output"));
  expect("backward leaves the cotangents alone", v_before, sums(v), numbered("cotangent"));
}

void repeats(Recorder& r, const Subject& s, const Forward& f, const Draw& d, const Tensors& g) {
  const Forward again = s.forward(f.in);
  NoGrad off;
  Saved scratch(/*recording=*/false);
  const Tensors unrecorded = s.point.forward(scratch, f.in);
  for (size_t k = 0; k < f.out.size(); ++k) {
    r.expect_same(kStep, "two forwards give the same bits", str("output ", k), again.out[k], f.out[k]);
    r.expect_same(kStep, "forward gives the same bits when nothing is recorded", str("output ", k), unrecorded[k],
                  f.out[k]);
  }
  const Tensors one = s.backward(f, d.v, s.need_all()), two = s.backward(again, d.v, s.need_all());
  for (size_t i : s.differentiable()) {
    r.expect_same(kStep, "two backwards give the same bits", s.point.inputs[i].name, one[i], g[i]);
    r.expect_same(kStep, "a second forward and backward give the same bits", s.point.inputs[i].name, two[i], g[i]);
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
      r.expect_close(kStep, what, s.point.inputs[wanted[k]].name, got[k].value(), want[wanted[k]],
                     kTolerance.structure);
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
  strides(r, s, f, d, g);
  purity(r, s, d);
  repeats(r, s, f, d, g);
  engine(r, s, f, d, g, rng);
}

}  // namespace bg::verifier
