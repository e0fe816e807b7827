// Third part: shapes, masks and indices, and slips in formulas.
#pragma once

#include "strangers_b_2.h"

namespace strangers_b {

// -- Shapes, masks and indices ----------------------------------------------------------------------------------------

/// Weight normalisation: w_r = g_r v_r / |v_r| for each row.
/// dg_r = <dw_r, v_r> / |v_r|,  dv_r = g_r / |v_r| (dw_r - v_r <dw_r, v_r> / |v_r|^2).
struct WeightNormBase {
  static inline const std::array inputs{In{"v"}, In{"g"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y = in[0];
    for (int64_t r = 0; r < y.size(0); ++r) {
      S square(0);
      for (int64_t j = 0; j < y.size(1); ++j) square += y(r, j) * y(r, j);
      for (int64_t j = 0; j < y.size(1); ++j) y(r, j) *= in[1][r] / sc::sqrt(square);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<WeightNormBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 4)", {}, {normal(r, {3, 4}), normal(r, {3})}}, {"(2, 8)", {}, {normal(r, {2, 8}), normal(r, {2})}}};
  }
};
template <bool kWrong>
struct WeightNorm : WeightNormBase {
  static constexpr std::string_view name = kWrong ? "weight_norm_wrong" : "weight_norm_right";
  static constexpr std::string_view kind = "shapes";
  static constexpr std::string_view mistake =
      "an inner product over four elements at a time leaves out the rest; wrong for widths that are no multiple of 4";
  static double dot(const double* a, const double* b, int64_t n) {
    double p0 = 0, p1 = 0, p2 = 0, p3 = 0;
    int64_t j = 0;
    for (; j + 4 <= n; j += 4) {
      p0 += a[j] * b[j];
      p1 += a[j + 1] * b[j + 1];
      p2 += a[j + 2] * b[j + 2];
      p3 += a[j + 3] * b[j + 3];
    }
    if constexpr (!kWrong)
      for (; j < n; ++j) p0 += a[j] * b[j];
    return p0 + p1 + p2 + p3;
  }
  static Tensors backward(const B& b) {
    const Vec v = values(b[0]), g = values(b[1]), dw = values(b.dy());
    const int64_t rows = b[0].size(0), d = b[0].size(1);
    Vec dv(v.size()), dg(g.size());
    for (int64_t r = 0; r < rows; ++r) {
      double square = 0;
      for (int64_t j = 0; j < d; ++j) square += v[r * d + j] * v[r * d + j];
      const double norm = std::sqrt(square), along = dot(&dw[r * d], &v[r * d], d);
      dg[r] = along / norm;
      for (int64_t j = 0; j < d; ++j) dv[r * d + j] = g[r] / norm * (dw[r * d + j] - v[r * d + j] * along / square);
    }
    return {grad(b, 0, dv), grad(b, 1, dg)};
  }
  static auto mutants() { return negated<WeightNorm>(); }
};

/// Sines of phases picked along each row: y_rk = sin(x_r,index_rk).  dx_r,index_rk += dy_rk cos(x_r,index_rk).
struct PickedPhasesBase {
  static inline const std::array inputs{In{"x"}, In{"index", false}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& index = in[1];
    Arr<S> y(index.shape);
    const int64_t k = index.size(1);
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = sc::sin(in[0](i / k, index.index(i)));
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<PickedPhasesBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"two of five", {}, {normal(r, {3, 5}), Tensor::of(Ints{0, 3, 4, 1, 2, 0}, Shape{3, 2})}},
            {"all of four", {}, {normal(r, {2, 4}), Tensor::of(Ints{3, 1, 0, 2, 1, 2, 3, 0}, Shape{2, 4})}}};
  }
};
template <bool kWrong>
struct PickedPhases : PickedPhasesBase {
  static constexpr std::string_view name = kWrong ? "picked_phases_wrong" : "picked_phases_right";
  static constexpr std::string_view kind = "shapes";
  static constexpr std::string_view mistake =
      "the gradient is stored, not added; an index that occurs twice in a row keeps only its last cotangent";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    const Ints index = whole(b[1]);
    const int64_t n = b[0].size(1), k = b[1].size(1);
    Vec dx(x.size(), 0.0);
    for (int64_t i = 0; i < static_cast<int64_t>(dy.size()); ++i) {
      const int64_t at = i / k * n + index[i];
      const double g = dy[i] * std::cos(x[at]);
      dx[at] = kWrong ? g : dx[at] + g;
    }
    return {grad(b, 0, dx), Tensor()};
  }
  static auto mutants() { return negated<PickedPhases>(); }
};

