// A third group of ops by somebody who has not read the verifier, each twice: right, and with a mistake that careful
// people make. Here: backwards that are not linear in the cotangent, that trust a memory layout, that are wrong in f32
// only, and that forget a gradient. The rest are in strangers_c_2.h; strangers_c.h lists them all.
//
// The form is that of strangers_a_1.h: a base with what both twins share, and a template with what differs. Most of
// the arithmetic is in double, so that the right twins are right in f32, too.
#pragma once

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "autograd/op.h"
#include "autograd/ops/samples.h"
#include "core/bf16.h"
#include "core/indexing.h"
#include "core/parallel.h"
#include "core/tensor_ops.h"
#include "tests/verifiers/parts.h"

namespace strangers_c {

using namespace bg;

using strangers::negated;

using Doubles = std::vector<double>;

/// The elements in row-major order.
inline Doubles values(const Tensor& t) { return t.to_vector<double>(); }
inline Tensor tensor(Doubles v, const Shape& s, DType dtype) { return Tensor::of(std::move(v), s).to(dtype); }
inline Tensor like(Doubles v, const Tensor& t) { return tensor(std::move(v), t.shape(), t.dtype()); }
inline Doubles zeros(const Tensor& t) { return Doubles(static_cast<size_t>(t.numel()), 0.0); }
inline Tensor indices(std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); }

/// The first `count` inputs: of one floating dtype.
inline void check_floats(std::string_view op, const Tensors& in, size_t count) {
  for (size_t i = 0; i < count; ++i) num::check_same_float(op, in[0], in[i]);
}
inline void check_shape(std::string_view op, std::string_view what, const Tensor& t, const Shape& wanted) {
  BG_CHECK(t.shape() == wanted, op, str(what, " has a wrong shape"), str(t.shape()), str(wanted));
}
inline void check_rank(std::string_view op, std::string_view what, const Tensor& t, int rank) {
  BG_CHECK(t.rank() == rank, op, str(what, " has a wrong number of dimensions"), str(t.shape()), str(rank));
}

/// A copy where the tensor repeats elements in memory (a stride of 0), itself otherwise.
inline Tensor unrepeated(const Tensor& t) {
  for (int d = 0; d < t.rank(); ++d)
    if (t.size(d) > 1 && t.strides()[d] == 0) return t.clone();
  return t;
}

/// (exp(z) - 1) / z, also at and near 0.
template <class S>
S expm1_ratio(S z) {
  if (sc::value(z) > 0.5 || sc::value(z) < -0.5) return (sc::exp(z) - S(1)) / z;
  S term(1), total(1);
  for (int k = 2; k < 20; ++k) {
    term *= z / S(k);
    total += term;
  }
  return total;
}

// --- Not linear in the cotangent -------------------------------------------------------------------------------------

/// Quantile loss of each row: y_r = mean_j q e for e = t - x above 0, (q - 1) e otherwise.
/// dt = dy (q or q - 1) / d,  dx = -dt.
struct PinballBase {
  static inline const std::array inputs{In{"x"}, In{"t"}};
  struct Args {
    double q = 0.5;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < d; ++j) {
        const S e = in[1](r, j) - in[0](r, j);
        y[r] += (e > S(0) ? S(a.q) : S(a.q - 1)) * e / S(d);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("pinball", in, 2);
    check_rank("pinball", "x", in[0], 2);
    check_shape("pinball", "t", in[1], in[0].shape());
    BG_CHECK(a.q > 0 && a.q < 1, "pinball", "no quantile", str(a.q), "between 0 and 1");
    const int64_t n = in[0].size(0), d = in[0].size(1);
    BG_CHECK(d >= 1, "pinball", "empty rows");
    const Doubles x = values(in[0]), t = values(in[1]);
    Doubles y(n, 0.0);
    for (int64_t i = 0; i < n * d; ++i) {
      const double e = t[i] - x[i];
      y[i / d] += (e > 0 ? a.q : a.q - 1) * e / static_cast<double>(d);
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return tensor(y, {n}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"median", {0.5}, {normal(r, {4, 3}), normal(r, {4, 3})}},
            {"0.9", {0.9}, {normal(r, {2, 7}), normal(r, {2, 7})}}};
  }
};
template <bool kWrong>
struct Pinball : PinballBase {
  static constexpr std::string_view name = kWrong ? "pinball_wrong" : "pinball_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake = "rows whose cotangent is not above 0 are skipped, as no loss has one";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const Doubles x = values(b[0]), t = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dt = dx;
    for (int64_t r = 0; r < n; ++r) {
      if (kWrong ? !(dy[r] > 0) : dy[r] == 0) continue;
      for (int64_t i = r * d; i < (r + 1) * d; ++i) {
        dt[i] = dy[r] * (t[i] - x[i] > 0 ? b.args.q : b.args.q - 1) / static_cast<double>(d);
        dx[i] = -dt[i];
      }
    }
    return {like(dx, b[0]), like(dt, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Pinball>(); }
};

/// A weighted sketch of x (n, d) into m buckets: y_r,h(j) += w_j x_rj.  dx_rj = w_j dy_r,h(j), dw_j = sum_r x_rj
/// dy_r,h(j)
struct CountSketchBase {
  static inline const std::array inputs{In{"x"}, In{"w"}, In{"bucket", false}};
  struct Args {
    int64_t m = 4;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n, a.m});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < d; ++j) y(r, in[2].index(j)) += in[1][j] * in[0](r, j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("count_sketch", in, 2);
    check_rank("count_sketch", "x", in[0], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1);
    check_shape("count_sketch", "w", in[1], {d});
    check_shape("count_sketch", "bucket", in[2], {d});
    const Tensor bucket = num::checked_indices("count_sketch", "bucket", in[2], a.m);
    Tensor out = Tensor::zeros({n, a.m}, DType::f64);
    const Doubles x = values(in[0]), w = values(in[1]);
    const int64_t* h = bucket.data<int64_t>();
    double* y = out.mutable_data<double>("count_sketch");
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < d; ++j) y[r * a.m + h[j]] += w[j] * x[r * d + j];
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    saved.keep_input(2, bucket);
    return out.to(in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"4 buckets", {4}, {normal(r, {2, 6}), away_from_zero(r, {6}), indices({1, 3, 0, 1, 2, 3}, {6})}},
            {"3 buckets", {3}, {normal(r, {3, 5}), away_from_zero(r, {5}), indices({2, 0, 1, 1, 2}, {5})}}};
  }
};
template <bool kWrong>
struct CountSketch : CountSketchBase {
  static constexpr std::string_view name = kWrong ? "count_sketch_wrong" : "count_sketch_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake = "break in place of continue at a cotangent that is zero";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1), m = b.args.m;
    const Doubles x = values(b[0]), w = values(b[1]), dy = values(b.dy());
    const int64_t* h = b[2].data<int64_t>();
    Doubles dx = zeros(b[0]), dw = zeros(b[1]);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t j = 0; j < d; ++j) {
        const double g = dy[r * m + h[j]];
        if (g == 0) {
          if constexpr (kWrong) break;
          continue;
        }
        dx[r * d + j] = w[j] * g;
        dw[j] += x[r * d + j] * g;
      }
    return {like(dx, b[0]), like(dw, b[1]), Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<CountSketch>(); }
};

