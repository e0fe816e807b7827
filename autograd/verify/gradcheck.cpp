#include "autograd/verify/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/jvp.h"
#include "autograd/verify/subject.h"
#include "core/format.h"

namespace bg {
namespace {

using verifier::Difference;
using verifier::flatten;
using verifier::Jump;
using verifier::kTolerance;
using verifier::norm;

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kSure = 8;            // of a difference's own error bound
constexpr double kSpread = 32;         // of what the last place of the inputs does to a gradient
constexpr int64_t kEachElement = 64;   // inputs up to this size are moved element by element
constexpr int64_t kFindElement = 512;  // those up to this size where something has to be found
constexpr size_t kSingleOutputs = 32;  // more are compared in groups

// -- Small tools ------------------------------------------------------------------------------------------------------

Tensor offset_layout(const Tensor& t) {
  constexpr int64_t kBefore = 3, kBehind = 2;
  const Tensor whole = Tensor::full({kBefore + t.numel() + kBehind}, kNaN, t.dtype());
  Tensor view = whole.slice(0, kBefore, kBefore + t.numel()).reshape(t.shape());
  view.copy_from(t, "offset layout");
  return view;
}

Tensor padded_layout(const Tensor& t) {
  if (t.rank() == 0) return offset_layout(t);
  constexpr int64_t kLeft = 1, kRight = 2;
  Shape wide = t.shape();
  wide[t.rank() - 1] += kLeft + kRight;
  Tensor view = Tensor::full(wide, kNaN, t.dtype()).slice(-1, kLeft, kLeft + t.size(-1));
  view.copy_from(t, "padded layout");
  return view;
}

Tensors values(const Vars& v) {
  Tensors out;
  for (const Var& x : v) out.push_back(x.value());
  return out;
}
Vars vars(const Tensors& t) { return Vars(t.begin(), t.end()); }

bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape() || a.dtype() != b.dtype()) return false;
  if (!is_float(a.dtype())) return a.to_vector<int64_t>() == b.to_vector<int64_t>();
  const std::vector<double> x = a.to_vector<double>(), y = b.to_vector<double>();
  return x.empty() || std::memcmp(x.data(), y.data(), x.size() * sizeof(double)) == 0;
}

// "output 1 is nan at (0, 2) of (2, 3)", or nothing.
std::string describe_non_finite(const std::string& what, const Tensor& t) {
  if (!is_float(t.dtype())) return {};
  const int64_t bad = num::first_non_finite(t);
  if (bad < 0) return {};
  return str(what, " is ", number_text(t.flat(bad)), " at ", verifier::describe_index(t.shape(), bad));
}

// Of the finite ones.
double largest(const Tensor& t) {
  double top = 0;
  for (const double x : t.to_vector<double>())
    if (std::isfinite(x)) top = std::max(top, std::abs(x));
  return top;
}

double rms(const Tensor& t) {
  return t.numel() == 0 ? 0 : norm(flatten({t})) / std::sqrt(static_cast<double>(t.numel()));
}

Tensor unit(const Tensor& u) {
  const double length = norm(flatten({u}));
  return length > 0 ? num::scale(u, 1 / length) : u;
}

// Where a differs most from b; an element that is finite in one of them alone comes before all others.
struct Worst {
  int64_t at = -1;
  double error = 0;
};
Worst worst_of(std::span<const double> a, std::span<const double> b) {
  Worst w;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool both_strange = !std::isfinite(a[i]) && !std::isfinite(b[i]);
    const double off = both_strange || a[i] == b[i] ? 0 : std::abs(a[i] - b[i]),
                 error = std::isnan(off) ? kInfinite : off;
    if (w.at < 0 || error > w.error) w = {static_cast<int64_t>(i), error};
  }
  return w;
}

// -- The function under test ------------------------------------------------------------------------------------------

// What differs between a function of inputs and a model with parameters.
struct Target {
  using Then = std::function<void(const Vars& leaves, const Vars& outputs)>;

  std::vector<std::string> names;  // of the leaves
  std::vector<int> numbers;        // of the leaves, among all inputs
  int inputs = 0;                  // how many there are
  Vars leaves;                     // what is differentiated
  bool layouts = false;            // may the leaves lie elsewhere in memory?
  std::function<Vars()> run;       // recorded, from the leaves
  // Unrecorded, with one leaf at another value (undefined: its own); by convention of `gradient_of` where asked for.
  std::function<Vars(size_t leaf, const Tensor& value, bool by_convention)> at;
  // Recorded, with all leaves at other values (or elsewhere in memory), for as long as `then` runs.
  std::function<void(const Tensors& values, const Then& then)> elsewhere;
};

// An output that is compared: its place in a run's outputs and in the row of all numbers.
struct Output {
  int index = 0;
  bool constant = false;  // by declaration
  size_t begin = 0, end = 0;
  std::string name() const { return str("output ", index); }
};

// Outputs that share a cotangent: positions [begin, end) among the compared ones.
struct Group {
  size_t begin = 0, end = 0;
};

// One draw of cotangents and directions, and what reverse mode made of it.
struct Draw {
  std::vector<double> v;                     // of the weighted outputs
  Tensors cotangents, directions;            // one per compared output; one per leaf
  std::vector<std::vector<double>> p, own;   // [leaf][group]: <J^T v, u>, and the norm of its terms
  std::vector<std::vector<double>> forward;  // [leaf]: J u of the weighted outputs, by forward mode
};

// One number of reverse mode and the same by differences.
struct Comparison {
  double p = 0, q = 0;
  double bound = 0;     // of the error of q
  double rounding = 0;  // the part of it that f's size alone causes
  double terms = 0;     // norm of the terms of q
  double own = 0;       // norm of the terms of p
  double h = 0;

  double allowed(double tolerance) const { return tolerance * (terms + own) + kSure * bound; }
  double noticeable(double tolerance) const { return terms > 0 ? allowed(tolerance) / terms : kInfinite; }
  double error() const {
    const double off = std::abs(p - q) - kSure * bound;
    return off <= 0 ? 0 : terms + own > 0 ? off / (terms + own) : off;
  }
};

enum class Outcome { agrees, unseen, kink, wrong };

// Gradients of all leaves that should be the same.
struct Repeat {
  std::string what;
  Tensors got, want;
  Tensors at;       // the leaves' values
  double size = 0;  // of the summands, where `got` is a sum
  double tolerance = kTolerance.structure;
};

class Checker {
 public:
  Checker(Target target, const GradcheckOptions& options) : target_(std::move(target)), o_(options) {}

  GradcheckReport run() {
    refuse_bad_options();
    survey(target_.run());
    if (strange_at_the_point()) return finish();
    refuse_changing_function();
    weigh();
    if (!outputs_.empty()) {
      differentiate();
      for (size_t i = 0; i < target_.leaves.size(); ++i) check(i);
      for (const Repeat& again : repeats_)
        for (size_t i = 0; i < target_.leaves.size(); ++i) compare_repeat(again, i);
      conclude();
    }
    report_loose_outputs();
    refuse_changing_function();
    return finish();
  }

