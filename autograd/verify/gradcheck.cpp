#include "autograd/verify/gradcheck.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/engine.h"
#include "autograd/jvp.h"
#include "autograd/verify/subject.h"

namespace bg {
namespace {

using verifier::dot;
using verifier::flatten;
using verifier::norm;

// What differs between a function of inputs and a model with parameters.
struct Target {
  std::string op;                                            // in messages
  std::vector<std::string> names;                            // of the leaves
  Vars leaves;                                               // what is differentiated
  std::function<Vars()> run;                                 // recorded, from the leaves
  std::function<Vars(size_t leaf, const Tensor& delta)> at;  // with one leaf moved, unrecorded
};

// Where a line through the point has a slope that jumps.
struct Jump {
  bool found = false;
  double at = 0, before = 0, after = 0;  // slopes on the two sides
};

// Second differences of a smooth function on a fine grid are about equal; at a kink one of them stands out, because it
// falls with the spacing and not with its square.
Jump find_jump(const std::function<double(double t)>& p, double reach) {
  constexpr int kHalf = 16;
  constexpr double kOutlier = 40, kRounding = 1e-13;
  const double dt = reach / kHalf;
  std::vector<double> y(2 * kHalf + 1), bend(2 * kHalf - 1);
  double scale = 0;
  for (int i = 0; i <= 2 * kHalf; ++i) {
    y[i] = p((i - kHalf) * dt);
    scale = std::max(scale, std::abs(y[i]));
  }
  for (size_t i = 0; i < bend.size(); ++i) bend[i] = std::abs(y[i + 2] - 2 * y[i + 1] + y[i]);
  const size_t top = std::max_element(bend.begin(), bend.end()) - bend.begin();
  std::vector<double> sorted = bend;
  std::nth_element(sorted.begin(), sorted.begin() + sorted.size() / 2, sorted.end());
  const double usual = std::max(sorted[sorted.size() / 2], kRounding * std::max(scale, 1.0));
  Jump jump;
  if (!(bend[top] > kOutlier * usual)) return jump;
  jump.found = true;
  jump.at = (static_cast<int>(top) + 1 - kHalf) * dt;
  const size_t left = top >= 2 ? top - 2 : 0, right = std::min(top + 2, y.size() - 2);
  jump.before = (y[left + 1] - y[left]) / dt;
  jump.after = (y[right + 1] - y[right]) / dt;
  return jump;
}

// Gradients of all leaves that should be the same.
struct Repeat {
  std::string what;
  Tensors got, want;
};

class Checker {
 public:
  Checker(Target target, const GradcheckOptions& options) : target_(std::move(target)), o_(options) {}

  GradcheckReport run() {
    refuse_bad_input();
    const Vars outputs = target_.run();
    for (const Var& y : outputs) used_.push_back(y.requires_grad());
    BG_CHECK(!reached(outputs).empty(), target_.op, "the outputs depend on none of the inputs",
             str(outputs.size(), " outputs"), "at least one that requires a gradient",
             "compute it from the Vars that are handed in");
    forward_mode_ = can_forward(reached(outputs));
    refuse_changing_function(outputs);
    Rng rng(o_.seed);
    for (int k = 0; k < o_.directions; ++k) {
      Rng draw = rng.fork(static_cast<uint64_t>(k));
      differentiate(draw, k == 0);
      for (size_t i = 0; i < target_.leaves.size(); ++i)
        if (!decided(i)) check(i);
    }
    for (const Repeat& again : repeats_)
      for (size_t i = 0; i < target_.leaves.size(); ++i)
        if (!decided(i)) compare_repeat(again, i);
    return std::move(report_);
  }

 private:
  static Tensors values(const Vars& v) {
    Tensors out;
    for (const Var& x : v) out.push_back(x.value());
    return out;
  }
  static Vars vars(const Tensors& t) { return Vars(t.begin(), t.end()); }

  void refuse_bad_input() const {
    BG_CHECK(!target_.leaves.empty(), target_.op, "nothing to differentiate", "no floating inputs", "at least one");
    BG_CHECK(o_.directions >= 1, target_.op, "bad number of directions", str(o_.directions), "1 or more");
    BG_CHECK(o_.step > 0, target_.op, "bad step", str(o_.step), "above 0, such as 1.5e-3");
    for (size_t i = 0; i < target_.leaves.size(); ++i)
      BG_CHECK(target_.leaves[i].dtype() == DType::f64, target_.op,
               str(target_.names[i], " is not f64, and differences of f32 functions are good to 1e-4 at best"),
               str(target_.leaves[i].dtype()), "f64", "to(DType::f64) on every input and parameter");
  }

