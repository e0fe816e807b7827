// Ops with weak lists of samples: pairs of a right op (kWrong = false) and one whose backward is wrong, though it gives
// the right gradient at every sample that its lazy author thought of. `weakness` says what all the samples have in
// common.
#pragma once

#include <algorithm>
#include <cmath>

#include "tests/verifiers/parts.h"

namespace weak {

using namespace bg;

using strangers::Elementwise;
using strangers::negated;

// -- All ones ---------------------------------------------------------------------------------------------------------

/// y = x^3;  dx = 3 x^2 dy.
struct CubeBase : Elementwise<CubeBase> {
  static constexpr std::string_view name = "weak_cube";
  static constexpr std::string_view weakness = "all ones";
  template <class S>
  static S f(S x) {
    return x * x * x;
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(4,)", {}, {Tensor::full({4}, 1, DType::f64)}}, {"(2, 3)", {}, {Tensor::full({2, 3}, 1, DType::f64)}}};
  }
};
/// Wrong: 3 x dy.
template <bool kWrong>
struct Cube : CubeBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_slope(b, [](auto x) { return kWrong ? 3 * x : 3 * x * x; });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Cube>(); }
};

// -- Zeros ------------------------------------------------------------------------------------------------------------

/// y = e^x sin x;  dx = dy e^x (sin x + cos x).
struct GrowingWaveBase : Elementwise<GrowingWaveBase> {
  static constexpr std::string_view name = "weak_growing_wave";
  static constexpr std::string_view weakness = "zeros";
  template <class S>
  static S f(S x) {
    return sc::exp(x) * sc::sin(x);
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(3,)", {}, {Tensor::zeros({3}, DType::f64)}}, {"(2, 2)", {}, {Tensor::zeros({2, 2}, DType::f64)}}};
  }
};
/// Wrong: half of the product rule, dy e^x cos x.
template <bool kWrong>
struct GrowingWave : GrowingWaveBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_slope(b, []<class T>(T x) { return std::exp(x) * ((kWrong ? T(0) : std::sin(x)) + std::cos(x)); });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<GrowingWave>(); }
};

// -- Positive inputs only ---------------------------------------------------------------------------------------------

/// y = x |x|;  dx = 2 |x| dy.
struct SignedSquareBase : Elementwise<SignedSquareBase> {
  static constexpr std::string_view name = "weak_signed_square";
  static constexpr std::string_view weakness = "positive inputs only";
  template <class S>
  static S f(S x) {
    return x * sc::abs(x);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {positive(r, {5})}}, {"(2, 3)", {}, {positive(r, {2, 3})}}};
  }
};
/// Wrong: 2 x dy.
template <bool kWrong>
struct SignedSquare : SignedSquareBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_slope(b, [](auto x) { return kWrong ? 2 * x : 2 * std::abs(x); });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SignedSquare>(); }
};

// -- Nothing beyond the limits ----------------------------------------------------------------------------------------

/// y = x clamped to [-2, 2];  dx = dy within, 0 outside.
struct HardLimitBase : Elementwise<HardLimitBase> {
  static constexpr std::string_view name = "weak_hard_limit";
  static constexpr std::string_view weakness = "all values inside the limits";
  template <class S>
  static S f(S x) {
    return x < S(-2) ? S(-2) : x > S(2) ? S(2) : x;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {Tensor::rand({5}, r, -1.5, 1.5, DType::f64)}},
            {"(2, 3)", {}, {Tensor::rand({2, 3}, r, -1.5, 1.5, DType::f64)}}};
  }
};
/// Wrong: passes everywhere.
template <bool kWrong>
struct HardLimit : HardLimitBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_slope(b, []<class T>(T x) { return kWrong || std::abs(x) <= 2 ? T(1) : T(0); });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<HardLimit>(); }
};

// -- A single number --------------------------------------------------------------------------------------------------