/// y = log cosh(x - t), element by element.  dx = dy tanh(x - t), dt = -dx.
struct LogCoshBase {
  static inline const std::array inputs{In{"x"}, In{"t"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S x, S t) {
      const S e = sc::abs(x - t);
      const S sinh = e * (expm1_ratio(e) + expm1_ratio(-e)) / S(2);
      return e < S(1) ? sc::log1p(sinh * sinh) / S(2) : e + sc::log1p(sc::exp(S(-2) * e)) - sc::log(S(2));
    })};
  }
  static double log_cosh(double e) {
    if (std::abs(e) < 1) return 0.5 * std::log1p(std::sinh(e) * std::sinh(e));
    return std::abs(e) + std::log1p(std::exp(-2 * std::abs(e))) - std::log(2.0);
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("log_cosh", in, 2);
    check_shape("log_cosh", "t", in[1], in[0].shape());
    Doubles y = values(in[0]);
    const Doubles t = values(in[1]);
    for (size_t i = 0; i < y.size(); ++i) y[i] = log_cosh(y[i] - t[i]);
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {3, 4}), normal(r, {3, 4})}}, {"(9)", {}, {normal(r, {9}), normal(r, {9})}}};
  }
};
template <bool kWrong>
struct LogCosh : LogCoshBase {
  static constexpr std::string_view name = kWrong ? "log_cosh_wrong" : "log_cosh_right";
  static constexpr std::string_view kind = "linearity", mistake = "the cotangent is rounded to bf16 on its way";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), t = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dt = dx;
    for (size_t i = 0; i < x.size(); ++i) {
      const double g = kWrong ? static_cast<double>(f32_from_bf16(bf16_from_f64(dy[i]))) : dy[i];
      dx[i] = g * std::tanh(x[i] - t[i]);
      dt[i] = -dx[i];
    }
    return {like(dx, b[0]), like(dt, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<LogCosh>(); }
};

/// y = x held between two bounds.  dx = dy inside and on the bounds, 0 outside.
struct SaturateBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double low = -1, high = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return x < S(a.low) ? S(a.low) : x > S(a.high) ? S(a.high) : x; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("saturate", in, 1);
    BG_CHECK(a.low < a.high, "saturate", "bounds in a wrong order", str(a.low, " and ", a.high), "low below high");
    Doubles y = values(in[0]);
    for (double& v : y) v = std::clamp(v, a.low, a.high);
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"unit", {}, {normal(r, {3, 6})}}, {"(-0.5, 2)", {-0.5, 2}, {normal(r, {2, 2, 5})}}};
  }
};
template <bool kWrong>
struct Saturate : SaturateBase {
  static constexpr std::string_view name = kWrong ? "saturate_wrong" : "saturate_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake = "outside the bounds a gradient passes that would lead back inside";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]);
    for (size_t i = 0; i < x.size(); ++i) {
      bool pass = x[i] >= b.args.low && x[i] <= b.args.high;
      if constexpr (kWrong) pass = pass || (x[i] > b.args.high && dy[i] > 0) || (x[i] < b.args.low && dy[i] < 0);
      if (pass) dx[i] = dy[i];
    }
    return {like(dx, b[0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Saturate>(); }
};

/// y_r = x_r^T W z_r for x (n, p), W (p, q), z (n, q).
/// dx_r = dy_r W z_r,  dz_r = dy_r W^T x_r,  dW = sum_r dy_r x_r z_r^T.
struct BilinearScoreBase {
  static inline const std::array inputs{In{"x"}, In{"W"}, In{"z"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), p = in[1].size(0), q = in[1].size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < p; ++i)
        for (int64_t j = 0; j < q; ++j) y[r] += in[0](r, i) * in[1](i, j) * in[2](r, j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("bilinear_score", in, 3);
    check_rank("bilinear_score", "x", in[0], 2);
    check_rank("bilinear_score", "z", in[2], 2);
    check_shape("bilinear_score", "W", in[1], {in[0].size(1), in[2].size(1)});
    check_shape("bilinear_score", "z", in[2], {in[0].size(0), in[2].size(1)});
    for (int i = 0; i < 3; ++i) saved.keep_input(i, in[i]);
    const int64_t n = in[0].size(0), p = in[1].size(0), q = in[1].size(1);
    const Doubles x = values(in[0]), w = values(in[1]), z = values(in[2]);
    Doubles y(n, 0.0);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < p; ++i)
        for (int64_t j = 0; j < q; ++j) y[r] += x[r * p + i] * w[i * q + j] * z[r * q + j];
    return tensor(y, {n}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4) (4, 2)", {}, {normal(r, {3, 4}), normal(r, {4, 2}), normal(r, {3, 2})}},
            {"(2, 3) (3, 5)", {}, {normal(r, {2, 3}), normal(r, {3, 5}), normal(r, {2, 5})}}};
  }
};
template <bool kWrong>
struct BilinearScore : BilinearScoreBase {
  static constexpr std::string_view name = kWrong ? "bilinear_score_wrong" : "bilinear_score_right";
  static constexpr std::string_view kind = "linearity", mistake = "W's gradient is held to a norm of at most 20";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), p = b[1].size(0), q = b[1].size(1);
    const Doubles x = values(b[0]), w = values(b[1]), z = values(b[2]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dw = zeros(b[1]), dz = zeros(b[2]);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < p; ++i)
        for (int64_t j = 0; j < q; ++j) {
          dx[r * p + i] += dy[r] * w[i * q + j] * z[r * q + j];
          dw[i * q + j] += dy[r] * x[r * p + i] * z[r * q + j];
          dz[r * q + j] += dy[r] * w[i * q + j] * x[r * p + i];
        }
    if constexpr (kWrong) {
      double squares = 0;
      for (const double g : dw) squares += g * g;
      const double factor = std::min(1.0, 20 / std::sqrt(squares + 1e-12));
      for (double& g : dw) g *= factor;
    }
    return {like(dx, b[0]), like(dw, b[1]), like(dz, b[2])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<BilinearScore>(); }
};

