#include "models/gnuplot.h"

#include <spawn.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/format.h"
#include "core/html.h"
#include "models/unicode.h"

namespace bg {
namespace {

// A file in memory, which no full or strangely named folder can harm.
class MemoryFile {
 public:
  MemoryFile() : fd_(memfd_create("boostgrad", MFD_CLOEXEC)) {
    if (fd_ < 0) fail_with_errno();
  }
  explicit MemoryFile(std::string_view content) : MemoryFile() {  // from here on the destructor closes what fails
    while (!content.empty()) {
      const ssize_t n = write(fd_, content.data(), content.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) fail_with_errno();
      content.remove_prefix(static_cast<size_t>(n));
    }
    lseek(fd_, 0, SEEK_SET);
  }
  ~MemoryFile() { close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int fd() const { return fd_; }
  std::string content() const {
    struct stat info {};
    if (fstat(fd_, &info) != 0) fail_with_errno();
    std::string text(static_cast<size_t>(info.st_size), '\0');
    for (size_t done = 0; done < text.size();) {
      const ssize_t n = pread(fd_, text.data() + done, text.size() - done, static_cast<off_t>(done));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail_with_errno();
      done += static_cast<size_t>(n);
    }
    return text;
  }

 private:
  [[noreturn]] static void fail_with_errno() { fail("plot", "cannot pass a plot to gnuplot", std::strerror(errno)); }
  int fd_;
};

// What the environment may say to gnuplot: nothing about terminals, files and folders of its own; and one locale, so
// that the same runs give the same plots everywhere.
std::vector<char*> environment_of_gnuplot() {
  static char locale[] = "LC_ALL=C.UTF-8";
  std::vector<char*> kept{locale};
  for (char** entry = environ; entry && *entry; ++entry) {
    const std::string_view text(*entry);
    const bool dropped = text.starts_with("GNU") || text.starts_with("FIT_") || text.starts_with("LC_ALL=");
    if (!dropped) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  return kept;
}

// Runs gnuplot on open files and returns its wait status. No shell, and no name of a file, reaches it; -d leaves out
// the start-up files of the user and the system.
int run_gnuplot(int in, int out, int errors) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  for (const auto& [from, to] : {std::pair(in, 0), {out, 1}, {errors, 2}})
    posix_spawn_file_actions_adddup2(&files, from, to);
  posix_spawnattr_t attributes;  // the signals that this program ignores are not gnuplot's to ignore
  posix_spawnattr_init(&attributes);
  sigset_t usual;
  sigemptyset(&usual);
  for (const int signal : {SIGPIPE, SIGXFSZ}) sigaddset(&usual, signal);
  posix_spawnattr_setsigdefault(&attributes, &usual);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF);
  char name[] = "gnuplot", no_start_up_files[] = "-d";
  char* arguments[] = {name, no_start_up_files, nullptr};
  pid_t child = 0;
  const int error = posix_spawnp(&child, name, &files, &attributes, arguments, environment_of_gnuplot().data());
  posix_spawn_file_actions_destroy(&files);
  posix_spawnattr_destroy(&attributes);
  BG_CHECK(error != ENOENT, "plot", "gnuplot is not installed", "", "the program gnuplot, which draws all plots",
           "sudo apt-get install gnuplot-nox");
  BG_CHECK(error == 0, "plot", "cannot start gnuplot", std::strerror(error), "",
           "is there memory, and a right to run it?");
  int status = 0;
  while (waitpid(child, &status, 0) < 0)
    BG_CHECK(errno == EINTR, "plot", "cannot wait for gnuplot", std::strerror(errno));
  return status;
}

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

std::string gnuplot_string(const std::string& text) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 .,:;-+/|<>()=_";
  std::string quoted = "\"";
  for (const char c : printable(text)) {
    const bool plain = kPlain.find(c) != kPlain.npos || static_cast<signed char>(c) < 0;
    quoted += plain ? std::string(1, c) : formatted("\\%03o", static_cast<unsigned>(c));
  }
  return quoted + "\"";
}

std::string gnuplot(const std::string& program) {
  const MemoryFile in("set encoding utf8\n" + program + "\n"), out, errors;
  const int status = run_gnuplot(in.fd(), out.fd(), errors.fd());
  std::string reason = errors.content().substr(0, 300);
  for (char& c : reason)
    if (c == '\n') c = ' ';
  if (reason.empty() && WIFSIGNALED(status)) reason = str("signal ", WTERMSIG(status));
  if (reason.empty()) reason = str("exit code ", WEXITSTATUS(status));
  BG_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "plot", "gnuplot failed", reason);
  std::string drawn = out.content();
  const size_t end = drawn.find_last_not_of(" \n") + 1;
  BG_CHECK(std::string_view(drawn).substr(0, end).ends_with("</svg>"), "plot", "gnuplot's SVG is cut off",
           str(drawn.size(), " bytes without an end"), "</svg> at the end", "room in memory, or a larger ulimit -f");
  return drawn;
}

void require_gnuplot() { gnuplot("set terminal svg; plot 0"); }

}  // namespace bg