 private:
  // -- Before anything is compared ------------------------------------------------------------------------------------

  void refuse_bad_options() {
    BG_CHECK(!target_.leaves.empty(), "gradcheck", "nothing to differentiate", "no floating inputs", "at least one");
    BG_CHECK(o_.directions >= 1, "gradcheck", "bad number of directions", str(o_.directions), "1 or more");
    BG_CHECK(o_.step > 0 && std::isfinite(o_.step), "gradcheck", "bad step", str(o_.step), "above 0, such as 1.5e-3");
    BG_CHECK(o_.tolerance > 0 && o_.tolerance <= kTolerance.visible, "gradcheck", "bad tolerance", str(o_.tolerance),
             str("above 0, up to ", kTolerance.visible));
    for (size_t i = 0; i < target_.leaves.size(); ++i)
      BG_CHECK(target_.leaves[i].dtype() == DType::f64, "gradcheck",
               str(target_.names[i], " is not f64, and differences of f32 functions are good to 1e-4 at best"),
               str(target_.leaves[i].dtype()), "f64", "to(DType::f64) on every input and parameter");
    zero_ = chosen(o_.zero_inputs, "zero_inputs", "the gradient must be zero");
    kinked_ = chosen(o_.kinked_inputs, "kinked_inputs", "what lies on a kink is left out");
  }

  std::vector<bool> chosen(const std::vector<InputId>& ids, std::string_view option, std::string_view meaning) {
    std::vector<bool> is(target_.leaves.size(), false);
    for (const InputId& id : ids) {
      bool found = id.name.empty() && id.number >= 0 && id.number < target_.inputs;
      for (size_t i = 0; i < is.size(); ++i) {
        const std::string& name = target_.names[i];
        if (id.name.empty() ? target_.numbers[i] != id.number : name != id.name && !name.ends_with("." + id.name))
          continue;
        found = true;
        if (!is[i]) report_.left_out.push_back(str(name, ": in ", option, ", ", meaning));
        is[i] = true;
      }
      BG_CHECK(found, "gradcheck", str(option, " names no input"), id.name.empty() ? str(id.number) : id.name,
               str("0 to ", target_.inputs - 1, " or a name such as ", target_.names[0]));
    }
    return is;
  }
  bool exempt(size_t leaf) const { return zero_[leaf] || kinked_[leaf] || target_.leaves[leaf].shape().numel() == 0; }

  // Sorts the outputs: compared, loose (no graph), left alone.
  void survey(const Vars& outputs) {
    point_ = values(outputs);
    for (const int k : o_.constant_outputs)
      BG_CHECK(k >= 0 && k < static_cast<int>(outputs.size()), "gradcheck", "constant_outputs names no output", str(k),
               str("0 to ", static_cast<int>(outputs.size()) - 1));
    std::vector<Output> constant;
    for (size_t k = 0; k < outputs.size(); ++k) {
      if (!is_float(outputs[k].dtype()) || outputs[k].shape().numel() == 0) continue;
      const int index = static_cast<int>(k);
      const bool declared = std::count(o_.constant_outputs.begin(), o_.constant_outputs.end(), index) > 0;
      if (declared) report_.left_out.push_back(str("output ", k, ": in constant_outputs"));
      if (!outputs[k].requires_grad() && !declared) loose_.push_back(k);
      if (outputs[k].requires_grad()) (declared ? constant : outputs_).push_back({index, declared, 0, 0});
    }
    add_groups(0, outputs_.size());
    outputs_.insert(outputs_.end(), constant.begin(), constant.end());
    add_groups(outputs_.size() - constant.size(), outputs_.size());
    size_t at = 0;
    for (Output& o : outputs_) {
      o.begin = at;
      at += static_cast<size_t>(point_[static_cast<size_t>(o.index)].numel());
      o.end = at;
    }
    weight_.assign(at, 1.0);
    moves_.assign(target_.leaves.size(), std::vector<bool>(outputs.size(), false));
    for (size_t i = 0; i < target_.leaves.size(); ++i)
      for (const Output& o : outputs_) {
        pairs_.push_back({target_.names[i], o.index, 0, 0, kInfinite});
        best_.emplace_back();
      }
    found_.assign(target_.leaves.size(), {});
    strange_.assign(target_.leaves.size(), {});
    for (GradcheckFailure& f : found_) f.verdict = Verdict::right;
  }

  void add_groups(size_t begin, size_t end) {
    const size_t size = (end - begin + kSingleOutputs - 1) / kSingleOutputs;
    for (size_t at = begin; at < end; at += size) groups_.push_back({at, std::min(at + size, end)});
    if (size > 1) report_.left_out.push_back(str(end - begin, " outputs: compared in groups of ", size));
  }

  bool strange_at_the_point() {
    for (size_t i = 0; i < target_.leaves.size(); ++i)
      if (const std::string bad = describe_non_finite(target_.names[i], target_.leaves[i].value()); !bad.empty()) {
        add_failure({.verdict = Verdict::inconclusive,
                     .what = bad,
                     .input = target_.names[i],
                     .note = "nothing can be compared at such a point; choose finite inputs"});
        return true;
      }
    for (size_t k = 0; k < point_.size(); ++k)
      if (const std::string bad = describe_non_finite(str("output ", k), point_[k]); !bad.empty()) {
        add_failure({.verdict = Verdict::inconclusive,
                     .what = str(bad, ", at the point itself"),
                     .output = str("output ", k),
                     .note = "nothing can be compared there; move the point into the domain of the function, or leave "
                             "such elements out of what it returns"});
        return true;
      }
    return false;
  }

  void refuse_changing_function() const {
    constexpr std::string_view kSuspicion =
        "suspected: hidden state (a counter, a cache, running statistics) or randomness that is not seeded inside the "
        "function; draw dropout masks from a fixed key";
    const auto refuse_other = [&](const Tensors& a, const Tensors& b, const char* what) {
      BG_CHECK(a.size() == b.size(), "gradcheck", what, str(b.size(), " outputs"), str(a.size()), kSuspicion);
      for (size_t k = 0; k < a.size(); ++k)
        BG_CHECK(same_bits(a[k], b[k]), "gradcheck", what, str("other bits in output ", k), "the same bits",
                 kSuspicion);
    };
    const Tensors once = values(target_.at(0, {}, false));
    refuse_other(once, values(target_.at(0, {}, false)), "the function gives other outputs when it runs again");
    refuse_other(point_, once, "the function gives other outputs when it runs again, without being recorded");
    if (!o_.gradient_of) return;
    const Tensors convention = values(target_.at(0, {}, true));
    BG_CHECK(convention.size() == point_.size(), "gradcheck", "gradient_of gives another number of outputs",
             str(convention.size()), str(point_.size()));
    for (size_t k = 0; k < point_.size(); ++k)
      BG_CHECK(convention[k].shape() == point_[k].shape(), "gradcheck", str("gradient_of gives another output ", k),
               str(convention[k].shape()), str(point_[k].shape()));
    refuse_other(convention, values(target_.at(0, {}, true)), "gradient_of gives other outputs when it runs again");
  }

