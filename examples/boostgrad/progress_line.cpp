#include "examples/boostgrad/progress_line.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "core/clock.h"
#include "models/unicode.h"

namespace bg {
namespace {

// A dumb terminal shows the codes that rewrite a line.
bool can_rewrite_lines() {
  const char* terminal = std::getenv("TERM");
  return isatty(STDERR_FILENO) && terminal != nullptr && std::string_view(terminal) != "dumb";
}

}  // namespace

ProgressLine::ProgressLine() : live_(can_rewrite_lines()) {}

void ProgressLine::show(const std::string& text) {
  const double now = seconds_now();
  if (now - shown_at_ < (live_ ? 0.2 : 5)) return;
  shown_at_ = now;
  std::fprintf(stderr, live_ ? "\r\033[K%s" : "%s\n", printable(text).c_str());
  std::fflush(stderr);
}

void ProgressLine::say(const std::string& text) {
  std::fprintf(stderr, "%s%s\n", live_ ? "\r\033[K" : "", printable(text).c_str());
}

void ProgressLine::end() {
  if (live_) std::fprintf(stderr, "\n");
}

}  // namespace bg
