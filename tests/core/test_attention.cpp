// Attention forward and backward against naive long double loops, and those loops against finite differences.
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/kernels/attention.h"
#include "core/kernels/simd.h"
#include "core/parallel.h"
#include "tests/catch.h"

using bg::AttentionShape;
using bg::HeadView;
using Wide = long double;

namespace {

// A (B, T, H, d) array inside a larger buffer: each row of a batch has `gap` foreign elements after its heads.
template <class T>
struct Array {
  int64_t batch, time, heads, d, gap;
  bool shared;  // one batch row for all: stride 0
  std::vector<T> data;

  Array(int64_t b, int64_t t, int64_t h, int64_t d_, int64_t gap_ = 0, bool shared_ = false)
      : batch(b), time(t), heads(h), d(d_), gap(gap_), shared(shared_), data((shared_ ? 1 : b) * t * (h * d_ + gap_)) {}

  int64_t row() const { return heads * d + gap; }
  int64_t batch_stride() const { return shared ? 0 : time * row(); }
  int64_t at(int64_t b, int64_t t, int64_t h, int64_t i) const { return b * batch_stride() + t * row() + h * d + i; }
  T& operator()(int64_t b, int64_t t, int64_t h, int64_t i) { return data[at(b, t, h, i)]; }
  T operator()(int64_t b, int64_t t, int64_t h, int64_t i) const { return data[at(b, t, h, i)]; }

  Array& fill(unsigned seed, double scale = 1) {
    std::mt19937 g(seed);
    std::normal_distribution<double> normal;
    for (T& x : data) x = static_cast<T>(scale * normal(g));
    return *this;
  }
  template <class U>
  Array<U> as() const {
    Array<U> out(batch, time, heads, d, gap, shared);
    for (size_t i = 0; i < data.size(); ++i) out.data[i] = static_cast<U>(data[i]);
    return out;
  }
  HeadView<T> view() { return {data.data(), batch_stride(), row(), d}; }
  HeadView<const T> view() const { return {data.data(), batch_stride(), row(), d}; }
};

struct Case {
  int64_t batch, heads, queries, keys, d_key, d_value;
  bool causal = false;
  double dropout = 0;
  std::vector<int64_t> lengths{};
  bool entropy = false;
  int64_t gap = 0;
  bool shared_memory = false;
  double spread = 1;  // of the queries: large makes large logits

