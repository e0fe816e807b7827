#include "models/gnuplot.h"

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/format.h"
#include "core/html.h"
#include "core/read_file.h"
#include "core/temporary_folder.h"

namespace bg {
namespace {

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
}

// Cuts out the first part from `begin` to the end of `end`, and returns what stood between the two.
std::string cut(std::string& text, std::string_view begin, std::string_view end) {
  const size_t from = text.find(begin), inside = from + begin.size();
  const size_t to = from == std::string::npos ? from : text.find(end, inside);
  if (to == std::string::npos) return {};
  const std::string between = text.substr(inside, to - inside);
  text.erase(from, to + end.size() - from);
  return between;
}

// gnuplot opens a group for every change of pen, most of which draw nothing.
void drop_empty_groups(std::string& svg) {
  std::string kept;
  size_t at = 0;
  while (true) {
    const size_t close = svg.find(">\n</g>\n", at);
    if (close == std::string::npos) break;
    const size_t open = svg.rfind('<', close);
    const bool empty = open != std::string::npos && open >= at && svg.compare(open, 3, "<g ") == 0;
    const size_t end = close + std::string_view(">\n</g>\n").size();
    kept.append(svg, at, (empty ? open : end) - at);
    at = end;
  }
  svg = kept + svg.substr(at);
}

}  // namespace

InlineSvg inline_svg(const std::string& drawn, const std::string& label) {
  std::string svg = drawn;
  const std::string shapes = cut(svg, "<defs>", "</defs>"), head = cut(svg, "<?xml", "\n>");  // through the svg element
  std::string rest = head;
  const std::string box = cut(rest, "viewBox=\"", "\"");
  BG_CHECK(!shapes.empty() && !box.empty(), "plot", "gnuplot drew no SVG as it is known", drawn.substr(0, 100));
  cut(svg, "<title>", "</title>");
  cut(svg, "<desc>", "</desc>");
  replace_all(svg, " stroke-linecap=\"butt\" stroke-linejoin=\"miter\"", "");
  drop_empty_groups(svg);
  for (const char* ink : {"stroke='black'", "stroke=\"black\""}) replace_all(svg, ink, "stroke=\"currentColor\"");
  replace_all(svg, "fill=\"black\"", "fill=\"currentColor\"");
  for (const char* grid : {"stroke='rgb(192, 192, 192)'", "stroke=\"rgb(192, 192, 192)\""})
    replace_all(svg, grid, "stroke=\"var(--line)\"");
  for (const char* color : {" color=\"black\"", " color=\"gray\"", " color=\"white\""}) replace_all(svg, color, "");
  replace_all(svg, "xlink:href", "href");
  while (!cut(svg, "<title>gnuplot_plot_", "</title>").empty()) continue;  // of what has no title
  while (!cut(svg, " id=\"", "\"").empty()) continue;
  return {str("<svg role=\"img\" viewBox=\"", box, "\" aria-label=\"", html_escaped(label), "\">", svg), shapes};
}

std::string gnuplot(const std::string& program) {
  const TemporaryFolder folder;
  const auto in = folder.path() / "program", out = folder.path() / "out", errors = folder.path() / "errors";
  write_file_atomically(in, program);
  const int status = std::system(
      str("gnuplot ", shell_word(in), " >", shell_word(out), " 2>", shell_word(errors), " </dev/null").c_str());
  constexpr int kNotFound = 127;
  BG_CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != kNotFound, "plot", "gnuplot is not installed", "",
           "the program gnuplot, which draws all plots", "sudo apt-get install gnuplot-nox");
  std::string told = read_file(errors, FileKind::drawing);
  for (char& c : told)
    if (c == '\n') c = ' ';
  const std::string drawn = read_file(out, FileKind::drawing);
  BG_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !drawn.empty(), "plot", "gnuplot failed",
           told.substr(0, 300));
  return drawn;
}

void require_gnuplot() { gnuplot("set terminal svg; plot 0"); }

}  // namespace bg
