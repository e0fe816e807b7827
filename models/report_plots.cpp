#include "models/report_plots.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/format.h"
#include "models/gnuplot.h"
#include "models/unicode.h"

namespace bg {
namespace {

constexpr int kWidth = 420, kHeight = 270;  // small, so that letters stay readable on a phone
constexpr size_t kCurvePoints = 150;

// The name of a series, which a browser shows on it. gnuplot keeps it only where it may hold mark-up, so that is
// escaped.
std::string titled(const std::string& name) {
  std::string plain;
  for (const char c : printable(name))
    plain += std::string_view("_^{}@&~\\").find(c) == std::string_view::npos ? std::string(1, c) : std::string{'\\', c};
  return " title " + gnuplot_string(plain);
}

std::string frame(const std::string& x, const std::string& y, int width = kWidth, int height = kHeight) {
  return formatted(
      "set terminal svg size %d,%d dynamic standalone font 'sans-serif,13'\n"
      "set border 3\nset xtics nomirror scale 0.5\nset ytics nomirror scale 0.5\nset grid lt 1 lc rgb '#c0c0c0'\n"
      "unset key\nset rmargin 3\nset tmargin 1\nset xlabel %s\nset ylabel %s\n",
      width, height, gnuplot_string(x).c_str(), gnuplot_string(y).c_str());
}

// The plot command over data blocks that come before it.
class Series {
 public:
  // Opens a block; rows follow by row().
  std::string open() {
    if (blocks_++ > 0) data_ += "END\n";
    const std::string name = str("$d", blocks_);
    data_ += name + " << END\n";
    return name;
  }
  void row(std::initializer_list<double> values) {
    for (const double v : values) data_ += formatted(std::isfinite(v) ? "%.5g " : "NaN ", v);
    data_ += "\n";
  }
  void draw(const std::string& block, const std::string& how, const std::string& title = {}) {
    plots_.push_back(block + " " + how + (title.empty() ? " notitle" : titled(title)));
  }
  std::string program() const {
    if (plots_.empty()) return {};
    std::string out = data_ + "END\nplot ";
    for (size_t i = 0; i < plots_.size(); ++i) out += (i ? ", \\\n  " : "") + plots_[i];
    return out + "\n";
  }