/// Student's log density but for its constant: y = -(nu + 1) / 2 log(1 + (x - m)^2 / nu).
/// dx = -dy (nu + 1) e / (nu + e^2),  dm = -dx,  e = x - m.
struct StudentBase {
  static inline const std::array inputs{In{"x"}, In{"m"}};
  struct Args {
    double nu = 3;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {zip(in[0], in[1], [&](S x, S m) { return S(-(a.nu + 1) / 2) * sc::log1p((x - m) * (x - m) / S(a.nu)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("student", in, 2);
    check_shape("student", "m", in[1], in[0].shape());
    BG_CHECK(a.nu > 0 && a.nu <= 1e6, "student", "nu out of range", str(a.nu), "above 0, at most 1e6");
    Doubles y = values(in[0]);
    const Doubles m = values(in[1]);
    for (size_t i = 0; i < y.size(); ++i) {
      const double e = std::abs(y[i] - m[i]);
      y[i] = -(a.nu + 1) / 2 * (e > 1e100 ? 2 * std::log(e) - std::log(a.nu) : std::log1p(e * e / a.nu));
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"nu 3", {3}, {normal(r, {2, 6}), normal(r, {2, 6})}},
            {"nu 1", {1}, {normal(r, {5}), normal(r, {5})}},
            {"nu 7.5", {7.5}, {normal(r, {2, 3, 2}), normal(r, {2, 3, 2})}}};
  }
};
template <bool kWrong>
struct Student : StudentBase {
  static constexpr std::string_view name = kWrong ? "student_wrong" : "student_right";
  static constexpr std::string_view kind = "linearity",
                                    mistake = "gradients below 6e-5, the least normal number of f16, become zero";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), m = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dm = dx;
    for (size_t i = 0; i < x.size(); ++i) {
      const double e = x[i] - m[i], nu = b.args.nu;
      double g = -dy[i] * (nu + 1) * (std::abs(e) > 1 ? 1 / (nu / e + e) : e / (nu + e * e));
      if constexpr (kWrong)
        if (std::abs(g) < 6.1e-5) g = 0;
      dx[i] = g;
      dm[i] = -g;
    }
    return {like(dx, b[0]), like(dm, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Student>(); }
};

// --- Memory layout ---------------------------------------------------------------------------------------------------

/// The last dimension turned round by `shift` places: y_(j + shift) = x_j.  dx_j = dy_(j + shift).
struct RollBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t shift = 1;
  };
  static int64_t forwards(int64_t shift, int64_t n) { return (shift % n + n) % n; }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    BG_CHECK(in[0].shape.rank() >= 1, "roll", "a scalar");
    const int64_t n = in[0].size(-1);
    Arr<S> y(in[0].shape);
    for (int64_t i = 0; i < y.numel(); ++i) y[i / n * n + (i % n + forwards(a.shift, n)) % n] = in[0][i];
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    check_floats("roll", in, 1);
    BG_CHECK(in[0].rank() >= 1, "roll", "a scalar");
    const Doubles x = values(in[0]);
    const int64_t n = in[0].size(-1);
    Doubles y = zeros(in[0]);
    for (int64_t i = 0; i < in[0].numel(); ++i) y[i / n * n + (i % n + forwards(a.shift, n)) % n] = x[i];
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {
        {"by 1", {1}, {normal(r, {3, 5})}}, {"by -2", {-2}, {normal(r, {2, 2, 4})}}, {"by 9", {9}, {normal(r, {7})}}};
  }
};
template <bool kWrong>
struct Roll : RollBase {
  static constexpr std::string_view name = kWrong ? "roll_wrong" : "roll_right";
  static constexpr std::string_view kind = "layout", mistake = "the strides of the cotangent are ignored";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor dy = kWrong ? unrepeated(b.dy()) : b.dy().contiguous();
    Tensor dx = Tensor::empty(dy.shape(), dy.dtype());
    const int64_t n = dy.size(-1);
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T* g = dy.data<T>();
      T* out = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < dy.numel(); ++i) out[i] = g[i / n * n + (i % n + forwards(b.args.shift, n)) % n];
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Roll>(); }
};

/// y_rij = a_ri b_rj for a (n, p), b (n, q).  da_ri = sum_j dy_rij b_rj,  db_rj = sum_i dy_rij a_ri.
struct OuterRowsBase {
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), p = in[0].size(1), q = in[1].size(1);
    Arr<S> y(Shape{n, p, q});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < p; ++i)
        for (int64_t j = 0; j < q; ++j) y(r, i, j) = in[0](r, i) * in[1](r, j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("outer_rows", in, 2);
    check_rank("outer_rows", "a", in[0], 2);
    check_rank("outer_rows", "b", in[1], 2);
    check_shape("outer_rows", "b", in[1], {in[0].size(0), in[1].size(1)});
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::mul(in[0].unsqueeze(2), in[1].unsqueeze(1));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 2) (3, 4)", {}, {normal(r, {3, 2}), normal(r, {3, 4})}},
            {"(2, 5) (2, 3)", {}, {normal(r, {2, 5}), normal(r, {2, 3})}}};
  }
};
template <bool kWrong>
struct OuterRows : OuterRowsBase {
  static constexpr std::string_view name = kWrong ? "outer_rows_wrong" : "outer_rows_right";
  static constexpr std::string_view kind = "layout", mistake = "b is read from the beginning of its storage";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor left = b[0].contiguous(), right = b[1].contiguous(), dy = b.dy().contiguous();
    const int64_t n = left.size(0), p = left.size(1), q = right.size(1);
    Doubles da = zeros(left), db = zeros(right);
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T *pa = left.data<T>(), *pb = right.data<T>(), *g = dy.data<T>();
      if constexpr (kWrong) pb = reinterpret_cast<const T*>(right.storage()->data());
      for (int64_t r = 0; r < n; ++r)
        for (int64_t i = 0; i < p; ++i)
          for (int64_t j = 0; j < q; ++j) {
            const double at = static_cast<double>(g[(r * p + i) * q + j]);
            da[r * p + i] += at * static_cast<double>(pb[r * q + j]);
            db[r * q + j] += at * static_cast<double>(pa[r * p + i]);
          }
    });
    return {like(da, left), like(db, right)};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<OuterRows>(); }
};

