// Cross-entropy against class indices: of logits, and of a linear map's logits without ever holding them.
#pragma once

#include <algorithm>

#include "autograd/ops/matmul.h"
#include "autograd/ops/select.h"
#include "autograd/ops/softmax.h"
#include "core/indexing.h"
#include "core/kernels/linear_cross_entropy.h"
#include "core/kernels/rows.h"

namespace bg {

enum class Reduction { mean, sum, none };

inline constexpr int64_t kIgnoreIndex = -100;  ///< default target of positions that do not count

struct CrossEntropyArgs {
  int64_t ignore_index = kIgnoreIndex;
  Reduction reduction = Reduction::mean;  ///< mean over the targets that are not ignored; 0 when there are none
};

namespace detail {

/// Targets of one per row of `rows` (x without its last dimension), checked, as contiguous i64.
inline Tensor checked_targets(std::string_view op, const Tensor& targets, const Shape& rows, int64_t classes,
                              int64_t ignore_index) {
  BG_CHECK(targets.defined() && targets.shape() == rows, op, "one target per row is needed",
           str("targets of shape ", targets.shape()), str(rows), "reshape the targets");
  return num::checked_indices(op, "target", targets, classes, ignore_index);
}

inline int64_t count_targets(const Tensor& targets, int64_t ignore_index) {
  const int64_t* t = targets.data<int64_t>();
  return targets.numel() - std::count(t, t + targets.numel(), ignore_index);
}

/// What each row's loss is multiplied by on its way into a mean or sum.
inline double row_weight(const Tensor& targets, const CrossEntropyArgs& a) {
  if (a.reduction != Reduction::mean) return 1;
  return 1.0 / static_cast<double>(std::max<int64_t>(1, count_targets(targets, a.ignore_index)));
}

/// Row losses to the result, summed in double.
inline Tensor reduced(const Tensor& losses, const Tensor& targets, const CrossEntropyArgs& a) {
  if (a.reduction == Reduction::none) return losses;
  return Tensor::scalar(num::sum(losses.to(DType::f64)).item() * row_weight(targets, a), losses.dtype());
}

/// i32 (..., classes): 1 at the target of each row that is not ignored.
inline Tensor target_mask(const Tensor& targets, int64_t classes, int64_t ignore_index) {
  Shape s = targets.shape();
  s.push_back(classes);
  Tensor mask = Tensor::zeros(s, DType::i32);
  int32_t* m = mask.mutable_data<int32_t>("cross_entropy");
  const int64_t* t = targets.data<int64_t>();
  for (int64_t r = 0; r < targets.numel(); ++r)
    if (t[r] != ignore_index) m[r * classes + t[r]] = 1;
  return mask;
}

}  // namespace detail

/// loss_r = log sum_c exp(x_rc) - x_r,t(r) for logits x (..., V) and targets t (...) in [0, V); rows whose target is
/// ignore_index count for nothing. The result is the mean or sum over rows, a scalar, or every row's, (...).
/// dx_rc = (softmax(x_r)_c - (c == t(r))) w_r, w_r the gradient that reaches loss_r; 0 in ignored rows.
///
/// The derivative of log sum exp is the softmax. Saves x, t and the rows' log-sum-exp, not the softmax.
struct CrossEntropy {
  static constexpr std::string_view name = "cross_entropy";
  static inline const std::array inputs{In{"logits"}, In{"targets", false}};
  using Args = CrossEntropyArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    const int64_t classes = x.size(-1);
    Arr<S> losses(in[1].shape), total{Shape{}};
    int64_t count = 0;
    for (int64_t r = 0; r < losses.numel(); ++r) {
      const int64_t t = in[1].index(r);
      if (t == a.ignore_index) continue;
      S largest = x[r * classes], s(0);
      for (int64_t c = 1; c < classes; ++c)
        if (x[r * classes + c] > largest) largest = x[r * classes + c];
      for (int64_t c = 0; c < classes; ++c) s += sc::exp(x[r * classes + c] - largest);
      losses[r] = sc::log(s) + largest - x[r * classes + t];
      total[0] += losses[r];
      ++count;
    }
    if (a.reduction == Reduction::none) return {losses};
    if (a.reduction == Reduction::mean && count > 0) total[0] /= S(count);
    return {total};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    BG_CHECK(in[0].rank() >= 1 && in[0].size(-1) >= 1, name, "no classes", str("logits of shape ", in[0].shape()),
             "(..., classes) with at least one class");
    const Tensor x = in[0].contiguous();
    const int64_t classes = x.size(-1);
    const Tensor t = detail::checked_targets(name, in[1], x.shape().without_last(), classes, a.ignore_index);
    Tensor losses = Tensor::empty(t.shape(), x.dtype()), lse = Tensor::empty(t.shape(), x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::cross_entropy_forward(x.data<T>(), t.data<int64_t>(), a.ignore_index, losses.mutable_data<T>(name),
                                     lse.mutable_data<T>(name), t.numel(), classes);
    });
    saved.keep_input(0, x);
    saved.keep_input(1, t);
    saved.keep(lse);
    return detail::reduced(losses, t, a);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &t = b[1], &lse = b[2];
    const Tensor dloss = b.args.reduction == Reduction::none
                             ? b.dy().contiguous()
                             : Tensor::full(t.shape(), b.dy().item() * detail::row_weight(t, b.args), x.dtype());
    Tensor dx = Tensor::empty(x.shape(), x.dtype());
    dispatch_float(name, x.dtype(), [&]<class T>() {
      kernels::cross_entropy_backward(x.data<T>(), t.data<int64_t>(), b.args.ignore_index, lse.data<T>(),
                                      dloss.data<T>(), dx.mutable_data<T>(name), t.numel(), x.size(-1));
    });
    return {dx, Tensor()};
  }
  static Vars compose(const Vars& in, const Args& a) {
    const Tensor t = in[1].value().to(DType::i64).contiguous();
    const Var log_p = LogSoftmax::compose({in[0]}, {})[0];
    const Var zero = Tensor::scalar(0, in[0].dtype());
    const Tensor mask = detail::target_mask(t, in[0].size(-1), a.ignore_index);
    const Var losses = -sum(where(mask, log_p, zero), {-1});
    return {a.reduction == Reduction::none ? losses : sum(losses) * detail::row_weight(t, a)};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto t = [](std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); };
    return {{"mean", {}, {normal(r, {4, 5}), t({4, 0, 2, 2}, {4})}},
            {"mean, one ignored", {}, {normal(r, {2, 2, 5}), t({1, kIgnoreIndex, 0, 4}, {2, 2})}},
            {"sum, ignoring 0", {0, Reduction::sum}, {normal(r, {3, 4}), t({0, 3, 1}, {3})}},
            {"rows", {kIgnoreIndex, Reduction::none}, {normal(r, {2, 3, 7}), t({6, 0, 1, 2, -100, 3}, {2, 3})}},
            {"one row", {}, {normal(r, {33}), t({17}, {})}},
            {"i32 targets", {}, {normal(r, {2, 3}), Tensor::of(std::vector<int32_t>{2, 0}, {2})}},
            {"all ignored", {}, {normal(r, {2, 3}), t({-100, -100}, {2})}, {0}},
            {"several strips", {}, {normal(r, {2, 4200}), t({4199, 7}, {2})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"target not subtracted",
             [](auto& b) {
               Tensors g = backward(b);
               g[0] = num::add(g[0], onehot_gradient(b));
               return g;
             }},
            {"softmax omitted",
             [](auto& b) {
               return Tensors{num::scale(onehot_gradient(b), -1), Tensor()};
             }},
            {"divided by all rows in place of those that count", [](auto& b) {
               Tensors g = backward(b);
               const double counted = 1 / detail::row_weight(b[1], b.args);
               if (b.args.reduction == Reduction::mean)
                 g[0] = num::scale(g[0], counted / static_cast<double>(b[1].numel()));
               return g;
             }}};
  }

 private:
  // For mutants: the onehot part of the gradient alone.
  static Tensor onehot_gradient(const Backward<Tensor, Args>& b) {
    const Tensor mask = detail::target_mask(b[1], b[0].size(-1), b.args.ignore_index).to(b[0].dtype());
    const Tensor dy = b.args.reduction == Reduction::none ? b.dy().unsqueeze(-1) : b.dy();
    return num::scale(num::mul(mask, dy), detail::row_weight(b[1], b.args));
  }
};

