// A training on the terminal: its progress, and the signals that end it.
#pragma once

#include "models/trainer.h"

namespace bg {

/// Progress on standard error: on a terminal one line that is rewritten, with a sparkline of the training loss where
/// the locale has the characters; elsewhere a line every few seconds, so that logs stay short. From now on Ctrl-C,
/// SIGTERM and SIGHUP, unless the caller has them ignored, make `stop` true; where no training has done a step, and so
/// there is nothing to keep, they end the program after two seconds if nothing has called `stop` by then. Ctrl-C once
/// more ends it at once.
TrainProgress terminal_progress();

/// The exit code of a work that `stop` has ended, as shells count it: 130 after Ctrl-C, 143 after SIGTERM, 129 after
/// SIGHUP.
int interrupted_code();

/// Ends the rewritten line, if there is one: the training is over, and signals end the program as before its first
/// step.
void end_progress_line();

}  // namespace bg
