// Plots, drawn by the program gnuplot (optional: only what plots needs it).
#pragma once

#include <string>

namespace bg {

/// What gnuplot writes to standard output for this program, such as an SVG. Throws Error when gnuplot is not installed
/// (naming the package) or refuses the program.
std::string gnuplot(const std::string& program);

}  // namespace bg
