#include "nn/flow.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "autograd/engine.h"
#include "autograd/watch.h"
#include "core/format.h"
#include "core/norm.h"
#include "core/tensor_ops.h"

namespace bg {
namespace {

double norm_of(const Tensor& t) {
  if (t.numel() == 0) return 0;
  return norm_of_squares(
      num::dot(t, t), [&] { return num::first_non_finite(t) < 0 ? num::max_abs(t) : num::dot(t, t); },
      [&](double s) {
        const Tensor scaled = num::scale(t, s);
        return num::dot(scaled, scaled);
      });
}
double rms(const Tensor& t) { return t.numel() == 0 ? 0 : norm_of(t) / std::sqrt(static_cast<double>(t.numel())); }

bool is_below(std::string_view path, std::string_view parent) {
  return path.size() > parent.size() && path.starts_with(parent) && path[parent.size()] == '.';
}

// A softmax ignores a shift of its logits, so the bias of an attention's keys has gradient zero in every model.
bool is_key_bias(std::string_view path) { return path.ends_with(".b_k"); }

// The last value that each module computed while `run` ran.
std::map<std::string, Var> outputs_of(const Module& model, const std::function<void()>& run) {
  const std::string outside = Scope::current();
  std::map<std::string, Var> last;
  for (const auto& [path, module] : model.named_modules()) last[path];
  const WatchOutputs watch([&](const std::string& scope, const Vars& outputs) {
    // the scope itself and everything around it: blocks.0.attn, blocks.0, (blocks)
    std::string path = outside.empty() || !is_below(scope, outside) ? scope : scope.substr(outside.size() + 1);
    while (!path.empty()) {
      if (const auto at = last.find(path); at != last.end()) at->second = outputs[0];
      const size_t dot = path.rfind('.');
      path.resize(dot == std::string::npos ? 0 : dot);
    }
  });
  run();
  return last;
}

std::string problem_of(const FlowRow& row) {
  if (!std::isfinite(row.activation)) return "the output is not finite";
  if (!std::isfinite(row.gradient)) return "the gradient is not finite";
  if (row.gradient == 0) return "no gradient arrives";
  if (row.activation == 0) return "the output is zero";
  if (row.parameters > 0 && row.weight_gradient == 0) return "no gradient reaches its parameters";
  return {};
}

// Length of the bar of x between the smallest and the largest gradient, on a logarithmic scale.
class Bars {
 public:
  explicit Bars(const std::vector<FlowRow>& rows) {
    for (const FlowRow& r : rows)
      if (r.gradient > 0 && std::isfinite(r.gradient)) {
        low_ = std::min(low_, std::log10(r.gradient));
        high_ = std::max(high_, std::log10(r.gradient));
      }
  }
  std::string of(double x) const {
    constexpr double kWidth = 20;
    if (!(x > 0) || !std::isfinite(x)) return {};
    const double share = high_ > low_ ? (std::log10(x) - low_) / (high_ - low_) : 1;
    return std::string(static_cast<size_t>(1 + std::lround(share * (kWidth - 1))), '#');
  }

