// What the machine can do at most: the yardsticks that every speed is quoted against, measured in the same run.
#pragma once

namespace bg {

/// Billions of floating-point operations per second (one fused multiply-add counts as two) of `threads` workers that
/// do nothing but independent multiply-adds on registers, with the widest vectors the machine has, averaged over about
/// `seconds`. The pool is set to `threads` for the measurement and back afterwards, so do not call it while other
/// parallel work runs. Throws Error when threads < 1 or seconds is not positive.
double fma_peak_gflops(int threads, double seconds);      // float
double fma_peak_gflops_f64(int threads, double seconds);  // double

/// Billions of bytes per second, read plus written, of a copy between two buffers far larger than the caches.
/// Same conditions as above.
double copy_peak_gbytes(int threads, double seconds);

}  // namespace bg