/// cross_entropy of the logits h W^T, for h (..., d), W (V, d) - the layout of an embedding table, which it often is -
/// and targets (...): the mean or sum over the rows that are not ignored.
/// dh = dlogits W,  dW = dlogits^T h,  dlogits as in CrossEntropy.
///
/// Logits exist in chunks of rows only. When a backward will follow, forward also forms dh and dW for a gradient of 1
/// of the result, while a chunk is at hand, and backward multiplies them by the gradient that arrives. Saves these two.
struct LinearCrossEntropy {
  static constexpr std::string_view name = "linear_cross_entropy";
  static inline const std::array inputs{In{"h"}, In{"W"}, In{"targets", false}};
  using Args = CrossEntropyArgs;

  /// Inputs checked: h (rows, d) and W contiguous, targets i64.
  struct Inputs {
    Tensor h, w, targets;
    int64_t rows, d, classes;

    Inputs(const Tensor& h_in, const Tensor& w_in, const Tensor& targets_in, int64_t ignore_index) {
      num::check_same_float(name, h_in, w_in);
      BG_CHECK(w_in.rank() == 2 && w_in.size(0) >= 1, name, "W is not a table of classes", str(w_in.shape()),
               "(classes, d) with at least one class");
      BG_CHECK(h_in.rank() >= 1 && h_in.size(-1) == w_in.size(1), name, "inner sizes differ",
               str("h is ", h_in.shape(), ", W is ", w_in.shape()), "last sizes that agree", "transpose(W)");
      rows = h_in.shape().rows(), d = w_in.size(1), classes = w_in.size(0);
      targets = detail::checked_targets(name, targets_in, h_in.shape().without_last(), classes, ignore_index);
      h = h_in.contiguous();
      w = w_in.contiguous();
    }
    /// Losses of all rows; gradients at dloss into dh and dw where they are defined.
    Tensor losses(int64_t ignore_index, double dloss = 0, Tensor dh = {}, Tensor dw = {}) const {
      Tensor loss = Tensor::empty(targets.shape(), h.dtype());
      dispatch_float(name, h.dtype(), [&]<class T>() {
        auto out = [](Tensor& t) { return t.defined() ? t.mutable_data<T>(name) : nullptr; };
        kernels::linear_cross_entropy<T>(h.data<T>(), w.data<T>(), targets.data<int64_t>(), ignore_index,
                                         static_cast<T>(dloss), out(loss), out(dh), out(dw), rows, d, classes);
      });
      return loss;
    }
  };

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>&h = in[0], &w = in[1];
    const int64_t rows = h.shape.rows(), d = w.size(1), classes = w.size(0);
    Shape shape = in[2].shape;
    shape.push_back(classes);
    Arr<S> logits(shape);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < classes; ++c)
        for (int64_t j = 0; j < d; ++j) logits[r * classes + c] += h[r * d + j] * w[c * d + j];
    return CrossEntropy::reference<S>({logits, in[2]}, a);
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    BG_CHECK(a.reduction != Reduction::none, name, "no reduction", "none", "mean or sum",
             "cross_entropy of matmul(h, transpose(W))");
    const Inputs x(in[0], in[1], in[2], a.ignore_index);
    if (!saved.recording()) return detail::reduced(x.losses(a.ignore_index), x.targets, a);
    const Tensor dh = Tensor::empty(x.h.shape(), x.h.dtype()), dw = Tensor::empty(x.w.shape(), x.w.dtype());
    const Tensor losses = x.losses(a.ignore_index, detail::row_weight(x.targets, a), dh, dw);
    saved.keep(dh);
    saved.keep(dw);
    return detail::reduced(losses, x.targets, a);
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const double dy = b.dy().item();
    auto times = [&](const Tensor& t) { return dy == 1 ? t : num::scale(t, dy); };
    return {b.need(0) ? times(b[0]) : Tensor(), b.need(1) ? times(b[1]) : Tensor(), Tensor()};
  }
  static Vars compose(const Vars& in, const Args& a) {
    return CrossEntropy::compose({matmul_rows(in[0], in[1]), in[2]}, a);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    auto t = [](std::vector<int64_t> v, const Shape& s) { return Tensor::of(std::move(v), s); };
    std::vector<int64_t> far_apart(26);
    for (size_t i = 0; i < far_apart.size(); ++i) far_apart[i] = static_cast<int64_t>(i * 21 + 7);
    return {{"mean", {}, {normal(r, {4, 3}), normal(r, {5, 3}, 0.577), t({4, 0, 2, 2}, {4})}},
            {"mean, one ignored", {}, {normal(r, {2, 2, 4}), normal(r, {5, 4}, 0.5), t({1, -100, 0, 4}, {2, 2})}},
            {"sum, ignoring 0", {0, Reduction::sum}, {normal(r, {3, 4}), normal(r, {4, 4}, 0.5), t({0, 3, 1}, {3})}},
            {"one row", {}, {normal(r, {5}), normal(r, {7, 5}, 0.447), t({3}, {})}},
            {"all ignored", {}, {normal(r, {2, 3}), normal(r, {4, 3}), t({-100, -100}, {2})}, {0, 1}},
            {"several blocks", {}, {normal(r, {26, 270}), normal(r, {540, 270}, 0.061), t(far_apart, {26})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {{"arriving gradient ignored",
             [](auto& b) {
               return Tensors{b[0], b[1], Tensor()};
             }},
            {"dW negated",
             [](auto& b) {
               Tensors g = backward(b);
               if (g[1].defined()) g[1] = num::scale(g[1], -1);
               return g;
             }},
            {"dh dropped", [](auto& b) {
               Tensors g = backward(b);
               g[0] = Tensor();
               return g;
             }}};
  }

 private:
  static Var matmul_rows(const Var& h, const Var& w) {  // h W^T, also for h of rank 1
    Shape out = h.shape().without_last();
    out.push_back(w.size(0));
    return reshape(matmul(reshape(h, {h.shape().rows(), h.size(-1)}), transpose(w, 0, 1)), out);
  }
};

/// Cross-entropy of logits (..., V) against targets (...), i32 or i64. All ignored: 0, with zero gradient. Throws, with
/// position and value, on a target that is neither in [0, V) nor ignore_index.
inline Var cross_entropy(const Var& logits, const Tensor& targets, const CrossEntropyArgs& args = {}) {
  return apply<CrossEntropy>(args, {logits, Var(targets)})[0];
}

/// The same of the logits h W^T, for h (..., d) and W (V, d), without holding them; mean or sum.
inline Var linear_cross_entropy(const Var& h, const Var& w, const Tensor& targets, const CrossEntropyArgs& args = {}) {
  return apply<LinearCrossEntropy>(args, {h, w, Var(targets)})[0];
}

/// A sum of losses in nats and how many rows it is over: what evaluation adds up.
struct LossSum {
  double sum = 0;
  int64_t count = 0;
};

/// Sum of linear_cross_entropy's row losses over the rows that are not ignored, in double, outside any graph.
inline LossSum linear_cross_entropy_sum(const Tensor& h, const Tensor& w, const Tensor& targets,
                                        int64_t ignore_index = kIgnoreIndex) {
  const LinearCrossEntropy::Inputs x(h, w, targets, ignore_index);
  return {num::sum(x.losses(ignore_index).to(DType::f64)).item(), detail::count_targets(x.targets, ignore_index)};
}

}  // namespace bg