  AttentionShape shape() const {
    AttentionShape s;
    s.batch = batch, s.heads = heads, s.queries = queries, s.keys = keys, s.d_key = d_key, s.d_value = d_value;
    s.causal = causal, s.dropout = dropout, s.scale = 1 / std::sqrt(static_cast<double>(d_key));
    s.lengths = lengths.empty() ? nullptr : lengths.data();
    s.mask = {7, 11};
    return s;
  }
  bool sees(int64_t b, int64_t i, int64_t j) const {
    return (lengths.empty() || j < lengths[b]) && (!causal || j <= i + keys - queries);
  }
  std::string text() const {
    return bg::str("B ", batch, " H ", heads, " Tq ", queries, " Tk ", keys, " d ", d_key, "/", d_value,
                   causal ? " causal" : "", " dropout ", dropout, lengths.empty() ? "" : " lengths",
                   entropy ? " entropy" : "", " gap ", gap, shared_memory ? " shared" : "", " spread ", spread);
  }
};

std::vector<Case> cases() {
  std::vector<Case> list;
  for (bool causal : {false, true}) {
    for (double dropout : {0.0, 0.3}) {
      list.push_back({1, 1, 1, 1, 1, 1, causal, dropout});
      list.push_back({2, 2, 3, 3, 4, 4, causal, dropout, {}, true});
      list.push_back({2, 3, 65, 65, 16, 16, causal, dropout, {65, 40}, true, 5});
      list.push_back({1, 2, 130, 130, 8, 24, causal, dropout, {}, true});
      list.push_back({2, 1, 3, 65, 7, 5, causal, dropout, {64, 1}, false, 3});
      list.push_back({2, 2, 70, 20, 8, 8, causal, dropout, {0, 13}, true});
      list.push_back({3, 1, 9, 17, 6, 4, causal, dropout, {}, true, 0, true});
    }
  }
  list.push_back({1, 1, 40, 40, 16, 16, true, 0, {}, true, 0, false, 3000});  // logits of about +-1e4
  return list;
}

struct Reference {
  Array<Wide> o;
  std::vector<Wide> max, log_sum, head_entropy, entropy;
};

Wide mask_of(const Case& c, int64_t b, int64_t h, int64_t i, int64_t j) {
  if (c.dropout == 0) return 1;
  double m;
  bg::mask_scale<double>({7, 11}, ((b * c.heads + h) * c.queries + i) * c.keys + j, 1, c.dropout, &m);
  return m == 0 ? Wide(0) : 1 / (1 - Wide(c.dropout));
}

std::vector<Wide> logits(const Case& c, const Array<Wide>& q, const Array<Wide>& k, int64_t b, int64_t h, int64_t i) {
  std::vector<Wide> s(c.keys);
  for (int64_t j = 0; j < c.keys; ++j) {
    for (int64_t e = 0; e < c.d_key; ++e) s[j] += q(b, i, h, e) * k(b, j, h, e);
    s[j] *= Wide(c.shape().scale);
  }
  return s;
}

Reference forward(const Case& c, const Array<Wide>& q, const Array<Wide>& k, const Array<Wide>& v) {
  const int64_t n = c.batch * c.heads * c.queries;
  Reference r{Array<Wide>(c.batch, c.queries, c.heads, c.d_value), std::vector<Wide>(n), std::vector<Wide>(n),
              std::vector<Wide>(n), std::vector<Wide>(c.batch * c.queries)};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.queries; ++i) {
        const int64_t at = (b * c.heads + h) * c.queries + i;
        const auto s = logits(c, q, k, b, h, i);
        Wide top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < c.keys; ++j)
          if (c.sees(b, i, j)) top = std::max(top, s[j]);
        if (top == -INFINITY) continue;
        for (int64_t j = 0; j < c.keys; ++j)
          if (c.sees(b, i, j)) sum += std::exp(s[j] - top);
        r.max[at] = top, r.log_sum[at] = std::log(sum);
        for (int64_t j = 0; j < c.keys; ++j) {
          if (!c.sees(b, i, j)) continue;
          const Wide p = std::exp(s[j] - top) / sum;
          if (p > 0) r.head_entropy[at] -= p * std::log(p);
          for (int64_t e = 0; e < c.d_value; ++e) r.o(b, i, h, e) += mask_of(c, b, h, i, j) * p * v(b, j, h, e);
        }
        r.entropy[b * c.queries + i] += r.head_entropy[at] / c.heads;
      }
  return r;
}

// <d_o, o> + <d_entropy, entropy>
Wide loss(const Case& c, const Array<Wide>& q, const Array<Wide>& k, const Array<Wide>& v, const Array<Wide>& d_o,
          const std::vector<Wide>& d_entropy) {
  const Reference r = forward(c, q, k, v);
  Wide sum = 0;
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t i = 0; i < c.queries; ++i) {
      for (int64_t h = 0; h < c.heads; ++h)
        for (int64_t e = 0; e < c.d_value; ++e) sum += r.o(b, i, h, e) * d_o(b, i, h, e);
      if (c.entropy) sum += r.entropy[b * c.queries + i] * d_entropy[b * c.queries + i];
    }
  return sum;
}

struct Gradients {
  Array<Wide> dq, dk, dv;  // dk and dv dense
};

Gradients backward(const Case& c, const Array<Wide>& q, const Array<Wide>& k, const Array<Wide>& v,
                   const Array<Wide>& d_o, const std::vector<Wide>& d_entropy) {
  const Reference r = forward(c, q, k, v);
  Gradients g{Array<Wide>(c.batch, c.queries, c.heads, c.d_key), Array<Wide>(c.batch, c.keys, c.heads, c.d_key),
              Array<Wide>(c.batch, c.keys, c.heads, c.d_value)};
  for (int64_t b = 0; b < c.batch; ++b)
    for (int64_t h = 0; h < c.heads; ++h)
      for (int64_t i = 0; i < c.queries; ++i) {
        const int64_t at = (b * c.heads + h) * c.queries + i;
        const auto s = logits(c, q, k, b, h, i);
        std::vector<Wide> p(c.keys), dp(c.keys);
        Wide mean = 0;
        for (int64_t j = 0; j < c.keys; ++j) {
          if (!c.sees(b, i, j)) continue;
          const Wide log_p = s[j] - r.max[at] - r.log_sum[at], m = mask_of(c, b, h, i, j);
          p[j] = std::exp(log_p);
          for (int64_t e = 0; e < c.d_value; ++e) {
            g.dv(b, j, h, e) += m * p[j] * d_o(b, i, h, e);
            dp[j] += m * d_o(b, i, h, e) * v(b, j, h, e);
          }
          // dH / dP_j = -(log P_j + 1)
          if (c.entropy) dp[j] -= (log_p + 1) * d_entropy[b * c.queries + i] / c.heads;
          mean += p[j] * dp[j];
        }
        for (int64_t j = 0; j < c.keys; ++j) {
          const Wide ds = p[j] * (dp[j] - mean) * Wide(c.shape().scale);
          for (int64_t e = 0; e < c.d_key; ++e) {
            g.dq(b, i, h, e) += ds * k(b, j, h, e);
            g.dk(b, j, h, e) += ds * q(b, i, h, e);
          }
        }
      }
  return g;
}

