// LayerNorm and RMSNorm over the last dimension.
#pragma once

#include "autograd/ops/reduce.h"
#include "autograd/ops/unary.h"
#include "core/kernels/rows.h"

namespace bg {
namespace detail {

/// Arguments that both norms share.
struct NormArgs {
  double eps = 1e-5;
};

/// x is (..., d) with d >= 1; each parameter is (d) of x's dtype.
inline void check_norm(std::string_view op, const Tensors& in, double eps) {
  const Shape& x = in[0].shape();
  BG_CHECK(is_float(in[0].dtype()), op, "not a floating dtype", str(in[0].dtype()), "f32 or f64", "to(DType::f32)");
  BG_CHECK(x.rank() >= 1 && x.back() >= 1, op, "nothing to normalise over", str("x of shape ", x),
           "a last dimension of at least 1");
  BG_CHECK(eps >= 0, op, "bad eps", str(eps), "0 or more", "1e-5");
  for (size_t i = 1; i < in.size(); ++i) {
    num::check_same_float(op, in[0], in[i]);
    BG_CHECK(in[i].shape() == Shape{x.back()}, op, str(i == 1 ? "gamma" : "beta", " of a wrong shape"),
             str(in[i].shape()), str(Shape{x.back()}, " for x ", x));
  }
}

/// The numbers of an optional contiguous tensor.
template <class T>
const T* data_or_null(const Tensor& t) {
  return t.defined() ? t.data<T>() : nullptr;
}
template <class T>
T* mutable_or_null(Tensor& t, std::string_view writer) {
  return t.defined() ? t.mutable_data<T>(writer) : nullptr;
}

}  // namespace detail

/// y = (x - mu) r gamma + beta over the last dimension, mu the mean, r = 1 / sqrt(mean((x - mu)^2) + eps). x is
/// (..., d); gamma and beta are (d); both may be left out, or beta alone.
/// With h = (x - mu) r and g = dy gamma:
///   dx = r (g - mean(g) - h mean(g h)),  dgamma = sum over rows of dy h,  dbeta = sum over rows of dy.
///
/// One row: let c = x - mu, so h = c r. dc = dx - mean(dx), and from r = (mean(c^2) + eps)^(-1/2) follows
/// dr = -r^3 mean(c dc) = -r^2 mean(h dc). So dh = r dc + c dr = r (dc - h mean(h dc)): a projection P = I - h h^T / d,
/// which is symmetric, after the projection that takes the mean out, symmetric too. The gradient runs through both in
/// reverse: dx = M r P g with M the removal of the mean, and as mean(h) = 0, M P g = g - mean(g) - h mean(g h).
/// Saves x, mu and r.
struct LayerNorm {
  static constexpr std::string_view name = "layer_norm";
  static constexpr bool cheap = true;
  static std::vector<In> inputs_for(const detail::NormArgs&, size_t count) {
    BG_CHECK(count >= 1 && count <= 3, name, "wrong number of inputs", str(count),
             "1 to 3: x, perhaps gamma, perhaps beta");
    const std::vector<In> all{In{"x"}, In{"gamma"}, In{"beta"}};
    return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(count)};
  }
  using Args = detail::NormArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S mean(0), variance(0);
      for (int64_t j = 0; j < d; ++j) mean += x[r * d + j] / S(d);
      for (int64_t j = 0; j < d; ++j) variance += (x[r * d + j] - mean) * (x[r * d + j] - mean) / S(d);
      for (int64_t j = 0; j < d; ++j) {
        y[r * d + j] = (x[r * d + j] - mean) / sc::sqrt(variance + S(a.eps));
        if (in.size() > 1) y[r * d + j] *= in[1][j];
        if (in.size() > 2) y[r * d + j] += in[2][j];
      }
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    detail::check_norm(name, in, a.eps);
    const Tensor x = in[0].contiguous();
    const Tensor gamma = in.size() > 1 ? in[1].contiguous() : Tensor();
    const Tensor beta = in.size() > 2 ? in[2].contiguous() : Tensor();
    Tensor y = Tensor::empty(x.shape(), x.dtype());
    Tensor mean = Tensor::empty(x.shape().without_last(), x.dtype()), rstd = Tensor::empty(mean.shape(), x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::layer_norm_forward(x.data<T>(), detail::data_or_null<T>(gamma), detail::data_or_null<T>(beta), a.eps,
                                  y.mutable_data<T>(name), mean.mutable_data<T>(name), rstd.mutable_data<T>(name),
                                  x.shape().rows(), x.size(-1));
    });
    saved.keep_input(0, x);
    saved.keep(mean);
    saved.keep(rstd);
    if (gamma.defined()) saved.keep_input(1, gamma);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &mean = b[1], &rstd = b[2], dy = b.dy().contiguous();
    const Tensor gamma = b.input_count() > 1 ? b[3] : Tensor();
    Tensors g(3);
    if (b.need(0)) g[0] = Tensor::empty(x.shape(), x.dtype());
    const bool parameters = (b.input_count() > 1 && b.need(1)) || (b.input_count() > 2 && b.need(2));
    if (parameters) g[1] = Tensor::empty({x.size(-1)}, x.dtype()), g[2] = Tensor::empty({x.size(-1)}, x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::layer_norm_backward(x.data<T>(), detail::data_or_null<T>(gamma), mean.data<T>(), rstd.data<T>(),
                                   dy.data<T>(), detail::mutable_or_null<T>(g[0], name),
                                   detail::mutable_or_null<T>(g[1], name), detail::mutable_or_null<T>(g[2], name),
                                   x.shape().rows(), x.size(-1));
    });
    g.resize(b.input_count());
    return g;
  }
  static Vars compose(const Vars& in, const Args& a) {
    const double d = static_cast<double>(in[0].size(-1));
    const Var c = in[0] - sum(in[0], {-1}, true) / d;
    Var y = c / sqrt(sum(c * c, {-1}, true) / d + a.eps);
    if (in.size() > 1) y = y * in[1];
    if (in.size() > 2) y = y + in[2];
    return {y};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 8)", {}, {normal(r, {3, 8}), normal(r, {8}), normal(r, {8})}},
            {"(2, 3, 5), large eps", {0.25}, {normal(r, {2, 3, 5}), normal(r, {5}), normal(r, {5})}},
            {"one row", {}, {normal(r, {7}), normal(r, {7}), normal(r, {7})}},
            {"no beta", {}, {normal(r, {2, 6}), normal(r, {6})}},
            {"no parameters", {}, {normal(r, {3, 33})}},
            {"many rows", {}, {normal(r, {150, 70}), normal(r, {70}), normal(r, {70})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"mean of g not removed", wrong_dx(false, true)},
            {"projection along h omitted", wrong_dx(true, false)},
            {"gamma omitted from g",
             [](auto& b) {
               Tensors g = backward(b);
               if (b.input_count() > 1 && g[0].defined()) g[0] = dx_from(b, b.dy(), true, true);
               return g;
             }},
            {"beta's gradient given to gamma",
             [](auto& b) {
               Tensors g = backward(b);
               if (g.size() > 1 && g[1].defined()) g[1] = num::reduce_to(b.dy(), g[1].shape());
               return g;
             }},
            {"beta's gradient dropped", [](auto& b) {
               Tensors g = backward(b);
               if (g.size() > 2) g[2] = Tensor();
               return g;
             }}};
  }

 private:
  // The formula for dx written out, with either correction left away: for mutants.
  static Tensor dx_from(const Backward<Tensor, Args>& b, const Tensor& g, bool center, bool project) {
    const double d = static_cast<double>(b[0].size(-1));
    auto column = [&](const Tensor& t) { return t.unsqueeze(-1); };
    const Tensor h = num::mul(num::sub(b[0], column(b[1])), column(b[2]));
    Tensor dx = g;
    if (center) dx = num::sub(dx, num::scale(num::sum(g, {-1}, true), 1 / d));
    if (project) dx = num::sub(dx, num::mul(h, num::scale(num::sum(num::mul(g, h), {-1}, true), 1 / d)));
    return num::mul(dx, column(b[2]));
  }
  static Mutant<Tensor, Args>::Function wrong_dx(bool center, bool project) {
    return [=](const Backward<Tensor, Args>& b) {
      Tensors g = backward(b);
      if (g[0].defined()) g[0] = dx_from(b, g.size() > 1 ? num::mul(b.dy(), b[3]) : b.dy(), center, project);
      return g;
    };
  }
};

