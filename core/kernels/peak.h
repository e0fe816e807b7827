// What the machine can do at most: the yardsticks that every speed is quoted against, measured in the same run.
#pragma once

#include <memory>

namespace bg {

/// Billions of floating-point operations per second (one fused multiply-add counts as two) of `threads` workers that
/// do nothing but independent multiply-adds on registers, with the widest vectors the machine has, averaged over about
/// `seconds`. The pool is set to `threads` for the measurement and back afterwards, so do not call it while other
/// parallel work runs. Throws Error when threads < 1 or seconds is not positive.
double fma_peak_gflops(int threads, double seconds);      // float
double fma_peak_gflops_f64(int threads, double seconds);  // double

/// The speed of memory. Holds the two buffers of the copy, 128 MiB each: far larger than the caches.
class CopyPeak {
 public:
  CopyPeak();  ///< throws Error when there is no memory
  ~CopyPeak();
  /// Billions of bytes per second of a copy between the buffers. A byte copied counts as two: one read, one written
  /// (past the caches). Conditions and errors as above.
  double gbytes(int threads, double seconds);

 private:
  struct Buffers;
  std::unique_ptr<Buffers> buffers_;
};

}  // namespace bg