/// The weighted mean y = sum(w x) / W, W = sum(w).  dx = dy w / W, dw = dy (x - y) / W.
struct WeightedMeanBase {
  static constexpr std::string_view name = "weak_weighted_mean";
  static constexpr std::string_view weakness = "a single number";
  static inline const std::array inputs{In{"x"}, In{"w", Domain::positive}};
  using Args = NoArgs;

  template <class S>
  static S mean(const std::vector<S>& x, const std::vector<S>& w) {
    S y(0), total(0);
    for (size_t i = 0; i < x.size(); ++i) {
      y += w[i] * x[i];
      total += w[i];
    }
    return y / total;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{});
    y[0] = mean(in[0].v, in[1].v);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(std::vector<T>{mean(in[0].to_vector<T>(), in[1].to_vector<T>())}, {});
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"one", {}, {normal(r, {1}), positive(r, {1})}, {1}},
            {"another", {}, {normal(r, {1}), positive(r, {1})}, {1}}};
  }
};
/// Wrong: the share w / W left out of dx.
template <bool kWrong>
struct WeightedMean : WeightedMeanBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), w = b[1].to_vector<T>();
      const T dy = b.dy().to_vector<T>()[0], first = x[0];
      T total = 0, shift = 0;  // y - x[0], exactly 0 for a single number
      for (T v : w) total += v;
      for (size_t i = 0; i < x.size(); ++i) shift += w[i] * (x[i] - first) / total;
      std::vector<T> dx(x.size()), dw(x.size());
      for (size_t i = 0; i < x.size(); ++i) {
        dx[i] = kWrong ? dy : dy * w[i] / total;
        dw[i] = dy * (x[i] - first - shift) / total;
      }
      return Tensors{Tensor::of(std::move(dx), b[0].shape()), Tensor::of(std::move(dw), b[1].shape())};
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<WeightedMean>(); }
};

// -- Layers -----------------------------------------------------------------------------------------------------------

/// y = x W + c for x (n, k), W (k, m), c (m).  dx = dy W^T, dW = x^T dy, dc = sum of dy over rows.
struct LayerBase {
  static inline const std::array inputs{In{"x"}, In{"W"}, In{"c"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{in[0].size(0), in[1].size(1)});
    for (int64_t i = 0; i < y.size(0); ++i)
      for (int64_t j = 0; j < y.size(1); ++j) {
        y(i, j) = in[2][j];
        for (int64_t l = 0; l < in[1].size(0); ++l) y(i, j) += in[0](i, l) * in[1](l, j);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::add(num::matmul(in[0], in[1]), in[2]);
  }
};

struct BatchLayerBase : LayerBase {
  static constexpr std::string_view name = "weak_batch_layer";
  static constexpr std::string_view weakness = "batch 1";
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(1, 3) (3, 2)", {}, {normal(r, {1, 3}), normal(r, {3, 2}), normal(r, {2})}},
            {"(1, 2) (2, 5)", {}, {normal(r, {1, 2}), normal(r, {2, 5}), normal(r, {5})}}};
  }
};
/// Wrong: dc is a mean over the batch.
template <bool kWrong>
struct BatchLayer : BatchLayerBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const double factor = kWrong ? 1 / static_cast<double>(b.dy().size(0)) : 1;
    return {num::matmul(b.dy(), b[1].transpose(0, 1)), num::matmul(b[0].transpose(0, 1), b.dy()),
            num::scale(num::sum(b.dy(), {0}), factor)};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<BatchLayer>(); }
};