  Vars reached(const Vars& outputs) const {
    Vars out;
    for (size_t k = 0; k < outputs.size(); ++k)
      if (used_[k]) out.push_back(outputs[k]);
    return out;
  }

  // All that needs the graph, before anything is moved: a moved parameter invalidates what the graph has saved.
  void differentiate(Rng& rng, bool first) {
    const Vars outputs = reached(target_.run());
    v_ = verifier::random_cotangents(values(outputs), rng);
    v_flat_ = flatten(v_);
    f_norm_ = norm(flatten(values(outputs)));
    gradients_ = values(grad(outputs, target_.leaves, vars(v_), {.retain_graph = true}));
    if (first) repeat(outputs);
    directions_.clear();
    forward_.clear();
    for (size_t i = 0; i < target_.leaves.size(); ++i) {
      const Tensor u = Tensor::randn(target_.leaves[i].shape(), rng, DType::f64);
      const double length = norm(flatten({u}));
      directions_.push_back(length > 0 ? num::scale(u, 1 / length) : u);
    }
    for (size_t i = 0; forward_mode_ && i < target_.leaves.size(); ++i)
      forward_.push_back(flatten(detail::tangents_of(outputs, target_.leaves, only(i))));
  }

  // The same gradients asked for otherwise: one leaf at a time, and for cotangents that are not contiguous.
  void repeat(const Vars& outputs) {
    auto gradients = [&](const Vars& leaves, const Tensors& v) {
      return values(grad(outputs, leaves, vars(v), {.retain_graph = true}));
    };
    Repeat alone{"the same gradient when no other is needed", {}, gradients_};
    for (const Var& leaf : target_.leaves) alone.got.push_back(gradients({leaf}, v_)[0]);
    Tensors transposed, expanded, copied;
    for (const Tensor& v : v_) {
      transposed.push_back(verifier::reversed_layout(v));
      expanded.push_back(verifier::expanded_layout(v, -1));
      copied.push_back(expanded.back().clone());
    }
    repeats_.push_back(std::move(alone));
    repeats_.push_back({"transposed cotangent", gradients(target_.leaves, transposed), gradients_});
    repeats_.push_back(
        {"expanded cotangent (stride 0)", gradients(target_.leaves, expanded), gradients(target_.leaves, copied)});
  }

  void compare_repeat(const Repeat& again, size_t leaf) {
    const Tensor &got = again.got[leaf], &want = again.want[leaf];
    const std::vector<double> a = flatten({got}), b = flatten({want});
    size_t at = 0;
    double scale = 1;
    for (size_t k = 0; k < a.size(); ++k) {
      if (!(std::abs(a[k] - b[k]) <= std::abs(a[at] - b[at]))) at = k;
      scale = std::max(scale, std::abs(b[k]));
    }
    const double error = a.empty() ? 0 : std::abs(a[at] - b[at]) / scale;
    ++report_.comparisons;
    if (!(error <= report_.worst)) report_.worst = error;
    if (error <= verifier::kTolerance.structure) return;  // false for NaN
    report_.verdict = Verdict::wrong;
    Failure& f = add(leaf, again.what);
    f.step = Step::V6;
    f.index = verifier::describe_index(want.shape(), static_cast<int64_t>(at));
    f.analytic = a[at];
    f.reference = b[at];
    f.error = error;
    f.tolerance = verifier::kTolerance.structure;
  }

  Tensors only(size_t leaf) const {
    Tensors t;
    for (size_t i = 0; i < target_.leaves.size(); ++i)
      t.push_back(i == leaf ? directions_[i] : Tensor::zeros(target_.leaves[i].shape(), DType::f64));
    return t;
  }

  // The outputs that depend on the leaves, as one row of numbers; of an unrecorded run.
  std::vector<double> flat(const Vars& outputs) const { return flatten(values(reached(outputs))); }

  void refuse_changing_function(const Vars& outputs) const {
    const Tensor still = Tensor::zeros(target_.leaves[0].shape(), DType::f64);
    BG_CHECK(flat(outputs) == flat(target_.at(0, still)), target_.op,
             "the function gives other outputs when it runs again", "", "the same bits",
             "draw dropout masks from a fixed key inside the function");
  }