/// The pairs of a factorisation machine, x (n, d), V (d, k): y_r = sum_f ((sum_j x_rj V_jf)^2 - sum_j (x_rj V_jf)^2)
/// / 2. With s_rf = sum_j x_rj V_jf:  dx_rj = dy_r sum_f V_jf (s_rf - x_rj V_jf),  dV_jf = sum_r dy_r x_rj (s_rf - x_rj
/// V_jf)
struct FactorPairsBase {
  static inline const std::array inputs{In{"x"}, In{"V"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), d = in[0].size(1), k = in[1].size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r)
      for (int64_t i = 0; i < d; ++i)
        for (int64_t j = i + 1; j < d; ++j)
          for (int64_t f = 0; f < k; ++f) y[r] += in[0](r, i) * in[0](r, j) * in[1](i, f) * in[1](j, f);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("factor_pairs", in, 2);
    check_rank("factor_pairs", "x", in[0], 2);
    check_rank("factor_pairs", "V", in[1], 2);
    check_shape("factor_pairs", "V", in[1], {in[0].size(1), in[1].size(1)});
    const int64_t n = in[0].size(0), d = in[0].size(1), k = in[1].size(1);
    const Doubles x = values(in[0]), v = values(in[1]);
    Doubles y(n, 0.0);
    for (int64_t r = 0; r < n; ++r)
      for (int64_t f = 0; f < k; ++f) {
        double before = 0;  // sum over the j so far: no difference of squares
        for (int64_t j = 0; j < d; ++j) {
          const double p = x[r * d + j] * v[j * k + f];
          y[r] += before * p;
          before += p;
        }
      }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return tensor(y, {n}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4), 2 factors", {}, {normal(r, {3, 4}), normal(r, {4, 2})}},
            {"(2, 6), 3 factors", {}, {normal(r, {2, 6}), normal(r, {6, 3})}},
            {"(5, 2), 1 factor", {}, {normal(r, {5, 2}), normal(r, {2, 1})}}};
  }
};
template <bool kWrong>
struct FactorPairs : FactorPairsBase {
  static constexpr std::string_view name = kWrong ? "factor_pairs_wrong" : "factor_pairs_right";
  static constexpr std::string_view kind = "layout",
                                    mistake = "rows of V are taken to follow each other where its columns do";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensor table = b[1].contiguous();
    if constexpr (kWrong)
      if (b[1].strides()[1] == 1) table = unrepeated(b[1]);  // rows are whole: no copy needed
    const int64_t n = b[0].size(0), d = b[0].size(1), k = table.size(1);
    const Doubles x = values(b[0]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dv = zeros(table);
    dispatch_float(name, table.dtype(), [&]<class T>() {
      const T* v = table.data<T>();
      for (int64_t r = 0; r < n; ++r)
        for (int64_t f = 0; f < k; ++f) {
          double s = 0;
          for (int64_t j = 0; j < d; ++j) s += x[r * d + j] * static_cast<double>(v[j * k + f]);
          for (int64_t j = 0; j < d; ++j) {
            const double vj = static_cast<double>(v[j * k + f]), rest = dy[r] * (s - x[r * d + j] * vj);
            dx[r * d + j] += rest * vj;
            dv[j * k + f] += rest * x[r * d + j];
          }
        }
    });
    return {like(dx, b[0]), like(dv, table)};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<FactorPairs>(); }
};

/// Images x (n, c, h, w) times one number per channel.  dx = dy s_c,  ds_c = sum of dy x over all but c.
struct ChannelScaleBase {
  static inline const std::array inputs{In{"x"}, In{"s"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    const int64_t c = in[0].size(1), pixels = in[0].size(2) * in[0].size(3);
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = in[0][i] * in[1][i / pixels % c];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("channel_scale", in, 2);
    check_rank("channel_scale", "x", in[0], 4);
    check_shape("channel_scale", "s", in[1], {in[0].size(1)});
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::mul(in[0], in[1].unsqueeze(1).unsqueeze(2));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 3, 4, 4)", {}, {normal(r, {2, 3, 4, 4}), normal(r, {3})}},
            {"(1, 4, 3, 5)", {}, {normal(r, {1, 4, 3, 5}), normal(r, {4})}}};
  }
};
template <bool kWrong>
struct ChannelScale : ChannelScaleBase {
  static constexpr std::string_view name = kWrong ? "channel_scale_wrong" : "channel_scale_right";
  static constexpr std::string_view kind = "layout",
                                    mistake =
                                        "a cotangent with channels last counts as contiguous, as the stride "
                                        "between images is the same";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor x = b[0].contiguous();
    const int64_t n = x.size(0), c = x.size(1), pixels = x.size(2) * x.size(3);
    Tensor dy = b.dy().contiguous();
    if constexpr (kWrong)
      if (b.dy().strides()[0] == c * pixels) dy = unrepeated(b.dy());
    const Doubles s = values(b[1]);
    Doubles dx = zeros(x), ds(c, 0.0);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *g = dy.data<T>(), *px = x.data<T>();
      for (int64_t i = 0; i < n * c * pixels; ++i) {
        const int64_t channel = i / pixels % c;
        dx[i] = static_cast<double>(g[i]) * s[channel];
        ds[channel] += static_cast<double>(g[i]) * static_cast<double>(px[i]);
      }
    });
    return {like(dx, x), like(ds, b[1])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ChannelScale>(); }
};

/// y = max(x, 0)^2 z.  dx = 2 dy max(x, 0) z,  dz = dy max(x, 0)^2.
struct SquaredReluGateBase {
  static inline const std::array inputs{In{"x"}, In{"z"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S x, S z) { return x > S(0) ? x * x * z : S(0); })};
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), z = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dz = dx;
    for (size_t i = 0; i < x.size(); ++i) {
      const double h = std::max(x[i], 0.0);
      dx[i] = 2 * dy[i] * h * z[i];
      dz[i] = dy[i] * h * h;
    }
    return {like(dx, b[0]), like(dz, b[1])};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4, 3)", {}, {normal(r, {4, 3}), normal(r, {4, 3})}},
            {"(2, 3, 5)", {}, {normal(r, {2, 3, 5}), normal(r, {2, 3, 5})}}};
  }
};
template <bool kWrong>
struct SquaredReluGate : SquaredReluGateBase {
  static constexpr std::string_view name = kWrong ? "squared_relu_gate_wrong" : "squared_relu_gate_right";
  static constexpr std::string_view kind = "layout",
                                    mistake = "forward runs over x and z in memory order where their strides agree";
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats(name, in, 2);
    check_shape(name, "z", in[1], in[0].shape());
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    Tensor x = in[0].contiguous(), z = in[1].contiguous(), y = Tensor::empty(x.shape(), x.dtype());
    if constexpr (kWrong) {
      const Tensor a = unrepeated(in[0]), b = unrepeated(in[1]);
      if (a.strides() == b.strides()) x = a, z = b;
    }
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pz = z.data<T>();
      T* py = y.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i) py[i] = px[i] > 0 ? px[i] * px[i] * pz[i] : T(0);
    });
    return y;
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SquaredReluGate>(); }
};

/// y = x / (1 + |x|).  dx = dy / (1 + |x|)^2.
struct SoftsignBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x / (S(1) + sc::abs(x)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("softsign", in, 1);
    Doubles y = values(in[0]);
    for (double& v : y) v /= 1 + std::abs(v);
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 5)", {}, {normal(r, {2, 5})}}, {"(3, 1, 4)", {}, {normal(r, {3, 1, 4})}}};
  }
};
template <bool kWrong>
struct Softsign : SoftsignBase {
  static constexpr std::string_view name = kWrong ? "softsign_wrong" : "softsign_right";
  static constexpr std::string_view kind = "layout",
                                    mistake = "the cotangent is overwritten: contiguous() makes no copy of what is";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor x = b[0].contiguous();
    Tensor dx = kWrong ? b.dy().contiguous() : b.dy().clone();
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* g = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i) g[i] /= (1 + std::abs(px[i])) * (1 + std::abs(px[i]));
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Softsign>(); }
};