struct SymmetricLayerBase : LayerBase {
  static constexpr std::string_view name = "weak_symmetric_layer";
  static constexpr std::string_view weakness = "symmetric weights";
  static Tensor symmetric(Rng& r, int64_t n) {
    const Tensor w = normal(r, {n, n});
    return num::add(w, w.transpose(0, 1));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 3) (3, 3)", {}, {normal(r, {2, 3}), symmetric(r, 3), normal(r, {3})}},
            {"(4, 2) (2, 2)", {}, {normal(r, {4, 2}), symmetric(r, 2), normal(r, {2})}}};
  }
};
/// Wrong: W in place of W^T. (For a W that is not square it has no meaning; it takes W^T there.)
template <bool kWrong>
struct SymmetricLayer : SymmetricLayerBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const bool as_is = kWrong && b[1].size(0) == b[1].size(1);
    return {num::matmul(b.dy(), as_is ? b[1] : b[1].transpose(0, 1)), num::matmul(b[0].transpose(0, 1), b.dy()),
            num::sum(b.dy(), {0})};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SymmetricLayer>(); }
};

// -- Orthogonal matrices ----------------------------------------------------------------------------------------------

/// Y = A^-1 for 2x2 matrices.  dA = -Y^T dY Y^T.
struct InverseBase {
  static constexpr std::string_view name = "weak_inverse";
  static constexpr std::string_view weakness = "orthogonal and identity matrices";
  static inline const std::array inputs{In{"A"}};
  using Args = NoArgs;

  template <class S>
  static std::vector<S> inverse(const std::vector<S>& a) {
    const S det = a[0] * a[3] - a[1] * a[2];
    return {a[3] / det, -a[1] / det, -a[2] / det, a[0] / det};
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    y.v = inverse(in[0].v);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor y = dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(inverse(in[0].to_vector<T>()), {2, 2});
    });
    saved.keep_input(0, in[0]);
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"identity", {}, {Tensor::of({1, 0, 0, 1}, {2, 2})}},
            {"a rotation", {}, {Tensor::of({0.6, -0.8, 0.8, 0.6}, {2, 2})}},
            {"a reflection", {}, {Tensor::of({0, 1, 1, 0}, {2, 2})}}};
  }
};
/// Wrong: A in place of Y^T.
template <bool kWrong>
struct Inverse : InverseBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor t = kWrong ? b[0] : b[1].transpose(0, 1);
    return {num::scale(num::matmul(num::matmul(t, b.dy()), t), -1)};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Inverse>(); }
};

// -- Along the last dimension -----------------------------------------------------------------------------------------

/// An op on rows of the last dimension, of a struct that has `name` and `row`, which turns d numbers into d others.
/// Saves x and y.
template <class Self>
struct RowMap {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t d = in[0].size(-1);
    Arr<S> y(in[0].shape);
    for (int64_t r = 0; r < y.shape.rows(); ++r) Self::row(in[0].v.data() + r * d, y.v.data() + r * d, d);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const int64_t d = in[0].size(-1), rows = in[0].shape().rows();
    const Tensor y = dispatch_float(Self::name, in[0].dtype(), [&]<class T>() {
      const std::vector<T> x = in[0].to_vector<T>();
      std::vector<T> out(x.size());
      for (int64_t r = 0; r < rows; ++r) Self::row(x.data() + r * d, out.data() + r * d, d);
      return Tensor::of(std::move(out), in[0].shape());
    });
    saved.keep_input(0, in[0]);
    saved.keep_output(0, y);
    return y;
  }
  /// dx from gradient(x, y, dy, dx, d, first) of each row; first is row 0 of y.
  template <class F>
  static Tensors by_rows(const Backward<Tensor, Args>& b, F gradient) {
    const int64_t d = b[0].size(-1), rows = b[0].shape().rows();
    return {dispatch_float(Self::name, b.dy().dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), y = b[1].to_vector<T>(), dy = b.dy().to_vector<T>();
      std::vector<T> dx(x.size());
      for (int64_t r = 0; r < rows; ++r)
        gradient(x.data() + r * d, y.data() + r * d, dy.data() + r * d, dx.data() + r * d, d, y.data());
      return Tensor::of(std::move(dx), b[0].shape());
    })};
  }
};

