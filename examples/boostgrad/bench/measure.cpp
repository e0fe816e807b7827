#include "examples/boostgrad/bench/measure.h"

#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "core/clock.h"
#include "core/format.h"
#include "core/parallel.h"
#include "core/storage.h"

namespace bg::bench {

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v.size() % 2 ? v[v.size() / 2] : (v[v.size() / 2 - 1] + v[v.size() / 2]) / 2;
}

int64_t peak_rss_bytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

double PeakSamples::spread() const {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *high / *low - 1;
}

double Yardstick::gflops(DType dtype) const {
  return dtype == DType::f64 ? fma_peak_gflops_f64(num_threads(), options_.peak_seconds)
                             : fma_peak_gflops(num_threads(), options_.peak_seconds);
}

double Yardstick::gbytes() {
  if (!copy_) copy_.emplace();
  return copy_->gbytes(num_threads(), options_.peak_seconds);
}

void say_unsteady(const std::string& what, double spread) {
  std::fprintf(stderr, "%s: the peak itself wandered by %.0f %%: other work disturbs this machine\n", what.c_str(),
               100 * spread);
}

Measurement measure(const Case& c, const MeasureOptions& options, Yardstick& yardstick) {
  const auto run = c.prepare();
  auto seconds_of = [&](int calls) {
    const double start = seconds_now();
    for (int i = 0; i < calls; ++i) run();
    return (seconds_now() - start) / calls;
  };
  run();  // touches the memory
  const int calls = static_cast<int>(std::ceil(std::max(1.0, options.min_seconds / std::max(1e-7, seconds_of(1)))));
  return steadiest(str(c.name, " ", c.shape, " ", c.pass), [&] {
    Measurement m;
    std::vector<double> seconds;
    for (int i = 0; i < options.rounds; ++i) {
      m.peak.values.push_back(yardstick.of(c));
      seconds.push_back(seconds_of(calls));
    }
    m.peak.values.push_back(yardstick.of(c));
    m.seconds = median(seconds);
    return m;
  });
}

namespace {

/// VmHWM or VmRSS of this process, in bytes.
int64_t status_bytes(const std::string& field) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(field + ":")) return std::stoll(line.substr(field.size() + 1)) * 1024;
  return 0;
}

bool reset_peak_rss() {
  std::ofstream file("/proc/self/clear_refs");
  file << 5 << std::flush;
  return file.good();
}

}  // namespace

int64_t extra_bytes(const Case& c) {
  const auto run = c.prepare();
  release_cached_memory();
  malloc_trim(0);
  reset_peak_bytes();
  const auto live = static_cast<int64_t>(memory_stats().live_bytes);
  const int64_t resident = status_bytes("VmRSS");
  const bool by_resident = reset_peak_rss();
  const Vars results = run();
  int64_t result_bytes = 0;
  for (const Var& v : results) result_bytes += v.value().numel() * static_cast<int64_t>(size_of(v.dtype()));
  const int64_t grown =
      by_resident ? status_bytes("VmHWM") - resident : static_cast<int64_t>(memory_stats().peak_bytes) - live;
  return std::max<int64_t>(0, grown - result_bytes);
}

nlohmann::ordered_json to_json(const std::string& bench, const Case& c, const Measurement& m) {
  const double speed = c.work / m.seconds * 1e-9, peak = m.peak.typical();
  nlohmann::ordered_json j{{"bench", bench}, {"name", c.name},           {"shape", c.shape},    {"dtype", str(c.dtype)},
                           {"pass", c.pass}, {"threads", num_threads()}, {"seconds", m.seconds}};
  if (c.unit == Unit::flops) {
    j.update({{"gflops", speed}, {"fma_peak_gflops", peak}, {"mfu", speed / peak}});
  } else {
    j.update({{"gbs", speed}, {"copy_peak_gbs", peak}, {"ratio", speed / peak}});
  }
  j["peak_spread"] = m.peak.spread();
  return j;
}

std::string table_head() { return formatted("%-70s %-5s %-8s %10s  %s", "case", "type", "pass", "time", "speed"); }

std::string table_row(const Case& c, const Measurement& m) {
  const bool flops = c.unit == Unit::flops;
  const double speed = c.work / m.seconds * 1e-9, peak = m.peak.typical();
  return formatted("%-70s %-5s %-8s %7.2f ms  %6.1f %s = %.2f of the %s of %.0f", str(c.name, "  ", c.shape).c_str(),
                   str(c.dtype).c_str(), c.pass.c_str(), m.seconds * 1e3, speed, flops ? "GFLOP/s" : "GB/s",
                   speed / peak, flops ? "peak" : "copy speed", peak);
}

}  // namespace bg::bench