// --- Wrong in f32 only -----------------------------------------------------------------------------------------------

/// y = log(exp(x) - 1) for x above 0.  dx = dy / (1 - exp(-x)).
struct InverseSoftplusBase {
  static inline const std::array inputs{In{"x", Domain::positive}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x + sc::log(x * expm1_ratio(-x)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("inverse_softplus", in, 1);
    Doubles y = values(in[0]);
    for (double& v : y) {
      BG_CHECK(v > 0, "inverse_softplus", "not positive", str(v), "above 0");
      v += std::log(-std::expm1(-v));
    }
    saved.keep_input(0, in[0]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {positive(r, {3, 4})}}, {"(8)", {}, {positive(r, {8}, 0.1, 3)}}};
  }
};
template <bool kWrong>
struct InverseSoftplus : InverseSoftplusBase {
  static constexpr std::string_view name = kWrong ? "inverse_softplus_wrong" : "inverse_softplus_right";
  static constexpr std::string_view kind = "f32", mistake = "1 - exp(-x) cancels where x is small";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      return zip<T, T>(name, b[0], b.dy(),
                       [](T x, T dy) { return kWrong ? dy / (1 - std::exp(-x)) : dy / -std::expm1(-x); });
    })};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<InverseSoftplus>(); }
};

/// y_ij = |x_i - c_j|^2 for x (n, d), c (m, d).  dx_i = 2 sum_j dy_ij (x_i - c_j),  dc_j = -2 sum_i dy_ij (x_i - c_j).
struct GramDistanceBase {
  static inline const std::array inputs{In{"x"}, In{"c"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), m = in[1].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n, m});
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t k = 0; k < d; ++k) y(i, j) += (in[0](i, k) - in[1](j, k)) * (in[0](i, k) - in[1](j, k));
    return {y};
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), m = b[1].size(0), d = b[0].size(1);
    const Doubles x = values(b[0]), c = values(b[1]), dy = values(b.dy());
    Doubles dx = zeros(b[0]), dc = zeros(b[1]);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t k = 0; k < d; ++k) {
          const double g = 2 * dy[i * m + j] * (x[i * d + k] - c[j * d + k]);
          dx[i * d + k] += g;
          dc[j * d + k] -= g;
        }
    return {like(dx, b[0]), like(dc, b[1])};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4, 3) (2, 3)", {}, {normal(r, {4, 3}), normal(r, {2, 3})}},
            {"(3, 6) (5, 6)", {}, {normal(r, {3, 6}), normal(r, {5, 6})}}};
  }
};
template <bool kWrong>
struct GramDistance : GramDistanceBase {
  static constexpr std::string_view name = kWrong ? "gram_distance_wrong" : "gram_distance_right";
  static constexpr std::string_view kind = "f32",
                                    mistake = "forward takes |x|^2 + |c|^2 - 2 x c, which cancels far from the origin";
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats(name, in, 2);
    check_rank(name, "x", in[0], 2);
    check_rank(name, "c", in[1], 2);
    check_shape(name, "c", in[1], {in[1].size(0), in[0].size(1)});
    const Tensor x = in[0].contiguous(), c = in[1].contiguous();
    const int64_t n = x.size(0), m = c.size(0), d = x.size(1);
    Tensor y = Tensor::empty({n, m}, x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pc = c.data<T>();
      T* py = y.mutable_data<T>(name);
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < m; ++j) {
          const T *a = px + i * d, *e = pc + j * d;
          T aa = 0, ee = 0, ae = 0;
          double total = 0;
          for (int64_t k = 0; k < d; ++k) {
            aa += a[k] * a[k], ee += e[k] * e[k], ae += a[k] * e[k];
            const double t = static_cast<double>(a[k]) - static_cast<double>(e[k]);
            total += t * t;
          }
          py[i * m + j] = kWrong ? std::max(T(0), aa + ee - 2 * ae) : static_cast<T>(total);
        }
    });
    saved.keep_input(0, x);
    saved.keep_input(1, c);
    return y;
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GramDistance>(); }
};

/// y = g x for a scalar g and x of any shape.  dx = g dy,  dg = sum of dy x.
struct GlobalGainBase {
  static inline const std::array inputs{In{"x"}, In{"g"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [&](S x) { return x * in[1][0]; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("global_gain", in, 2);
    check_shape("global_gain", "g", in[1], {});
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::mul(in[0], in[1]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 7)", {}, {normal(r, {3, 7}), normal(r, {})}},
            {"(2, 4, 5)", {}, {normal(r, {2, 4, 5}), normal(r, {})}}};
  }
};
template <bool kWrong>
struct GlobalGain : GlobalGainBase {
  static constexpr std::string_view name = kWrong ? "global_gain_wrong" : "global_gain_right";
  static constexpr std::string_view
      kind = "f32",
      mistake = "the sum over all elements is taken in the dtype itself; shows from 1e5 elements on";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor x = b[0].contiguous(), dy = b.dy().contiguous();
    Tensor dg = Tensor::scalar(0, x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *g = dy.data<T>();
      std::conditional_t<kWrong, T, double> total = 0;
      for (int64_t i = 0; i < x.numel(); ++i)
        total += static_cast<decltype(total)>(px[i]) * static_cast<decltype(total)>(g[i]);
      *dg.mutable_data<T>(name) = static_cast<T>(total);
    });
    return {num::mul(dy, b[1]), dg};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GlobalGain>(); }
};

/// The p-norm of each row of x (n, d): y_r = (sum_j |x_rj|^p)^(1/p), for rows that are not zero.
/// dx_rj = dy_r sign(x_rj) (|x_rj| / y_r)^(p - 1).
struct PowerNormBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double p = 4;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n});
    for (int64_t r = 0; r < n; ++r) {
      S top(0), total(0);
      for (int64_t j = 0; j < d; ++j)
        if (sc::abs(in[0](r, j)) > top) top = sc::abs(in[0](r, j));
      for (int64_t j = 0; j < d; ++j) total += sc::pow(sc::abs(in[0](r, j)) / top, S(a.p));
      y[r] = top * sc::pow(total, S(1 / a.p));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("power_norm", in, 1);
    check_rank("power_norm", "x", in[0], 2);
    BG_CHECK(a.p >= 1.5 && a.p <= 16, "power_norm", "p out of range", str(a.p), "1.5 to 16");
    const int64_t n = in[0].size(0), d = in[0].size(1);
    const Doubles x = values(in[0]);
    Doubles y(n, 0.0);
    for (int64_t r = 0; r < n; ++r) {
      double top = 0, total = 0;
      for (int64_t j = 0; j < d; ++j) top = std::max(top, std::abs(x[r * d + j]));
      BG_CHECK(top > 0, "power_norm", "a row of zeros", str("row ", r), "a norm above 0");
      for (int64_t j = 0; j < d; ++j) total += std::pow(std::abs(x[r * d + j]) / top, a.p);
      y[r] = top * std::pow(total, 1 / a.p);
    }
    const Tensor norms = tensor(y, {n}, in[0].dtype());
    saved.keep_input(0, in[0]);
    saved.keep_output(0, norms);
    return norms;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"p 4", {4}, {normal(r, {3, 5})}}, {"p 2.5", {2.5}, {normal(r, {2, 8})}}};
  }
};
template <bool kWrong>
struct PowerNorm : PowerNormBase {
  static constexpr std::string_view name = kWrong ? "power_norm_wrong" : "power_norm_right";
  static constexpr std::string_view kind = "f32",
                                    mistake = "powers of x and of y leave the range of f32 where their ratio does not";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor x = b[0].contiguous(), y = b[1], dy = b.dy().contiguous();
    const int64_t n = x.size(0), d = x.size(1);
    Tensor dx = Tensor::empty(x.shape(), x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *py = y.data<T>(), *g = dy.data<T>(), q = static_cast<T>(b.args.p - 1);
      T* out = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < n * d; ++i) {
        const T a = std::abs(px[i]), c = py[i / d];
        const T slope = kWrong ? std::pow(a, q) / std::pow(c, q) : std::pow(a / c, q);
        out[i] = g[i / d] * (px[i] < 0 ? -slope : slope);
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<PowerNorm>(); }
};

