// Where a long work is, on standard error: on a terminal one line that is rewritten, elsewhere a line every few
// seconds, so that logs stay short.
#pragma once

#include <string>

namespace bg {

/// Control characters, as a path may have them, are shown as \\n and the like.
class ProgressLine {
 public:
  ProgressLine();

  bool live() const { return live_; }  ///< on a terminal
  /// The state, replaced by the next one; kept to itself when the last one was shown a moment ago.
  void show(const std::string& text);
  /// An event, on a line of its own.
  void say(const std::string& text);
  /// The last state stays, and what follows begins a new line.
  void end();

 private:
  bool live_;
  double shown_at_ = -1e9;  // seconds
};

}  // namespace bg
