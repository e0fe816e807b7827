// Differences of a function compared with its gradient: where to look, how well it is seen, and what to say of it.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "autograd/engine.h"
#include "autograd/jvp.h"
#include "autograd/verify/gradcheck_reverse.h"
#include "autograd/verify/subject.h"
#include "core/format.h"

namespace bg {
namespace {

using verifier::clones;
using verifier::Difference;
using verifier::flatten;
using verifier::Group;
using verifier::Jump;
using verifier::kTolerance;
using verifier::largest;
using verifier::norm;
using verifier::Output;
using verifier::Repeat;
using verifier::Repeats;
using verifier::Reverse;
using verifier::same_bits;
using verifier::Target;
using verifier::values_of;

constexpr double kEps = std::numeric_limits<double>::epsilon();
constexpr double kInfinite = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr double kSure = 8;            // of a difference's own error bound
constexpr double kSpread = 32;         // of what the last place of the inputs does to a gradient
constexpr int64_t kEachElement = 64;   // inputs up to this size are moved element by element
constexpr int64_t kFindElement = 512;  // those up to this size where something has to be found
constexpr size_t kSingleOutputs = 32;  // more are compared in groups

// -- Small tools ------------------------------------------------------------------------------------------------------

// "output 1 is nan at (0, 2) of (2, 3)", or nothing.
std::string describe_non_finite(const std::string& what, const Tensor& t) {
  const std::string bad = verifier::describe_non_finite(t);
  return bad.empty() ? bad : str(what, " is ", bad);
}

double rms(const Tensor& t) {
  return t.numel() == 0 ? 0 : norm(flatten({t})) / std::sqrt(static_cast<double>(t.numel()));
}

Tensor unit(const Tensor& u) {
  const double length = norm(flatten({u}));
  return length > 0 ? num::scale(u, 1 / length) : u;
}

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

class Checker {
 public:
  Checker(Target target, const GradcheckOptions& options) : o_(options) {
    r_.target = std::move(target);
    r_.seed = options.seed;
  }

  GradcheckReport run() {
    refuse_bad_options();
    survey(r_.target.run());
    if (strange_at_the_point()) return finish();
    refuse_changing_function();
    weigh();
    if (!r_.outputs.empty()) {
      differentiate();
      for (size_t i = 0; i < r_.target.leaves.size(); ++i) check(i);
      for (const Repeat& again : repeats_) judge_repeat(again);
      conclude();
    }
    report_loose_outputs();
    refuse_changing_function();
    return finish();
  }

 private:
  // -- Before anything is compared ------------------------------------------------------------------------------------

  void refuse_bad_options() {
    BG_CHECK(!r_.target.leaves.empty(), "gradcheck", "nothing to differentiate", "no floating inputs", "at least one");
    BG_CHECK(o_.directions >= 1, "gradcheck", "bad number of directions", str(o_.directions), "1 or more");
    BG_CHECK(o_.step > 0 && std::isfinite(o_.step), "gradcheck", "bad step", str(o_.step), "above 0, such as 1.5e-3");
    BG_CHECK(o_.tolerance > 0 && o_.tolerance <= kTolerance.visible, "gradcheck", "bad tolerance", str(o_.tolerance),
             str("above 0, up to ", kTolerance.visible));
    for (size_t i = 0; i < r_.target.leaves.size(); ++i)
      BG_CHECK(r_.target.leaves[i].dtype() == DType::f64, "gradcheck",
               str(r_.target.names[i], " is not f64, and differences of f32 functions are good to 1e-4 at best"),
               str(r_.target.leaves[i].dtype()), "f64", "to(DType::f64) on every input and parameter");
    zero_ = chosen(o_.zero_inputs, "zero_inputs", "the gradient must be zero");
    kinked_ = chosen(o_.kinked_inputs, "kinked_inputs", "what lies on a kink is left out");
  }

