#include "models/study_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "core/format.h"
#include "models/gnuplot.h"
#include "models/report_plots.h"
#include "models/spread.h"

namespace bg {
namespace {

constexpr int kWidth = 900, kTop = 330, kRow = 26, kBottom = 80;  // pixels
constexpr size_t kPoints = 60;                                    // of a curve

using ByStep = std::map<int64_t, double>;

ByStep losses(const RunLog& run) {
  ByStep all;
  for (const CurvePoint& p : run.curve) all[p.step] = p.train_loss;
  return all;
}

// Mean over the seeds at each step, then over stretches of steps; minus the other row's at the same step and seed.
CurveSeries loss_curve(const StudyRow& row, const StudyRow* against = nullptr) {
  std::map<int64_t, Spread> by_step;
  for (const RunLog& run : row.runs) {
    if (!against) {
      for (const auto& [step, loss] : losses(run)) by_step[step].add(loss);
      continue;
    }
    for (const RunLog& other : against->runs) {
      if (other.options.seed != run.options.seed) continue;
      const ByStep theirs = losses(other);
      for (const auto& [step, loss] : losses(run))
        if (const auto found = theirs.find(step); found != theirs.end()) by_step[step].add(loss - found->second);
    }
  }
  CurveSeries curve{row.name, {}, {}};
  for (const auto& [step, spread] : by_step) {
    curve.steps.push_back(static_cast<double>(step));
    curve.values.push_back(spread.mean());
  }
  return thinned(curve, kPoints, false);
}

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
  std::string text() const {
    const double margin = high > low ? 0.05 * (high - low) : 0.05 * std::max(std::abs(low), 1e-3);
    return low <= high ? formatted("[%.6g:%.6g]", low - margin, high + margin) : std::string("[*:*]");
  }
};

// Part of the picture, in pixels from the left and from the bottom.
std::string place(int left, int bottom, int width, int height, int total) {
  const auto share = [](int part, int whole) { return static_cast<double>(part) / whole; };
  return formatted("set origin %.4f,%.4f\nset size %.4f,%.4f\n", share(left, kWidth), share(bottom, total),
                   share(width, kWidth), share(height, total));
}

// What differs most at first, and says least, is left out of the range: the first tenth of the steps.
std::string curve_panel(const std::vector<CurveSeries>& curves, const char* title, bool zero) {
  Range values;
  double last = 1;
  for (const CurveSeries& c : curves)
    if (!c.steps.empty()) last = std::max(last, c.steps.back());
  if (zero) values.add(0);
  std::string blocks, plots = zero ? "0 lw 1 lc rgb '#666666'" : "";
  for (size_t i = 0; i < curves.size(); ++i) {
    const CurveSeries& c = curves[i];
    if (c.steps.empty()) continue;
    blocks += str("$c", i, " << END\n");
    for (size_t k = 0; k < c.steps.size(); ++k) {
      if (c.steps[k] >= last / 10) values.add(c.values[k]);
      blocks += formatted("%.6g %.6g\n", c.steps[k], c.values[k]);
    }
    blocks += "END\n";
    plots += str(plots.empty() ? "" : ", ", "$c", i, " with ",
                 c.steps.size() > 1 ? "lines " : "linespoints pt 7 ps 0.7 ", line_style(i));
  }
  if (blocks.empty()) return {};
  return blocks +
         formatted("set title '%s'\nset xlabel 'step'\nset xrange [0:%g]\nset yrange %s\n", title, last,
                   values.text().c_str()) +
         "plot " + plots + "\n";
}

std::string end_panel(const Study& study) {
  const bool test = study.has_test();
  const auto perplexity = [&](const RunLog& run) {
    return (test ? *run.results->test : run.results->valid_last).token_ppl();
  };
  Range range;
  for (const StudyRow& row : study.rows)
    for (const RunLog& run : row.runs) range.add(perplexity(run));
  std::string blocks, names, plots;
  for (size_t i = 0; i < study.rows.size(); ++i) {
    const StudyRow& row = study.rows[i];
    Spread mean;
    std::string points;
    for (const RunLog& run : row.runs) {
      mean.add(perplexity(run));
      points += formatted("%.6g %zu\n", perplexity(run), i);
    }
    blocks +=
        formatted("$l%zu << END\n0 %zu\n%.6g %zu\nEND\n$e%zu << END\n", i, i, mean.mean(), i, i) + points + "END\n";
    names += str(i ? ", " : "",
                 gnuplot_string(formatted("%s, %.2f M", row.name.c_str(),
                                          static_cast<double>(row.runs[0].results->parameters) / 1e6)),
                 " ", i);
    plots += str(i ? ", " : "", "$l", i, " with lines ", line_style(i), ", $e", i, " with points pt 7 ps 0.7 lc rgb '",
                 series_style(i).color, "'");
  }
  return blocks +
         formatted("set title 'Perplexity a token of the %s text, a point for each seed (the axis begins above 0)'\n",
                   test ? "test" : "validation") +
         formatted("unset xlabel\nset xrange %s\nset yrange [%zu.5:-0.5]\nset ytics scale 0 (%s)\n",
                   range.text().c_str(), study.rows.size() - 1, names.c_str()) +
         "plot " + plots + "\n";
}

}  // namespace

std::string study_plot(const Study& study) {
  BG_CHECK(!study.rows.empty(), "study", "nothing to draw", "no finished run", "one or more");
  const int bottom = kBottom + kRow * static_cast<int>(study.rows.size()), total = kTop + bottom;
  std::vector<CurveSeries> curves, against;
  bool held = false;
  for (const StudyRow& row : study.rows) {
    const StudyRow* base = study.baseline(row);
    curves.push_back(loss_curve(row));
    against.push_back(base && base != &row ? loss_curve(row, base) : CurveSeries{row.name, {}, {}});
    for (double& d : against.back().values) d = 100 * std::expm1(d);
    held |= !against.back().steps.empty();
  }
  const int width = held ? kWidth / 2 : kWidth;
  std::string program = formatted(
      "set terminal svg size %d,%d dynamic font 'sans-serif,13' background '#ffffff'\n"
      "set multiplot\nunset key\nset tmargin 2.5\nset border 3 lc rgb '#666666'\nset tics nomirror\nset grid lt 1 lc "
      "rgb '#dddddd'\n",
      kWidth, total);
  program += place(0, bottom, width, kTop, total) + curve_panel(curves, "Training loss, nats a token", false);
  if (held)
    program += place(width, bottom, width, kTop, total) +
               curve_panel(against, "Training perplexity against the standard model, %", true);
  return program + place(0, 0, kWidth, bottom, total) + end_panel(study) + "unset multiplot\n";
}

}  // namespace bg
