// The plots of a report: each is one function that gives a program for gnuplot, drawn into an SVG that fits into a page
// (models/gnuplot.h: inline_svg).
#pragma once

#include <string>
#include <vector>

#include "models/analysis.h"
#include "models/run_log.h"

namespace bg {

/// How the i-th of several series looks: colours that readers with any colour vision tell apart, on light and dark, and
/// another dash pattern each.
struct SeriesStyle {
  std::string color;   ///< #rrggbb
  std::string dashes;  ///< lengths of strokes and gaps, such as "8,4"; empty: solid
};
SeriesStyle series_style(size_t index);
/// The same for gnuplot, after "with lines".
std::string line_style(size_t index, double width = 2);

struct Plot {
  std::string title, note;          ///< plain text
  std::vector<std::string> series;  ///< names by style index; empty: one series, or named in the note
  std::string program;              ///< for gnuplot; empty: nothing to draw
};

/// A curve by step, thinned to at most `most` points: means over equal stretches of steps, or of their logarithm.
struct CurveSeries {
  std::string name;
  std::vector<double> steps, values;
};
CurveSeries thinned(const CurveSeries& curve, size_t most, bool logarithmic);

enum class CurveKind { training, validation };
/// Loss against step of all runs; both axes linear or both logarithmic. `names` are the runs'.
Plot curve_plot(const std::vector<const RunLog*>& runs, const std::vector<std::string>& names, CurveKind kind,
                bool logarithmic);

Plot entropy_plot(const Analysis& analysis);
Plot residual_plot(const Analysis& analysis);
Plot gate_plot(const Analysis& analysis);
Plot gate_dimensions_plot(const Analysis& analysis, size_t round);
Plot openness_plot(const Analysis& analysis, size_t round);
Plot hull_plot(const Analysis& analysis);
/// One layer and round.
Plot attention_map_plot(const AttentionMaps& maps, size_t layer, size_t round);

}  // namespace bg
