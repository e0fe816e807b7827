// What the program makes sure of about its own process before it does anything else.
#pragma once

namespace bg {

/// Gives the standard streams that the caller has closed back to /dev/null, so that no file of a run is opened under
/// their numbers and receives what is printed. As before, what is written to them fails. Also waits for children
/// (gnuplot) whatever the caller has set.
void prepare_process();

}  // namespace bg