// The inputs of a case in type T, and everything the kernel makes of them.
template <class T>
struct Run {
  Case c;
  Array<T> q, k, v, o, d_o, dq, dk, dv;
  std::vector<T> row_max, log_sum, entropy, d_entropy;

  explicit Run(const Case& c_)
      : c(c_),
        q(c.batch, c.queries, c.heads, c.d_key, c.gap),
        k(c.batch, c.keys, c.heads, c.d_key, c.gap, c.shared_memory),
        v(c.batch, c.keys, c.heads, c.d_value, c.gap, c.shared_memory),
        o(c.batch, c.queries, c.heads, c.d_value, c.gap),
        d_o(c.batch, c.queries, c.heads, c.d_value, c.gap),
        dq(c.batch, c.queries, c.heads, c.d_key, c.gap),
        dk(c.batch, c.keys, c.heads, c.d_key, c.gap),
        dv(c.batch, c.keys, c.heads, c.d_value, c.gap) {
    q.fill(1, c.spread), k.fill(2), v.fill(3), d_o.fill(4);
    const int64_t n = c.batch * c.heads * c.queries;
    const T nan = std::numeric_limits<T>::quiet_NaN();  // whatever is not written shows
    for (auto* x : {&o, &dq, &dk, &dv}) x->data.assign(x->data.size(), nan);
    row_max.assign(n, nan), log_sum.assign(n, nan), entropy.assign(c.batch * c.queries, nan);
    std::mt19937 g(5);
    std::normal_distribution<double> normal;
    for (size_t i = 0; i < entropy.size(); ++i) d_entropy.push_back(static_cast<T>(normal(g)));
  }
  void forward() {
    bg::attention_forward<T>(c.shape(), std::as_const(q).view(), std::as_const(k).view(), std::as_const(v).view(),
                             o.view(), row_max.data(), log_sum.data(), c.entropy ? entropy.data() : nullptr);
  }
  void backward(bool accumulate = false) { backward_into(dq.view(), dk.view(), dv.view(), accumulate); }
  void backward_into(HeadView<T> to_q, HeadView<T> to_k, HeadView<T> to_v, bool accumulate) {
    bg::attention_backward<T>(c.shape(), std::as_const(q).view(), std::as_const(k).view(), std::as_const(v).view(),
                              std::as_const(o).view(), row_max.data(), log_sum.data(), std::as_const(d_o).view(),
                              c.entropy ? d_entropy.data() : nullptr, to_q, to_k, to_v, accumulate);
  }
};

// Worst |a - b| over the elements of the array proper, relative to max(1, max |b|); NaN counts as infinite.
template <class T>
double difference(const Array<T>& a, const Array<Wide>& b) {
  Wide worst = 0, scale = 1;
  for (int64_t i = 0; i < a.batch; ++i)
    for (int64_t t = 0; t < a.time; ++t)
      for (int64_t h = 0; h < a.heads; ++h)
        for (int64_t e = 0; e < a.d; ++e) {
          const Wide x = a(i, t, h, e), y = b(i, t, h, e);
          scale = std::max(scale, std::abs(y));
          if (!(std::abs(x - y) <= worst)) worst = std::isfinite(x) ? std::abs(x - y) : Wide(INFINITY);
        }
  return static_cast<double>(worst / scale);
}

template <class T>
double difference(const std::vector<T>& a, const std::vector<Wide>& b) {
  Wide worst = 0, scale = 1;
  for (size_t i = 0; i < a.size(); ++i) {
    scale = std::max(scale, std::abs(b[i]));
    if (!(std::abs(a[i] - b[i]) <= worst)) worst = std::isfinite(a[i]) ? std::abs(a[i] - b[i]) : Wide(INFINITY);
  }
  return static_cast<double>(worst / scale);
}