  std::vector<bool> chosen(const std::vector<InputId>& ids, std::string_view option, std::string_view meaning) {
    std::vector<bool> is(r_.target.leaves.size(), false);
    for (const InputId& id : ids) {
      bool found = id.name.empty() && id.number >= 0 && id.number < r_.target.inputs;
      for (size_t i = 0; i < is.size(); ++i) {
        const std::string& name = r_.target.names[i];
        if (id.name.empty() ? r_.target.numbers[i] != id.number : name != id.name && !name.ends_with("." + id.name))
          continue;
        found = true;
        if (!is[i]) report_.left_out.push_back(str(name, ": in ", option, ", ", meaning));
        is[i] = true;
      }
      BG_CHECK(found, "gradcheck", str(option, " names no input"), id.name.empty() ? str(id.number) : id.name,
               str("0 to ", r_.target.inputs - 1, " or a name such as ", r_.target.names[0]));
    }
    return is;
  }
  bool exempt(size_t leaf) const { return zero_[leaf] || kinked_[leaf] || r_.target.leaves[leaf].shape().numel() == 0; }

  // Sorts the outputs: compared, loose (no graph), left alone.
  void survey(const Vars& outputs) {
    r_.given = clones(values_of(r_.target.leaves));
    r_.point = clones(values_of(outputs));
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
      if (outputs[k].requires_grad()) (declared ? constant : r_.outputs).push_back({index, declared, 0, 0});
    }
    add_groups(0, r_.outputs.size());
    r_.outputs.insert(r_.outputs.end(), constant.begin(), constant.end());
    add_groups(r_.outputs.size() - constant.size(), r_.outputs.size());
    size_t at = 0;
    for (Output& o : r_.outputs) {
      o.begin = at;
      at += static_cast<size_t>(r_.point[static_cast<size_t>(o.index)].numel());
      o.end = at;
    }
    r_.weight.assign(at, 1.0);
    moves_.assign(r_.target.leaves.size(), std::vector<bool>(outputs.size(), false));
    for (size_t i = 0; i < r_.target.leaves.size(); ++i)
      for (const Output& o : r_.outputs) {
        pairs_.push_back({r_.target.names[i], o.index, 0, 0, kInfinite});
        best_.emplace_back();
      }
    found_.assign(r_.target.leaves.size(), {});
    strange_.assign(r_.target.leaves.size(), {});
    for (GradcheckFailure& f : found_) f.verdict = Verdict::right;
  }

  void add_groups(size_t begin, size_t end) {
    const size_t size = (end - begin + kSingleOutputs - 1) / kSingleOutputs;
    for (size_t at = begin; at < end; at += size) groups_.push_back({at, std::min(at + size, end)});
    if (size > 1) report_.left_out.push_back(str(end - begin, " outputs: compared in groups of ", size));
  }

