// The figure of a study: who learns faster, and who ends where.
#pragma once

#include <string>

#include "models/study.h"

namespace bg {

/// A program for gnuplot (models/gnuplot.h), which draws an SVG of three panels:
/// - the training loss against the step, the mean over the seeds;
/// - the training perplexity against that of the row's standard model at the same step and seed, in percent: both have
///   seen the same text by then, so that small differences show long before the end;
/// - the perplexity that each row ends with, a point for each seed. Its lines are the legend of the other two.
/// The study must have a row.
std::string study_plot(const Study& study);

}  // namespace bg