  // -- Running the function -------------------------------------------------------------------------------------------

  // The compared outputs as one row of weighted numbers.
  std::vector<double> row(const Tensors& outputs) const {
    std::vector<double> y;
    y.reserve(weight_.size());
    for (const Output& o : outputs_) {
      const std::vector<double> part = outputs[static_cast<size_t>(o.index)].to_vector<double>();
      y.insert(y.end(), part.begin(), part.end());
    }
    BG_CHECK(y.size() == weight_.size(), "gradcheck", "outputs change their shape when an input is moved",
             str(y.size(), " elements"), str(weight_.size()));
    for (size_t j = 0; j < y.size(); ++j) y[j] *= weight_[j];
    return y;
  }

  // The row with one leaf moved. Beyond the function's domain: NaN.
  std::vector<double> row_at(size_t leaf, const Tensor& u, double t) {
    if (t == 0) return middle_;
    Tensors outputs;
    try {
      outputs = values(target_.at(leaf, num::add(target_.leaves[leaf].value(), num::scale(u, t)), true));
    } catch (const Error& e) {
      strange_[leaf] = str("a step of ", formatted("%.2g", t), " away f throws: ", e.what());
      return std::vector<double>(weight_.size(), kNaN);
    }
    for (const size_t k : loose_)
      if (k < outputs.size() && !moves_[leaf][k]) moves_[leaf][k] = !same_bits(outputs[k], loose_point_[k]);
    for (const Output& o : outputs_) {
      const std::string bad = describe_non_finite(o.name(), outputs[static_cast<size_t>(o.index)]);
      if (bad.empty()) continue;
      strange_[leaf] = str(bad, ", a step of ", formatted("%.2g", t), " away");
      break;
    }
    return row(outputs);
  }

  Difference slope(size_t leaf, const Tensor& u, double step) {
    const auto line = [&](double t) { return row_at(leaf, u, t); };
    return verifier::difference(line, 0.1 * o_.tolerance, step);
  }

  // Where rounding decides because the inputs are large, longer steps see more.
  Difference slope(size_t leaf, const Tensor& u) {
    Difference d = slope(leaf, u, o_.step);
    constexpr double kLarge = 10;
    const double reach = rms(target_.leaves[leaf].value());
    if (d.relative_error() <= kTolerance.visible || !(reach > kLarge)) return d;
    const Difference longer = slope(leaf, u, o_.step * reach);
    for (size_t j = 0; j < d.slope.size(); ++j)
      if (longer.error[j] < d.error[j]) {
        d.slope[j] = longer.slope[j];
        d.error[j] = longer.error[j];
      }
    return d;
  }

  // Weighs each output element by how much it moves with the inputs, so that none drowns in another's size or
  // rounding; within bounds, for one that hardly moves would bring nothing but its own rounding.
  void weigh() {
    loose_point_ = o_.gradient_of ? values(target_.at(0, {}, true)) : point_;
    middle_ = row(loose_point_);
    std::vector<double> moved(weight_.size(), 0.0);
    Rng rng(o_.seed);
    for (size_t i = 0; i < target_.leaves.size(); ++i) {
      Rng draw = rng.fork(1000 + i);
      const Tensor u = unit(Tensor::randn(target_.leaves[i].shape(), draw, DType::f64));
      constexpr double kShrink = 32;
      for (double h = o_.step; h > kTolerance.least_step; h /= kShrink) {
        const std::vector<double> up = row_at(i, u, h), down = row_at(i, u, -h);
        double size = 0;
        for (size_t j = 0; j < moved.size(); ++j) size += std::abs(up[j]) + std::abs(down[j]);
        if (!std::isfinite(size)) continue;
        for (size_t j = 0; j < moved.size(); ++j) moved[j] = std::hypot(moved[j], (up[j] - down[j]) / (2 * h));
        break;
      }
    }
    if (outputs_.empty()) {
      bool any = false;
      for (const std::vector<bool>& m : moves_) any = any || std::count(m.begin(), m.end(), true) > 0;
      BG_CHECK(any, "gradcheck", "the outputs depend on none of the inputs", str(point_.size(), " outputs"),
               "at least one that requires a gradient", "compute it from the Vars that are handed in");
    }
    constexpr double kRatio = 1e-8, kOfValue = 1e-4, kLargest = 1e100;
    double top = 0;
    for (const double m : moved) top = std::max(top, m);
    for (size_t j = 0; j < moved.size(); ++j) {
      const double size = std::max({moved[j], kRatio * top, kOfValue * std::abs(middle_[j])});
      weight_[j] = size > 0 ? std::clamp(1 / size, 1 / kLargest, kLargest) : 1;
      middle_[j] *= weight_[j];
    }
  }

  // -- Reverse mode: all that needs the graph, before anything is moved again -----------------------------------------

  // A row of numbers as one tensor per compared output.
  Tensors as_cotangents(const std::vector<double>& v) const {
    Tensors out;
    for (const Output& o : outputs_) {
      const Tensor& y = point_[static_cast<size_t>(o.index)];
      std::vector<double> part(v.begin() + static_cast<int64_t>(o.begin), v.begin() + static_cast<int64_t>(o.end));
      for (size_t j = 0; j < part.size(); ++j) part[j] *= weight_[o.begin + j];
      out.push_back(Tensor::of(std::move(part), y.shape()).to(y.dtype()));
    }
    return out;
  }

  // d <v, f> / d leaves, from the cotangents of some of the outputs.
  Tensors gradients(const Vars& outputs, const Vars& leaves, const Tensors& v, Group g) const {
    Vars y;
    Tensors part;
    for (size_t k = g.begin; k < g.end; ++k) {
      y.push_back(outputs[static_cast<size_t>(outputs_[k].index)]);
      part.push_back(v[k]);
    }
    Tensors out;
    for (const Var& x : grad(y, leaves, vars(part), {.retain_graph = true})) out.push_back(x.value());
    return out;
  }
  Group all() const { return {0, outputs_.size()}; }

  void differentiate() {
    const Vars outputs = target_.run();
    can_forward(outputs);
    Rng rng(o_.seed);
    for (int k = 0; k < o_.directions; ++k) {
      Rng draw = rng.fork(static_cast<uint64_t>(k));
      draws_.push_back(make_draw(outputs, draw, k % 2 == 0));
    }
    repeat(outputs);
  }