/// Softmax of each segment of a flat list; segment s is [offset_s, offset_s+1).
/// dx_i = y_i (dy_i - sum over its segment of y dy).
struct RaggedSoftmaxBase {
  static inline const std::array inputs{In{"x"}, In{"offsets", false}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    for (int64_t s = 0; s + 1 < in[1].numel(); ++s) {
      const int64_t begin = in[1].index(s), end = in[1].index(s + 1);
      if (begin == end) continue;
      S top = x[begin], total(0);
      for (int64_t i = begin; i < end; ++i) top = larger(top, x[i]);
      for (int64_t i = begin; i < end; ++i) total += y[i] = sc::exp(x[i] - top);
      for (int64_t i = begin; i < end; ++i) y[i] /= total;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<RaggedSoftmaxBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 segments", {}, {normal(r, {9}), Tensor::of(Ints{0, 3, 5, 9}, Shape{4})}},
            {"4 segments, one of one", {}, {normal(r, {10}), Tensor::of(Ints{0, 4, 5, 8, 10}, Shape{5})}}};
  }
};
template <bool kWrong>
struct RaggedSoftmax : RaggedSoftmaxBase {
  static constexpr std::string_view name = kWrong ? "ragged_softmax_wrong" : "ragged_softmax_right";
  static constexpr std::string_view kind = "shapes";
  static constexpr std::string_view mistake =
      "the walk over elements moves on by one segment at a border; after an empty segment it stays behind and takes "
      "all "
      "the rest for one segment";
  static Tensors backward(const B& b) {
    const Vec dy = values(b.dy()), y = reference<double>({array_of<double>(b[0]), array_of<double>(b[1])}, b.args)[0].v;
    const Ints offsets = whole(b[1]);
    const int64_t n = static_cast<int64_t>(y.size());
    Vec dx(y.size()), dots(offsets.size(), 0.0);
    Ints segment(y.size());
    int64_t s = 0;
    for (int64_t i = 0; i < n; ++i) {
      if constexpr (kWrong) {
        if (i == offsets[s + 1]) ++s;
      } else {
        while (i == offsets[s + 1]) ++s;
      }
      segment[i] = s;
      dots[s] += y[i] * dy[i];
    }
    for (int64_t i = 0; i < n; ++i) dx[i] = y[i] * (dy[i] - dots[segment[i]]);
    return {grad(b, 0, dx), Tensor()};
  }
  static auto mutants() { return negated<RaggedSoftmax>(); }
};

/// Running product along an axis: y_j = x_0 ... x_j.
/// dx_i = sum_{j >= i} dy_j (product of x_0 ... x_j without x_i), which needs no division.
struct RunningProductBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int axis = -1;
  };
  using B = Backward<Tensor, Args>;
  /// Elements before the axis, along it, and behind it.
  static std::array<int64_t, 3> split(const Shape& s, int axis) {
    axis = s.dim(axis, "running_product");
    std::array<int64_t, 3> n{1, s[axis], 1};
    for (int d = 0; d < axis; ++d) n[0] *= s[d];
    for (int d = axis + 1; d < s.rank(); ++d) n[2] *= s[d];
    return n;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y = in[0];
    const auto [outer, n, inner] = split(y.shape, a.axis);
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t j = 1; j < n; ++j)
        for (int64_t i = 0; i < inner; ++i) y[(o * n + j) * inner + i] *= y[(o * n + j - 1) * inner + i];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<RunningProductBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"last axis", {}, {normal(r, {3, 5})}},
            {"first axis", {0}, {normal(r, {3, 5})}},
            {"middle axis", {1}, {normal(r, {2, 4, 3})}}};
  }
};
template <bool kWrong>
struct RunningProduct : RunningProductBase {
  static constexpr std::string_view name = kWrong ? "running_product_wrong" : "running_product_right";
  static constexpr std::string_view kind = "shapes";
  static constexpr std::string_view mistake =
      "the dimensions before the axis are counted as the first one only; with two or more before it (the last axis of "
      "a 3-D tensor) most of the gradient stays zero";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    auto [outer, n, inner] = split(b[0].shape(), b.args.axis);
    if constexpr (kWrong) outer = b[0].shape().dim(b.args.axis, name) == 0 ? 1 : b[0].size(0);
    Vec dx(x.size(), 0.0);
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t k = 0; k < inner; ++k) {
        const auto at = [&, n = n, inner = inner](int64_t j) { return (o * n + j) * inner + k; };
        double before = 1;
        for (int64_t i = 0; i < n; ++i) {
          double product = before;
          for (int64_t j = i; j < n; ++j) {
            if (j > i) product *= x[at(j)];
            dx[at(i)] += dy[at(j)] * product;
          }
          before *= x[at(i)];
        }
      }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<RunningProduct>(); }
};