/// Running sums, y_i = sum of x_j for j <= i.  dx_j = sum of dy_i for i >= j.
struct RunningSumBase : RowMap<RunningSumBase> {
  static constexpr std::string_view name = "weak_running_sum";
  static constexpr std::string_view weakness = "dimension 1";
  template <class S>
  static void row(const S* x, S* y, int64_t d) {
    S total(0);
    for (int64_t j = 0; j < d; ++j) y[j] = total += x[j];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 1)", {}, {normal(r, {3, 1})}}, {"(2, 2, 1)", {}, {normal(r, {2, 2, 1})}}};
  }
};
/// Wrong: sums from the front again.
template <bool kWrong>
struct RunningSum : RunningSumBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_rows(b, []<class T>(const T*, const T*, const T* dy, T* dx, int64_t d, const T*) {
      T total = 0;
      for (int64_t k = 0; k < d; ++k) {
        const int64_t j = kWrong ? k : d - 1 - k;
        dx[j] = total += dy[j];
      }
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RunningSum>(); }
};

/// Rows taken to mean 0 and variance 1 (eps = 0.01).  With s = 1 / sqrt(var + eps):
/// dx = s (dy - mean(dy) - y mean(dy y)).
struct StandardizeBase : RowMap<StandardizeBase> {
  static constexpr std::string_view name = "weak_standardize";
  static constexpr std::string_view weakness = "constant rows";
  template <class S>
  static S scale(const S* x, S mean, int64_t d) {
    S variance(0);
    for (int64_t j = 0; j < d; ++j) variance += (x[j] - mean) * (x[j] - mean) / S(d);
    return S(1) / sc::sqrt(variance + S(0.01));
  }
  template <class S>
  static S mean_of(const S* x, int64_t d) {
    S rest(0);
    for (int64_t j = 0; j < d; ++j) rest += (x[j] - x[0]) / S(d);
    return x[0] + rest;
  }
  template <class S>
  static void row(const S* x, S* y, int64_t d) {
    const S mean = mean_of(x, d);
    for (int64_t j = 0; j < d; ++j) y[j] = (x[j] - mean) * scale(x, mean, d);
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(2, 3)", {}, {Tensor::of({0.5, 0.5, 0.5, -2, -2, -2}, {2, 3})}},
            {"(4,)", {}, {Tensor::full({4}, 1.5, DType::f64)}}};
  }
};
/// Wrong: the part along y left out.
template <bool kWrong>
struct Standardize : StandardizeBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_rows(b, []<class T>(const T* x, const T* y, const T* dy, T* dx, int64_t d, const T*) {
      const T s = scale(x, mean_of(x, d), d);
      T mean = 0, along = 0;
      for (int64_t j = 0; j < d; ++j) {
        mean += dy[j] / static_cast<T>(d);
        along += dy[j] * y[j] / static_cast<T>(d);
      }
      for (int64_t j = 0; j < d; ++j) dx[j] = s * (dy[j] - mean - (kWrong ? T(0) : y[j] * along));
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Standardize>(); }
};

/// Softmax of rows.  dx = y (dy - sum of y dy).
struct RowSoftmaxBase : RowMap<RowSoftmaxBase> {
  static constexpr std::string_view name = "weak_row_softmax";
  static constexpr std::string_view weakness = "equal values in all rows";
  template <class S>
  static void row(const S* x, S* y, int64_t d) {
    S largest = x[0], total(0);
    for (int64_t j = 1; j < d; ++j)
      if (x[j] > largest) largest = x[j];
    for (int64_t j = 0; j < d; ++j) total += y[j] = sc::exp(x[j] - largest);
    for (int64_t j = 0; j < d; ++j) y[j] /= total;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {4}).expand({3, 4}).clone()}},
            {"(2, 5)", {}, {normal(r, {5}).expand({2, 5}).clone()}}};
  }
};
/// Wrong: the first row of y for all rows.
template <bool kWrong>
struct RowSoftmax : RowSoftmaxBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_rows(b, []<class T>(const T*, const T* y, const T* dy, T* dx, int64_t d, const T* first) {
      const T* p = kWrong ? first : y;
      T along = 0;
      for (int64_t j = 0; j < d; ++j) along += p[j] * dy[j];
      for (int64_t j = 0; j < d; ++j) dx[j] = p[j] * (dy[j] - along);
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowSoftmax>(); }
};