// The foreign elements between the rows still hold the NaN they began with.
template <class T>
bool gaps_untouched(const Array<T>& a) {
  for (int64_t i = 0; i < a.batch * a.time; ++i)
    for (int64_t e = a.heads * a.d; e < a.row(); ++e)
      if (!std::isnan(a.data[i * a.row() + e])) return false;
  return true;
}

template <class T>
void check_case(const Case& c, double tolerance) {
  INFO(c.text());
  Run<T> run(c);
  const auto q = run.q.template as<Wide>(), k = run.k.template as<Wide>(), v = run.v.template as<Wide>();
  const auto d_o = run.d_o.template as<Wide>();
  const std::vector<Wide> d_entropy(run.d_entropy.begin(), run.d_entropy.end());
  run.forward();
  if (kThreadSanitizer && c.queries * c.keys > 1000) return run.backward();
  const Reference want = forward(c, q, k, v);
  CHECK(difference(run.o, want.o) <= tolerance);
  CHECK(difference(run.row_max, want.max) <= tolerance);
  CHECK(difference(run.log_sum, want.log_sum) <= tolerance * c.spread);
  if (c.entropy) CHECK(difference(run.entropy, want.entropy) <= tolerance * c.spread);
  CHECK(gaps_untouched(run.o));

  run.backward();
  const Gradients g = backward(c, q, k, v, d_o, d_entropy);
  CHECK(difference(run.dq, g.dq) <= tolerance * c.spread);
  CHECK(difference(run.dk, g.dk) <= tolerance * c.spread);
  CHECK(difference(run.dv, g.dv) <= tolerance * c.spread);
  CHECK((gaps_untouched(run.dq) && gaps_untouched(run.dk) && gaps_untouched(run.dv)));
}

}  // namespace

TEST_CASE("[R22] attention agrees with naive long double loops in double: to 1e-13") {
  for (const Case& c : cases()) check_case<double>(c, 1e-13);
}

TEST_CASE("attention agrees with naive long double loops in float: to 3e-6") {
  for (const Case& c : cases())
    if (c.spread == 1) check_case<float>(c, 3e-6);
}

TEST_CASE("attention agrees with naive loops on every instruction set of this machine") {
  for (const std::string& target : bg::simd_targets()) {
    bg::use_simd_target(target);
    INFO(target);
    for (const Case& c : {Case{2, 2, 66, 66, 16, 16, true, 0.3, {66, 40}, true, 5}, Case{1, 2, 13, 37, 7, 5},
                          Case{1, 1, 1, 50, 20, 33}, Case{1, 1, 60, 9, 4, 4, true}}) {
      check_case<double>(c, 1e-13);
      check_case<float>(c, 3e-6);
    }
  }
  bg::use_simd_target(bg::simd_targets().front());
}

TEST_CASE("the naive backward of attention agrees with finite differences of the naive forward") {
  if (kThreadSanitizer) return;  // no threads in it
  int compared = 0;
  for (const Case& c : cases()) {
    if (c.spread != 1 || c.keys > 70) continue;
    INFO(c.text());
    Run<double> run(c);
    const auto d_o = run.d_o.as<Wide>();
    const std::vector<Wide> d_entropy(run.d_entropy.begin(), run.d_entropy.end());
    // Shared memory is spread out, so that each batch row has its own gradient.
    Array<Wide> q = run.q.as<Wide>(), k(c.batch, c.keys, c.heads, c.d_key), v(c.batch, c.keys, c.heads, c.d_value);
    for (int64_t b = 0; b < c.batch; ++b)
      for (int64_t t = 0; t < c.keys; ++t)
        for (int64_t h = 0; h < c.heads; ++h) {
          for (int64_t e = 0; e < c.d_key; ++e) k(b, t, h, e) = run.k(b, t, h, e);
          for (int64_t e = 0; e < c.d_value; ++e) v(b, t, h, e) = run.v(b, t, h, e);
        }
    const Gradients g = backward(c, q, k, v, d_o, d_entropy);
    for (int which = 0; which < 3; ++which) {
      Array<Wide>& x = which == 0 ? q : which == 1 ? k : v;
      const Array<Wide>& dx = which == 0 ? g.dq : which == 1 ? g.dk : g.dv;
      Array<Wide> u = Array<Wide>(x.batch, x.time, x.heads, x.d).fill(9);
      Wide norm = 0, want = 0;
      for (Wide e : u.data) norm += e * e;
      for (Wide& e : u.data) e /= std::sqrt(norm);
      for (size_t i = 0; i < u.data.size(); ++i) want += u.data[i] * dx.data[i];
      const Array<Wide> x0 = x;
      auto at = [&](Wide step) {
        for (int64_t b = 0; b < x.batch; ++b)
          for (int64_t t = 0; t < x.time; ++t)
            for (int64_t h = 0; h < x.heads; ++h)
              for (int64_t e = 0; e < x.d; ++e) x(b, t, h, e) = x0(b, t, h, e) + step * u(b, t, h, e);
        const Wide y = loss(c, q, k, v, d_o, d_entropy);
        x = x0;
        return y;
      };
      const Wide s = 1e-3L;
      const Wide numeric = (8 * (at(s) - at(-s)) - (at(2 * s) - at(-2 * s))) / (12 * s);
      CHECK(std::abs(numeric - want) <= 1e-9L * std::max(Wide(1), std::abs(want)));
      compared += std::abs(want) > 1e-3L;
    }
  }
  CHECK(compared > 30);  // zero gradients (one key) agree trivially
}