  // Balanced: terms of about the same size from every element of every output and input. That only chooses where to
  // look; what is found there is judged by differences.
  Draw make_draw(const Vars& outputs, Rng& rng, bool balanced) {
    Draw d;
    for (const double w : weight_) d.v.push_back(rng.normal() / (balanced ? 1 : w));
    d.cotangents = as_cotangents(d.v);
    std::vector<Tensors> g;
    for (const Group& group : groups_) g.push_back(gradients(outputs, target_.leaves, d.cotangents, group));
    for (size_t i = 0; i < target_.leaves.size(); ++i) {
      std::vector<double> u = flatten({Tensor::randn(target_.leaves[i].shape(), rng, DType::f64)});
      if (balanced) balance(u, g, i);
      const Tensor direction = unit(Tensor::of(std::move(u), target_.leaves[i].shape()));
      d.p.emplace_back();
      d.own.emplace_back();
      for (const Tensors& of_group : g) {
        const std::vector<double> terms = flatten({num::mul(of_group[i], direction)});
        d.p.back().push_back(std::accumulate(terms.begin(), terms.end(), 0.0));
        d.own.back().push_back(norm(terms));
      }
      d.directions.push_back(direction);
    }
    for (size_t i = 0; report_.forward_mode && i < target_.leaves.size(); ++i) {
      Tensors t;
      for (size_t k = 0; k < target_.leaves.size(); ++k)
        t.push_back(k == i ? d.directions[k] : Tensor::zeros(target_.leaves[k].shape(), DType::f64));
      d.forward.push_back(row(detail::tangents_of(outputs, target_.leaves, t)));
    }
    if (draws_.empty()) gradients_ = std::move(g);
    return d;
  }

  void balance(std::vector<double>& u, const std::vector<Tensors>& g, size_t leaf) const {
    std::vector<double> size(u.size(), 0.0);
    for (const Tensors& of_group : g) {
      const std::vector<double> x = flatten({of_group[leaf]});
      for (size_t k = 0; k < x.size(); ++k) size[k] += std::abs(x[k]);
    }
    double top = 0;
    for (const double s : size) top = std::max(top, s);
    constexpr double kRatio = 1e-4;
    if (!(top > 0) || !std::isfinite(top)) return;
    for (size_t k = 0; k < u.size(); ++k) u[k] *= top / std::max(size[k], kRatio * top);
  }

  void can_forward(const Vars& outputs) {
    Tensors zero;
    for (const Var& x : target_.leaves) zero.push_back(Tensor::zeros(x.shape(), x.dtype()));
    try {
      detail::tangents_of(outputs, target_.leaves, zero);
    } catch (const Error& e) {
      report_.forward_mode = false;
      report_.note = e.what();
    }
    if (!o_.gradient_of || !report_.forward_mode) return;
    report_.forward_mode = false;
    report_.note = "the gradient is that of another function by convention (gradient_of)";
  }

  // -- The gradient compared with itself, asked for otherwise ---------------------------------------------------------

  void repeat(const Vars& outputs) {
    const Tensors& v = draws_[0].cotangents;
    const Tensors at = values(target_.leaves), kept = cloned(v), whole = gradients(outputs, target_.leaves, v, all());
    const auto again = [&](std::string what, const Tensors& cotangents, const Tensors& want) {
      repeats_.push_back({std::move(what), gradients(outputs, target_.leaves, cotangents, all()), want, at});
    };
    again("the same gradient when it is computed again", v, whole);
    repeats_.back().tolerance = 0;
    Repeat alone{"the same gradient when no other is needed", {}, whole, at};
    for (const Var& leaf : target_.leaves) alone.got.push_back(gradients(outputs, {leaf}, v, all())[0]);
    repeats_.push_back(std::move(alone));

    for (const auto& [what, layout] : layouts()) again(str(what, " cotangent"), laid(v, layout), whole);
    const Tensors expanded = laid(v, [](const Tensor& t) { return verifier::expanded_layout(t, -1); });
    again("expanded cotangent (stride 0)", expanded, gradients(outputs, target_.leaves, cloned(expanded), all()));
    if (o_.nonlinear.empty())
      repeat_scaled_and_split(outputs, whole);
    else
      report_.left_out.push_back("scaled and split cotangents: declared nonlinear, " + o_.nonlinear);
    for (size_t k = 0; k < v.size(); ++k)
      if (!same_bits(v[k], kept[k]))
        add_failure({.what = "a backward writes to the cotangent that it is handed",
                     .output = outputs_[k].name(),
                     .note = "others may hold the same memory; write to a clone"});
    if (target_.layouts) repeat_elsewhere(whole);
  }

  using Layout = std::function<Tensor(const Tensor&)>;
  static std::vector<std::pair<std::string, Layout>> layouts() {
    return {{"transposed", verifier::reversed_layout},
            {"strided", verifier::sliced_layout},
            {"offset (a slice of a larger storage)", offset_layout},
            {"padded (rows of a wider tensor)", padded_layout}};
  }
  static Tensors laid(const Tensors& tensors, const Layout& layout) {
    Tensors out;
    for (const Tensor& t : tensors) out.push_back(layout(t));
    return out;
  }
  static Tensors cloned(const Tensors& tensors) {
    return laid(tensors, [](const Tensor& t) { return t.clone(); });
  }

  // A backward is linear: in the scale of its cotangent, and over any split of it, however sparse the parts.
  void repeat_scaled_and_split(const Vars& outputs, const Tensors& whole) {
    const Draw& d = draws_[0];
    const Tensors at = values(target_.leaves);
    for (const double scale : {0x1p100, 0x1p-100}) {
      const auto by = [](const Tensors& t, double factor) {
        return laid(t, [factor](const Tensor& x) { return num::scale(x, factor); });
      };
      repeats_.push_back(
          {str("the gradient for the cotangent scaled by 2^", scale > 1 ? "100" : "-100", ", over that factor"),
           by(gradients(outputs, target_.leaves, by(d.cotangents, scale), all()), 1 / scale), whole, at});
    }
    Rng rng = Rng(o_.seed).fork(2000);
    for (const auto& [what, parts] : splits(rng)) {
      Repeat sum{str("the sum of the gradients for ", what), {}, whole, at};
      for (const std::vector<double>& v : parts) {
        const Tensors g = gradients(outputs, target_.leaves, as_cotangents(v), all());
        for (size_t i = 0; i < g.size(); ++i) {
          sum.size = std::max(sum.size, largest(g[i]));
          if (i == sum.got.size())
            sum.got.push_back(g[i]);
          else
            sum.got[i] = num::add(sum.got[i], g[i]);
        }
      }
      repeats_.push_back(std::move(sum));
    }
  }

  // Cotangents that add up to the first draw's: a few single blocks and the rest, a random half and the other.
  std::vector<std::pair<std::string, std::vector<std::vector<double>>>> splits(Rng& rng) const {
    const std::vector<double>& v = draws_[0].v;
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
    for (const char* block : {"element", "row", "slice of the first dimension"}) {
      constexpr size_t kBlocks = 4;  // the first, the last, two more; then the rest
      bool any = false;
      for (const Output& o : outputs_) {
        const Shape& shape = point_[static_cast<size_t>(o.index)].shape();
        const size_t n = o.end - o.begin, size = block_size(shape, block), count = n / size;
        size_t pick[kBlocks] = {0, count - 1, rng.below(count), rng.below(count)};
        for (size_t j = 0; j < n; ++j) {
          const size_t* at = std::find(pick, pick + kBlocks, j / size);
          part_of[o.begin + j] = static_cast<size_t>(at - pick);
        }
        any = any || (count > 1 && (size > 1 || block_size(shape, "element") == size));
      }
      if (any) add(str("single ", block, "s of the cotangent and the rest"), kBlocks + 1, part_of);
    }
    return out;
  }
  static size_t block_size(const Shape& shape, std::string_view block) {
    if (block == "element" || shape.rank() < 2) return 1;
    return static_cast<size_t>(block == "row" ? shape[shape.rank() - 1] : shape.numel() / shape[0]);
  }

