// Count, mean and standard deviation of numbers that come one by one.
#pragma once

#include <cmath>
#include <cstdint>
#include <span>

namespace bg {

class Spread {
 public:
  Spread() = default;
  explicit Spread(std::span<const double> values) {
    for (const double x : values) add(x);
  }

  void add(double x) {  // Welford's update: no large sums that cancel
    ++count_;
    const double off = x - mean_;
    mean_ += off / static_cast<double>(count_);
    squares_ += off * (x - mean_);
  }

  int64_t count() const { return count_; }
  double mean() const { return mean_; }
  /// Of a sample: divided by count - 1; 0 below two numbers.
  double sd() const { return count_ > 1 ? std::sqrt(squares_ / static_cast<double>(count_ - 1)) : 0; }

 private:
  int64_t count_ = 0;
  double mean_ = 0, squares_ = 0;
};

}  // namespace bg
