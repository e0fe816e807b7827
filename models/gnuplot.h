// Plots, drawn by the program gnuplot (optional: only what plots needs it).
#pragma once

#include <string>

namespace bg {

/// A text as a string of gnuplot's, where no character is more than itself: those that may mean something to gnuplot
/// are given by their numbers. Line breaks, other control characters and what is no UTF-8 are written out (\n, \xff).
std::string gnuplot_string(const std::string& text);

/// The SVG that gnuplot draws for this program, which sets the terminal. The settings of the user
/// (start-up files, environment, locale) are left out; the program is in UTF-8. Throws Error when gnuplot is not
/// installed (naming the package), refuses the program or gives less than a whole SVG.
std::string gnuplot(const std::string& program);

/// Throws as gnuplot() does where it is not installed: to be called before long work, not after it.
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