TEST_CASE("attention backward adds to its outputs when asked, and skips what is not wanted") {
  for (Case c : {Case{2, 2, 70, 70, 8, 8, true, 0.2, {70, 50}, true, 3}, Case{1, 2, 5, 9, 4, 6}}) {
    Run<double> plain(c), added(c);
    plain.forward(), plain.backward();
    added.forward();
    for (auto* x : {&added.dq, &added.dk, &added.dv}) x->fill(20);
    const auto before_q = added.dq, before_k = added.dk, before_v = added.dv;
    added.backward(true);
    auto sum = [](const Array<double>& a, const Array<double>& b) {
      auto s = a.as<Wide>();
      for (size_t i = 0; i < s.data.size(); ++i) s.data[i] += b.data[i];
      return s;
    };
    CHECK(difference(added.dq, sum(before_q, plain.dq)) <= 1e-14);
    CHECK(difference(added.dk, sum(before_k, plain.dk)) <= 1e-14);
    CHECK(difference(added.dv, sum(before_v, plain.dv)) <= 1e-14);
    for (int skip = 0; skip < 8; ++skip) {
      Run<double> some(c);
      some.forward();
      some.backward_into(skip & 1 ? HeadView<double>{} : some.dq.view(), skip & 2 ? HeadView<double>{} : some.dk.view(),
                         skip & 4 ? HeadView<double>{} : some.dv.view(), false);
      if (!(skip & 1)) CHECK(difference(some.dq, plain.dq.as<Wide>()) == 0);
      if (!(skip & 2)) CHECK(difference(some.dk, plain.dk.as<Wide>()) == 0);
      if (!(skip & 4)) CHECK(difference(some.dv, plain.dv.as<Wide>()) == 0);
    }
  }
}

TEST_CASE("[R22] queries that see nothing give exact zeros forward and backward") {
  const Case c{2, 2,    70, 5,      4,
               4, true, 0,  {0, 5}, true};  // row 0 has no key; in row 1 the first 65 queries are too early
  Run<double> run(c);
  run.forward(), run.backward();
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t i = 0; i < 70; ++i)
      for (int64_t e = 0; e < 4; ++e)
        for (int64_t b = 0; b < (i < 65 ? 2 : 1); ++b) {
          REQUIRE(run.o(b, i, h, e) == 0);
          REQUIRE(run.dq(b, i, h, e) == 0);
        }
    for (int64_t j = 0; j < 5; ++j)
      for (int64_t e = 0; e < 4; ++e) {
        REQUIRE(run.dk(0, j, h, e) == 0);
        REQUIRE(run.dv(0, j, h, e) == 0);
      }
  }
  CHECK(run.entropy[0] == 0);
}

TEMPLATE_TEST_CASE("attention with logits of +-1e4 is finite and picks the largest", "", float, double) {
  Case c{1, 1, 70, 70, 16, 16, false, 0, {}, true};
  c.spread = 10000;
  Run<TestType> run(c);
  run.forward(), run.backward();
  for (const auto* x : {&run.o, &run.dq, &run.dk, &run.dv})
    for (TestType e : x->data) REQUIRE(std::isfinite(e));
  for (TestType h : run.entropy) REQUIRE((h >= -1e-6 && h < 1));
}