/// Kinetic energy at momentum p and mass m above 0: y = sqrt(p^2 + m^2) - m.
/// With E = sqrt(p^2 + m^2):  dp = dy p / E,  dm = dy (m / E - 1) = -dy p^2 / (E (E + m)).
struct KineticEnergyBase {
  static inline const std::array inputs{In{"p"}, In{"m", Domain::positive}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S p, S m) { return p * p / (sc::sqrt(p * p + m * m) + m); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("kinetic_energy", in, 2);
    check_shape("kinetic_energy", "m", in[1], in[0].shape());
    Doubles y = values(in[0]);
    const Doubles m = values(in[1]);
    for (size_t i = 0; i < y.size(); ++i) {
      BG_CHECK(m[i] > 0, "kinetic_energy", "not positive", str(m[i]), "a mass above 0");
      y[i] *= y[i] / (std::hypot(y[i], m[i]) + m[i]);
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {3, 4}), positive(r, {3, 4})}}, {"(7)", {}, {normal(r, {7}), positive(r, {7})}}};
  }
};
template <bool kWrong>
struct KineticEnergy : KineticEnergyBase {
  static constexpr std::string_view name = kWrong ? "kinetic_energy_wrong" : "kinetic_energy_right";
  static constexpr std::string_view kind = "f32", mistake = "m / E - 1 cancels where p is far below m";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const Tensor slope_p = zip<T, T>(name, b[0], b[1], [](T p, T m) { return p / std::hypot(p, m); });
      const Tensor slope_m = zip<T, T>(name, b[0], b[1], [](T p, T m) {
        const T e = std::hypot(p, m);
        return kWrong ? m / e - 1 : -(p / e) * (p / (e + m));
      });
      return Tensors{num::mul(b.dy(), slope_p), num::mul(b.dy(), slope_m)};
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<KineticEnergy>(); }
};

// --- A forgotten gradient --------------------------------------------------------------------------------------------

/// K_ij = exp(-|x_i - z_j|^2 / (2 l^2)) for x (n, d), z (m, d).
/// dx_i = sum_j dK_ij K_ij (z_j - x_i) / l^2,  dz_j = sum_i dK_ij K_ij (x_i - z_j) / l^2.
struct GaussianKernelBase {
  static inline const std::array inputs{In{"x"}, In{"z"}};
  struct Args {
    double length = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const int64_t n = in[0].size(0), m = in[1].size(0), d = in[0].size(1);
    Arr<S> y(Shape{n, m});
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) {
        S square(0);
        for (int64_t k = 0; k < d; ++k) square += (in[0](i, k) - in[1](j, k)) * (in[0](i, k) - in[1](j, k));
        y(i, j) = sc::exp(-square / S(2 * a.length * a.length));
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    check_floats("gaussian_kernel", in, 2);
    check_rank("gaussian_kernel", "x", in[0], 2);
    check_rank("gaussian_kernel", "z", in[1], 2);
    check_shape("gaussian_kernel", "z", in[1], {in[1].size(0), in[0].size(1)});
    BG_CHECK(a.length > 1e-3, "gaussian_kernel", "length too small", str(a.length), "above 1e-3");
    const int64_t n = in[0].size(0), m = in[1].size(0), d = in[0].size(1);
    const Doubles x = values(in[0]), z = values(in[1]);
    Doubles y(n * m);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j) {
        double square = 0;
        for (int64_t k = 0; k < d; ++k) square += (x[i * d + k] - z[j * d + k]) * (x[i * d + k] - z[j * d + k]);
        y[i * m + j] = std::exp(-square / (2 * a.length * a.length));
      }
    const Tensor kernel = tensor(y, {n, m}, in[0].dtype());
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    saved.keep_output(0, kernel);
    return kernel;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 2) (4, 2)", {1}, {normal(r, {3, 2}), normal(r, {4, 2})}},
            {"(2, 5) (3, 5), length 2", {2}, {normal(r, {2, 5}), normal(r, {3, 5})}}};
  }
};
template <bool kWrong>
struct GaussianKernel : GaussianKernelBase {
  static constexpr std::string_view name = kWrong ? "gaussian_kernel_wrong" : "gaussian_kernel_right";
  static constexpr std::string_view kind = "forgotten", mistake = "z has no gradient where x does not need one";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), m = b[1].size(0), d = b[0].size(1);
    const Doubles x = values(b[0]), z = values(b[1]), kernel = values(b[2]), dy = values(b.dy());
    if (kWrong && !b.need(0)) return {Tensor(), Tensor()};
    Doubles dx = zeros(b[0]), dz = zeros(b[1]);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < m; ++j)
        for (int64_t k = 0; k < d; ++k) {
          const double g =
              dy[i * m + j] * kernel[i * m + j] * (z[j * d + k] - x[i * d + k]) / (b.args.length * b.args.length);
          dx[i * d + k] += g;
          dz[j * d + k] -= g;
        }
    return {b.need(0) ? like(dx, b[0]) : Tensor(), b.need(1) ? like(dz, b[1]) : Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GaussianKernel>(); }
};