/// Log-sum over all paths of a chain: y_b = log sum over state paths of exp(sum_t e_b,t,state + sum_t A_before,state),
/// t running below length_b.  With the forward sums alpha and backward sums beta (both logarithms):
/// de_b,t,j = dy_b exp(alpha_tj + beta_tj - y_b),
/// dA_ij = sum over b and 0 < t < length_b of dy_b exp(alpha_t-1,i + A_ij + e_b,t,j + beta_tj - y_b).
struct ChainSumBase {
  static inline const std::array inputs{In{"emissions"}, In{"transitions"}, In{"lengths", false}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static S log_sum(const std::vector<S>& v) {
    S top = v[0], total(0);
    for (const S& x : v) top = larger(top, x);
    for (const S& x : v) total += sc::exp(x - top);
    return top + sc::log(total);
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&e = in[0], &a = in[1];
    const int64_t states = a.size(0);
    Arr<S> y(Shape{e.size(0)});
    for (int64_t b = 0; b < e.size(0); ++b) {
      std::vector<S> alpha, next(static_cast<size_t>(states), S(0)), terms = next;
      for (int64_t j = 0; j < states; ++j) alpha.push_back(e(b, 0, j));
      for (int64_t t = 1; t < in[2].index(b); ++t) {
        for (int64_t j = 0; j < states; ++j) {
          for (int64_t i = 0; i < states; ++i) terms[i] = alpha[i] + a(i, j);
          next[j] = e(b, t, j) + log_sum(terms);
        }
        alpha = next;
      }
      y[b] = log_sum(alpha);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<ChainSumBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"one chain", {}, {normal(r, {1, 5, 3}), normal(r, {3, 3}), Tensor::of(Ints{5}, Shape{1})}},
            {"two chains", {}, {normal(r, {2, 4, 3}), normal(r, {3, 3}), Tensor::of(Ints{4, 4}, Shape{2})}}};
  }
};
template <bool kWrong>
struct ChainSum : ChainSumBase {
  static constexpr std::string_view name = kWrong ? "chain_sum_wrong" : "chain_sum_right";
  static constexpr std::string_view kind = "shapes";
  static constexpr std::string_view mistake =
      "the transitions' gradient counts all steps of the tensor, those behind a chain's length too; only chains "
      "shorter "
      "than the longest show it";
  static Tensors backward(const B& b) {
    const Vec e = values(b[0]), a = values(b[1]), dy = values(b.dy());
    const Ints lengths = whole(b[2]);
    const int64_t batch = b[0].size(0), steps = b[0].size(1), n = b[0].size(2);
    Vec de(e.size(), 0.0), da(a.size(), 0.0), terms(static_cast<size_t>(n));
    for (int64_t s = 0; s < batch; ++s) {
      const double* es = &e[s * steps * n];
      Vec alpha(static_cast<size_t>(steps * n), 0.0), beta(static_cast<size_t>(steps * n), 0.0);
      for (int64_t t = 0; t < steps; ++t)
        for (int64_t j = 0; j < n; ++j) {
          for (int64_t i = 0; i < n && t > 0; ++i) terms[i] = alpha[(t - 1) * n + i] + a[i * n + j];
          alpha[t * n + j] = es[t * n + j] + (t > 0 ? log_sum(terms) : 0);
        }
      const int64_t length = lengths[s];
      for (int64_t t = length - 2; t >= 0; --t)
        for (int64_t i = 0; i < n; ++i) {
          for (int64_t j = 0; j < n; ++j) terms[j] = a[i * n + j] + es[(t + 1) * n + j] + beta[(t + 1) * n + j];
          beta[t * n + i] = log_sum(terms);
        }
      const double y = log_sum(Vec(alpha.begin() + (length - 1) * n, alpha.begin() + length * n));
      for (int64_t t = 0; t < length; ++t)
        for (int64_t j = 0; j < n; ++j)
          de[(s * steps + t) * n + j] = dy[s] * std::exp(alpha[t * n + j] + beta[t * n + j] - y);
      for (int64_t t = 1; t < (kWrong ? steps : length); ++t)
        for (int64_t i = 0; i < n; ++i)
          for (int64_t j = 0; j < n; ++j)
            da[i * n + j] +=
                dy[s] * std::exp(alpha[(t - 1) * n + i] + a[i * n + j] + es[t * n + j] + beta[t * n + j] - y);
    }
    return {grad(b, 0, de), grad(b, 1, da), Tensor()};
  }
  static auto mutants() { return negated<ChainSum>(); }
};