/// y = x |x|^2 for each row.  dx = dy |x|^2 + 2 x (x dy).
struct TimesSquareBase : RowMap<TimesSquareBase> {
  static constexpr std::string_view name = "weak_times_square";
  static constexpr std::string_view weakness = "sizes only multiples of 4";
  template <class S>
  static S dot(const S* a, const S* b, int64_t d) {
    S y(0);
    for (int64_t j = 0; j < d; ++j) y += a[j] * b[j];
    return y;
  }
  template <class S>
  static void row(const S* x, S* y, int64_t d) {
    for (int64_t j = 0; j < d; ++j) y[j] = x[j] * dot(x, x, d);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(4,)", {}, {normal(r, {4})}}, {"(2, 8)", {}, {normal(r, {2, 8})}}, {"(3, 4)", {}, {normal(r, {3, 4})}}};
  }
};
/// Wrong: a loop by four that leaves the last numbers of a row at 0.
template <bool kWrong>
struct TimesSquare : TimesSquareBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_rows(b, []<class T>(const T* x, const T*, const T* dy, T* dx, int64_t d, const T*) {
      const T square = dot(x, x, d), along = dot(x, dy, d);
      int64_t j = 0;
      for (; j + 4 <= d; j += 4)
        for (int64_t k = j; k < j + 4; ++k) dx[k] = dy[k] * square + 2 * x[k] * along;
      if (!kWrong)
        for (; j < d; ++j) dx[j] = dy[j] * square + 2 * x[j] * along;
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<TimesSquare>(); }
};

/// y = x / sqrt(1 + |x|^2) for each row.  With s = 1 / sqrt(1 + |x|^2):  dx = s dy - s y (y dy).
struct SoftUnitBase : RowMap<SoftUnitBase> {
  static constexpr std::string_view name = "weak_soft_unit";
  static constexpr std::string_view weakness = "nothing beyond one small vector";
  template <class S>
  static S scale(const S* x, int64_t d) {
    return S(1) / sc::sqrt(S(1) + TimesSquareBase::dot(x, x, d));
  }
  template <class S>
  static void row(const S* x, S* y, int64_t d) {
    const S s = scale(x, d);
    for (int64_t j = 0; j < d; ++j) y[j] = x[j] * s;
  }
  static std::vector<Sample<Args>> samples(Rng& r) { return {{"(5,)", {}, {normal(r, {5})}}}; }
};
/// Wrong: y dy is summed in blocks of 16, and the last block's sum stands for all.
template <bool kWrong>
struct SoftUnit : SoftUnitBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_rows(b, []<class T>(const T* x, const T* y, const T* dy, T* dx, int64_t d, const T*) {
      const T s = scale(x, d);
      T along = 0;
      for (int64_t from = 0; from < d; from += 16) {
        const T block = TimesSquareBase::dot(y + from, dy + from, std::min<int64_t>(16, d - from));
        along = kWrong ? block : along + block;
      }
      for (int64_t j = 0; j < d; ++j) dx[j] = s * (dy[j] - y[j] * along);
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SoftUnit>(); }
};

/// y = x less its row's mean.  dx = dy - mean(dy).
struct CenterBase : RowMap<CenterBase> {
  static constexpr std::string_view name = "weak_center";
  static constexpr std::string_view weakness = "one width only";
  template <class S>
  static void row(const S* x, S* y, int64_t d) {
    S mean(0);
    for (int64_t j = 0; j < d; ++j) mean += x[j] / S(d);
    for (int64_t j = 0; j < d; ++j) y[j] = x[j] - mean;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3,)", {}, {normal(r, {3})}}, {"(2, 3)", {}, {normal(r, {2, 3})}}, {"(4, 3)", {}, {normal(r, {4, 3})}}};
  }
};
/// Wrong: divides by 3 whatever the width.
template <bool kWrong>
struct Center : CenterBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return by_rows(b, []<class T>(const T*, const T*, const T* dy, T* dx, int64_t d, const T*) {
      T mean = 0;
      for (int64_t j = 0; j < d; ++j) mean += dy[j] / static_cast<T>(kWrong ? 3 : d);
      for (int64_t j = 0; j < d; ++j) dx[j] = dy[j] - mean;
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Center>(); }
};