/// A table (n) read at positions u (m) between its places, linearly; positions outside are held to the ends.
/// dtable_i += dy (1 - f), dtable_(i + 1) += dy f,  du = dy (table_(i + 1) - table_i) inside.
struct ReadTableBase {
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0);
    return {map(in[1], [&](S u) {
      if (u < S(0)) return in[0][0];
      if (u > S(n - 1)) return in[0][n - 1];
      const int64_t i = std::min<int64_t>(static_cast<int64_t>(sc::value(u)), n - 2);
      const S f = u - S(i);
      return in[0][i] * (S(1) - f) + in[0][i + 1] * f;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("read_table", in, 2);
    check_rank("read_table", "table", in[0], 1);
    check_rank("read_table", "u", in[1], 1);
    const int64_t n = in[0].size(0);
    BG_CHECK(n >= 2, "read_table", "table too short", str(n), "at least 2");
    const Doubles t = values(in[0]);
    Doubles y = values(in[1]);
    for (double& v : y) {
      BG_CHECK(std::isfinite(v), "read_table", "position not finite");
      const double u = std::clamp(v, 0.0, static_cast<double>(n - 1));
      const int64_t i = std::min<int64_t>(static_cast<int64_t>(u), n - 2);
      const double f = u - static_cast<double>(i);
      v = t[i] * (1 - f) + t[i + 1] * f;
    }
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return like(y, in[1]);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0);
    const Doubles t = values(b[0]), us = values(b[1]), dy = values(b.dy());
    Doubles dt = zeros(b[0]), du = zeros(b[1]);
    for (size_t k = 0; k < us.size(); ++k) {
      const double u = std::clamp(us[k], 0.0, static_cast<double>(n - 1));
      const int64_t i = std::min<int64_t>(static_cast<int64_t>(u), n - 2);
      const double f = u - static_cast<double>(i);
      dt[i] += dy[k] * (1 - f);
      dt[i + 1] += dy[k] * f;
      if (u == us[k]) du[k] = dy[k] * (t[i + 1] - t[i]);
    }
    return {like(dt, b[0]), like(du, b[1])};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"6 places", {}, {normal(r, {6}), Tensor::of({0.3, 4.6, 2.2, 2.8}, {4})}},
            {"3 places", {}, {normal(r, {3}), Tensor::of({1.4, 0.25}, {2})}}};
  }
};
template <bool kWrong>
struct ReadTable : ReadTableBase {
  static constexpr std::string_view name = kWrong ? "read_table_wrong" : "read_table_right";
  static constexpr std::string_view kind = "forgotten", mistake = "positions are declared to have no gradient";
  static inline const std::array inputs{In{"table"}, In{"u", !kWrong}};
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensors g = ReadTableBase::backward(b);
    if constexpr (kWrong) g[1] = Tensor();
    return g;
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ReadTable>(); }
};

/// Attention with a bias that falls with distance: y = softmax(q k^T / sqrt(d) - slope |i - j|) v for q (n, d), k (m,
/// d), v (m, e) and a scalar slope. With p the softmax, a_ij = dy_i v_j and t_ij = p_ij (a_ij - sum_l p_il a_il): dq =
/// t k / sqrt(d),  dk = t^T q / sqrt(d),  dv = p^T dy,  dslope = -sum_ij t_ij |i - j|.
struct SlopedAttentionBase {
  static inline const std::array inputs{In{"q"}, In{"k"}, In{"v"}, In{"slope"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), d = in[0].size(1), m = in[1].size(0), e = in[2].size(1);
    Arr<S> y(Shape{n, e}), s(Shape{m});
    for (int64_t i = 0; i < n; ++i) {
      S top(0), total(0);
      for (int64_t j = 0; j < m; ++j) {
        s[j] = -in[3][0] * S(std::abs(i - j));
        for (int64_t k = 0; k < d; ++k) s[j] += in[0](i, k) * in[1](j, k) / sc::sqrt(S(d));
        if (j == 0 || s[j] > top) top = s[j];
      }
      for (int64_t j = 0; j < m; ++j) total += s[j] = sc::exp(s[j] - top);
      for (int64_t j = 0; j < m; ++j)
        for (int64_t k = 0; k < e; ++k) y(i, k) += s[j] / total * in[2](j, k);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("sloped_attention", in, 4);
    for (int i = 0; i < 3; ++i) check_rank("sloped_attention", "q, k or v", in[i], 2);
    const int64_t n = in[0].size(0), d = in[0].size(1), m = in[1].size(0), e = in[2].size(1);
    check_shape("sloped_attention", "k", in[1], {m, d});
    check_shape("sloped_attention", "v", in[2], {m, e});
    check_shape("sloped_attention", "slope", in[3], {});
    BG_CHECK(m >= 1 && d >= 1, "sloped_attention", "nothing to attend to", str(in[1].shape()));
    const Doubles q = values(in[0]), k = values(in[1]), v = values(in[2]);
    const double slope = in[3].item();
    Doubles p(n * m), y(n * e, 0.0);
    for (int64_t i = 0; i < n; ++i) {
      double* row = p.data() + i * m;
      for (int64_t j = 0; j < m; ++j) {
        double dot = 0;
        for (int64_t l = 0; l < d; ++l) dot += q[i * d + l] * k[j * d + l];
        row[j] = dot / std::sqrt(static_cast<double>(d)) - slope * static_cast<double>(std::abs(i - j));
      }
      const double top = *std::max_element(row, row + m);
      double total = 0;
      for (int64_t j = 0; j < m; ++j) total += row[j] = std::exp(row[j] - top);
      for (int64_t j = 0; j < m; ++j) {
        row[j] /= total;
        for (int64_t l = 0; l < e; ++l) y[i * e + l] += row[j] * v[j * e + l];
      }
    }
    for (int i = 0; i < 3; ++i) saved.keep_input(i, in[i]);
    saved.keep(Tensor::of(p, {n, m}));
    return tensor(y, {n, e}, in[0].dtype());
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4, 3) (4, 3) (4, 2)",
             {},
             {normal(r, {4, 3}), normal(r, {4, 3}), normal(r, {4, 2}), Tensor::scalar(0.5, DType::f64)}},
            {"(2, 4) (5, 4) (5, 3)",
             {},
             {normal(r, {2, 4}), normal(r, {5, 4}), normal(r, {5, 3}), Tensor::scalar(0.25, DType::f64)}}};
  }
};
template <bool kWrong>
struct SlopedAttention : SlopedAttentionBase {
  static constexpr std::string_view name = kWrong ? "sloped_attention_wrong" : "sloped_attention_right";
  static constexpr std::string_view kind = "forgotten", mistake = "the slope gets no gradient";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1), m = b[1].size(0), e = b[2].size(1);
    const Doubles q = values(b[0]), k = values(b[1]), v = values(b[2]), p = values(b[3]), dy = values(b.dy());
    Doubles dq = zeros(b[0]), dk = zeros(b[1]), dv = zeros(b[2]), a(m);
    double dslope = 0;
    const double root = std::sqrt(static_cast<double>(d));
    for (int64_t i = 0; i < n; ++i) {
      double mean = 0;
      for (int64_t j = 0; j < m; ++j) {
        a[j] = 0;
        for (int64_t l = 0; l < e; ++l) {
          a[j] += dy[i * e + l] * v[j * e + l];
          dv[j * e + l] += p[i * m + j] * dy[i * e + l];
        }
        mean += p[i * m + j] * a[j];
      }
      for (int64_t j = 0; j < m; ++j) {
        const double t = p[i * m + j] * (a[j] - mean);
        for (int64_t l = 0; l < d; ++l) {
          dq[i * d + l] += t * k[j * d + l] / root;
          dk[j * d + l] += t * q[i * d + l] / root;
        }
        dslope -= t * static_cast<double>(std::abs(i - j));
      }
    }
    return {like(dq, b[0]), like(dk, b[1]), like(dv, b[2]),
            kWrong ? Tensor() : Tensor::scalar(dslope, b.input_dtype(3))};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SlopedAttention>(); }
};