  // The same inputs elsewhere in memory, all of them and each alone: same outputs, same gradients.
  void repeat_elsewhere(const Tensors& whole) {
    const Tensors at = values(target_.leaves);
    constexpr size_t kEachAlone = 4;
    for (const auto& [what, layout] : layouts()) {
      compare_elsewhere(str("the same gradient for ", what, " inputs"), laid(at, layout), at, whole);
      for (size_t i = 0; at.size() > 1 && at.size() <= kEachAlone && i < at.size(); ++i) {
        Tensors one = at;
        one[i] = layout(at[i]);
        compare_elsewhere(str("the same gradient for a ", what, " ", target_.names[i]), one, at, whole);
      }
    }
    const Tensors expanded =
        laid(at, [](const Tensor& t) { return t.rank() < 2 ? t : verifier::expanded_layout(t, 0); });
    const Tensors copied = cloned(expanded);
    Tensors want;
    try {  // another point than the one that was given: the function may not like it
      target_.elsewhere(copied, [&](const Vars& leaves, const Vars& outputs) {
        want = gradients(outputs, leaves, draws_[0].cotangents, all());
        for (const Output& o : outputs_)
          if (num::first_non_finite(outputs[static_cast<size_t>(o.index)].value()) >= 0) want.clear();
      });
    } catch (const Error&) {
      return;
    }
    if (!want.empty()) compare_elsewhere("the same gradient for expanded inputs (stride 0)", expanded, copied, want);
  }

  void compare_elsewhere(const std::string& what, const Tensors& elsewhere, const Tensors& at, const Tensors& want) {
    Repeat r{what, {}, want, at};
    try {
      target_.elsewhere(elsewhere, [&](const Vars& leaves, const Vars& outputs) {
        r.got = gradients(outputs, leaves, draws_[0].cotangents, all());
      });
    } catch (const Error& e) {
      report_.left_out.push_back(str(what, ": refused, ", e.what()));
      return;
    }
    repeats_.push_back(std::move(r));
  }

  void compare_repeat(const Repeat& again, size_t leaf) {
    if (found_[leaf].verdict == Verdict::wrong || target_.leaves[leaf].shape().numel() == 0) return;
    const Tensor &got = again.got[leaf], &want = again.want[leaf];
    const std::vector<double> a = flatten({got}), b = flatten({want});
    const Worst w = worst_of(a, b);
    const double size = std::max(largest(want), again.size), allowed = again.tolerance * size;
    const double error = size > 0 ? w.error / size : w.error;
    ++report_.comparisons;
    if (again.tolerance == 0 ? same_bits(got, want) : w.error <= allowed) {
      report_.worst = std::max(report_.worst, error);
      return;
    }
    if (again.tolerance > 0 && std::isfinite(w.error)) {
      if (size < 0x1p-800) return;  // scaled, it leaves the numbers that f64 has
      if (w.error <= allowed + kSpread * largest(spread(again.at, draws_[0].cotangents, all())[leaf])) return;
    }
    if (!(error <= report_.worst)) report_.worst = error;
    set_failure(leaf, {.verdict = Verdict::wrong,
                       .what = again.what,
                       .index = verifier::describe_index(want.shape(), w.at),
                       .analytic = a[static_cast<size_t>(w.at)],
                       .reference = b[static_cast<size_t>(w.at)],
                       .error = error,
                       .tolerance = std::max(again.tolerance, kEps)});
  }

  // How much a gradient moves when the last places of the inputs and cotangents do: what rounding may do to it.
  Tensors spread(const Tensors& at, const Tensors& v, Group group) {
    Tensors most, base;
    Rng rng = Rng(o_.seed).fork(3000);
    const auto nudge = [&rng](const Tensor& t) {
      std::vector<double> x = t.to_vector<double>();
      for (double& e : x) e *= 1 + kEps * (static_cast<double>(rng.below(5)) - 2);
      return Tensor::of(std::move(x), t.shape()).to(t.dtype());
    };
    constexpr int kTries = 3;
    for (int k = 0; k <= kTries; ++k) {
      try {
        target_.elsewhere(k == 0 ? at : laid(at, nudge), [&](const Vars& leaves, const Vars& outputs) {
          const Tensors g = gradients(outputs, leaves, k == 0 ? v : laid(v, nudge), group);
          for (size_t i = 0; i < g.size(); ++i) {
            if (k == 0) {
              base.push_back(g[i]);
              most.push_back(Tensor::zeros(g[i].shape(), DType::f64));
              continue;
            }
            const std::vector<double> x = flatten({g[i]}), y = flatten({base[i]});
            double* m = most[i].mutable_data<double>("gradcheck");
            for (size_t j = 0; j < x.size(); ++j)
              if (std::abs(x[j] - y[j]) > m[j]) m[j] = std::abs(x[j] - y[j]);
          }
        });
      } catch (const Error&) {  // beyond the domain
      }
    }
    for (size_t i = most.size(); i < at.size(); ++i) most.push_back(Tensor::zeros(at[i].shape(), DType::f64));
    return most;
  }

  // -- Reverse mode compared with differences -------------------------------------------------------------------------

  GradcheckPair& pair(size_t leaf, size_t output) { return pairs_[leaf * outputs_.size() + output]; }

  void check(size_t leaf) {
    const int64_t n = target_.leaves[leaf].shape().numel();
    if (n == 0) return;
    bool search = false;
    for (size_t k = 0; k < draws_.size() && !kinked_[leaf] && found_[leaf].verdict != Verdict::wrong; ++k) {
      const Draw& d = draws_[k];
      const Difference s = slope(leaf, d.directions[leaf]);
      for (size_t g = 0; g < groups_.size(); ++g) {
        const Outcome o = settle(leaf, d, g, d.directions[leaf], d.p[leaf][g], d.own[leaf][g], s, -1);
        search = search || o == Outcome::wrong || o == Outcome::kink;
        if (report_.forward_mode) compare_forward(leaf, d, g);
      }
    }
    search = search || found_[leaf].verdict != Verdict::right;
    if (n <= kEachElement || (search && n <= kFindElement)) each_element(leaf);
  }

