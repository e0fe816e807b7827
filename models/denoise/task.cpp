#include "models/denoise/task.h"

#include <algorithm>
#include <cmath>

#include "core/tensor_ops.h"

namespace bg::denoise {
namespace {

constexpr std::string_view kName = "denoise";

// Normal numbers by Marsaglia's polar method: two from each pair of uniforms inside the unit circle, and one logarithm.
// Drawing the noise costs as much as a training step when each number takes a logarithm and a cosine of its own.
void fill_normal(float* x, int64_t n, Rng& rng) {
  auto uniform = [&] { return static_cast<float>(static_cast<int32_t>(rng.next_u32())) * 0x1p-31f; };  // [-1, 1)
  for (int64_t i = 0; i < n; i += 2) {
    float u, v, s;
    do {
      u = uniform(), v = uniform();
      s = u * u + v * v;
    } while (s >= 1 || s == 0);
    const float r = std::sqrt(-2 * std::log(s) / s);
    x[i] = u * r;
    if (i + 1 < n) x[i + 1] = v * r;
  }
}

}  // namespace

Task::Task(const Setting& setting, Rng rng) : setting_(setting) {
  BG_CHECK(setting.d >= 1 && setting.patterns >= 1, kName, "bad size",
           str(setting.patterns, " patterns in ", setting.d, " dimensions"), "1 or more of each");
  BG_CHECK(setting.sigma >= 0, kName, "bad noise", str(setting.sigma), "0 or more");
  const int64_t d = setting.d;
  patterns_ = Tensor::empty({setting.patterns, d});
  float* p = patterns_.mutable_data<float>(kName);
  fill_normal(p, patterns_.numel(), rng);
  for (int64_t k = 0; k < setting.patterns; ++k, p += d) {
    double length = 0;
    for (int64_t i = 0; i < d; ++i) length += static_cast<double>(p[i]) * static_cast<double>(p[i]);
    for (int64_t i = 0; i < d; ++i) p[i] = static_cast<float>(p[i] / std::sqrt(length));
  }
}

Batch Task::draw(int64_t n, Rng& rng) const {
  const int64_t d = setting_.d;
  Batch b{Tensor::empty({n, d}), Tensor::empty({n, d}), Tensor::empty({n}, DType::i64)};
  float *q = b.queries.mutable_data<float>(kName), *t = b.targets.mutable_data<float>(kName);
  int64_t* id = b.ids.mutable_data<int64_t>(kName);
  const float *p = patterns_.data<float>(), sigma = static_cast<float>(setting_.sigma);
  fill_normal(q, n * d, rng);
  for (int64_t r = 0; r < n; ++r, q += d, t += d) {
    id[r] = static_cast<int64_t>(rng.below(static_cast<uint64_t>(setting_.patterns)));
    const float* own = p + id[r] * d;
    for (int64_t i = 0; i < d; ++i) t[i] = own[i], q[i] = own[i] + sigma * q[i];
  }
  return b;
}

std::vector<int64_t> Task::answers(const Tensor& outputs) const {
  // all patterns have length 1: the nearest is the one with the largest product
  const Tensor scores = num::matmul(outputs.to(DType::f32), patterns_.transpose(0, 1));
  const int64_t K = setting_.patterns;
  const float* s = scores.data<float>();
  std::vector<int64_t> best(static_cast<size_t>(outputs.size(0)));
  for (int64_t& b : best) {
    b = std::max_element(s, s + K) - s;
    s += K;
  }
  return best;
}

double Task::accuracy(const Tensor& outputs, const Tensor& ids) const {
  const std::vector<int64_t> best = answers(outputs);
  const int64_t* id = ids.data<int64_t>();
  int64_t right = 0;
  for (size_t n = 0; n < best.size(); ++n) right += best[n] == id[n];
  return 100.0 * static_cast<double>(right) / static_cast<double>(best.size());
}

}  // namespace bg::denoise