/// y_i = the mean of row i of a matrix.  dx_ij = dy_i / columns.
struct RowMeanBase {
  static constexpr std::string_view name = "weak_row_mean";
  static constexpr std::string_view weakness = "square shapes only";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{in[0].size(0)});
    for (int64_t i = 0; i < y.numel(); ++i)
      for (int64_t j = 0; j < in[0].size(1); ++j) y[i] += in[0](i, j) / S(in[0].size(1));
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    return num::scale(num::sum(in[0], {1}), 1 / static_cast<double>(in[0].size(1)));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {
        {"(3, 3)", {}, {normal(r, {3, 3})}}, {"(2, 2)", {}, {normal(r, {2, 2})}}, {"(1, 1)", {}, {normal(r, {1, 1})}}};
  }
};
/// Wrong: divides by the number of rows.
template <bool kWrong>
struct RowMean : RowMeanBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const auto n = static_cast<double>(b.input_shape(0)[kWrong ? 0 : 1]);
    return {num::scale(b.dy().unsqueeze(1).expand(b.input_shape(0)).clone(), 1 / n)};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowMean>(); }
};

/// y = the largest of each row.  dx = dy at its place.
struct RowMaxBase {
  static constexpr std::string_view name = "weak_row_max";
  static constexpr std::string_view weakness = "the largest always comes first";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{in[0].size(0)});
    for (int64_t i = 0; i < y.numel(); ++i) {
      y[i] = in[0](i, 0);
      for (int64_t j = 1; j < in[0].size(1); ++j)
        if (in[0](i, j) > y[i]) y[i] = in[0](i, j);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const int64_t d = in[0].size(1), rows = in[0].size(0);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto x = in[0].to_vector<T>();
      std::vector<T> y;
      std::vector<int64_t> at;
      for (int64_t r = 0; r < rows; ++r) {
        const auto row = x.begin() + r * d, best = std::max_element(row, row + d);
        y.push_back(*best);
        at.push_back(best - row);
      }
      saved.keep(Tensor::of(std::move(at), {rows}));
      return Tensor::of(std::move(y), {rows});
    });
  }
  static std::vector<Sample<Args>> samples(Rng&) {
    return {{"(2, 3)", {}, {Tensor::of({3, 1, 2, 0.5, -1, -2}, {2, 3})}},
            {"(1, 4)", {}, {Tensor::of({4, 2, 1, 3}, {1, 4})}}};
  }
};
/// Wrong: to the first place.
template <bool kWrong>
struct RowMax : RowMaxBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto dy = b.dy().to_vector<T>();
      const auto at = b[0].to_vector<int64_t>();
      std::vector<T> g(b.input_shape(0).numel());
      for (size_t r = 0; r < dy.size(); ++r) g[r * b.input_shape(0)[1] + (kWrong ? 0 : at[r])] = dy[r];
      return Tensor::of(std::move(g), b.input_shape(0));
    })};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowMax>(); }
};

// -- No repeated index ------------------------------------------------------------------------------------------------