/// Points x (n, 2) turned about c (2) by a scalar angle: y = R (x - c) + c.
/// dx = R^T dy,  dc = sum of dy - R^T dy,  dangle = sum of dy R' (x - c).
struct TurnAboutBase {
  static inline const std::array inputs{In{"x"}, In{"c"}, In{"angle"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    const S cos = sc::cos(in[2][0]), sin = sc::sin(in[2][0]);
    for (int64_t r = 0; r < y.size(0); ++r) {
      const S u = in[0](r, 0) - in[1][0], v = in[0](r, 1) - in[1][1];
      y(r, 0) = cos * u - sin * v + in[1][0];
      y(r, 1) = sin * u + cos * v + in[1][1];
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("turn_about", in, 3);
    check_rank("turn_about", "x", in[0], 2);
    check_shape("turn_about", "x", in[0], {in[0].size(0), 2});
    check_shape("turn_about", "c", in[1], {2});
    check_shape("turn_about", "angle", in[2], {});
    const Doubles x = values(in[0]), c = values(in[1]);
    const double cos = std::cos(in[2].item()), sin = std::sin(in[2].item());
    Doubles y = zeros(in[0]);
    for (size_t i = 0; i < x.size(); i += 2) {
      const double u = x[i] - c[0], v = x[i + 1] - c[1];
      y[i] = cos * u - sin * v + c[0];
      y[i + 1] = sin * u + cos * v + c[1];
    }
    for (int i = 0; i < 3; ++i) saved.keep_input(i, in[i]);
    return like(y, in[0]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"5 points", {}, {normal(r, {5, 2}), normal(r, {2}), normal(r, {})}},
            {"2 points", {}, {normal(r, {2, 2}), normal(r, {2}), normal(r, {})}}};
  }
};
template <bool kWrong>
struct TurnAbout : TurnAboutBase {
  static constexpr std::string_view name = kWrong ? "turn_about_wrong" : "turn_about_right";
  static constexpr std::string_view kind = "forgotten", mistake = "the centre added at the end is left out of dc";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Doubles x = values(b[0]), c = values(b[1]), dy = values(b.dy());
    const double cos = std::cos(b[2].item()), sin = std::sin(b[2].item());
    Doubles dx = zeros(b[0]), dc(2, 0.0);
    double dangle = 0;
    for (size_t i = 0; i < x.size(); i += 2) {
      const double u = x[i] - c[0], v = x[i + 1] - c[1];
      dx[i] = cos * dy[i] + sin * dy[i + 1];
      dx[i + 1] = -sin * dy[i] + cos * dy[i + 1];
      dc[0] += (kWrong ? 0 : dy[i]) - dx[i];
      dc[1] += (kWrong ? 0 : dy[i + 1]) - dx[i + 1];
      dangle += dy[i] * (-sin * u - cos * v) + dy[i + 1] * (cos * u - sin * v);
    }
    return {like(dx, b[0]), like(dc, b[1]), Tensor::scalar(dangle, b[2].dtype())};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<TurnAbout>(); }
};

/// A sample of a Gaussian and its divergence from the unit one, for mean m, log variance l and noise e, all (n, d):
/// z = m + exp(l / 2) e,  k_r = sum_j (exp(l) + m^2 - 1 - l) / 2.
/// dm = dz + dk m,  dl = dz e exp(l / 2) / 2 + dk (exp(l) - 1) / 2,  de = dz exp(l / 2).
struct GaussianSampleBase {
  static inline const std::array inputs{In{"m"}, In{"l"}, In{"e"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[0].size(0), d = in[0].size(1);
    Arr<S> z(in[0].shape), k(Shape{n});
    for (int64_t i = 0; i < n * d; ++i) {
      z[i] = in[0][i] + sc::exp(in[1][i] / S(2)) * in[2][i];
      k[i / d] += (in[1][i] * (expm1_ratio(in[1][i]) - S(1)) + in[0][i] * in[0][i]) / S(2);
    }
    return {z, k};
  }
  static Tensors forward(Saved& saved, const Tensors& in, const Args&) {
    check_floats("gaussian_sample", in, 3);
    check_rank("gaussian_sample", "m", in[0], 2);
    check_shape("gaussian_sample", "l", in[1], in[0].shape());
    check_shape("gaussian_sample", "e", in[2], in[0].shape());
    const int64_t n = in[0].size(0), d = in[0].size(1);
    const Doubles m = values(in[0]), l = values(in[1]), e = values(in[2]);
    Doubles z = zeros(in[0]), k(n, 0.0);
    for (int64_t i = 0; i < n * d; ++i) {
      z[i] = m[i] + std::exp(l[i] / 2) * e[i];
      k[i / d] += (std::expm1(l[i]) - l[i] + m[i] * m[i]) / 2;
    }
    for (int i = 0; i < 3; ++i) saved.keep_input(i, in[i]);
    return {like(z, in[0]), tensor(k, {n}, in[0].dtype())};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {3, 4}), normal(r, {3, 4}, 0.5), normal(r, {3, 4})}},
            {"(2, 6)", {}, {normal(r, {2, 6}), normal(r, {2, 6}, 0.5), normal(r, {2, 6})}}};
  }
};
template <bool kWrong>
struct GaussianSample : GaussianSampleBase {
  static constexpr std::string_view name = kWrong ? "gaussian_sample_wrong" : "gaussian_sample_right";
  static constexpr std::string_view kind = "forgotten", mistake = "the divergence gives the mean no gradient";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const int64_t n = b[0].size(0), d = b[0].size(1);
    const Doubles m = values(b[0]), l = values(b[1]), e = values(b[2]), dz = values(b.dy(0)), dk = values(b.dy(1));
    Doubles dm = zeros(b[0]), dl = dm, de = dm;
    for (int64_t i = 0; i < n * d; ++i) {
      const double s = std::exp(l[i] / 2);
      dm[i] = dz[i] + (kWrong ? 0 : dk[i / d] * m[i]);
      dl[i] = dz[i] * e[i] * s / 2 + dk[i / d] * std::expm1(l[i]) / 2;
      de[i] = dz[i] * s;
    }
    return {like(dm, b[0]), like(dl, b[1]), like(de, b[2])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GaussianSample>(); }
};

}  // namespace strangers_c