  bool strange_at_the_point() {
    for (size_t i = 0; i < r_.target.leaves.size(); ++i)
      if (const std::string bad = describe_non_finite(r_.target.names[i], r_.target.leaves[i].value()); !bad.empty()) {
        add_failure({.verdict = Verdict::inconclusive,
                     .what = bad,
                     .input = r_.target.names[i],
                     .note = "nothing can be compared at such a point; choose finite inputs"});
        return true;
      }
    for (size_t k = 0; k < r_.point.size(); ++k)
      if (const std::string bad = describe_non_finite(str("output ", k), r_.point[k]); !bad.empty()) {
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
    const Tensors once = values_of(r_.target.at(0, {}, false));
    refuse_other(once, values_of(r_.target.at(0, {}, false)), "the function gives other outputs when it runs again");
    refuse_other(r_.point, once, "the function gives other outputs when it runs again, without being recorded");
    if (!o_.gradient_of) return;
    const Tensors convention = values_of(r_.target.at(0, {}, true));
    BG_CHECK(convention.size() == r_.point.size(), "gradcheck", "gradient_of gives another number of outputs",
             str(convention.size()), str(r_.point.size()));
    for (size_t k = 0; k < r_.point.size(); ++k)
      BG_CHECK(convention[k].shape() == r_.point[k].shape(), "gradcheck", str("gradient_of gives another output ", k),
               str(convention[k].shape()), str(r_.point[k].shape()));
    refuse_other(convention, values_of(r_.target.at(0, {}, true)),
                 "gradient_of gives other outputs when it runs again");
  }

  // -- Running the function -------------------------------------------------------------------------------------------

  // The row with one leaf moved. Beyond the function's domain: NaN.
  std::vector<double> row_at(size_t leaf, const Tensor& u, double t) {
    if (t == 0) return middle_;
    Tensors outputs;
    try {
      outputs = values_of(r_.target.at(leaf, num::add(r_.target.leaves[leaf].value(), num::scale(u, t)), true));
    } catch (const std::exception& e) {
      strange_[leaf] = str("a step of ", formatted("%.2g", t), " away f throws: ", e.what());
      return std::vector<double>(r_.weight.size(), kNaN);
    }
    for (const size_t k : loose_)
      if (k < outputs.size() && !moves_[leaf][k]) moves_[leaf][k] = !same_bits(outputs[k], loose_point_[k]);
    for (const Output& o : r_.outputs) {
      const std::string bad = describe_non_finite(o.name(), outputs[static_cast<size_t>(o.index)]);
      if (bad.empty()) continue;
      strange_[leaf] = str(bad, ", a step of ", formatted("%.2g", t), " away");
      break;
    }
    return r_.row(outputs);
  }

  Difference slope(size_t leaf, const Tensor& u, double step) {
    const auto line = [&](double t) { return row_at(leaf, u, t); };
    return verifier::difference(line, 0.1 * o_.tolerance, step);
  }

  // Where that is not sure: longer steps, if rounding may decide because the inputs are large; and shorter ones, for a
  // value that has come to rest (a ReLU's that only longer steps wake).
  Difference slope(size_t leaf, const Tensor& u) {
    Difference d = slope(leaf, u, o_.step);
    if (d.relative_error() <= o_.tolerance) return d;
    constexpr double kLarge = 10, kShort = 1e-3;
    const double reach = rms(r_.target.leaves[leaf].value());
    if (reach > kLarge) {
      const Difference longer = slope(leaf, u, o_.step * reach);
      for (size_t j = 0; j < d.slope.size(); ++j) take_better(d, longer, j);
    }
    if (d.relative_error() <= o_.tolerance) return d;
    const Difference shorter = slope(leaf, u, kShort * o_.step);
    int at_rest = 0;
    for (size_t j = 0; j < d.slope.size(); ++j) {
      if (!(shorter.error[j] < d.error[j])) continue;
      const auto value = [&](double t) { return row_at(leaf, u, t)[j]; };
      constexpr int kMostAtRest = 64;
      if (shorter.slope[j] != 0 || (++at_rest <= kMostAtRest && !rests_on_a_stair(value, kShort * o_.step)))
        take_better(d, shorter, j);
    }
    return d;
  }
  static void take_better(Difference& d, const Difference& other, size_t j) {
    if (!(other.error[j] < d.error[j])) return;
    d.slope[j] = other.slope[j];
    d.error[j] = other.error[j];
  }

  // For a value that does not move over a distance of `still`: does it leave that level by a jump? Then rounding inside
  // the function, or a step function, hides its slope; a level that is left continuously is a level.
  bool rests_on_a_stair(const std::function<double(double t)>& value, double still) const {
    constexpr double kFarthest = 1e4, kClose = 1 + 1e-4, kJump = 0.01;
    const double level = value(0);
    for (const double sign : {1.0, -1.0}) {
      double near = still, far = 2 * still;
      while (far < kFarthest && value(sign * far) == level) {
        near = far;
        far *= 4;
      }
      const double beyond = value(sign * far);
      if (beyond == level || !std::isfinite(beyond)) continue;
      while (far / near > kClose) {
        const double middle = std::sqrt(near * far);
        (value(sign * middle) == level ? near : far) = middle;
      }
      if (std::abs(value(sign * far) - level) > kJump * std::abs(value(sign * 2 * far) - value(sign * far)))
        return true;
    }
    return false;
  }

  // Weighs each output element by how much it moves with the inputs, so that none drowns in another's size or
  // rounding; within bounds, for one that hardly moves would bring nothing but its own rounding.
  void weigh() {
    loose_point_ = o_.gradient_of ? values_of(r_.target.at(0, {}, true)) : r_.point;
    middle_ = r_.row(loose_point_);
    std::vector<double> moved(r_.weight.size(), 0.0);
    Rng rng(o_.seed);
    for (size_t i = 0; i < r_.target.leaves.size(); ++i) {
      Rng draw = rng.fork(1000 + i);
      const Tensor u = unit(Tensor::randn(r_.target.leaves[i].shape(), draw, DType::f64));
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
    if (r_.outputs.empty()) {
      bool any = false;
      for (const std::vector<bool>& m : moves_) any = any || std::count(m.begin(), m.end(), true) > 0;
      BG_CHECK(any, "gradcheck", "the outputs depend on none of the inputs", str(r_.point.size(), " outputs"),
               "at least one that requires a gradient", "compute it from the Vars that are handed in");
    }
    constexpr double kRatio = 1e-8, kOfValue = 1e-4, kLargest = 1e100;
    double top = 0;
    for (const double m : moved) top = std::max(top, m);
    for (size_t j = 0; j < moved.size(); ++j) {
      const double size = std::max({moved[j], kRatio * top, kOfValue * std::abs(middle_[j])});
      r_.weight[j] = size > 0 ? std::clamp(1 / size, 1 / kLargest, kLargest) : 1;
      middle_[j] *= r_.weight[j];
    }
  }

  // -- Reverse mode: all that needs the graph, before anything is moved again -----------------------------------------

  void differentiate() {
    const Vars outputs = r_.target.run();
    can_forward(outputs);
    Rng rng(o_.seed);
    for (int k = 0; k < o_.directions; ++k) {
      Rng draw = rng.fork(static_cast<uint64_t>(k));
      draws_.push_back(make_draw(outputs, draw, k % 2 == 0));
    }
    Repeats again = repeat_gradients(r_, outputs, draws_[0].v, o_.nonlinear);
    repeats_ = std::move(again.differ);
    report_.comparisons += again.comparisons;
    report_.worst = std::max(report_.worst, again.worst);
    for (GradcheckFailure& f : again.refused) add_failure(std::move(f));
    for (std::string& what : again.left_out) report_.left_out.push_back(std::move(what));
  }

  // Balanced: terms of about the same size from every element of every output and input. That only chooses where to
  // look; what is found there is judged by differences.
  Draw make_draw(const Vars& outputs, Rng& rng, bool balanced) {
    Draw d;
    // a backward that is declared nonlinear, such as a clipped one, is linear for small cotangents
    const double size = o_.nonlinear.empty() ? 1 : 0x1p-20;
    for (const double w : r_.weight) d.v.push_back(size * rng.normal() / (balanced ? 1 : w));
    d.cotangents = r_.as_cotangents(d.v);
    std::vector<Tensors> g;
    for (const Group& group : groups_) g.push_back(r_.gradients(outputs, r_.target.leaves, d.cotangents, group));
    for (size_t i = 0; i < r_.target.leaves.size(); ++i) {
      std::vector<double> u = flatten({Tensor::randn(r_.target.leaves[i].shape(), rng, DType::f64)});
      if (balanced) balance(u, g, i);
      const Tensor direction = unit(Tensor::of(std::move(u), r_.target.leaves[i].shape()));
      d.p.emplace_back();
      d.own.emplace_back();
      for (const Tensors& of_group : g) {
        const std::vector<double> terms = flatten({num::mul(of_group[i], direction)});
        d.p.back().push_back(std::accumulate(terms.begin(), terms.end(), 0.0));
        d.own.back().push_back(norm(terms));
      }
      d.directions.push_back(direction);
    }
    // Forward mode knows no bound of its own rounding, which weights would raise: plain draws alone, if there is one.
    const bool forward = report_.forward_mode && (!balanced || o_.directions == 1);
    for (size_t i = 0; forward && i < r_.target.leaves.size(); ++i) {
      Tensors t;
      for (size_t k = 0; k < r_.target.leaves.size(); ++k)
        t.push_back(k == i ? d.directions[k] : Tensor::zeros(r_.target.leaves[k].shape(), DType::f64));
      d.forward.push_back(r_.row(detail::tangents_of(outputs, r_.target.leaves, t)));
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
    for (const Var& x : r_.target.leaves) zero.push_back(Tensor::zeros(x.shape(), x.dtype()));
    try {
      detail::tangents_of(outputs, r_.target.leaves, zero);
    } catch (const Error& e) {
      report_.forward_mode = false;
      report_.note = e.what();
    }
    if (!o_.gradient_of || !report_.forward_mode) return;
    report_.forward_mode = false;
    report_.note = "the gradient is that of another function by convention (gradient_of)";
  }

  // -- The gradient compared with itself, asked for otherwise ---------------------------------------------------------

  // Two gradients that should be the same differ: by more than rounding may do?
  void judge_repeat(const Repeat& again) {
    if (found_[again.leaf].verdict == Verdict::wrong) return;
    const verifier::Farthest f = verifier::farthest(again.got, again.want);
    if (again.tolerance > 0 && std::isfinite(f.error)) {
      if (again.size > 0 && again.size < 0x1p-800) return;  // scaled, it leaves the numbers that f64 has
      const Tensors moved = r_.spread(again.at, draws_[0].cotangents, r_.all());
      if (f.error <= again.tolerance * again.size + kSpread * largest(moved[again.leaf])) return;
    }
    const double error = again.size > 0 ? f.error / again.size : f.error;
    if (!(error <= report_.worst)) report_.worst = error;
    set_failure(again.leaf, {.verdict = Verdict::wrong,
                             .what = again.what,
                             .index = verifier::describe_index(again.want.shape(), f.at),
                             .analytic = again.got.flat(f.at),
                             .reference = again.want.flat(f.at),
                             .error = error,
                             .tolerance = std::max(again.tolerance, kEps)});
  }

  // -- Reverse mode compared with differences -------------------------------------------------------------------------

  GradcheckPair& pair(size_t leaf, size_t output) { return pairs_[leaf * r_.outputs.size() + output]; }

  void check(size_t leaf) {
    const int64_t n = r_.target.leaves[leaf].shape().numel();
    if (n == 0) return;
    bool search = false;
    for (size_t k = 0; k < draws_.size() && !kinked_[leaf] && found_[leaf].verdict != Verdict::wrong; ++k) {
      const Draw& d = draws_[k];
      const Difference s = slope(leaf, d.directions[leaf]);
      for (size_t g = 0; g < groups_.size(); ++g) {
        const Outcome o = settle(leaf, d, g, d.directions[leaf], d.p[leaf][g], d.own[leaf][g], s, -1);
        search = search || o == Outcome::wrong || o == Outcome::kink;
        if (!d.forward.empty()) compare_forward(leaf, d, g);
      }
    }
    search = search || found_[leaf].verdict != Verdict::right;
    if (n <= kEachElement || (search && n <= kFindElement)) each_element(leaf);
  }

  // Every element's derivative, at its own scale; names the worst of those that are wrong or on a kink.
  void each_element(size_t leaf) {
    const Draw& d = draws_[0];
    const Shape& shape = r_.target.leaves[leaf].shape();
    const bool searching = found_[leaf].verdict == Verdict::wrong;
    verifier::Farthest worst;
    GradcheckFailure at_worst;
    std::vector<Tensor> g;
    for (const Tensors& of_group : gradients_) g.push_back(of_group[leaf]);
    int64_t blind = 0;
    std::vector<std::pair<int64_t, Comparison>> unsure;
    double terms = 0;
    for (int64_t k = 0; k < shape.numel(); ++k) {
      bool seen = false;
      Tensor e = Tensor::zeros(shape, DType::f64);
      e.mutable_data<double>("gradcheck")[k] = 1;
      const Difference s = slope(leaf, e);
      for (size_t i = 0; i < groups_.size(); ++i) {
        const double p = g[i].flat(k);
        const Outcome o = settle(leaf, d, i, e, p, std::abs(p), s, k);
        seen = seen || o == Outcome::agrees || o == Outcome::wrong;
        terms = std::max(terms, settled_.terms);
        if (o == Outcome::unseen) unsure.emplace_back(k, settled_);
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
      blind += !seen;
    }
    if (!kinked_[leaf]) report_unsure(leaf, unsure, terms);
    if (blind > 0 && blind < shape.numel() && !zero_[leaf])
      report_.left_out.push_back(str(r_.target.names[leaf], ": ", blind, " of its ", shape.numel(),
                                     " elements move no output enough to be seen"));
    if (worst.at >= 0 && found_[leaf].verdict == Verdict::wrong) found_[leaf] = at_worst;
  }

  // An element of which nothing is known, though it may count, is not made up for by the others.
  void report_unsure(size_t leaf, const std::vector<std::pair<int64_t, Comparison>>& unsure, double terms) {
    for (const auto& [k, c] : unsure) {
      if (kSure * c.bound <= kTolerance.visible * terms) continue;
      if (c.bound <= kSure * c.rounding && std::isfinite(c.p)) continue;  // no more than the size of f explains
      GradcheckFailure f = unseen(leaf, c);
      f.index = verifier::describe_index(r_.target.leaves[leaf].shape(), k);
      return set_failure(leaf, std::move(f));
    }
  }

  Comparison comparison(const Draw& d, Group group, double p, double own, const Difference& s) const {
    Comparison c{.p = p, .own = own, .h = s.h};
    double squares = 0;
    for (size_t j = r_.outputs[group.begin].begin; j < r_.outputs[group.end - 1].end; ++j) {
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
      outcome = outside(jump, c, element, kinked_[leaf]) ? Outcome::wrong : Outcome::kink;
    } else if (off()) {
      allow_rounding(leaf, d, g, u, element, c);
      const bool counts = !(std::abs(c.p) <= kEps * size_of_cotangent(d, g)) || c.terms > 0;
      const bool wrong = counts && off() && std::isfinite(c.bound) && confirmed(leaf, d, g, u, c);
      outcome = wrong ? Outcome::wrong : Outcome::unseen;
      if (counts && !wrong && std::isfinite(c.bound)) c.bound = std::max(c.bound, std::abs(c.p - c.q));
    } else if (unsure) {
      outcome = Outcome::unseen;
    }
    note_pair(leaf, d, g, s, c, outcome);
    settled_ = c;
    if (outcome == Outcome::kink && !kinked_[leaf]) not_differentiable(leaf, g, jump, c, element);
    if (outcome == Outcome::wrong) wrong(leaf, g, c, jump);
    if (zero_[leaf] || r_.outputs[g.begin].constant) require_zero(leaf, g, c);
    return outcome;
  }

  // At a kink along one element the gradient may be any between the slopes of the two sides, and nothing else.
  // Where the kink is declared, NaN is no convention.
  static bool outside(const Jump& jump, const Comparison& c, int64_t element, bool declared) {
    if (!std::isfinite(c.p)) return declared;
    if (element < 0) return false;
    const double margin = 1e-3 * (std::abs(jump.before) + std::abs(jump.after));
    return c.p < std::min(jump.before, jump.after) - margin || c.p > std::max(jump.before, jump.after) + margin;
  }

  // A kink at the point itself shows at any scale, with the same two slopes.
  Jump jump_along(size_t leaf, const Draw& d, Group g, const Tensor& u, double h) {
    const auto line = [&](double t) {
      const std::vector<double> y = row_at(leaf, u, t);
      double sum = 0;
      for (size_t j = r_.outputs[g.begin].begin; j < r_.outputs[g.end - 1].end; ++j)
        sum += d.v[j] * (y[j] - middle_[j]);
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

  // A gradient below the last place of this counts for nothing where f does not move at all: the function may have
  // rounded it away.
  double size_of_cotangent(const Draw& d, Group g) const {
    double size = 0;
    for (size_t j = r_.outputs[g.begin].begin; j < r_.outputs[g.end - 1].end; ++j)
      size = std::hypot(size, d.v[j] * r_.weight[j]);
    return size;
  }

  // Is the difference a fact, and not a chance among rounding or chaos? Plain differences of three neighbouring step
  // lengths, each a fourth of the one before, must agree with it, and the function must not be a stair.
  bool confirmed(size_t leaf, const Draw& d, Group g, const Tensor& u, const Comparison& c) {
    const auto value = [&](double t) {
      const std::vector<double> y = row_at(leaf, u, t);
      double sum = 0;
      for (size_t j = r_.outputs[g.begin].begin; j < r_.outputs[g.end - 1].end; ++j)
        sum += d.v[j] * (y[j] - middle_[j]);
      return sum;
    };
    constexpr int kAgreeing = 3;
    constexpr double kShare = 0.05, kShrink = 4, kRounding = 16;
    const double off = std::isfinite(c.p) ? std::abs(c.p - c.q) : kInfinite;
    const double longest = o_.step * std::max(1.0, rms(r_.target.leaves[leaf].value()));
    int agreeing = 0;
    double before = kNaN;
    for (double h = longest; h > kTolerance.least_step && agreeing < kAgreeing; h /= kShrink) {
      const double q = (value(h) - value(-h)) / (2 * h), noise = kRounding * c.rounding * c.h / h;
      const double size = std::max({std::abs(q), std::abs(before), std::abs(c.q)});
      const double near = kShare * std::min(off, size) + noise;
      agreeing = std::abs(q - before) <= near && std::abs(q - c.q) <= near + kSure * c.bound ? agreeing + 1 : 0;
      before = q;
    }
    if (agreeing < kAgreeing) return false;
    return before != 0 || !rests_on_a_stair(value, o_.step * std::pow(kShrink, -5));
  }

  // What rounding of the inputs and cotangents may do to the gradient is no error of it.
  void allow_rounding(size_t leaf, const Draw& d, Group g, const Tensor& u, int64_t element, Comparison& c) const {
    const std::vector<double> moved = flatten({r_.spread(r_.given, d.cotangents, g)[leaf]}), along = flatten({u});
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
      for (size_t j = r_.outputs[k].begin; j < r_.outputs[k].end; ++j) terms = std::hypot(terms, d.v[j] * s.slope[j]);
      const double noticeable = terms > 0 ? c.allowed(o_.tolerance) / terms : kInfinite;
      Comparison& best = best_[leaf * r_.outputs.size() + k];
      if (p.comparisons == 1 || noticeable < p.noticeable || (best.h == 0 && c.h > 0)) best = c;
      p.noticeable = std::min(p.noticeable, noticeable);
    }
  }

  void compare_forward(size_t leaf, const Draw& d, size_t group) {
    if (found_[leaf].verdict == Verdict::wrong) return;
    const Group g = groups_[group];
    Comparison c{.p = d.p[leaf][group], .own = d.own[leaf][group]};
    for (size_t j = r_.outputs[g.begin].begin; j < r_.outputs[g.end - 1].end; ++j) {
      const double term = d.v[j] * d.forward[leaf][j];
      c.q += term;
      c.terms = std::hypot(c.terms, term);
      c.bound += std::abs(d.v[j] * middle_[j]) * kEps;
    }
    c.bound += kEps * size_of_cotangent(d, g);
    ++report_.comparisons;
    const auto off = [&] { return !(std::abs(c.p - c.q) <= c.allowed(kTolerance.exact)); };
    if (!off()) return;
    const std::vector<double> moved = flatten({r_.spread(values_of(r_.target.leaves), d.cotangents, g)[leaf]});
    const std::vector<double> along = flatten({d.directions[leaf]});
    for (size_t k = 0; k < moved.size(); ++k) c.bound += kSpread / kSure * std::abs(moved[k] * along[k]);
    if (!off()) return;
    c.bound += kSpread / kSure * r_.forward_spread(leaf, d.directions[leaf], d.v, g);
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
    f.input = r_.target.names[leaf];
    if (f.verdict > found_[leaf].verdict) found_[leaf] = std::move(f);
  }

  std::string name_of_group(Group g) const {
    const std::string first = r_.outputs[g.begin].name();
    return g.end - g.begin == 1 ? first : str(first, " to ", r_.outputs[g.end - 1].index);
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
    const Shape& shape = r_.target.leaves[leaf].shape();
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
    for (size_t i = 0; i < r_.target.leaves.size(); ++i) {
      if (exempt(i)) continue;
      bool seen = false;
      size_t best = r_.outputs.size();
      for (size_t k = 0; k < r_.outputs.size(); ++k) {
        if (r_.outputs[k].constant) continue;
        seen = seen || pair(i, k).seen();
        if (best == r_.outputs.size() || pair(i, k).noticeable < pair(i, best).noticeable) best = k;
      }
      if (!seen && best < r_.outputs.size()) {
        GradcheckFailure f = unseen(i, best_[i * r_.outputs.size() + best]);
        f.output = r_.outputs.size() == 1 ? r_.outputs[best].name() : "";
        set_failure(i, std::move(f));
      }
      all_blind = all_blind && found_[i].verdict != Verdict::right;
    }
    for (size_t k = 0; k < r_.outputs.size() && !all_blind; ++k) {
      if (r_.outputs[k].constant) continue;
      bool seen = false;
      size_t best = r_.target.leaves.size();
      for (size_t i = 0; i < r_.target.leaves.size(); ++i) {
        seen = seen || pair(i, k).seen();
        if (!exempt(i) && (best == r_.target.leaves.size() || pair(i, k).noticeable < pair(best, k).noticeable))
          best = i;
      }
      if (seen || best == r_.target.leaves.size()) continue;
      GradcheckFailure f = unseen(best, best_[best * r_.outputs.size() + k]);
      f.input.clear();
      f.output = r_.outputs[k].name();
      add_failure(std::move(f));
    }
  }

  // Why nothing of this pair could be seen, and what to do.
  GradcheckFailure unseen(size_t leaf, const Comparison& c) const {
    GradcheckFailure f{.verdict = Verdict::inconclusive,
                       .input = r_.target.names[leaf],
                       .analytic = c.p,
                       .reference = c.q,
                       .bound = kSure * c.bound,
                       .fd_step = c.h};
    const std::string slopes = formatted("<v, J u> is %.2g by differences, good to %.2g; the gradient gives %.2g. ",
                                         c.q, kSure * c.bound, c.p);
    if (!std::isfinite(c.bound) && !strange_[leaf].empty()) {
      f.what = str("f is not finite a step away: ", strange_[leaf]);
      f.note = "move the point further into the domain of the function";
    } else if (c.bound <= kSure * c.rounding || (c.terms == 0 && c.p == 0)) {
      f.what = "the derivative is zero, or too small to be seen";
      f.note = slopes +
               "Is it zero? Then declare the input in zero_inputs or the output in constant_outputs. Else "
               "check the op itself with another output (not its sum, no offset), or at another point (no "
               "weights of zero)";
    } else {
      f.what = "the differences are not sure enough to see a wrong gradient";
      f.note =
          slopes +
          "f is rounded inside (a large offset, cancellation), bends or jumps faster than a step can "
          "follow: take the offset away, check the parts alone, or choose another point. For a step function by intent "
          "(rounding), name the function whose derivative this is: gradient_of";
    }
    return f;
  }

  void report_loose_outputs() {
    for (const size_t k : loose_) {
      std::string by;
      for (size_t i = 0; i < r_.target.leaves.size() && by.empty(); ++i)
        if (moves_[i][k]) by = r_.target.names[i];
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

  Reverse r_;
  const GradcheckOptions& o_;
  GradcheckReport report_;
  std::vector<bool> zero_, kinked_;  // of the leaves, by declaration
  std::vector<Group> groups_;
  std::vector<size_t> loose_;             // outputs without a graph
  Tensors loose_point_;                   // outputs of what is differentiated (f, or gradient_of)
  std::vector<std::vector<bool>> moves_;  // [leaf][output]: loose ones that moved
  std::vector<double> middle_;            // the row at the point
  std::vector<Draw> draws_;
  std::vector<Tensors> gradients_;  // [group][leaf], of the first draw
  std::vector<Repeat> repeats_;
  std::vector<GradcheckPair> pairs_;
  Comparison settled_;                   // the last one that was judged
  std::vector<Comparison> best_;         // of each pair
  std::vector<GradcheckFailure> found_;  // of each leaf; Verdict::right: nothing
  std::vector<std::string> strange_;     // of each leaf: what was not finite a step away
};

}  // namespace

GradcheckReport verifier::check_gradients(Target target, const GradcheckOptions& options) {
  return Checker(std::move(target), options).run();
}

}  // namespace bg