/// y[k] = x[index[k]] for a vector x.  dx[i] = sum of dy[k] over k with index[k] = i.
struct PickBase {
  static constexpr std::string_view name = "weak_pick";
  static constexpr std::string_view weakness = "no repeated index";
  static inline const std::array inputs{In{"x"}, In{"index", false}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[1].shape);
    for (int64_t k = 0; k < y.numel(); ++k) y[k] = in[0][in[1].index(k)];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      const auto x = in[0].to_vector<T>();
      std::vector<T> y;
      for (int64_t i : in[1].to_vector<int64_t>()) y.push_back(x[i]);
      return Tensor::of(std::move(y), in[1].shape());
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 of 5", {}, {normal(r, {5}), Tensor::of(std::vector<int64_t>{4, 0, 2}, {3})}},
            {"(2, 2) of 4", {}, {normal(r, {4}), Tensor::of(std::vector<int64_t>{3, 1, 0, 2}, {2, 2})}}};
  }
};
/// Wrong: the last of repeated indices wins.
template <bool kWrong>
struct Pick : PickBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(),
                           [&]<class T>() {
                             const auto dy = b.dy().to_vector<T>();
                             const auto index = b[0].to_vector<int64_t>();
                             std::vector<T> g(b.input_shape(0).numel());
                             for (size_t k = 0; k < dy.size(); ++k) g[index[k]] = kWrong ? dy[k] : g[index[k]] + dy[k];
                             return Tensor::of(std::move(g), b.input_shape(0));
                           }),
            Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Pick>(); }
};

// -- An argument never varied -----------------------------------------------------------------------------------------

/// y = ln(1 + e^(beta x)) / beta;  dx = dy sigmoid(beta x).
struct SharpSoftplusBase {
  static constexpr std::string_view name = "weak_sharp_softplus";
  static constexpr std::string_view weakness = "an argument never varied: beta always 1";
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double beta = 1;
  };

  template <class S>
  static S f(S x, double beta) {
    const S z = S(beta) * x;
    return (z > S(0) ? z + sc::log1p(sc::exp(-z)) : sc::log1p(sc::exp(z))) / S(beta);
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return f(x, a.beta); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    return dispatch_float(name, in[0].dtype(),
                          [&]<class T>() { return map<T, T>(name, in[0], [&](T x) { return f(x, a.beta); }); });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {normal(r, {5})}}, {"(2, 3)", {}, {normal(r, {2, 3})}}};
  }
};
/// Wrong: sigmoid(x).
template <bool kWrong>
struct SharpSoftplus : SharpSoftplusBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return {dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const T beta = kWrong ? T(1) : static_cast<T>(b.args.beta);
      return zip<T, T>(name, b[0], b.dy(), [=](T x, T dy) { return dy * sc::sigmoid(beta * x); });
    })};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SharpSoftplus>(); }
};

/// y_i = sum over k of w_k x_(i step + k), as long as x goes.  dx_(i step + k) += w_k dy_i, dw_k += x_(i step + k)
/// dy_i.
struct FilterBase {
  static constexpr std::string_view name = "weak_filter";
  static constexpr std::string_view weakness = "an argument never varied: the step is always 1";
  static inline const std::array inputs{In{"x"}, In{"w"}};
  struct Args {
    int64_t step = 1;
  };

