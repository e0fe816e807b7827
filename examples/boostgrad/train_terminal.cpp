#include "examples/boostgrad/train_terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "core/format.h"

namespace bg {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void stop_gently_on_interrupt() {
  struct sigaction before {
  }, now{};
  sigaction(SIGINT, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return;  // started in the background by a shell: not ours to take
  now.sa_handler = [](int) {
    g_interrupted = 1;
    constexpr char kText[] = "\ninterrupted: finishing the step and writing a checkpoint (again to quit at once)\n";
    if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
  };
  now.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
  sigaction(SIGINT, &now, nullptr);
}

bool locale_is_utf8() {
  const locale_t user = newlocale(LC_CTYPE_MASK, "", nullptr);  // the program itself stays in the C locale
  if (user == nullptr) return false;
  const bool utf8 = std::strcmp(nl_langinfo_l(CODESET, user), "UTF-8") == 0;
  freelocale(user);
  return utf8;
}

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// The text and, in the room that is left of the terminal's width, the losses.
std::string fitted(std::string text, std::span<const double> losses, bool utf8) {
  constexpr size_t kLeast = 8, kMost = 60;        // cells: fewer show nothing, more are no clearer
  const size_t columns = terminal_columns() - 1;  // in the last column some terminals wrap
  if (text.size() > columns) text.resize(columns);
  const size_t room = columns - text.size();
  if (utf8 && room >= kLeast + 2) text += "  " + sparkline(losses, std::min(room - 2, kMost));
  return text;
}

}  // namespace

TrainProgress terminal_progress() {
  stop_gently_on_interrupt();
  const bool live = isatty(STDERR_FILENO), utf8 = live && locale_is_utf8();
  auto last = std::make_shared<double>(-1e9);
  TrainProgress p;
  p.say = [live](const std::string& text) { std::fprintf(stderr, "%s%s\n", live ? "\r\033[K" : "", text.c_str()); };
  p.state = [=](const TrainState& state) {
    const double now = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
    if (now - *last < (live ? 0.2 : 5)) return;
    *last = now;
    const std::string text = state.text();
    if (live)
      std::fprintf(stderr, "\r\033[K%s", fitted(text, state.losses, utf8).c_str());
    else
      std::fprintf(stderr, "%s\n", text.c_str());
    std::fflush(stderr);
  };
  p.stop = [] { return g_interrupted != 0; };
  return p;
}

void end_progress_line() {
  if (isatty(STDERR_FILENO)) std::fprintf(stderr, "\n");
}

}  // namespace bg