  bool can_forward(const Vars& outputs) {
    Tensors zero;
    for (const Var& x : target_.leaves) zero.push_back(Tensor::zeros(x.shape(), x.dtype()));
    try {
      detail::tangents_of(outputs, target_.leaves, zero);
      return true;
    } catch (const Error& e) {
      report_.forward_mode = false;
      report_.note = e.what();
      return false;
    }
  }

  bool decided(size_t leaf) const {
    return std::any_of(report_.failures.begin(), report_.failures.end(),
                       [&](const Failure& f) { return f.input == target_.names[leaf]; });
  }

  std::vector<double> along(size_t leaf, const Tensor& u, double t) const {
    return flat(target_.at(leaf, num::scale(u, t)));
  }

  void check(size_t leaf) {
    const Tensor &g = gradients_[leaf], &u = directions_[leaf];
    if (g.numel() == 0) return;
    const Jump jump = jump_along(leaf, u);
    if (jump.found) return not_differentiable(leaf, jump);
    const double p = num::dot(g, u);
    const verifier::Difference d = slope_along(leaf, u);
    compare(leaf, "<J^T v, u> = <v, J u> by differences", p, d.slope, d.h, o_.tolerance);
    if (forward_mode_ && !decided(leaf))
      compare(leaf, "<J^T v, u> = <v, J u> by double backward", p, forward_[leaf], 0, verifier::kTolerance.exact);
  }

  verifier::Difference slope_along(size_t leaf, const Tensor& u) const {
    return verifier::difference([&](double t) { return along(leaf, u, t); }, 0.1 * o_.tolerance, o_.step);
  }

  Jump jump_along(size_t leaf, const Tensor& u) const {
    return find_jump([&](double t) { return dot(v_flat_, along(leaf, u, t)); }, 4 * o_.step);
  }

  Failure& add(size_t leaf, std::string what) {
    Failure f;
    f.op = target_.op;
    f.step = Step::V3;
    f.what = std::move(what);
    f.input = target_.names[leaf];
    f.seed = o_.seed;
    f.rerun = str("the same call with {.seed = ", o_.seed, "}");
    report_.failures.push_back(std::move(f));
    return report_.failures.back();
  }

  void not_differentiable(size_t leaf, const Jump& jump) {
    if (report_.verdict == Verdict::right) report_.verdict = Verdict::not_differentiable;
    Failure& f = add(leaf, "not differentiable here: the slope jumps");
    f.fd_step = 4 * o_.step;
    f.note =
        str("along a direction of length 1 the slope of <v, f> goes from ", jump.before, " to ", jump.after,
            " at a distance of ", std::abs(jump.at), "; move the point off the kink or tie, or exclude this input");
    for (const auto& [k, e] : elements(leaf)) {
      if (!jump_along(leaf, e).found) continue;
      f.index = verifier::describe_index(e.shape(), k);
      return;
    }
  }

  // What the rounding of f alone puts into <v, J u>, by differences of step h or (h = 0) in forward mode. Where the
  // true gradient is zero, as that of a bias which every logit of a softmax shares, this is all that there is to
  // compare.
  double rounding(double h) const {
    constexpr double kUlps = 8;
    const double eps = kUlps * std::numeric_limits<double>::epsilon() * norm(v_flat_) * f_norm_;
    return h > 0 ? eps / h : eps;
  }

  void compare(size_t leaf, std::string what, double p, const std::vector<double>& ju, double h, double tolerance) {
    const double q = dot(v_flat_, ju), scale = norm(v_flat_) * norm(ju) + norm(flatten({gradients_[leaf]}));
    const double off = std::abs(p - q), error = off <= rounding(h) ? 0 : scale > 0 ? off / scale : off;
    ++report_.comparisons;
    if (!(error <= report_.worst)) report_.worst = error;
    if (error <= tolerance) return;  // false for NaN
    report_.verdict = Verdict::wrong;
    Failure& f = add(leaf, std::move(what));
    f.analytic = p;
    f.reference = q;
    f.error = error;
    f.tolerance = tolerance;
    f.fd_step = h;
    locate(f, leaf);
  }

