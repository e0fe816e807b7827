// Plots, drawn by the program gnuplot (optional: only what plots needs it).
#pragma once

#include <string>

namespace bg {

/// What gnuplot writes to standard output for this program, such as an SVG. Throws Error when gnuplot is not installed
/// (naming the package) or refuses the program.
std::string gnuplot(const std::string& program);

/// Throws as gnuplot() does where it is not installed: to be asked before long work, not after it.
void require_gnuplot();

/// An SVG of gnuplot's as a part of an HTML page: small, in the page's own ink and without colours of its own for text,
/// axes and the grid (lines of the colour #c0c0c0 take the page's --line), named for those who cannot see it. What all
/// plots of a page share, the shapes of points, is apart: it must stand in the page once.
struct InlineSvg {
  std::string svg;
  std::string shapes;  ///< elements for a <defs>
};
InlineSvg inline_svg(const std::string& drawn, const std::string& label);

}  // namespace bg