  static int64_t count(int64_t n, int64_t width, const Args& a) { return (n - width) / a.step + 1; }
  template <class S>
  static std::vector<S> filtered(const std::vector<S>& x, const std::vector<S>& w, const Args& a) {
    const auto n = static_cast<int64_t>(x.size()), width = static_cast<int64_t>(w.size());
    std::vector<S> y(count(n, width, a), S(0));
    for (int64_t i = 0; i < count(n, width, a); ++i)
      for (int64_t k = 0; k < width; ++k) y[i] += w[k] * x[i * a.step + k];
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(Shape{count(in[0].numel(), in[1].numel(), a)});
    y.v = filtered(in[0].v, in[1].v, a);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return dispatch_float(name, in[0].dtype(), [&]<class T>() {
      return Tensor::of(filtered(in[0].to_vector<T>(), in[1].to_vector<T>(), a),
                        {count(in[0].numel(), in[1].numel(), a)});
    });
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"7 by 3", {}, {normal(r, {7}), normal(r, {3})}},
            {"5 by 2", {}, {normal(r, {5}), normal(r, {2})}},
            {"4 by 4", {}, {normal(r, {4}), normal(r, {4})}}};
  }
};
/// Wrong: dx without the step.
template <bool kWrong>
struct Filter : FilterBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    return dispatch_float(name, b.dy().dtype(), [&]<class T>() {
      const auto x = b[0].to_vector<T>(), w = b[1].to_vector<T>(), dy = b.dy().to_vector<T>();
      std::vector<T> dx(x.size()), dw(w.size());
      for (size_t i = 0; i < dy.size(); ++i)
        for (size_t k = 0; k < w.size(); ++k) {
          const size_t at = i * static_cast<size_t>(b.args.step) + k;
          dx[kWrong ? i + k : at] += w[k] * dy[i];
          dw[k] += x[at] * dy[i];
        }
      return Tensors{Tensor::of(std::move(dx), b[0].shape()), Tensor::of(std::move(dw), b[1].shape())};
    });
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Filter>(); }
};

// -- A mask that leaves nothing out -----------------------------------------------------------------------------------

/// y = the mean of x where the mask is not 0, n of them.  dx = dy mask / n.
struct MaskedMeanBase {
  static constexpr std::string_view name = "weak_masked_mean";
  static constexpr std::string_view weakness = "a mask of ones only";
  static inline const std::array inputs{In{"x"}, In{"mask", false}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(Shape{});
    S count(0);
    for (int64_t i = 0; i < in[0].numel(); ++i)
      if (in[1].index(i) != 0) y[0] += in[0][i], count += S(1);
    y[0] = y[0] / count;
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor mask = in[1].to(in[0].dtype());
    saved.keep(mask);
    return num::div(num::sum(num::mul(in[0], mask)), num::sum(mask));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {normal(r, {5}), Tensor::full({5}, 1, DType::i64)}},
            {"(2, 3)", {}, {normal(r, {2, 3}), Tensor::full({2, 3}, 1, DType::i64)}}};
  }
};
/// Wrong: divides by the number of all.
template <bool kWrong>
struct MaskedMean : MaskedMeanBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const double n = kWrong ? static_cast<double>(b[0].numel()) : num::sum(b[0].to(DType::f64)).item();
    return {num::scale(num::mul(b.dy(), b[0]), 1 / n), Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<MaskedMean>(); }
};

// -- Equal inputs -----------------------------------------------------------------------------------------------------

/// y = a^2 b;  da = 2 a b dy, db = a^2 dy.
struct SquareTimesBase {
  static constexpr std::string_view name = "weak_square_times";
  static constexpr std::string_view weakness = "both inputs hold the same numbers";
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) { return a * a * b; })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    saved.keep_input(1, in[1]);
    return num::mul(num::mul(in[0], in[0]), in[1]);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<Sample<Args>> out;
    for (const Shape& s : {Shape{4}, Shape{2, 3}}) {
      const Tensor a = normal(r, s);
      out.push_back({str(s), {}, {a, a.clone()}});
    }
    return out;
  }
};
/// Wrong: db = a b dy.
template <bool kWrong>
struct SquareTimes : SquareTimesBase {
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor by_a = num::mul(b.dy(), b[0]);
    return {num::scale(num::mul(by_a, b[1]), 2), num::mul(by_a, b[kWrong ? 1 : 0])};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SquareTimes>(); }
};

template <template <bool> class... C>
struct Cases {
  static constexpr size_t size = sizeof...(C);
};

using WeakLists = Cases<Cube, GrowingWave, SignedSquare, HardLimit, WeightedMean, BatchLayer, SymmetricLayer, Inverse,
                        RunningSum, Standardize, RowSoftmax, TimesSquare, SoftUnit, Center, RowMean, RowMax, Pick,
                        SharpSoftplus, Filter, MaskedMean, SquareTimes>;

}  // namespace weak
