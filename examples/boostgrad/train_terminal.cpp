#include "examples/boostgrad/train_terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstring>

#include "core/format.h"
#include "examples/boostgrad/progress_line.h"

namespace bg {
namespace {

volatile std::sig_atomic_t g_interrupted = 0;

void stop_gently_on_interrupt() {
  // Ctrl-C ends whoever reads the output through a pipe (tee) at the same moment: that must not take the checkpoint.
  std::signal(SIGPIPE, SIG_IGN);
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
  auto line = std::make_shared<ProgressLine>();
  const bool utf8 = line->live() && locale_is_utf8();
  TrainProgress p;
  p.say = [line](const std::string& text) { line->say(text); };
  p.state = [line, utf8](const TrainState& state) {
    line->show(line->live() ? fitted(state.text(), state.losses, utf8) : state.text());
  };
  p.stop = [] { return g_interrupted != 0; };
  return p;
}

void end_progress_line() { ProgressLine().end(); }

}  // namespace bg
