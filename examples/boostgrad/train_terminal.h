// A training on the terminal: its progress, and Ctrl-C.
#pragma once

#include "models/trainer.h"

namespace bg {

constexpr int kInterruptedCode = 130;  ///< exit code after Ctrl-C, as shells count it

/// Progress on standard error: on a terminal one line that is rewritten, with a sparkline of the training loss where
/// the locale has the characters; elsewhere a line every few seconds, so that logs stay short. Ctrl-C (from now on)
/// makes `stop` true; once more ends the program at once.
TrainProgress terminal_progress();

/// Ends the rewritten line, if there is one.
void end_progress_line();

}  // namespace bg