 private:
  double low_ = std::numeric_limits<double>::infinity(), high_ = -std::numeric_limits<double>::infinity();
};

}  // namespace

Flow gradient_flow(const Module& model, const std::function<Var()>& loss) {
  Flow flow;
  Var value;
  const GradMode recording(true);
  const std::map<std::string, Var> outputs = outputs_of(model, [&] { value = loss(); });
  BG_CHECK(value.defined() && value.requires_grad() && value.shape().numel() == 1, "flow",
           "not a loss to backpropagate from",
           !value.defined() ? "nothing" : str("shape ", value.shape(), value.requires_grad() ? "" : ", no gradient"),
           "a single element that depends on the model's parameters");
  flow.loss = value.item();

  const NamedParameters parameters = model.parameters();
  Vars targets = vars_of(parameters);
  std::vector<std::pair<std::string, Var>> found;
  for (const auto& [path, module] : model.named_modules())
    if (const Var& y = outputs.at(path); y.defined() && y.requires_grad()) {
      found.emplace_back(path, y);
      targets.push_back(y);
    }
  const Vars gradients = grad({value}, targets);

  std::vector<double> weight, weight_gradient;
  for (size_t i = 0; i < parameters.size(); ++i) {
    weight.push_back(norm_of(parameters[i].var.value()));
    weight_gradient.push_back(norm_of(gradients[i].value()));
    if (weight_gradient[i] == 0 && !is_key_bias(parameters[i].path)) flow.dead.push_back(parameters[i].path);
  }
  for (size_t k = 0; k < found.size(); ++k) {
    FlowRow row;
    row.path = found[k].first;
    row.shape = found[k].second.shape();
    row.activation = rms(found[k].second.value());
    row.gradient = rms(gradients[parameters.size() + k].value());
    for (size_t i = 0; i < parameters.size(); ++i)
      if (is_below(parameters[i].path, row.path)) {
        row.parameters += parameters[i].var.shape().numel();
        row.weight = std::hypot(row.weight, weight[i]);
        row.weight_gradient = std::hypot(row.weight_gradient, weight_gradient[i]);
      }
    row.problem = problem_of(row);
    flow.rows.push_back(std::move(row));
  }
  return flow;
}

std::string Flow::table() const {
  std::string out = formatted("%-22s %-16s %10s %10s %10s %10s %8s  %s\n", "module", "output", "activation", "gradient",
                              "weights", "d weights", "ratio", "gradient, logarithmic");
  const Bars bars(rows);
  for (const FlowRow& r : rows) {
    out += formatted("%-22s %-16s %10.2e %10.2e ", r.path.c_str(), str(r.shape).c_str(), r.activation, r.gradient);
    out += r.parameters > 0 ? formatted("%10.2e %10.2e %8.1e", r.weight, r.weight_gradient, r.ratio())
                            : formatted("%10s %10s %8s", "-", "-", "-");
    out += r.problem.empty() ? "  " + bars.of(r.gradient) + "\n" : "  <- " + r.problem + "\n";
  }
  out += formatted("loss %.6g\n", loss);
  for (const std::string& path : dead) out += str("dead: ", path, " gets a gradient of exactly zero\n");
  return out;
}

std::string Flow::plot_script() const {
  const auto drawable = [](double x) { return x > 0 && std::isfinite(x); };
  const int n = static_cast<int>(rows.size());
  std::string script = formatted(
      "set terminal svg size 900,%d dynamic font 'sans-serif,13' background '#ffffff'\n"
      "set multiplot layout 1,2\n"
      "set logscale x\nset format x '10^{%%T}'\nset grid x lc rgb '#dddddd' lt 1\nset border 3 lc rgb '#666666'\n"
      "set xtics nomirror\nset ytics nomirror scale 0 noenhanced\nset yrange [%d.5:-0.5]\nset style fill solid "
      "noborder\n"
      "unset key\nset tmargin 3\nset bmargin 3\nset rmargin 3\n$flow << END\n",
      110 + 20 * n, n - 1);
  // number, name, both values (0: no bar) and what stands in the place of a bar
  for (int i = 0; i < n; ++i) {
    const FlowRow& r = rows[static_cast<size_t>(i)];
    script += formatted("%d \"%s\"", i, r.path.c_str());
    for (const double x : {r.activation, r.gradient}) script += formatted(" %g", drawable(x) ? x : 0);
    for (const double x : {r.activation, r.gradient}) script += std::isfinite(x) ? " \"zero\"" : " \"not finite\"";
    script += "\n";
  }
  script += "END\n";
  static constexpr const char *kTitle[] = {"activation, rms of the output", "gradient, rms of d loss / d output"},
                              *kColor[] = {"#3b6ea5", "#c2662d"};
  for (int panel = 0; panel < 2; ++panel) {
    double low = std::numeric_limits<double>::infinity(), high = 0;
    for (const FlowRow& r : rows)
      if (const double x = panel == 0 ? r.activation : r.gradient; drawable(x)) {
        low = std::min(low, x);
        high = std::max(high, x);
      }
    if (high == 0) low = high = 1;
    const double left = std::pow(10, std::floor(std::log10(low) - 0.3));
    script += formatted("set title '%s' tc rgb '#808080'\nset lmargin %d\n%sset xrange [%g:%g]\n", kTitle[panel],
                        panel == 0 ? 24 : 3, panel == 0 ? "" : "set format y ''\n", left, 2 * high);
    script += formatted(
        "plot $flow using (%g):0:(%g):($%d > 0 ? $%d : NaN):($0-0.32):($0+0.32)%s with boxxyerror lc rgb '%s', "
        "'' using (%g):($%d > 0 ? NaN : $0):%d with labels left tc rgb '#b00020'\n",
        left, left, panel + 3, panel + 3, panel == 0 ? ":ytic(2)" : ":ytic('')", kColor[panel], 1.1 * left, panel + 3,
        panel + 5);
  }
  return script + "unset multiplot\n";
}

}  // namespace bg