  // Every element's derivative, at its own scale; names the worst of those that are wrong or on a kink.
  void each_element(size_t leaf) {
    const Draw& d = draws_[0];
    const Shape& shape = target_.leaves[leaf].shape();
    const bool searching = found_[leaf].verdict == Verdict::wrong;
    Worst worst;
    GradcheckFailure at_worst;
    std::vector<Tensor> g;
    for (const Tensors& of_group : gradients_) g.push_back(of_group[leaf]);
    for (int64_t k = 0; k < shape.numel(); ++k) {
      Tensor e = Tensor::zeros(shape, DType::f64);
      e.mutable_data<double>("gradcheck")[k] = 1;
      const Difference s = slope(leaf, e);
      for (size_t i = 0; i < groups_.size(); ++i) {
        const double p = g[i].flat(k);
        const GradcheckFailure before = found_[leaf];
        const Outcome o = settle(leaf, d, i, e, p, std::abs(p), s, k);
        if (o != Outcome::wrong && !(searching && o == Outcome::agrees)) continue;
        const Comparison c = comparison(d, groups_[i], p, std::abs(p), s);
        const double off = std::isfinite(c.p) ? std::abs(c.p - c.q) : kInfinite;
        if (worst.at >= 0 && !(off > worst.error)) continue;
        worst = {k, off};
        at_worst = found_[leaf];
        at_worst.index = verifier::describe_index(shape, k);
        at_worst.analytic = c.p;
        at_worst.reference = c.q;
        at_worst.bound = kSure * c.bound;
        at_worst.fd_step = c.h;
        if (o == Outcome::wrong) at_worst.error = c.error();
      }
    }
    if (worst.at >= 0 && found_[leaf].verdict == Verdict::wrong) found_[leaf] = at_worst;
  }

  Comparison comparison(const Draw& d, Group group, double p, double own, const Difference& s) const {
    Comparison c{.p = p, .own = own, .h = s.h};
    double squares = 0;
    for (size_t j = outputs_[group.begin].begin; j < outputs_[group.end - 1].end; ++j) {
      const double term = d.v[j] * s.slope[j];
      c.q += term;
      squares = std::hypot(squares, term);
      c.bound += std::abs(d.v[j]) * s.error[j];
      c.rounding += std::abs(d.v[j] * middle_[j]) * 4 * kEps / s.h;
    }
    c.terms = squares;
    if (std::isnan(c.bound)) c.bound = kInfinite;
    return c;
  }

  // Judges one comparison. Before anything is called wrong: is it a kink, do shorter steps give the same slope, may
  // rounding do that to the gradient?
  Outcome settle(size_t leaf, const Draw& d, size_t group, const Tensor& u, double p, double own, const Difference& s,
                 int64_t element) {
    const Group g = groups_[group];
    Comparison c = comparison(d, g, p, own, s);
    Jump jump;
    Outcome outcome = Outcome::agrees;
    const auto off = [&] { return !(std::abs(c.p - c.q) <= c.allowed(o_.tolerance)); };  // NaN, too
    const bool unsure = !(c.noticeable(o_.tolerance) <= kTolerance.visible);
    if (off() || (unsure && c.bound > kSure * c.rounding)) jump = jump_along(leaf, d, g, u, s.h);
    if (jump.found) {
      outcome = outside(jump, c, element) ? Outcome::wrong : Outcome::kink;
    } else if (off()) {
      ask_again(leaf, d, g, u, element, c);
      outcome = !off() || !std::isfinite(c.bound) ? Outcome::unseen : Outcome::wrong;
    } else if (unsure) {
      outcome = Outcome::unseen;
    }
    note_pair(leaf, d, g, s, c, outcome);
    if (outcome == Outcome::kink && !kinked_[leaf]) not_differentiable(leaf, g, jump, c, element);
    if (outcome == Outcome::wrong) wrong(leaf, g, c, jump);
    if (zero_[leaf] || outputs_[g.begin].constant) require_zero(leaf, g, c);
    return outcome;
  }

  // At a kink along one element the gradient may be any between the slopes of the two sides, and nothing else.
  static bool outside(const Jump& jump, const Comparison& c, int64_t element) {
    if (element < 0 || !std::isfinite(c.p)) return false;
    const double margin = 1e-3 * (std::abs(jump.before) + std::abs(jump.after));
    return c.p < std::min(jump.before, jump.after) - margin || c.p > std::max(jump.before, jump.after) + margin;
  }

  // A kink at the point itself shows at any scale, with the same two slopes.
  Jump jump_along(size_t leaf, const Draw& d, Group g, const Tensor& u, double h) {
    const auto line = [&](double t) {
      const std::vector<double> y = row_at(leaf, u, t);
      double sum = 0;
      for (size_t j = outputs_[g.begin].begin; j < outputs_[g.end - 1].end; ++j) sum += d.v[j] * (y[j] - middle_[j]);
      return sum;
    };
    constexpr double kSmall = 1e-6, kShrink = 5, kAgree = 0.1;
    const double from = std::clamp(h, kSmall, o_.step);
    const Jump wide = verifier::find_jump(line, from), narrow = verifier::find_jump(line, from / kShrink);
    const double gap = std::abs(narrow.after - narrow.before);
    if (!wide.found || !narrow.found) return {};
    if (std::abs(wide.before - narrow.before) > kAgree * gap || std::abs(wide.after - narrow.after) > kAgree * gap)
      return {};
    return narrow;
  }

  void ask_again(size_t leaf, const Draw& d, Group g, const Tensor& u, int64_t element, Comparison& c) {
    for (const double shorter : {0.61, 0.37, 0.23}) {
      const Comparison again = comparison(d, g, c.p, c.own, slope(leaf, u, shorter * c.h));
      if (std::isfinite(again.q)) c.bound = std::max(c.bound, std::abs(again.q - c.q));
    }
    const std::vector<double> moved = flatten({spread(values(target_.leaves), d.cotangents, g)[leaf]});
    const std::vector<double> along = flatten({u});
    double square = 0;
    for (size_t k = 0; k < moved.size(); ++k)
      if (element < 0 || static_cast<int64_t>(k) == element) square = std::hypot(square, moved[k] * along[k]);
    c.bound += kSpread / kSure * square;
  }

  void note_pair(size_t leaf, const Draw& d, Group g, const Difference& s, const Comparison& c, Outcome outcome) {
    for (size_t k = g.begin; k < g.end; ++k) {
      GradcheckPair& p = pair(leaf, k);
      ++p.comparisons;
      ++report_.comparisons;
      if (outcome == Outcome::kink) continue;
      const double error = outcome == Outcome::unseen ? 0 : c.error();
      if (!(error <= p.worst)) p.worst = error;
      if (!(error <= report_.worst)) report_.worst = error;
      double terms = 0;
      for (size_t j = outputs_[k].begin; j < outputs_[k].end; ++j) terms = std::hypot(terms, d.v[j] * s.slope[j]);
      const double noticeable = terms > 0 ? c.allowed(o_.tolerance) / terms : kInfinite;
      Comparison& best = best_[leaf * outputs_.size() + k];
      if (p.comparisons == 1 || noticeable < p.noticeable || (best.h == 0 && c.h > 0)) best = c;
      p.noticeable = std::min(p.noticeable, noticeable);
    }
  }