/// y = x r gamma over the last dimension with r = 1 / sqrt(mean(x^2) + eps); x is (..., d), gamma (d) may be left out.
/// With h = x r and g = dy gamma:  dx = r (g - h mean(g h)),  dgamma = sum over rows of dy h.
///
/// As for LayerNorm without the mean: dr = -r^2 mean(h dx), so dh = r (dx - h mean(h dx)), a symmetric map. Saves x, r.
struct RMSNorm {
  static constexpr std::string_view name = "rms_norm";
  static constexpr bool cheap = true;
  static std::vector<In> inputs_for(const detail::NormArgs&, size_t count) {
    BG_CHECK(count == 1 || count == 2, name, "wrong number of inputs", str(count), "1 or 2: x and perhaps gamma");
    std::vector<In> in{In{"x"}};
    if (count == 2) in.emplace_back("gamma");
    return in;
  }
  using Args = detail::NormArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S square(0);
      for (int64_t j = 0; j < d; ++j) square += x[r * d + j] * x[r * d + j] / S(d);
      for (int64_t j = 0; j < d; ++j) {
        y[r * d + j] = x[r * d + j] / sc::sqrt(square + S(a.eps));
        if (in.size() > 1) y[r * d + j] *= in[1][j];
      }
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    detail::check_norm(name, in, a.eps);
    const Tensor x = in[0].contiguous(), gamma = in.size() > 1 ? in[1].contiguous() : Tensor();
    Tensor y = Tensor::empty(x.shape(), x.dtype()), rstd = Tensor::empty(x.shape().without_last(), x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::rms_norm_forward(x.data<T>(), detail::data_or_null<T>(gamma), a.eps, y.mutable_data<T>(name),
                                rstd.mutable_data<T>(name), x.shape().rows(), x.size(-1));
    });
    saved.keep_input(0, x);
    saved.keep(rstd);
    if (gamma.defined()) saved.keep_input(1, gamma);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &rstd = b[1], dy = b.dy().contiguous();
    const Tensor gamma = b.input_count() > 1 ? b[2] : Tensor();
    Tensors g(2);
    if (b.need(0)) g[0] = Tensor::empty(x.shape(), x.dtype());
    if (b.input_count() > 1 && b.need(1)) g[1] = Tensor::empty({x.size(-1)}, x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::rms_norm_backward(x.data<T>(), detail::data_or_null<T>(gamma), rstd.data<T>(), dy.data<T>(),
                                 detail::mutable_or_null<T>(g[0], name), detail::mutable_or_null<T>(g[1], name),
                                 x.shape().rows(), x.size(-1));
    });
    g.resize(b.input_count());
    return g;
  }
  static Vars compose(const Vars& in, const Args& a) {
    const double d = static_cast<double>(in[0].size(-1));
    const Var y = in[0] / sqrt(sum(in[0] * in[0], {-1}, true) / d + a.eps);
    return {in.size() > 1 ? y * in[1] : y};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 8)", {}, {normal(r, {3, 8}), normal(r, {8})}},
            {"(2, 3, 5), large eps", {0.25}, {normal(r, {2, 3, 5}), normal(r, {5})}},
            {"one row", {}, {normal(r, {7}), normal(r, {7})}},
            {"no parameters", {}, {normal(r, {3, 33})}},
            {"many rows", {}, {normal(r, {150, 70}), normal(r, {70})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"projection along h omitted",
             [](auto& b) {
               Tensors g = backward(b);
               const Tensor gy = g.size() > 1 ? num::mul(b.dy(), b[2]) : b.dy();
               if (g[0].defined()) g[0] = num::mul(gy, b[1].unsqueeze(-1));
               return g;
             }},
            {"x in place of h in gamma's gradient", [](auto& b) {
               Tensors g = backward(b);
               if (g.size() > 1 && g[1].defined()) g[1] = num::reduce_to(num::mul(b.dy(), b[0]), g[1].shape());
               return g;
             }}};
  }
};

/// LayerNorm over the last dimension of x (..., d); gamma and beta, (d), may be undefined (beta when gamma is).
inline Var layer_norm(const Var& x, const Var& gamma = {}, const Var& beta = {}, double eps = 1e-5) {
  BG_CHECK(gamma.defined() || !beta.defined(), LayerNorm::name, "beta without gamma", "beta alone", "gamma, or neither",
           "a gamma of ones");
  Vars in{x};
  if (gamma.defined()) in.push_back(gamma);
  if (beta.defined()) in.push_back(beta);
  return bg::apply<LayerNorm>({eps}, in)[0];
}

/// RMSNorm over the last dimension of x (..., d); gamma, (d), may be undefined.
inline Var rms_norm(const Var& x, const Var& gamma = {}, double eps = 1e-5) {
  return bg::apply<RMSNorm>({eps}, gamma.defined() ? Vars{x, gamma} : Vars{x})[0];
}

}  // namespace bg
