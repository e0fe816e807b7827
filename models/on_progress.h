// How long work says where it is.
#pragma once

#include <cstddef>
#include <functional>
#include <string_view>

namespace bg {

/// Called now and then, on the thread that started the work: what is being done, and the share of it that is done, 0
/// to 1. It may throw to end the work. Empty: nobody wants to know.
using OnProgress = std::function<void(std::string_view what, double share)>;

/// Calls it, if there is one.
inline void report_progress(const OnProgress& progress, std::string_view what, std::size_t done, std::size_t total) {
  if (progress) progress(what, total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 1);
}

}  // namespace bg