  void compare_forward(size_t leaf, const Draw& d, size_t group) {
    if (found_[leaf].verdict == Verdict::wrong) return;
    const Group g = groups_[group];
    Comparison c{.p = d.p[leaf][group], .own = d.own[leaf][group]};
    for (size_t j = outputs_[g.begin].begin; j < outputs_[g.end - 1].end; ++j) {
      const double term = d.v[j] * d.forward[leaf][j];
      c.q += term;
      c.terms = std::hypot(c.terms, term);
      c.bound += std::abs(d.v[j] * middle_[j]) * kEps;
    }
    ++report_.comparisons;
    const auto off = [&] { return !(std::abs(c.p - c.q) <= c.allowed(kTolerance.exact)); };
    if (!off()) return;
    const std::vector<double> moved = flatten({spread(values(target_.leaves), d.cotangents, g)[leaf]});
    const std::vector<double> along = flatten({d.directions[leaf]});
    for (size_t k = 0; k < moved.size(); ++k) c.bound += kSpread / kSure * std::abs(moved[k] * along[k]);
    if (!off() || !std::isfinite(c.bound)) return;
    const bool finite = std::isfinite(c.p) && std::isfinite(c.q);
    if (!finite && std::isfinite(c.p) == std::isfinite(c.q)) return;
    wrong(leaf, g, c);
    GradcheckFailure& f = found_[leaf];
    f.what = "<J^T v, u> = <v, J u> by double backward";
    f.tolerance = kTolerance.exact;
    f.note = "differences do not see it: the error lies below their tolerance, or in the second derivative (compose)";
  }

  // -- Findings -------------------------------------------------------------------------------------------------------

  void add_failure(GradcheckFailure f) {
    f.seed = o_.seed;
    report_.failures.push_back(std::move(f));
  }

  // One finding per input: the worst.
  void set_failure(size_t leaf, GradcheckFailure f) {
    f.input = target_.names[leaf];
    if (f.verdict > found_[leaf].verdict) found_[leaf] = std::move(f);
  }

  std::string name_of_group(Group g) const {
    const std::string first = outputs_[g.begin].name();
    return g.end - g.begin == 1 ? first : str(first, " to ", outputs_[g.end - 1].index);
  }

  void wrong(size_t leaf, Group g, const Comparison& c, const Jump& jump = {}) {
    GradcheckFailure f{.verdict = Verdict::wrong,
                       .what = "<J^T v, u> = <v, J u> by differences",
                       .output = name_of_group(g),
                       .analytic = c.p,
                       .reference = c.q,
                       .bound = kSure * c.bound,
                       .error = c.error(),
                       .tolerance = o_.tolerance,
                       .fd_step = c.h};
    if (!std::isfinite(c.p)) f.note = describe_gradient(leaf, g);
    if (jump.found) {
      f.what = "the gradient at a kink lies between the slopes of its two sides";
      f.note = str("the slope of <v, f> goes from ", jump.before, " to ", jump.after);
    }
    if (std::isfinite(c.p) && c.terms == 0)
      f.note =
          "f does not move at all along this direction. Where that is meant (rounding, a threshold), declare the "
          "function whose derivative this is: gradient_of";
    set_failure(leaf, std::move(f));
  }

  std::string describe_gradient(size_t leaf, Group g) const {
    for (size_t k = 0; k < groups_.size(); ++k)
      if (groups_[k].begin == g.begin) return describe_non_finite("the gradient", gradients_[k][leaf]);
    return {};
  }

  void not_differentiable(size_t leaf, Group g, const Jump& jump, const Comparison& c, int64_t element) {
    GradcheckFailure f{.verdict = Verdict::not_differentiable,
                       .what = "not differentiable here: the slope jumps",
                       .output = name_of_group(g),
                       .fd_step = c.h};
    const Shape& shape = target_.leaves[leaf].shape();
    if (element >= 0) f.index = verifier::describe_index(shape, element);
    f.note = str("along ", element >= 0 ? "this element" : "a direction of length 1", " the slope of <v, f> goes from ",
                 jump.before, " to ", jump.after, "; the gradient gives ", number_text(c.p),
                 ". Move the point off the kink or tie, or name the input in kinked_inputs");
    GradcheckFailure& found = found_[leaf];
    if (found.verdict == Verdict::not_differentiable && found.index.empty() && element >= 0)
      found.verdict = Verdict::right;  // a direction's finding makes place for an element's
    set_failure(leaf, std::move(f));
  }

  void require_zero(size_t leaf, Group g, const Comparison& c) {
    constexpr double kFactor = 4;  // rounding of a sum that cancels is larger than that of its result
    const double allowed = kFactor * (kSure * c.bound + kTolerance.zero * (c.terms + c.own));
    if (!(std::abs(c.q) > allowed) || !std::isfinite(c.bound)) return;
    set_failure(leaf, {.verdict = Verdict::wrong,
                       .what = str("declared zero, but ", name_of_group(g), " moves with it"),
                       .output = name_of_group(g),
                       .analytic = c.p,
                       .reference = c.q,
                       .bound = kSure * c.bound,
                       .error = std::abs(c.q),
                       .tolerance = allowed,
                       .fd_step = c.h,
                       .note = "the declaration (zero_inputs, constant_outputs) does not hold; remove it"});
  }

  // Something must have been seen for every input and for every output.
  void conclude() {
    bool all_blind = true;
    for (size_t i = 0; i < target_.leaves.size(); ++i) {
      if (exempt(i)) continue;
      bool seen = false;
      size_t best = outputs_.size();
      for (size_t k = 0; k < outputs_.size(); ++k) {
        if (outputs_[k].constant) continue;
        seen = seen || pair(i, k).seen();
        if (best == outputs_.size() || pair(i, k).noticeable < pair(i, best).noticeable) best = k;
      }
      if (!seen && best < outputs_.size()) {
        GradcheckFailure f = unseen(i, best);
        f.output = outputs_.size() == 1 ? outputs_[best].name() : "";
        set_failure(i, std::move(f));
      }
      all_blind = all_blind && found_[i].verdict != Verdict::right;
    }
    for (size_t k = 0; k < outputs_.size() && !all_blind; ++k) {
      if (outputs_[k].constant) continue;
      bool seen = false;
      size_t best = target_.leaves.size();
      for (size_t i = 0; i < target_.leaves.size(); ++i) {
        seen = seen || pair(i, k).seen();
        if (!exempt(i) && (best == target_.leaves.size() || pair(i, k).noticeable < pair(best, k).noticeable)) best = i;
      }
      if (seen || best == target_.leaves.size()) continue;
      GradcheckFailure f = unseen(best, k);
      f.input.clear();
      f.output = outputs_[k].name();
      add_failure(std::move(f));
    }
  }