/// Average pooling along the last dimension; windows at the borders average over what they have of the row.
/// y_o = mean of x_i in [o stride - pad, o stride - pad + width) within the row.  dx_i += dy_o / count_o.
struct BorderPoolBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t width = 3, stride = 1, pad = 0;
  };
  using B = Backward<Tensor, Args>;
  static int64_t windows(const Args& a, int64_t n) { return (n + 2 * a.pad - a.width) / a.stride + 1; }
  /// The part of window o that lies in the row.
  static std::pair<int64_t, int64_t> window(const Args& a, int64_t o, int64_t n) {
    const int64_t begin = o * a.stride - a.pad;
    return {std::max<int64_t>(begin, 0), std::min(begin + a.width, n)};
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    const int64_t n = x.size(1);
    Arr<S> y(Shape{x.size(0), windows(a, n)});
    for (int64_t r = 0; r < y.size(0); ++r)
      for (int64_t o = 0; o < y.size(1); ++o) {
        const auto [begin, end] = window(a, o, n);
        for (int64_t i = begin; i < end; ++i) y(r, o) += x(r, i) / S(end - begin);
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<BorderPoolBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"width 3", {}, {normal(r, {2, 7})}},
            {"width 2, stride 2", {2, 2}, {normal(r, {3, 6})}},
            {"width 3, stride 2", {3, 2}, {normal(r, {2, 8})}}};
  }
};
template <bool kWrong>
struct BorderPool : BorderPoolBase {
  static constexpr std::string_view name = kWrong ? "border_pool_wrong" : "border_pool_right";
  static constexpr std::string_view kind = "shapes";
  static constexpr std::string_view mistake =
      "the backward divides by the full width at the borders too, where the forward divides by what is there; shows "
      "with "
      "padding";
  static Tensors backward(const B& b) {
    const Vec dy = values(b.dy());
    const int64_t rows = b.input_shape(0)[0], n = b.input_shape(0)[1], count = windows(b.args, n);
    Vec dx(static_cast<size_t>(rows * n), 0.0);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t o = 0; o < count; ++o) {
        const auto [begin, end] = window(b.args, o, n);
        const double share = dy[r * count + o] / static_cast<double>(kWrong ? b.args.width : end - begin);
        for (int64_t i = begin; i < end; ++i) dx[r * n + i] += share;
      }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<BorderPool>(); }
};

// -- Slips in formulas ------------------------------------------------------------------------------------------------