TEMPLATE_TEST_CASE("attention passes NaN on instead of hiding it", "", float, double) {
  Run<TestType> run({1, 1, 3, 40, 4, 4});
  run.k(0, 20, 0, 1) = std::numeric_limits<TestType>::quiet_NaN();
  run.forward(), run.backward();
  CHECK(std::isnan(run.o(0, 0, 0, 0)));
  CHECK(std::isnan(run.dq(0, 0, 0, 0)));
}

TEMPLATE_TEST_CASE("attention has the same bits for 1, 2 and 4 threads", "", float, double) {
  const Case c{2, 3, 200, 200, 16, 16, true, 0.1, {200, 150}, true};
  std::vector<Run<TestType>> runs;
  for (int threads : {1, 2, 4}) {
    bg::set_num_threads(threads);
    bg::reset_distinct_workers();
    runs.emplace_back(c);
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    do {  // repeated, because on few cores the work may be over before the last worker wakes
      runs.back().forward();
      runs.back().backward();
    } while (bg::distinct_workers() < threads && std::chrono::steady_clock::now() < give_up);
    CHECK(bg::distinct_workers() == threads);
    CHECK(runs.back().o.data == runs[0].o.data);
    CHECK(runs.back().dq.data == runs[0].dq.data);
    CHECK(runs.back().dk.data == runs[0].dk.data);
    CHECK(runs.back().dv.data == runs[0].dv.data);
    CHECK(runs.back().entropy == runs[0].entropy);
    CHECK(runs.back().log_sum == runs[0].log_sum);
  }
}

TEST_CASE("the last query alone, as in cached generation, agrees with the whole sequence") {
  Run<double> all({2, 2, 90, 90, 8, 8, true}), last({2, 2, 1, 90, 8, 8, true});
  last.k = all.k, last.v = all.v;
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t e = 0; e < 8; ++e) last.q(b, 0, h, e) = all.q(b, 89, h, e);
  all.forward(), last.forward();
  for (int64_t b = 0; b < 2; ++b)
    for (int64_t h = 0; h < 2; ++h)
      for (int64_t e = 0; e < 8; ++e) CHECK(std::abs(last.o(b, 0, h, e) - all.o(b, 89, h, e)) <= 1e-14);
}

#if defined(__linux__) && !defined(__SANITIZE_THREAD__)  // whose shadow memory would be counted
namespace {
int64_t status_kib(const std::string& field) {
  std::ifstream in("/proc/self/status");
  for (std::string line; std::getline(in, line);)
    if (line.rfind(field, 0) == 0) return std::stoll(line.substr(field.size() + 1));
  return -1;
}
}  // namespace

TEST_CASE("attention over 4096 positions takes memory linear in the length") {
  Run<double> run({1, 1, 4096, 4096, 16, 16, true, 0, {}, true});
  bg::set_num_threads(2);
  std::ofstream("/proc/self/clear_refs") << "5";  // the high-water mark starts again from here
  const int64_t before = status_kib("VmRSS:");
  run.forward(), run.backward();
  const int64_t grown = status_kib("VmHWM:") - before;
  INFO("grew by " << grown << " KiB; one 4096 x 4096 matrix has " << 4096 * 4096 * 8 / 1024);
  REQUIRE(before > 0);
  if (!kThreadSanitizer) CHECK(grown < 24 * 1024);  // it remembers every access
  for (double x : run.dk.data) REQUIRE(std::isfinite(x));
}
#endif

TEST_CASE("attention says what is wrong with its arguments") {
  auto throws = [](auto change) {
    Run<float> run({2, 1, 3, 3, 2, 2});
    run.c.lengths = {3, 3};
    change(run.c);
    CHECK_THROWS_AS(run.forward(), bg::Error);
  };
  throws([](Case& c) { c.keys = -1; });
  throws([](Case& c) { c.d_key = 0; });
  throws([](Case& c) { c.dropout = 1; });
  throws([](Case& c) { c.lengths[1] = 4; });
  throws([](Case& c) { c.lengths[0] = -1; });
  Run<float> run({2, 1, 3, 3, 2, 2});
  run.forward();
  HeadView<float> shared = run.dk.view();
  shared.batch = 0;
  CHECK_THROWS_WITH(run.backward_into(run.dq.view(), shared, run.dv.view(), false),
                    "[attention backward] a gradient's batch rows share memory: got batch stride 0, expected a dense "
                    "gradient. Try: give it its own rows and sum them over the batch.");
}