  // Why nothing of this pair could be seen, and what to do.
  GradcheckFailure unseen(size_t leaf, size_t output) {
    const Comparison& c = best_[leaf * outputs_.size() + output];
    GradcheckFailure f{.verdict = Verdict::inconclusive,
                       .input = target_.names[leaf],
                       .analytic = c.p,
                       .reference = c.q,
                       .bound = kSure * c.bound,
                       .fd_step = c.h};
    const std::string slopes = formatted("<v, J u> is %.2g by differences, good to %.2g; the gradient gives %.2g. ",
                                         c.q, kSure * c.bound, c.p);
    if (!std::isfinite(c.bound) && !strange_[leaf].empty()) {
      f.what = str("f is not finite a step away: ", strange_[leaf]);
      f.note = "move the point further into the domain of the function";
    } else if (c.bound <= kSure * c.rounding || c.terms == 0) {
      f.what = "the derivative is zero, or too small to be seen";
      f.note = slopes +
               "Is it zero? Then declare the input in zero_inputs or the output in constant_outputs. Else "
               "check the op itself with another output (not its sum, no offset), or at another point (no "
               "weights of zero)";
    } else {
      f.what = "the differences are not sure enough to see a wrong gradient";
      f.note = slopes +
               "f is rounded inside (a large offset, cancellation), bends or jumps faster than a step can "
               "follow: take the offset away, check the parts alone, or choose another point";
    }
    return f;
  }

  void report_loose_outputs() {
    for (const size_t k : loose_) {
      std::string by;
      for (size_t i = 0; i < target_.leaves.size() && by.empty(); ++i)
        if (moves_[i][k]) by = target_.names[i];
      if (by.empty()) continue;
      add_failure({.verdict = Verdict::inconclusive,
                   .what = str("not verified: it has no graph, yet it moves with ", by),
                   .output = str("output ", k),
                   .note =
                       "it was computed outside the graph (on value(), or after detach()), so that no gradient flows "
                       "back from it. Compute it from the Vars; if it is detached on purpose, name it in "
                       "constant_outputs"});
    }
  }

  GradcheckReport finish() {
    for (GradcheckFailure& f : found_)
      if (f.verdict != Verdict::right) add_failure(std::move(f));
    std::stable_sort(report_.failures.begin(), report_.failures.end(),
                     [](const auto& a, const auto& b) { return a.verdict > b.verdict; });
    if (!report_.failures.empty()) report_.verdict = report_.failures[0].verdict;
    report_.pairs = std::move(pairs_);
    return std::move(report_);
  }

  Target target_;
  const GradcheckOptions& o_;
  GradcheckReport report_;
  std::vector<bool> zero_, kinked_;  // of the leaves, by declaration
  Tensors point_;                    // all outputs of f
  std::vector<Output> outputs_;      // those compared; declared constants last
  std::vector<Group> groups_;
  std::vector<size_t> loose_;             // outputs without a graph
  Tensors loose_point_;                   // outputs of what is differentiated (f, or gradient_of)
  std::vector<std::vector<bool>> moves_;  // [leaf][output]: loose ones that moved
  std::vector<double> weight_, middle_;   // of the compared outputs' elements; their weighted values
  std::vector<Draw> draws_;
  std::vector<Tensors> gradients_;  // [group][leaf], of the first draw
  std::vector<Repeat> repeats_;
  std::vector<GradcheckPair> pairs_;
  std::vector<Comparison> best_;         // of each pair
  std::vector<GradcheckFailure> found_;  // of each leaf; Verdict::right: nothing
  std::vector<std::string> strange_;     // of each leaf: what was not finite a step away
};

}  // namespace

GradcheckReport gradcheck(const std::function<Vars(const Vars&)>& f, const Vars& inputs,
                          const GradcheckOptions& options) {
  const bool chosen = std::any_of(inputs.begin(), inputs.end(), [](const Var& x) { return x.requires_grad(); });
  Target t;
  Vars in;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool leaf = is_float(inputs[i].dtype()) && (!chosen || inputs[i].requires_grad());
    in.emplace_back(inputs[i].value(), leaf);
    if (!leaf) continue;
    t.names.push_back(str("input ", i));
    t.leaves.push_back(in.back());
    t.numbers.push_back(static_cast<int>(i));
  }
  t.inputs = static_cast<int>(inputs.size());
  t.layouts = true;
  const std::vector<int> number = t.numbers;
  t.run = [&] {
    GradMode recording(true);
    return f(in);
  };
  t.at = [&in, &f, &options, number](size_t leaf, const Tensor& value, bool by_convention) {
    NoGrad off;
    Vars moved;
    for (const Var& x : in) moved.emplace_back(x.value());
    if (value.defined()) moved[static_cast<size_t>(number[leaf])] = Var(value);
    return by_convention && options.gradient_of ? options.gradient_of(moved) : f(moved);
  };
  t.elsewhere = [&in, &f, number](const Tensors& values, const Target::Then& then) {
    GradMode recording(true);
    Vars all, leaves;
    for (const Var& x : in) all.emplace_back(x.value());
    for (size_t i = 0; i < number.size(); ++i) {
      leaves.emplace_back(values[i], true);
      all[static_cast<size_t>(number[i])] = leaves.back();
    }
    then(leaves, f(all));
  };
  return Checker(std::move(t), options).run();
}

GradcheckReport gradcheck_parameters(const std::function<Vars()>& f, const Vars& parameters,
                                     const std::vector<std::string>& names, const GradcheckOptions& options) {
  BG_CHECK(names.empty() || names.size() == parameters.size(), "gradcheck", "wrong number of names", str(names.size()),
           str(parameters.size()));
  // Puts values into the parameters' memory, which the model shares, and the old ones back.
  class Moved {
   public:
    Moved(const Vars& parameters, const std::vector<size_t>& which, const Tensors& values) {
      for (size_t k = 0; k < which.size(); ++k) {
        places_.push_back(parameters[which[k]].value());
        before_.push_back(places_.back().clone());
        places_.back().copy_from(values[k], "gradcheck");
      }
    }
    ~Moved() {
      for (size_t k = 0; k < places_.size(); ++k) places_[k].copy_from(before_[k], "gradcheck");
    }
    Moved(const Moved&) = delete;

   private:
    Tensors places_, before_;
  };
  Target t;
  t.leaves = parameters;
  t.inputs = static_cast<int>(parameters.size());
  std::vector<size_t> every;
  for (size_t i = 0; i < parameters.size(); ++i) {
    t.names.push_back(names.empty() ? str("parameter ", i) : names[i]);
    t.numbers.push_back(static_cast<int>(i));
    every.push_back(i);
  }
  t.run = [&] {
    GradMode recording(true);
    return f();
  };
  t.at = [&](size_t leaf, const Tensor& value, bool by_convention) {
    NoGrad off;
    const Moved moved(parameters, value.defined() ? std::vector<size_t>{leaf} : std::vector<size_t>{}, {value});
    return by_convention && options.gradient_of ? options.gradient_of(parameters) : f();
  };
  t.elsewhere = [&parameters, &f, every](const Tensors& values, const Target::Then& then) {
    GradMode recording(true);
    const Moved moved(parameters, every, values);
    then(parameters, f());
  };
  return Checker(std::move(t), options).run();
}

}  // namespace bg