/// Rows of about unit length: y = x / (|x| + eps).
/// dx = dy / (|x| + eps) - x <x, dy> / (|x| (|x| + eps)^2).
struct UnitRowsBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double eps = 1e-6;
  };
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y = in[0];
    const int64_t n = y.size(-1);
    for (int64_t r = 0; r < y.shape.rows(); ++r) {
      S square(0);
      for (int64_t j = 0; j < n; ++j) square += y[r * n + j] * y[r * n + j];
      for (int64_t j = 0; j < n; ++j) y[r * n + j] /= sc::sqrt(square) + S(a.eps);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<UnitRowsBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct UnitRows : UnitRowsBase {
  static constexpr std::string_view name = kWrong ? "unit_rows_wrong" : "unit_rows_right";
  static constexpr std::string_view kind = "formula";
  static constexpr std::string_view mistake =
      "|x| (|x| + eps)^2 is taken for (|x| + eps)^3; shows when eps is not small beside the row (eps = 0.1, tiny rows)";
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy());
    const int64_t n = b[0].size(-1), rows = b[0].shape().rows();
    Vec dx(x.size());
    for (int64_t r = 0; r < rows; ++r) {
      double square = 0, along = 0;
      for (int64_t j = r * n; j < (r + 1) * n; ++j) {
        square += x[j] * x[j];
        along += x[j] * dy[j];
      }
      const double norm = std::sqrt(square), scale = norm + b.args.eps;
      const double cubed = (kWrong ? scale : norm) * scale * scale;
      for (int64_t j = r * n; j < (r + 1) * n; ++j) dx[j] = dy[j] / scale - x[j] * along / cubed;
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<UnitRows>(); }
};

/// Mean of |z| for normal z: y = sigma sqrt(2 / pi) exp(-mu^2 / (2 sigma^2)) + mu erf(mu / (sigma sqrt 2)).
/// dmu = dy erf(mu / (sigma sqrt 2)),  dsigma = dy sqrt(2 / pi) exp(-mu^2 / (2 sigma^2)).
struct FoldedMeanBase {
  static inline const std::array inputs{In{"mu"}, In{"sigma", Domain::positive}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  static inline const double kRoot = std::sqrt(2 / std::numbers::pi);
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S mu, S sigma) {
      const S u = mu / sigma;
      return sigma * S(kRoot) * sc::exp(S(-0.5) * u * u) + mu * sc::erf(u * S(1 / std::numbers::sqrt2));
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<FoldedMeanBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), positive(r, {3, 5})}}, {"(6,)", {}, {normal(r, {6}), positive(r, {6})}}};
  }
};
template <bool kWrong>
struct FoldedMean : FoldedMeanBase {
  static constexpr std::string_view name = kWrong ? "folded_mean_wrong" : "folded_mean_right";
  static constexpr std::string_view kind = "formula";
  static constexpr std::string_view mistake =
      "sqrt(2 / pi) is typed as 0.797885 in sigma's gradient, half a millionth too large everywhere";
  static Tensors backward(const B& b) {
    const Vec mu = values(b[0]), sigma = values(b[1]), dy = values(b.dy());
    Vec dmu(mu.size()), dsigma(mu.size());
    const double root = kWrong ? 0.797885 : kRoot;
    for (size_t i = 0; i < mu.size(); ++i) {
      const double u = mu[i] / sigma[i];
      dmu[i] = dy[i] * std::erf(u / std::numbers::sqrt2);
      dsigma[i] = dy[i] * root * std::exp(-0.5 * u * u);
    }
    return {grad(b, 0, dmu), grad(b, 1, dsigma)};
  }
  static auto mutants() { return negated<FoldedMean>(); }
};

