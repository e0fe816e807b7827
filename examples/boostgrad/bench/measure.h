// How everything here is measured: the work and the machine's own peak in turns, medians of both, and again when the
// peak itself did not hold still.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "core/kernels/peak.h"
#include "examples/boostgrad/bench/cases.h"

namespace bg::bench {

constexpr double kSteady = 0.2;  ///< how far a peak may wander within a run: largest / smallest - 1
constexpr int kAttempts = 3;     ///< runs, until one was steady; the steadiest counts

struct MeasureOptions {
  int rounds = 5;              ///< of work and peak in turns
  double min_seconds = 0.02;   ///< the work of a round is repeated until it takes this long
  double peak_seconds = 0.02;  ///< of a measurement of the peak
};

double median(std::vector<double> v);

/// Largest resident size of the process so far.
int64_t peak_rss_bytes();

/// Samples of a peak within a run.
struct PeakSamples {
  std::vector<double> values;
  double typical() const { return median(values); }
  double spread() const;
};

/// Measures the peak that a case is compared with.
class Yardstick {
 public:
  explicit Yardstick(const MeasureOptions& options) : options_(options) {}
  double gflops(DType dtype) const;
  double gbytes();  ///< of a copy: core/kernels/peak.h
  double of(const Case& c) { return c.unit == Unit::flops ? gflops(c.dtype) : gbytes(); }

 private:
  MeasureOptions options_;
  std::optional<CopyPeak> copy_;  // made when first needed
};

void say_unsteady(const std::string& what, double spread);

/// Repeats `attempt` until its peaks were steady, at most kAttempts times; says so on standard error when they were
/// not. Returns the steadiest. The result has a member `PeakSamples peak`.
template <class F>
auto steadiest(const std::string& what, F&& attempt) {
  auto best = attempt();
  for (int i = 1; best.peak.spread() > kSteady && i < kAttempts; ++i) {
    say_unsteady(what, best.peak.spread());
    auto next = attempt();
    if (next.peak.spread() < best.peak.spread()) best = std::move(next);
  }
  if (best.peak.spread() > kSteady) say_unsteady(what, best.peak.spread());
  return best;
}

struct Measurement {
  double seconds = 0;  ///< median of one run of the work
  PeakSamples peak;
};
Measurement measure(const Case& c, const MeasureOptions& options, Yardstick& yardstick);

/// Bytes that one run of the work takes at most besides its inputs and its results: the growth of the process's
/// largest resident size, or, where the system cannot reset that, of the memory in tensors.
int64_t extra_bytes(const Case& c);

/// A measured case as one JSON object.
nlohmann::ordered_json to_json(const std::string& bench, const Case& c, const Measurement& m);
/// The same as a line of a table, and the table's head.
std::string table_row(const Case& c, const Measurement& m);
std::string table_head();

}  // namespace bg::bench