 private:
  int blocks_ = 0;
  std::string data_;
  std::vector<std::string> plots_;
};

std::string whole_ticks(size_t layers) {
  return formatted("set xrange [-0.4:%g]\nset xtics 1\n", static_cast<double>(layers) - 0.6);
}

// Where the round stands beside the others of its layer.
double place(size_t layer, size_t round, size_t rounds) {
  constexpr double kApart = 0.12;
  return static_cast<double>(layer) + kApart * (static_cast<double>(round) - (static_cast<double>(rounds) - 1) / 2);
}

size_t round_count(const Analysis& a) { return a.layers.empty() ? 0 : a.layers[0].rounds.size(); }

std::vector<std::string> numbered(const char* what, size_t from, size_t end) {
  std::vector<std::string> names(from);  // styles go by number: those before have no name
  for (size_t i = from; i < end; ++i) names.push_back(str(what, " ", i));
  return names;
}

double mean_of(const std::vector<Spread>& by_head) {
  double sum = 0;
  for (const Spread& s : by_head) sum += s.mean();
  return sum / static_cast<double>(by_head.size());
}

std::string point_style(size_t index, double size) {
  return formatted("pt 7 ps %g lc rgb '%s'", size, series_style(index).color.c_str());
}

// Between a standard deviation below and above; columns x, mean, deviation.
std::string band(size_t index) {
  return str("using 1:($2-$3):($2+$3) with filledcurves fs transparent solid 0.09 noborder fc rgb '",
             series_style(index).color, "'");
}

// A line over the layers for each round, and a point for each of `points`.
template <class Mean, class Points>
std::string by_layer(const Analysis& a, size_t first_round, Mean&& mean, Points&& points) {
  Series s;
  for (size_t m = first_round; m < round_count(a); ++m) {
    const std::string title = str("round ", m), means = s.open();
    for (size_t l = 0; l < a.layers.size(); ++l) s.row({place(l, m, round_count(a)), mean(a.layers[l].rounds[m])});
    s.draw(means, "using 1:2 with lines " + line_style(m), title);
    const std::string heads = s.open();
    for (size_t l = 0; l < a.layers.size(); ++l)
      for (const double y : points(a.layers[l].rounds[m])) s.row({place(l, m, round_count(a)), y});
    s.draw(heads, "using 1:2 with points " + point_style(m, 0.45), title + ", heads");
  }
  return s.program();
}

// A line over the layers for each round with the spread at each.
template <class Value>
std::string by_layer_with_spread(const Analysis& a, size_t first_round, Value&& value) {
  Series s;
  for (size_t m = first_round; m < round_count(a); ++m) {
    const std::string block = s.open(), title = str("round ", m);
    for (size_t l = 0; l < a.layers.size(); ++l) {
      const Spread& v = value(a.layers[l].rounds[m]);
      s.row({place(l, m, round_count(a)), v.mean(), v.sd()});
    }
    s.draw(block, "using 1:2 with lines " + line_style(m), title);
    s.draw(block, "using 1:2 with points " + point_style(m, 0.45));
    s.draw(block, str("using 1:($2-$3):(0):(2*$3) with vectors nohead lw 1 lc rgb '", series_style(m).color, "'"),
           title + ", standard deviation");
  }
  return s.program();
}

CurveSeries curve_of(const RunLog& run, const std::string& name, CurveKind kind, bool logarithmic) {
  CurveSeries curve{name, {}, {}};
  for (const CurvePoint& p : run.curve) {
    if (kind == CurveKind::validation && !p.val_loss) continue;
    const double loss = kind == CurveKind::training ? p.train_loss : *p.val_loss;
    if (!std::isfinite(loss) || (logarithmic && loss <= 0)) continue;  // a loss may round to 0
    curve.steps.push_back(static_cast<double>(p.step));
    curve.values.push_back(loss);
  }
  return curve;
}

// 1, 2 or 5 times a power of ten, of which at most `most` fit into the range.
double round_step(double range, int most) {
  double step = std::pow(10, std::floor(std::log10(range / most)));
  for (const double factor : {2.0, 2.5, 2.0})
    if (range / step > most) step *= factor;
  return step;
}

std::string linear_axes(double last_step) {
  return formatted("set xrange [0:%g]\nset xtics %g\n", last_step, round_step(last_step, 6));
}

// Losses span less than a decade, so their ticks are round numbers in between; validations may lie as close in steps.
std::string logarithmic_axes(double first_step, double last_step, double low, double high) {
  const double margin = std::pow(high / low, 0.04) * 1.002;
  low /= margin;
  high *= margin;
  const double step = round_step(high - low, 8);
  std::string losses, steps;
  for (double k = std::ceil(low / step); k * step <= high; ++k) losses += str(losses.empty() ? "" : ", ", k * step);
  if (last_step < 100 * first_step)
    for (double decade = 1; decade <= last_step; decade *= 10)
      for (const double factor : {1, 2, 5}) steps += str(steps.empty() ? "" : ", ", factor * decade);
  return formatted("set logscale xy\nset autoscale x noextend\nset yrange [%g:%g]\nset ytics (%s)\n", low, high,
                   losses.c_str()) +
         (steps.empty() ? "" : "set xtics (" + steps + ")\n");
}

size_t characters(const std::string& utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

// At most eleven characters of a label.
std::string shortened(const std::string& utf8) {
  constexpr size_t kMost = 11;
  if (characters(utf8) <= kMost) return utf8;
  size_t end = 0;
  for (size_t seen = 0; seen < kMost; ++end) seen += (utf8[end + 1] & 0xc0) != 0x80;
  return utf8.substr(0, end) + "\u2026";
}

bool has_gates(const Analysis& a, size_t round) {
  return round < round_count(a) && a.layers[0].rounds[round].gate.count() > 0;
}

}  // namespace

SeriesStyle series_style(size_t index) {
  static constexpr const char* kColors[] = {"#2f7fc1", "#d55e00", "#1b9e77", "#c65a9b", "#9a7400", "#808080"};
  static constexpr const char* kDashes[] = {"", "8,4", "2,3", "12,3,2,3"};
  return {kColors[index % std::size(kColors)], kDashes[index % std::size(kDashes)]};
}

std::string line_style(size_t index, double width) {
  const SeriesStyle s = series_style(index);
  return str("lw ", width, " lc rgb '", s.color, "'", s.dashes.empty() ? "" : str(" dt (", s.dashes, ")"));
}

CurveSeries thinned(const CurveSeries& curve, size_t most, bool logarithmic) {
  const size_t n = curve.steps.size();
  if (n <= most) return curve;
  CurveSeries thin{curve.name, {}, {}};
  const double low = logarithmic ? std::log(curve.steps.front()) : curve.steps.front();
  const double high = logarithmic ? std::log(curve.steps.back()) : curve.steps.back();
  size_t begin = 0;
  for (size_t k = 0; k < most; ++k) {
    const double border = low + (high - low) * static_cast<double>(k + 1) / static_cast<double>(most);
    double steps = 0, values = 0;
    size_t end = begin;
    for (; end < n && (k + 1 == most || (logarithmic ? std::log(curve.steps[end]) : curve.steps[end]) <= border);
         ++end) {
      steps += curve.steps[end];
      values += curve.values[end];
    }
    if (end == begin) continue;
    thin.steps.push_back(steps / static_cast<double>(end - begin));
    thin.values.push_back(values / static_cast<double>(end - begin));
    begin = end;
  }
  return thin;
}

Plot curve_plot(const std::vector<const RunLog*>& runs, const std::vector<std::string>& names, CurveKind kind,
                bool logarithmic) {
  const bool training = kind == CurveKind::training;
  Plot plot{str(training ? "Training" : "Validation", " loss, ", logarithmic ? "logarithmic axes" : "linear axes"),
            training ? str("Means over stretches of steps, at most ", kCurvePoints, " a run.") : std::string(),
            {},
            {}};
  Series s;
  double low = std::numeric_limits<double>::infinity(), high = 0, first = low, last = 1;
  for (size_t i = 0; i < runs.size(); ++i) {
    const CurveSeries thin = thinned(curve_of(*runs[i], names[i], kind, logarithmic), kCurvePoints, logarithmic);
    if (thin.steps.empty()) continue;
    const std::string block = s.open();
    for (size_t k = 0; k < thin.steps.size(); ++k) {
      s.row({thin.steps[k], thin.values[k]});
      low = std::min(low, thin.values[k]);
      high = std::max(high, thin.values[k]);
    }
    first = std::min(first, thin.steps.front());
    last = std::max(last, thin.steps.back());
    s.draw(block,
           str("using 1:2 with ", training && thin.steps.size() > 1 ? "lines " : "linespoints pt 7 ps 0.4 ",
               line_style(i, 1.5)),
           thin.name);
  }
  if (const std::string program = s.program(); !program.empty())
    plot.program = frame("step", "nats a token") +
                   (logarithmic ? logarithmic_axes(first, last, low, high) : linear_axes(last)) + program;
  return plot;
}

Plot entropy_plot(const Analysis& a) {
  return {"Attention entropy", "Nats, mean over tokens: a line through the mean of the heads, a point for each head.",
          numbered("round", 0, round_count(a)),
          frame("layer", "entropy, nats") + whole_ticks(a.layers.size()) + "set yrange [0:*]\n" +
              by_layer(
                  a, 0, [](const RoundLook& r) { return mean_of(r.entropy); },
                  [](const RoundLook& r) {
                    std::vector<double> heads;
                    for (const Spread& s : r.entropy) heads.push_back(s.mean());
                    return heads;
                  })};
}

Plot residual_plot(const Analysis& a) {
  return {"Residual after each round",
          "|x - F| / |x| of a token: mean and standard deviation. 1 is what F = 0 would leave.",
          numbered("after round", 0, round_count(a)),
          frame("layer", "|x - F| / |x|") + whole_ticks(a.layers.size()) + "set yrange [0:*]\n" +
              by_layer_with_spread(a, 0, [](const RoundLook& r) -> const Spread& { return r.residual; })};
}

Plot gate_plot(const Analysis& a) {
  Plot plot{"Gate",
            "How much of a correction is taken: mean and standard deviation over tokens and dimensions.",
            numbered("round", 1, round_count(a)),
            {}};
  if (has_gates(a, 1))
    plot.program = frame("layer", "gate") + whole_ticks(a.layers.size()) + "set yrange [0:1]\n" +
                   by_layer_with_spread(a, 1, [](const RoundLook& r) -> const Spread& { return r.gate; });
  return plot;
}

Plot gate_dimensions_plot(const Analysis& a, size_t round) {
  Plot plot{str("Gate by dimension, round ", round),
            "Mean over tokens of each dimension, sorted; the band is a standard deviation to either side.",
            numbered("layer", 0, a.layers.size()),
            {}};
  if (!has_gates(a, round)) return plot;
  Series s;
  for (size_t l = 0; l < a.layers.size(); ++l) {
    std::vector<Spread> sorted = a.layers[l].rounds[round].gate_by_dimension;
    std::sort(sorted.begin(), sorted.end(), [](const Spread& x, const Spread& y) { return x.mean() < y.mean(); });
    const std::string block = s.open();
    for (size_t i = 0; i < sorted.size(); ++i) s.row({static_cast<double>(i), sorted[i].mean(), sorted[i].sd()});
    s.draw(block, band(l));
    s.draw(block, "using 1:2 with lines " + line_style(l), str("layer ", l));
  }
  plot.program = frame("dimension, by rising gate", "gate") + "set yrange [0:1]\n" + s.program();
  return plot;
}

Plot openness_plot(const Analysis& a, size_t round) {
  Plot plot{str("Gate openness against entropy, round ", round),
            "Mean of the gate over dimensions against the entropy of round 0 at the same token, in ten groups of equal "
            "size: mean, and a band of a standard deviation to either side.",
            {},
            {}};
  if (!has_gates(a, round)) return plot;
  Series s;
  for (size_t l = 0; l < a.layers.size(); ++l) {
    const RoundLook& r = a.layers[l].rounds[round];
    const bool known = std::isfinite(r.openness_correlation);
    plot.series.push_back(str("layer ", l, known ? formatted(" (correlation %+.2f)", r.openness_correlation) : ""));
    const std::string block = s.open();
    for (const OpennessBin& b : r.openness) s.row({b.entropy.mean(), b.openness.mean(), b.openness.sd()});
    s.draw(block, band(l));
    s.draw(block, "using 1:2 with lines " + line_style(l), plot.series.back());
    s.draw(block, "using 1:2 with points " + point_style(l, 0.35));
  }
  plot.program = frame("entropy of round 0, nats", "openness") + s.program();
  return plot;
}

Plot hull_plot(const Analysis& a) {
  Plot plot{
      "Outside the hull of round 0's values",
      "Share of the correction: distance from F to the hull of the values that the token sees, by |F - F0|. At 0 a "
      "single pass over those "
      "values could have given the same; at 1 nothing of the correction lies that way. A line through the mean of "
      "the heads, a point for each head.",
      numbered("after round", 1, round_count(a)),
      {}};
  if (round_count(a) < 2 || a.layers[0].rounds[1].hull.empty() || a.layers[0].rounds[1].hull[0].share.count() == 0)
    return plot;
  int64_t outside = 0, points = 0;
  for (const LayerLook& layer : a.layers)
    for (const RoundLook& r : layer.rounds)
      for (const HullShare& h : r.hull) {
        outside += h.outside;
        points += h.share.count();
      }
  plot.note +=
      formatted(" %.1f %% of %lld points (tokens and heads) lie outside.",
                100 * static_cast<double>(outside) / static_cast<double>(points), static_cast<long long>(points));
  const auto heads = [](const RoundLook& r) {
    std::vector<double> shares;
    for (const HullShare& h : r.hull) shares.push_back(h.share.mean());
    return shares;
  };
  const auto mean = [&](const RoundLook& r) {
    const std::vector<double> shares = heads(r);
    double sum = 0;
    for (const double x : shares) sum += x;
    return sum / static_cast<double>(shares.size());
  };
  plot.program =
      frame("layer", "share") + whole_ticks(a.layers.size()) + "set yrange [0:1.02]\n" + by_layer(a, 1, mean, heads);
  return plot;
}

Plot attention_map_plot(const AttentionMaps& maps, size_t layer, size_t round) {
  const size_t n = maps.tokens.size();
  const std::vector<double>& weights = maps.layers[layer][round];
  std::string ticks;
  size_t letters = 1;
  for (size_t i = 0; i < n; ++i) {
    const std::string label = shortened(maps.tokens[i]);
    letters = std::max(letters, characters(label));
    ticks += str(i ? ", " : "", gnuplot_string(label), " ", i);
  }
  Series s;
  const std::string block = s.open();
  for (size_t i = 0; i < n; ++i)
    for (size_t j = 0; j < n; ++j)
      s.row({static_cast<double>(j), static_cast<double>(i), std::round(255 * std::sqrt(weights[i * n + j]))});
  s.draw(block, "using 1:2:(47):(127):(193):3 with rgbalpha");
  // square cells, with room for the labels left and below
  constexpr double kCell = 13, kLetter = 7.5, kEdge = 6;
  const double label = 14 + kLetter * static_cast<double>(letters), side = kCell * static_cast<double>(n);
  const double size = label + side + kEdge, low = label / size, high = (label + side) / size;
  const double last = static_cast<double>(n) - 0.5;
  return {
      str("Layer ", layer, ", round ", round),
      {},
      {},
      frame("", "", static_cast<int>(size), static_cast<int>(size)) +
          formatted("set border 0\nunset grid\nset lmargin at screen %g\nset rmargin at screen %g\n"
                    "set bmargin at screen %g\nset tmargin at screen %g\nset xrange [-0.5:%g]\nset yrange [%g:-0.5]\n",
                    low, high, low, high, last, last) +
          "set xtics rotate by 90 right scale 0 noenhanced font ',12' (" + ticks +
          ")\nset ytics scale 0 noenhanced font ',12' (" + ticks + ")\n" + s.program()};
}

}  // namespace bg