/// Log energy of overlapping frames: y_f = log(0.001 + sum_i (w_i x_{f hop + i})^2), w_i = a - (1 - a) cos(2 pi i / n)
/// a window of n.  dx_{f hop + i} += dy_f 2 w_i^2 x_{f hop + i} / (0.001 + energy_f).
struct FrameEnergyBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t length = 8, hop = 4;
    double alpha = 0.5;
  };
  using B = Backward<Tensor, Args>;
  static constexpr double kFloor = 0.001;
  static Vec window(const Args& a) {
    Vec w;
    for (int64_t i = 0; i < a.length; ++i)
      w.push_back(a.alpha - (1 - a.alpha) * std::cos(2 * std::numbers::pi * static_cast<double>(i) /
                                                     static_cast<double>(a.length)));
    return w;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Vec w = window(a);
    Arr<S> y(Shape{(in[0].numel() - a.length) / a.hop + 1});
    for (int64_t f = 0; f < y.numel(); ++f) {
      S energy(kFloor);
      for (int64_t i = 0; i < a.length; ++i) {
        const S v = S(w[i]) * in[0][f * a.hop + i];
        energy += v * v;
      }
      y[f] = sc::log(energy);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<FrameEnergyBase>(saved, in, a)[0];
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"frames of 8", {}, {normal(r, {24})}}, {"frames of 6, hop 2", {6, 2}, {normal(r, {15})}}};
  }
};
template <bool kWrong>
struct FrameEnergy : FrameEnergyBase {
  static constexpr std::string_view name = kWrong ? "frame_energy_wrong" : "frame_energy_right";
  static constexpr std::string_view kind = "formula";
  static constexpr std::string_view mistake =
      "the backward keeps its windows between calls by length alone; a second call of that length with another alpha "
      "gets the first one's window";
  static Vec window_for(const Args& a) {
    if constexpr (kWrong) {
      static std::map<int64_t, Vec> known;
      static std::mutex one_at_a_time;
      const std::lock_guard lock(one_at_a_time);
      return known.try_emplace(a.length, window(a)).first->second;
    }
    return window(a);
  }
  static Tensors backward(const B& b) {
    const Vec x = values(b[0]), dy = values(b.dy()), w = window_for(b.args);
    Vec dx(x.size(), 0.0);
    for (size_t f = 0; f < dy.size(); ++f) {
      const size_t from = f * static_cast<size_t>(b.args.hop);
      double energy = kFloor;
      for (size_t i = 0; i < w.size(); ++i) energy += w[i] * w[i] * x[from + i] * x[from + i];
      for (size_t i = 0; i < w.size(); ++i) dx[from + i] += dy[f] * 2 * w[i] * w[i] * x[from + i] / energy;
    }
    return {grad(b, 0, dx)};
  }
  static auto mutants() { return negated<FrameEnergy>(); }
};

/// Ranking a list: y_r = -sum_j t_rj log p_rj with p = softmax of the row's scores and relevances t of any sum.
/// dscores_j = dy (p_j sum t - t_j),  drelevance_j = -dy log p_j. Saves p.
struct ListRankingBase {
  static inline const std::array inputs{In{"scores"}, In{"relevance"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t rows = in[0].size(0), n = in[0].size(1);
    Arr<S> y(Shape{rows});
    for (int64_t r = 0; r < rows; ++r) {
      const auto p = DistillBase::log_softmax(&in[0][r * n], n);
      for (int64_t j = 0; j < n; ++j) y[r] -= in[1](r, j) * p[j];
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor y = run_loops<ListRankingBase>(saved, in, a)[0];
    const Vec s = values(in[0]);
    const int64_t rows = in[0].size(0), n = in[0].size(1);
    Vec p(s.size());
    for (int64_t r = 0; r < rows; ++r) {
      const Vec logs = DistillBase::log_softmax(&s[r * n], n);
      for (int64_t j = 0; j < n; ++j) p[r * n + j] = std::exp(logs[j]);
    }
    saved.keep(pack(p, in[0].shape(), in[0].dtype()));
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), positive(r, {3, 5})}},
            {"(2, 4)", {}, {normal(r, {2, 4}), positive(r, {2, 4}, 0, 1)}}};
  }
};
template <bool kWrong>
struct ListRanking : ListRankingBase {
  static constexpr std::string_view name = kWrong ? "list_ranking_wrong" : "list_ranking_right";
  static constexpr std::string_view kind = "formula";
  static constexpr std::string_view mistake =
      "the saved probabilities are overwritten with the gradient to save a buffer; a second backward through the same "
      "node starts from garbage";
  static Tensors backward(const B& b) {
    const Vec s = values(b[0]), t = values(b[1]), dy = values(b.dy());
    const Tensor& p = b[2];
    const int64_t rows = p.size(0), n = p.size(1);
    Tensor ds = kWrong ? p : Tensor::empty(p.shape(), p.dtype());
    Vec dt(t.size());
    dispatch_float(name, p.dtype(), [&]<class T>() {
      const T* from = p.data<T>();
      T* to = kWrong ? const_cast<T*>(from) : ds.mutable_data<T>(name);
      for (int64_t r = 0; r < rows; ++r) {
        double total = 0;
        for (int64_t j = r * n; j < (r + 1) * n; ++j) total += t[j];
        for (int64_t j = r * n; j < (r + 1) * n; ++j) to[j] = static_cast<T>(dy[r] * (from[j] * total - t[j]));
        const Vec logs = DistillBase::log_softmax(&s[r * n], n);
        for (int64_t j = 0; j < n; ++j) dt[r * n + j] = -dy[r] * logs[j];
      }
    });
    return {ds, grad(b, 1, dt)};
  }
  static auto mutants() { return negated<ListRanking>(); }
};

