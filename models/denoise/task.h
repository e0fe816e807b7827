// The paper's synthetic task (Sargolzaei, arXiv 2604.03190): which stored pattern is behind a noisy query?
//
// K patterns of length 1 in R^d; a query is one of them plus sigma N(0, I). A model attends from the query to the
// patterns, and its answer is the pattern nearest to its output.
#pragma once

#include <vector>

#include "core/rng.h"
#include "core/tensor.h"

namespace bg::denoise {

struct Setting {
  int64_t d = 64, patterns = 16;
  double sigma = 0.5;
};

struct Batch {
  Tensor queries, targets;  // (n, d)
  Tensor ids;               // (n): which pattern a query comes from
};

class Task {
 public:
  /// Draws the patterns: directions uniform on the sphere.
  Task(const Setting& setting, Rng rng);

  const Setting& setting() const { return setting_; }
  const Tensor& patterns() const { return patterns_; }  ///< (K, d), f32, rows of length 1
  Batch draw(int64_t n, Rng& rng) const;
  /// The pattern nearest to each output (n, d), in the Euclidean distance.
  std::vector<int64_t> answers(const Tensor& outputs) const;
  /// The percentage of outputs that answer with the query's own pattern.
  double accuracy(const Tensor& outputs, const Tensor& ids) const;

 private:
  Setting setting_;
  Tensor patterns_;
};

}  // namespace bg::denoise