  // The element whose derivative is most wrong.
  void locate(Failure& f, size_t leaf) {
    double worst = -1;
    for (const auto& [k, e] : elements(leaf)) {
      const double numeric = dot(v_flat_, slope_along(leaf, e).slope);
      const double analytic = gradients_[leaf].flat(k), error = std::abs(analytic - numeric);
      if (error <= worst) continue;
      worst = error;
      f.index = verifier::describe_index(e.shape(), k);
      f.analytic = analytic;
      f.reference = numeric;
    }
  }

  // One-hot directions of an input, if it is small enough to go through.
  std::vector<std::pair<int64_t, Tensor>> elements(size_t leaf) const {
    constexpr int64_t kMaxElements = 512;
    const Shape& shape = target_.leaves[leaf].shape();
    std::vector<std::pair<int64_t, Tensor>> out;
    for (int64_t k = 0; k < shape.numel() && shape.numel() <= kMaxElements; ++k) {
      Tensor e = Tensor::zeros(shape, DType::f64);
      e.mutable_data<double>("gradcheck")[k] = 1;
      out.emplace_back(k, std::move(e));
    }
    return out;
  }

  Target target_;
  const GradcheckOptions& o_;
  GradcheckReport report_;
  std::vector<bool> used_;  // outputs that depend on the leaves
  bool forward_mode_ = true;
  std::vector<Repeat> repeats_;
  // of the current draw
  Tensors v_, gradients_, directions_;
  std::vector<double> v_flat_;
  double f_norm_ = 0;
  std::vector<std::vector<double>> forward_;  // J u by forward mode
};

}  // namespace

std::string_view name_of(Verdict v) {
  switch (v) {
    case Verdict::right:
      return "right";
    case Verdict::wrong:
      return "wrong";
    case Verdict::not_differentiable:
      break;
  }
  return "not differentiable here";
}

std::string GradcheckReport::to_string() const {
  std::string out = str("gradient ", name_of(verdict), ": ", comparisons, " comparisons, worst error ", worst, "\n");
  if (!forward_mode) out += str("  differences only: ", note, "\n");
  constexpr size_t kShown = 1;
  for (size_t i = 0; i < std::min(kShown, failures.size()); ++i) out += failures[i].to_string();
  if (failures.size() > kShown) out += str("  and ", failures.size() - kShown, " more inputs\n");
  return out;
}

GradcheckReport gradcheck(const std::function<Vars(const Vars&)>& f, const Vars& inputs,
                          const GradcheckOptions& options) {
  const bool chosen = std::any_of(inputs.begin(), inputs.end(), [](const Var& x) { return x.requires_grad(); });
  Target t;
  t.op = "gradcheck";
  std::vector<size_t> position;
  Vars in;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool leaf = is_float(inputs[i].dtype()) && (!chosen || inputs[i].requires_grad());
    in.emplace_back(inputs[i].value(), leaf);
    if (!leaf) continue;
    t.names.push_back(str("input ", i));
    t.leaves.push_back(in.back());
    position.push_back(i);
  }
  t.run = [&] {
    GradMode recording(true);
    return f(in);
  };
  t.at = [&](size_t leaf, const Tensor& delta) {
    NoGrad off;
    Vars moved;
    for (const Var& x : in) moved.emplace_back(x.value());
    Var& x = moved[position[leaf]];
    x = Var(num::add(x.value(), delta));
    return f(moved);
  };
  return Checker(std::move(t), options).run();
}

GradcheckReport gradcheck_parameters(const std::function<Vars()>& f, const Vars& parameters,
                                     const std::vector<std::string>& names, const GradcheckOptions& options) {
  BG_CHECK(names.empty() || names.size() == parameters.size(), "gradcheck", "wrong number of names", str(names.size()),
           str(parameters.size()));
  Target t;
  t.op = "gradcheck";
  t.leaves = parameters;
  for (size_t i = 0; i < parameters.size(); ++i) t.names.push_back(names.empty() ? str("parameter ", i) : names[i]);
  t.run = [&] {
    GradMode recording(true);
    return f();
  };
  t.at = [&](size_t leaf, const Tensor& delta) {
    NoGrad off;
    Tensor value = parameters[leaf].value();  // shares the model's memory
    const Tensor before = value.clone();
    struct Restore {
      Tensor value, before;
      ~Restore() { value.copy_from(before, "gradcheck"); }
    } restore{value, before};
    value.copy_from(num::add(before, delta), "gradcheck");
    return f();
  };
  return Checker(std::move(t), options).run();
}

}  // namespace bg
