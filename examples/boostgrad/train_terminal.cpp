#include "examples/boostgrad/train_terminal.h"

#include <langinfo.h>
#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <string_view>

#include "core/clock.h"
#include "core/format.h"
#include "examples/boostgrad/progress_line.h"

namespace bg {
namespace {

struct EndingSignal {
  int number;
  std::string_view announcement;
};
constexpr EndingSignal kEndingSignals[] = {
    {SIGINT, "\ninterrupted"}, {SIGTERM, "\ninterrupted by SIGTERM"}, {SIGHUP, "\ninterrupted by SIGHUP"}};

volatile std::sig_atomic_t g_signal = 0;    // that ends the program; 0: none
volatile std::sig_atomic_t g_training = 0;  // a step is done: there is something to keep
timespec g_interrupted_at;

// What signal handlers may do is little: no allocation, no printf.
void print_from_handler(std::string_view text) {
  if (write(STDERR_FILENO, text.data(), text.size()) < 0) return;
}

double seconds_since(const timespec& before) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec - before.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec - before.tv_nsec);
}

// Programs that end others (timeout, systemd, a closing terminal) may send their signal twice at once, so only a second
// Ctrl-C, and not one of the same moment, quits.
void end_gently(int number) {
  constexpr double kSameMoment = 0.3;  // seconds
  const int saved = errno;
  if (g_signal == 0) {
    g_signal = number;
    clock_gettime(CLOCK_MONOTONIC, &g_interrupted_at);
    for (const EndingSignal& s : kEndingSignals)
      if (s.number == number) print_from_handler(s.announcement);
    print_from_handler(g_training ? ": finishing the step and writing a checkpoint (Ctrl-C again to quit at once)\n"
                                  : ": stopping\n");
    if (!g_training) alarm(2);
  } else if (number == SIGINT && seconds_since(g_interrupted_at) > kSameMoment) {
    std::signal(SIGINT, SIG_DFL);
    raise(SIGINT);
  }
  errno = saved;
}

// Nothing has called `stop` since the signal came. What is going on may be anything but a step: text or tokenizer are
// read, results are computed, a plot is drawn.
void end_at_once(int) {
  if (g_training) return;
  print_from_handler(
      "boostgrad: [signal] interrupted while nothing was trained: what was saved before is kept. Try: the same command "
      "again.\n");
  _exit(interrupted_code());
}

void end_gently_on_signals() {
  // Ctrl-C ends whoever reads the output through a pipe (tee) at the same moment: that must not take the checkpoint.
  std::signal(SIGPIPE, SIG_IGN);
  struct sigaction before {
  }, now{};
  now.sa_flags = SA_RESTART;
  now.sa_handler = end_at_once;
  sigaction(SIGALRM, &now, nullptr);
  now.sa_handler = end_gently;
  for (const EndingSignal& s : kEndingSignals) {
    sigaction(s.number, nullptr, &before);  // ignored: by nohup, or by a shell that started it in the background
    if (before.sa_handler != SIG_IGN) sigaction(s.number, &now, nullptr);
  }
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

// A phase of the preparation, and when it began.
struct PhaseStart {
  std::string what;
  double seconds = 0, share = 0;

  // Whether the phase takes long enough to speak of it.
  bool is_long(std::string_view now, double share_done) {
    if (now != what) *this = {std::string(now), seconds_now(), share_done};
    return seconds_now() - seconds > 1;
  }
  // "learning merges: 40 %, 0m12s left"
  std::string text(double share_done) const {
    const double rate = (share_done - share) / std::max(seconds_now() - seconds, 1e-9);
    return formatted("%s: %.0f %%", what.c_str(), 100 * share_done) +
           (rate > 0 ? str(", ", duration_text((1 - share_done) / rate), " left") : "");
  }
};

}  // namespace

TrainProgress terminal_progress() {
  end_gently_on_signals();
  auto line = std::make_shared<ProgressLine>();
  const bool utf8 = line->live() && locale_is_utf8();
  TrainProgress p;
  p.say = [line](const std::string& text) { line->say(text); };
  p.preparing = [line, start = PhaseStart()](std::string_view what, double share) mutable {
    g_training = 0;
    if (start.is_long(what, share)) line->show(start.text(share));
  };
  p.state = [line, utf8](const TrainState& state) {
    g_training = 1;
    line->show(line->live() ? fitted(state.text(), state.losses, utf8) : state.text());
  };
  p.stop = [](int64_t) {
    if (g_signal != 0) alarm(0);
    return g_signal != 0;
  };
  return p;
}

int interrupted_code() { return 128 + g_signal; }

void end_progress_line() {
  g_training = 0;
  ProgressLine().end();
}

}  // namespace bg