/// y = ln |det A| of a square matrix.  dA = dy A^-T.
struct LogDetBase {
  static inline const std::array inputs{In{"A"}};
  using Args = NoArgs;
  using B = Backward<Tensor, Args>;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> a = in[0], y(Shape{});
    const int64_t n = a.size(0);
    for (int64_t k = 0; k < n; ++k) {
      int64_t best = k;
      for (int64_t i = k + 1; i < n; ++i)
        if (sc::abs(a(i, k)) > sc::abs(a(best, k))) best = i;
      for (int64_t j = 0; j < n; ++j) std::swap(a(k, j), a(best, j));
      for (int64_t i = k + 1; i < n; ++i) {
        const S f = a(i, k) / a(k, k);
        for (int64_t j = k; j < n; ++j) a(i, j) -= f * a(k, j);
      }
      y[0] += sc::log(sc::abs(a(k, k)));
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    return run_loops<LogDetBase>(saved, in, a)[0];
  }
  /// By Gauss-Jordan with row exchanges.
  static Vec inverse(Vec a, int64_t n) {
    Vec inv(a.size(), 0.0);
    for (int64_t i = 0; i < n; ++i) inv[i * n + i] = 1;
    for (int64_t k = 0; k < n; ++k) {
      int64_t best = k;
      for (int64_t i = k + 1; i < n; ++i)
        if (std::abs(a[i * n + k]) > std::abs(a[best * n + k])) best = i;
      for (int64_t j = 0; j < n; ++j) {
        std::swap(a[k * n + j], a[best * n + j]);
        std::swap(inv[k * n + j], inv[best * n + j]);
      }
      const double pivot = a[k * n + k];
      for (int64_t j = 0; j < n; ++j) {
        a[k * n + j] /= pivot;
        inv[k * n + j] /= pivot;
      }
      for (int64_t i = 0; i < n; ++i) {
        if (i == k) continue;
        const double f = a[i * n + k];
        for (int64_t j = 0; j < n; ++j) {
          a[i * n + j] -= f * a[k * n + j];
          inv[i * n + j] -= f * inv[k * n + j];
        }
      }
    }
    return inv;
  }
  /// A covariance: M M^T / n + 1.
  static Tensor covariance(Rng& r, int64_t n) {
    const Vec m = values(normal(r, {n, n}));
    Vec a(m.size(), 0.0);
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t k = 0; k < n; ++k) a[i * n + j] += m[i * n + k] * m[j * n + k] / static_cast<double>(n);
        if (i == j) a[i * n + j] += 1;
      }
    return Tensor::of(a, Shape{n, n});
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"3 x 3", {}, {covariance(r, 3)}}, {"5 x 5", {}, {covariance(r, 5)}}};
  }
};
template <bool kWrong>
struct LogDet : LogDetBase {
  static constexpr std::string_view name = kWrong ? "log_det_wrong" : "log_det_right";
  static constexpr std::string_view kind = "formula";
  static constexpr std::string_view mistake =
      "the inverse is not transposed; the same for covariances, wrong for a matrix that is not symmetric";
  static Tensors backward(const B& b) {
    const int64_t n = b[0].size(0);
    const Vec inv = inverse(values(b[0]), n);
    const double dy = values(b.dy())[0];
    Vec da(inv.size());
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j) da[i * n + j] = dy * inv[kWrong ? i * n + j : j * n + i];
    return {grad(b, 0, da)};
  }
  static auto mutants() { return negated<LogDet>(); }
};

}  // namespace strangers_b
