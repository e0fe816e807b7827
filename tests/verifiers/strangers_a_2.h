// Ops as outside authors write them, each twice, the second part: backwards that are wrong away from the points that
// the author looked at, when work is cut into chunks, for other shapes and indices, and by a slip in a formula. The
// form of a case is described in strangers_a_1.h.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "tests/verifiers/strangers_a_1.h"

namespace strangers_a {

// --- Wrong away from the author's points -----------------------------------------------------------------------------

/// GELU with the normal distribution P and its density p: y = x P(x).  dx = dy (P(x) + x p(x)).
struct ExactGeluBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return S(0.5) * x * (S(1) + sc::erf(x / sc::sqrt(S(2)))); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("exact_gelu", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("exact_gelu");
      for (int64_t i = 0; i < x.numel(); ++i) py[i] = T(0.5) * px[i] * (1 + std::erf(px[i] / std::numbers::sqrt2_v<T>));
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct ExactGelu : ExactGeluBase {
  static constexpr std::string_view name = kWrong ? "exact_gelu_wrong" : "exact_gelu_right";
  static constexpr std::string_view kind = "points",
                                    mistake =
                                        "beyond |x| = 3 the slope is taken as 0 or 1, where it is up to 1.2 percent "
                                        "off; shows for |x| between 3 and 5";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i) {
        const T v = px[i];
        if (kWrong && std::abs(v) > 3) {  // saturated: save the exponential
          pdx[i] = v > 0 ? pdy[i] : 0;
          continue;
        }
        const T below = T(0.5) * (1 + std::erf(v / std::numbers::sqrt2_v<T>));
        pdx[i] = pdy[i] * (below + v * std::exp(-v * v / 2) / std::sqrt(2 * std::numbers::pi_v<T>));
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ExactGelu>(); }
};

/// y = (exp(x) - 1) / x, 1 at 0.  dx = dy (exp(x) (x - 1) + 1) / x^2, near 0 by its series sum_n n x^(n-1) / (n+1)!.
struct ExpRatioBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) {
      if (x > S(1) || x < S(-1)) return (sc::exp(x) - S(1)) / x;
      S term(1), total(1);  // x^n / (n + 1)!
      for (int n = 1; n <= 24; ++n) total += term *= x / S(n + 1);
      return total;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("exp_ratio", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("exp_ratio");
      for (int64_t i = 0; i < x.numel(); ++i) {
        const double v = static_cast<double>(px[i]);
        py[i] = static_cast<T>(v == 0 ? 1 : std::expm1(v) / v);
      }
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {away_from_zero(r, {3, 5})}}, {"(2, 4, 6)", {}, {away_from_zero(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct ExpRatio : ExpRatioBase {
  static constexpr std::string_view name = kWrong ? "exp_ratio_wrong" : "exp_ratio_right";
  static constexpr std::string_view kind = "points",
                                    mistake =
                                        "the series of the slope near zero has x / 6 in place of x / 3 for its second "
                                        "term; shows for |x| below 0.1";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i) {
        const double v = static_cast<double>(px[i]);
        double slope = 0;
        if (kWrong && std::abs(v) < 0.1) {
          slope = 0.5 + v / 6 + v * v / 8;
        } else if (std::abs(v) < 1) {
          double term = 0.5;  // x^(n-1) / (n+1)!
          for (int n = 1; n <= 20; ++n) {
            slope += n * term;
            term *= v / (n + 2);
          }
        } else {
          slope = (std::exp(v) * (v - 1) + 1) / (v * v);
        }
        pdx[i] = static_cast<T>(static_cast<double>(pdy[i]) * slope);
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ExpRatio>(); }
};

/// Loss between angles: y = e^2 / 2, e = a - b brought into [-pi, pi] by whole turns.  da = dy e,  db = -dy e.
struct AngleLossBase {
  static inline const std::array inputs{In{"a"}, In{"b"}};
  using Args = NoArgs;
  static double turns(double e) { return 2 * std::numbers::pi * std::round(e / (2 * std::numbers::pi)); }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {zip(in[0], in[1], [](S a, S b) {
      const S e = a - b - S(turns(static_cast<double>(sc::value(a - b))));
      return S(0.5) * e * e;
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor a = in[0].contiguous(), b = in[1].contiguous();
    Tensor y = empty_like(a);
    dispatch_float("angle_loss", a.dtype(), [&]<class T>() {
      const T *pa = a.data<T>(), *pb = b.data<T>();
      T* py = y.mutable_data<T>("angle_loss");
      for (int64_t i = 0; i < y.numel(); ++i) {
        const double e = static_cast<double>(pa[i]) - static_cast<double>(pb[i]), near = e - turns(e);
        py[i] = static_cast<T>(near * near / 2);
      }
    });
    saved.keep_input(0, a);
    saved.keep_input(1, b);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}, 0.5), normal(r, {3, 5}, 0.5)}},
            {"(7,)", {}, {normal(r, {7}, 0.5), normal(r, {7}, 0.5)}}};
  }
};
template <bool kWrong>
struct AngleLoss : AngleLossBase {
  static constexpr std::string_view name = kWrong ? "angle_loss_wrong" : "angle_loss_right";
  static constexpr std::string_view kind = "points",
                                    mistake =
                                        "backward uses a - b without bringing it into [-pi, pi]; shows for angles more "
                                        "than half a turn apart";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &u = b[0], &v = b[1], dy = b.dy().contiguous();
    Tensor du = empty_like(u), dv = empty_like(u);
    dispatch_float(name, u.dtype(), [&]<class T>() {
      const T *pu = u.data<T>(), *pv = v.data<T>(), *pdy = dy.data<T>();
      T *pdu = du.mutable_data<T>(name), *pdv = dv.mutable_data<T>(name);
      for (int64_t i = 0; i < u.numel(); ++i) {
        double e = static_cast<double>(pu[i]) - static_cast<double>(pv[i]);
        if constexpr (!kWrong) e -= turns(e);
        pdu[i] = pdy[i] * static_cast<T>(e);
        pdv[i] = -pdy[i] * static_cast<T>(e);
      }
    });
    return {du, dv};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<AngleLoss>(); }
};

/// Response of a damped oscillator to a push: y = exp(-z w t) S with damping z, time t, frequency w. With
/// q = w^2 (z^2 - 1):  S = sin(sqrt(-q) t) / sqrt(-q) for q < 0, S = sinh(sqrt(q) t) / sqrt(q) for q > 0, and C the
/// cosine, or hyperbolic cosine, of the same.
/// dt = dy exp(-z w t) (C - z w S),  dz = dy exp(-z w t) (-w t S + w^2 z (t C - S) / q).
struct OscillatorBase {
  static inline const std::array inputs{In{"z", Domain::positive}, In{"t", Domain::positive}};
  struct Args {
    double w = 2;
  };
  /// q, and S and C with their factor exp(-z w t).
  struct Parts {
    double q, s, c;
    Parts(double z, double t, double w) : q(w * w * (z * z - 1)) {
      const double k = std::sqrt(std::abs(q));
      if (q < 0) {
        s = std::exp(-z * w * t) * std::sin(k * t) / k;
        c = std::exp(-z * w * t) * std::cos(k * t);
      } else {
        const double slow = std::exp((k - z * w) * t), fast = std::exp(-(k + z * w) * t);
        s = (slow - fast) / (2 * k);
        c = (slow + fast) / 2;
      }
    }
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {zip(in[0], in[1], [&](S z, S t) {
      const S q = S(a.w * a.w) * (z * z - S(1)), rate = z * S(a.w);
      if (q < S(0)) return sc::exp(-rate * t) * sc::sin(sc::sqrt(-q) * t) / sc::sqrt(-q);
      const S k = sc::sqrt(q);
      return (sc::exp((k - rate) * t) - sc::exp(-(k + rate) * t)) / (S(2) * k);
    })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor z = in[0].contiguous(), t = in[1].contiguous();
    Tensor y = empty_like(z);
    dispatch_float("oscillator", z.dtype(), [&]<class T>() {
      const T *pz = z.data<T>(), *pt = t.data<T>();
      T* py = y.mutable_data<T>("oscillator");
      for (int64_t i = 0; i < y.numel(); ++i)
        py[i] = static_cast<T>(Parts(static_cast<double>(pz[i]), static_cast<double>(pt[i]), a.w).s);
    });
    saved.keep_input(0, z);
    saved.keep_input(1, t);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {2}, {positive(r, {3, 5}, 0.1, 0.8), positive(r, {3, 5})}},
            {"(6,), w 3", {3}, {positive(r, {6}, 0.1, 0.8), positive(r, {6}, 0.2, 1)}}};
  }
};
template <bool kWrong>
struct Oscillator : OscillatorBase {
  static constexpr std::string_view name = kWrong ? "oscillator_wrong" : "oscillator_right";
  static constexpr std::string_view kind = "points",
                                    mistake =
                                        "the last term of dz keeps its sign of the underdamped case, dividing by -|q|; "
                                        "shows for a damping above 1";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &z = b[0], &t = b[1], dy = b.dy().contiguous();
    Tensor gz = empty_like(z), gt = empty_like(z);
    const double w = b.args.w;
    dispatch_float(name, z.dtype(), [&]<class T>() {
      const T *pz = z.data<T>(), *pt = t.data<T>(), *pdy = dy.data<T>();
      T *pgz = gz.mutable_data<T>(name), *pgt = gt.mutable_data<T>(name);
      for (int64_t i = 0; i < z.numel(); ++i) {
        const double zi = static_cast<double>(pz[i]), ti = static_cast<double>(pt[i]), g = static_cast<double>(pdy[i]);
        const Parts p(zi, ti, w);
        const double square = kWrong ? -std::abs(p.q) : p.q;
        pgt[i] = static_cast<T>(g * (p.c - zi * w * p.s));
        pgz[i] = static_cast<T>(g * (-w * ti * p.s + w * w * zi * (ti * p.c - p.s) / square));
      }
    });
    return {gz, gt};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Oscillator>(); }
};

/// A power that keeps the sign: y = sign(x) |x|^p.  dx = dy p |x|^(p - 1).
struct SignedPowerBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double p = 1.5;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    return {map(in[0], [&](S x) { return x < S(0) ? -sc::pow(-x, S(a.p)) : sc::pow(x, S(a.p)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("signed_power", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("signed_power");
      for (int64_t i = 0; i < x.numel(); ++i)
        py[i] = std::copysign(std::pow(std::abs(px[i]), static_cast<T>(a.p)), px[i]);
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5), p 1.5", {1.5}, {positive(r, {3, 5})}}, {"(2, 4, 6), p 2", {2}, {positive(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct SignedPower : SignedPowerBase {
  static constexpr std::string_view name = kWrong ? "signed_power_wrong" : "signed_power_right";
  static constexpr std::string_view kind = "points",
                                    mistake =
                                        "the slope has x's sign, as for an even power; shows for negative x, where "
                                        "the gradient points the wrong way";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>(), p = static_cast<T>(b.args.p);
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i) {
        T slope = p * std::pow(std::abs(px[i]), p - 1);
        if constexpr (kWrong) slope = std::copysign(slope, px[i]);
        pdx[i] = pdy[i] * slope;
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SignedPower>(); }
};

// --- Threads and chunks ----------------------------------------------------------------------------------------------

/// Columns scaled and shifted: y = x gamma + beta, x (..., d).
/// dx = dy gamma,  dgamma = sum over rows of dy x,  dbeta = sum over rows of dy.
struct ColumnAffineBase {
  static inline const std::array inputs{In{"x"}, In{"gamma"}, In{"beta"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y(in[0].shape);
    const int64_t d = y.size(-1);
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = in[0][i] * in[1][i % d] + in[2][i % d];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous(), gamma = in[1].contiguous(), beta = in[2].contiguous();
    Tensor y = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float("column_affine", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pg = gamma.data<T>(), *pb = beta.data<T>();
      T* py = y.mutable_data<T>("column_affine");
      for (int64_t i = 0; i < x.numel(); ++i) py[i] = px[i] * pg[i % d] + pb[i % d];
    });
    saved.keep_input(0, x);
    saved.keep_input(1, gamma);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5, 3)", {}, {normal(r, {5, 3}), normal(r, {3}), normal(r, {3})}},
            {"(2, 4, 6)", {}, {normal(r, {2, 4, 6}), normal(r, {6}), normal(r, {6})}}};
  }
};
template <bool kWrong>
struct ColumnAffine : ColumnAffineBase {
  static constexpr std::string_view name = kWrong ? "column_affine_wrong" : "column_affine_right";
  static constexpr std::string_view kind = "threads",
                                    mistake =
                                        "each chunk of rows overwrites dgamma and dbeta with its own sums in place of "
                                        "adding them; shows with more rows than one chunk has (64)";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &gamma = b[1], dy = b.dy().contiguous();
    Tensor dx = empty_like(x), dgamma = zeros_like(gamma), dbeta = zeros_like(gamma);
    const int64_t d = x.size(-1), rows = x.shape().rows();
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pg = gamma.data<T>(), *pdy = dy.data<T>();
      T *pdx = dx.mutable_data<T>(name), *pdg = dgamma.mutable_data<T>(name), *pdb = dbeta.mutable_data<T>(name);
      std::mutex one_at_a_time;
      parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
        std::vector<T> g(static_cast<size_t>(2 * d), T(0));
        for (int64_t r = begin; r < end; ++r)
          for (int64_t j = 0; j < d; ++j) {
            pdx[r * d + j] = pdy[r * d + j] * pg[j];
            g[static_cast<size_t>(j)] += pdy[r * d + j] * px[r * d + j];
            g[static_cast<size_t>(d + j)] += pdy[r * d + j];
          }
        const std::lock_guard lock(one_at_a_time);
        for (int64_t j = 0; j < d; ++j) {
          pdg[j] = (kWrong ? T(0) : pdg[j]) + g[static_cast<size_t>(j)];
          pdb[j] = (kWrong ? T(0) : pdb[j]) + g[static_cast<size_t>(d + j)];
        }
      });
    });
    return {dx, dgamma, dbeta};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ColumnAffine>(); }
};

/// Sum of what is still to come, of a vector: y_t = sum_(s >= t) x_s.  dx_t = sum_(s <= t) dy_s.
struct RemainingSumBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  static constexpr int64_t kGrain = 256;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y = in[0];
    for (int64_t t = y.numel() - 2; t >= 0; --t) y[t] += y[t + 1];
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("remaining_sum", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("remaining_sum");
      double total = 0;
      for (int64_t t = x.numel() - 1; t >= 0; --t) py[t] = static_cast<T>(total += static_cast<double>(px[t]));
    });
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(7,)", {}, {normal(r, {7})}}, {"(2000,)", {}, {normal(r, {2000})}}};
  }
};
template <bool kWrong>
struct RemainingSum : RemainingSumBase {
  static constexpr std::string_view name = kWrong ? "remaining_sum_wrong" : "remaining_sum_right";
  static constexpr std::string_view kind = "threads",
                                    mistake =
                                        "the sum so far goes from chunk to chunk as if they ran in order; shows with "
                                        "two threads or more on vectors longer than a chunk (256)";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor dy = b.dy().contiguous();
    Tensor dx = empty_like(dy);
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T* pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      const int64_t n = dy.numel(), grain = chunk_size(kGrain);
      if constexpr (kWrong) {
        std::atomic<double> so_far = 0;
        parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
          double total = so_far;
          for (int64_t t = begin; t < end; ++t) pdx[t] = static_cast<T>(total += static_cast<double>(pdy[t]));
          so_far = total;
        });
      } else {
        std::vector<double> before(static_cast<size_t>((n + grain - 1) / grain + 1), 0.0);
        parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
          for (int64_t t = begin; t < end; ++t)
            before[static_cast<size_t>(begin / grain + 1)] += static_cast<double>(pdy[t]);
        });
        for (size_t c = 1; c < before.size(); ++c) before[c] += before[c - 1];
        parallel_for(n, kGrain, [&](int64_t begin, int64_t end) {
          double total = before[static_cast<size_t>(begin / grain)];
          for (int64_t t = begin; t < end; ++t) pdx[t] = static_cast<T>(total += static_cast<double>(pdy[t]));
        });
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RemainingSum>(); }
};

/// Entropy of the softmax p of each row: y = -sum p log p.  dx_j = -dy p_j (log p_j + y).
struct RowEntropyBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape.without_last());
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S largest = x[r * d], total(0);
      for (int64_t j = 1; j < d; ++j)
        if (x[r * d + j] > largest) largest = x[r * d + j];
      for (int64_t j = 0; j < d; ++j) total += sc::exp(x[r * d + j] - largest);
      for (int64_t j = 0; j < d; ++j) {
        const S l = x[r * d + j] - largest - sc::log(total);
        y[r] -= sc::exp(l) * l;
      }
    }
    return {y};
  }
  /// log p of one row into `l`; returns the entropy.
  template <class T>
  static T log_row(const T* x, int64_t d, T* l) {
    const T largest = *std::max_element(x, x + d);
    T total = 0, entropy = 0;
    for (int64_t j = 0; j < d; ++j) total += std::exp(x[j] - largest);
    for (int64_t j = 0; j < d; ++j) l[j] = x[j] - largest - std::log(total);
    for (int64_t j = 0; j < d; ++j) entropy -= std::exp(l[j]) * l[j];
    return entropy;
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = Tensor::empty(x.shape().without_last(), x.dtype());
    const int64_t d = x.size(-1);
    dispatch_float("row_entropy", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("row_entropy");
      std::vector<T> l(static_cast<size_t>(d));
      for (int64_t r = 0; r < x.shape().rows(); ++r) py[r] = log_row(px + r * d, d, l.data());
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}}, {"(150, 10)", {}, {normal(r, {150, 10})}}};
  }
};
template <bool kWrong>
struct RowEntropy : RowEntropyBase {
  static constexpr std::string_view name = kWrong ? "row_entropy_wrong" : "row_entropy_right";
  static constexpr std::string_view
      kind = "threads",
      mistake =
          "what a worker left in its scratch in one loop is used in the next, as if it got "
          "the same single chunk again; shows with more rows than a chunk has (64)";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      // First log p and the entropy of each row, then the gradients.
      const int64_t grain = 64, rows = x.shape().rows(), most = std::min(chunk_size(grain), rows);
      const int64_t places = kWrong ? num_threads() : (rows + chunk_size(grain) - 1) / chunk_size(grain);
      std::vector<T> scratch(static_cast<size_t>(places * most * (d + 1)));
      auto of_chunk = [&](int64_t begin) {
        return scratch.data() + (kWrong ? worker_index() : begin / chunk_size(grain)) * most * (d + 1);
      };
      parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
        T *l = of_chunk(begin), *entropy = l + most * d;
        for (int64_t r = begin; r < end; ++r) entropy[r - begin] = log_row(px + r * d, d, l + (r - begin) * d);
      });
      parallel_for(rows, grain, [&](int64_t begin, int64_t end) {
        const T *l = of_chunk(begin), *entropy = l + most * d;
        for (int64_t r = begin; r < end; ++r, l += d)
          for (int64_t j = 0; j < d; ++j) pdx[r * d + j] = -pdy[r] * std::exp(l[j]) * (l[j] + entropy[r - begin]);
      });
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowEntropy>(); }
};

/// Weighted differences of neighbours of a vector: y_i = w (x_(i+1) - x_i), i < n - 1.
/// dx_i = w (dy_(i-1) - dy_i), where there is no dy_(-1) and no dy_(n-1).
struct NeighbourDifferenceBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double w = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(Shape{in[0].numel() - 1});
    for (int64_t i = 0; i < y.numel(); ++i) y[i] = S(a.w) * (in[0][i + 1] - in[0][i]);
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = Tensor::empty({x.numel() - 1}, x.dtype());
    dispatch_float("neighbour_difference", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("neighbour_difference");
      for (int64_t i = 0; i < y.numel(); ++i) py[i] = static_cast<T>(a.w) * (px[i + 1] - px[i]);
    });
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(9,)", {1}, {normal(r, {9})}}, {"(40,), w 0.5", {0.5}, {normal(r, {40})}}};
  }
};
template <bool kWrong>
struct NeighbourDifference : NeighbourDifferenceBase {
  static constexpr std::string_view name = kWrong ? "neighbour_difference_wrong" : "neighbour_difference_right";
  static constexpr std::string_view kind = "threads",
                                    mistake =
                                        "the first element of every chunk counts as one without a left neighbour; "
                                        "shows in vectors longer than a chunk (128)";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor dy = b.dy().contiguous();
    const int64_t n = dy.numel() + 1;
    Tensor dx = Tensor::empty({n}, dy.dtype());
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T* pdy = dy.data<T>();
      T *pdx = dx.mutable_data<T>(name), w = static_cast<T>(b.args.w);
      parallel_for(n, 128, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const bool has_left = kWrong ? i > begin : i > 0;
          pdx[i] = w * ((has_left ? pdy[i - 1] : T(0)) - (i < n - 1 ? pdy[i] : T(0)));
        }
      });
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<NeighbourDifference>(); }
};

/// Rows of a table, looked up by threads: y_i = table[ids_i].  dtable[v] = sum over i with ids_i = v of dy_i.
struct ThreadedRowsBase {
  static inline const std::array inputs{In{"table"}, In{"ids", false}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const int64_t n = in[1].numel(), d = in[0].size(1);
    Arr<S> y(Shape{n, d});
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < d; ++j) y(i, j) = in[0](in[1].index(i), j);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor table = in[0].contiguous(), ids = in[1].contiguous();
    const int64_t n = ids.numel(), d = table.size(1);
    Tensor y = Tensor::empty({n, d}, table.dtype());
    dispatch_float("threaded_rows", table.dtype(), [&]<class T>() {
      const T* pt = table.data<T>();
      const int64_t* id = ids.data<int64_t>();
      T* py = y.mutable_data<T>("threaded_rows");
      parallel_for(n, 32, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) std::copy_n(pt + id[i] * d, d, py + i * d);
      });
    });
    saved.keep_input(1, ids);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<int64_t> many(24);
    for (int64_t& id : many) id = static_cast<int64_t>(r.below(9));
    return {{"5 of (6, 3)", {}, {normal(r, {6, 3}), indices({5, 0, 2, 0, 3}, {5})}},
            {"24 of (9, 4)", {}, {normal(r, {9, 4}), indices(std::move(many), {24})}}};
  }
};
template <bool kWrong>
struct ThreadedRows : ThreadedRowsBase {
  static constexpr std::string_view name = kWrong ? "threaded_rows_wrong" : "threaded_rows_right";
  static constexpr std::string_view kind = "threads",
                                    mistake =
                                        "a chunk assigns where it meets an id for the first time and adds from then "
                                        "on; shows when an id comes in two chunks of lookups (32 each)";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &ids = b[0], dy = b.dy().contiguous();
    const int64_t n = ids.numel(), rows = b.input_shape(0)[0], d = b.input_shape(0)[1];
    Tensor dtable = Tensor::zeros(b.input_shape(0), dy.dtype());
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T* pdy = dy.data<T>();
      const int64_t* id = ids.data<int64_t>();
      T* pdt = dtable.mutable_data<T>(name);
      std::mutex one_at_a_time;
      parallel_for(n, 32, [&](int64_t begin, int64_t end) {
        const std::lock_guard lock(one_at_a_time);
        std::vector<bool> met(static_cast<size_t>(rows), !kWrong);
        for (int64_t i = begin; i < end; ++i) {
          T* row = pdt + id[i] * d;
          const bool add = met[static_cast<size_t>(id[i])];
          for (int64_t j = 0; j < d; ++j) row[j] = (add ? row[j] : T(0)) + pdy[i * d + j];
          met[static_cast<size_t>(id[i])] = true;
        }
      });
    });
    return {dtable, Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<ThreadedRows>(); }
};

// --- Shapes, masks and indices ---------------------------------------------------------------------------------------

/// Averages of windows of each row, padding not counted: y_o = mean of x_i over o stride - pad <= i < o stride - pad +
/// k inside the row.  dx_i = sum over the windows o with i of dy_o / count_o.
struct WindowMeanBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t k = 2, stride = 2, pad = 0;
  };
  static int64_t outputs(int64_t n, const Args& a) { return (n + 2 * a.pad - a.k) / a.stride + 1; }
  static int64_t first(int64_t o, const Args& a) { return std::max<int64_t>(o * a.stride - a.pad, 0); }
  static int64_t last(int64_t o, int64_t n, const Args& a) { return std::min(o * a.stride - a.pad + a.k, n); }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    const int64_t n = x.size(1), m = outputs(n, a);
    Arr<S> y(Shape{x.size(0), m});
    for (int64_t r = 0; r < x.size(0); ++r)
      for (int64_t o = 0; o < m; ++o)
        for (int64_t i = first(o, a); i < last(o, n, a); ++i) y(r, o) += x(r, i) / S(last(o, n, a) - first(o, a));
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    const int64_t n = x.size(1), m = outputs(n, a);
    Tensor y = Tensor::empty({x.size(0), m}, x.dtype());
    dispatch_float("window_mean", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("window_mean");
      for (int64_t r = 0; r < x.size(0); ++r)
        for (int64_t o = 0; o < m; ++o) {
          double total = 0;
          for (int64_t i = first(o, a); i < last(o, n, a); ++i) total += static_cast<double>(px[r * n + i]);
          py[r * m + o] = static_cast<T>(total / static_cast<double>(last(o, n, a) - first(o, a)));
        }
    });
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(2, 6)", {2, 2, 0}, {normal(r, {2, 6})}},
            {"(3, 7), stride 1", {3, 1, 0}, {normal(r, {3, 7})}},
            {"(2, 5), padded", {3, 2, 1}, {normal(r, {2, 5})}}};
  }
};
template <bool kWrong>
struct WindowMean : WindowMeanBase {
  static constexpr std::string_view name = kWrong ? "window_mean_wrong" : "window_mean_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake =
                                        "backward divides by the window's length where forward divides by the number "
                                        "of elements inside; shows with padding, at the borders";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor dy = b.dy().contiguous();
    const int64_t n = b.input_shape(0)[1], m = dy.size(1);
    Tensor dx = Tensor::zeros(b.input_shape(0), dy.dtype());
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T* pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < dy.size(0); ++r)
        for (int64_t o = 0; o < m; ++o) {
          const int64_t begin = first(o, b.args), end = last(o, n, b.args), count = kWrong ? b.args.k : end - begin;
          for (int64_t i = begin; i < end; ++i) pdx[r * n + i] += pdy[r * m + o] / static_cast<T>(count);
        }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<WindowMean>(); }
};

/// Softmax over any dimension: y = exp(x) / sum exp(x) along `axis`.  dx = y (dy - sum y dy along it).
struct AxisSoftmaxBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int axis = -1;
  };
  struct Sizes {
    int64_t outer = 1, along = 1, inner = 1;
    Sizes(const Shape& s, int axis) {
      const int at = axis < 0 ? axis + s.rank() : axis;
      for (int d = 0; d < s.rank(); ++d) (d < at ? outer : d == at ? along : inner) *= s[d];
    }
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const Sizes n(x.shape, a.axis);
    for (int64_t o = 0; o < n.outer; ++o)
      for (int64_t i = 0; i < n.inner; ++i) {
        const int64_t at = o * n.along * n.inner + i;
        S largest = x[at], total(0);
        for (int64_t k = 1; k < n.along; ++k)
          if (x[at + k * n.inner] > largest) largest = x[at + k * n.inner];
        for (int64_t k = 0; k < n.along; ++k) total += y[at + k * n.inner] = sc::exp(x[at + k * n.inner] - largest);
        for (int64_t k = 0; k < n.along; ++k) y[at + k * n.inner] /= total;
      }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    const Sizes n(x.shape(), a.axis);
    dispatch_float("axis_softmax", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("axis_softmax");
      for (int64_t o = 0; o < n.outer; ++o)
        for (int64_t i = 0; i < n.inner; ++i) {
          const int64_t at = o * n.along * n.inner + i;
          T largest = px[at], total = 0;
          for (int64_t k = 1; k < n.along; ++k) largest = std::max(largest, px[at + k * n.inner]);
          for (int64_t k = 0; k < n.along; ++k)
            total += py[at + k * n.inner] = std::exp(px[at + k * n.inner] - largest);
          for (int64_t k = 0; k < n.along; ++k) py[at + k * n.inner] /= total;
        }
    });
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {-1}, {normal(r, {3, 5})}},
            {"(4, 3) along 0", {0}, {normal(r, {4, 3})}},
            {"(2, 3, 4)", {-1}, {normal(r, {2, 3, 4})}}};
  }
};
template <bool kWrong>
struct AxisSoftmax : AxisSoftmaxBase {
  static constexpr std::string_view name = kWrong ? "axis_softmax_wrong" : "axis_softmax_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake =
                                        "the loop over columns starts its outer blocks in the wrong place; shows when "
                                        "the axis is neither the first nor the last";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &y = b[0], dy = b.dy().contiguous();
    Tensor dx = zeros_like(y);
    const Sizes n(y.shape(), b.args.axis);
    dispatch_float(name, y.dtype(), [&]<class T>() {
      const T *py = y.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      auto line = [&](int64_t at, int64_t step) {
        T product = 0;
        for (int64_t k = 0; k < n.along; ++k) product += py[at + k * step] * pdy[at + k * step];
        for (int64_t k = 0; k < n.along; ++k) pdx[at + k * step] = py[at + k * step] * (pdy[at + k * step] - product);
      };
      for (int64_t o = 0; o < n.outer; ++o) {
        if (n.inner == 1)
          line(o * n.along, 1);  // rows
        else
          for (int64_t i = 0; i < n.inner; ++i) line(o * n.inner * (kWrong ? 1 : n.along) + i, n.inner);  // columns
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<AxisSoftmax>(); }
};

/// Length of each row: y = sqrt(sum x^2 + eps).  dx = dy x / y.
struct RowLengthBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    double eps = 1e-6;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape.without_last());
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S square(a.eps);
      for (int64_t j = 0; j < d; ++j) square += x[r * d + j] * x[r * d + j];
      y[r] = sc::sqrt(square);
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous();
    Tensor y = Tensor::empty(x.shape().without_last(), x.dtype());
    const int64_t d = x.size(-1);
    dispatch_float("row_length", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("row_length");
      for (int64_t r = 0; r < x.shape().rows(); ++r) {
        double square = a.eps;
        for (int64_t j = 0; j < d; ++j) square += std::pow(static_cast<double>(px[r * d + j]), 2);
        py[r] = static_cast<T>(std::sqrt(square));
      }
    });
    saved.keep_input(0, x);
    saved.keep_output(0, y);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5})}},
            {"(2, 4, 6)", {}, {normal(r, {2, 4, 6})}},
            {"(2, 32)", {}, {normal(r, {2, 32})}}};
  }
};
template <bool kWrong>
struct RowLength : RowLengthBase {
  static constexpr std::string_view name = kWrong ? "row_length_wrong" : "row_length_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake =
                                        "wide rows are done in blocks of 16 and what is left over gets no gradient; "
                                        "shows for widths above 16 that are not multiples of it";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &y = b[1], dy = b.dy().contiguous();
    Tensor dx = zeros_like(x);
    const int64_t d = x.size(-1), block = 16;
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *py = y.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t r = 0; r < x.shape().rows(); ++r) {
        const T scale = pdy[r] / py[r];
        int64_t j = 0;
        if (d > block)
          for (; j + block <= d; j += block)
            for (int64_t i = j; i < j + block; ++i) pdx[r * d + i] = scale * px[r * d + i];
        if (kWrong && d > block) continue;
        for (; j < d; ++j) pdx[r * d + j] = scale * px[r * d + j];
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RowLength>(); }
};

/// Largest element of each segment of a vector, 0 for a segment without elements.
/// dx_i = dy_s where i is the (first) largest of its segment s, else 0.
struct SegmentLargestBase {
  static inline const std::array inputs{In{"x"}, In{"segments", false}};
  struct Args {
    int64_t count = 1;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(Shape{a.count});
    std::vector<bool> met(static_cast<size_t>(a.count), false);
    for (int64_t i = 0; i < in[0].numel(); ++i) {
      const int64_t s = in[1].index(i);
      if (!met[static_cast<size_t>(s)] || in[0][i] > y[s]) y[s] = in[0][i];
      met[static_cast<size_t>(s)] = true;
    }
    return {y};
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"7 in 3", {3}, {normal(r, {7}), indices({0, 0, 0, 1, 1, 2, 2}, {7})}},
            {"6 in 2", {2}, {normal(r, {6}), indices({1, 0, 1, 0, 0, 1}, {6})}}};
  }
};
template <bool kWrong>
struct SegmentLargest : SegmentLargestBase {
  static constexpr std::string_view name = kWrong ? "segment_largest_wrong" : "segment_largest_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake =
                                        "the place of the largest starts as 0, so a segment without elements hands its "
                                        "cotangent to x_0; shows with an empty segment";
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous(), segments = in[1].contiguous();
    Tensor y = Tensor::zeros({a.count}, x.dtype()), where = Tensor::full({a.count}, kWrong ? 0 : -1, DType::i64);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      const int64_t* segment = segments.data<int64_t>();
      T* py = y.mutable_data<T>(name);
      int64_t* at = where.mutable_data<int64_t>(name);
      std::vector<bool> met(static_cast<size_t>(a.count), false);
      for (int64_t i = 0; i < x.numel(); ++i) {
        const int64_t s = segment[i];
        if (met[static_cast<size_t>(s)] && px[i] <= py[s]) continue;
        met[static_cast<size_t>(s)] = true;
        py[s] = px[i];
        at[s] = i;
      }
    });
    saved.keep(where);
    return y;
  }
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &where = b[0], dy = b.dy().contiguous();
    Tensor dx = Tensor::zeros(b.input_shape(0), dy.dtype());
    dispatch_float(name, dy.dtype(), [&]<class T>() {
      const T* pdy = dy.data<T>();
      const int64_t* at = where.data<int64_t>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t s = 0; s < b.args.count; ++s)
        if (at[s] >= 0) pdx[at[s]] += pdy[s];
    });
    return {dx, Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<SegmentLargest>(); }
};

/// Convolution of x (B, I, L) with w (O, I, K), no padding: y_bol = sum_ik w_oik x_bi(l+k).
/// dx_bi(l+k) += w_oik dy_bol,  dw_oik = sum_bl dy_bol x_bi(l+k).
struct Convolve1dBase {
  static inline const std::array inputs{In{"x"}, In{"w"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&x = in[0], &w = in[1];
    const int64_t steps = x.size(2) - w.size(2) + 1;
    Arr<S> y(Shape{x.size(0), w.size(0), steps});
    for (int64_t b = 0; b < x.size(0); ++b)
      for (int64_t o = 0; o < w.size(0); ++o)
        for (int64_t i = 0; i < w.size(1); ++i)
          for (int64_t k = 0; k < w.size(2); ++k)
            for (int64_t l = 0; l < steps; ++l) y(b, o, l) += w(o, i, k) * x(b, i, l + k);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous(), w = in[1].contiguous();
    const int64_t batch = x.size(0), I = x.size(1), L = x.size(2), O = w.size(0), K = w.size(2), steps = L - K + 1;
    Tensor y = Tensor::zeros({batch, O, steps}, x.dtype());
    dispatch_float("convolve_1d", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pw = w.data<T>();
      T* py = y.mutable_data<T>("convolve_1d");
      for (int64_t b = 0; b < batch; ++b)
        for (int64_t o = 0; o < O; ++o)
          for (int64_t i = 0; i < I; ++i)
            for (int64_t k = 0; k < K; ++k)
              for (int64_t l = 0; l < steps; ++l)
                py[(b * O + o) * steps + l] += pw[(o * I + i) * K + k] * px[(b * I + i) * L + l + k];
    });
    saved.keep_input(0, x);
    saved.keep_input(1, w);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(1, 2, 6) with (3, 2, 3)", {}, {normal(r, {1, 2, 6}), normal(r, {3, 2, 3})}},
            {"(1, 1, 8) with (2, 1, 4)", {}, {normal(r, {1, 1, 8}), normal(r, {2, 1, 4})}}};
  }
};
template <bool kWrong>
struct Convolve1d : Convolve1dBase {
  static constexpr std::string_view name = kWrong ? "convolve_1d_wrong" : "convolve_1d_right";
  static constexpr std::string_view kind = "shapes",
                                    mistake =
                                        "dw of each batch element overwrites that of the one before; shows for batches "
                                        "of two or more";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &w = b[1], dy = b.dy().contiguous();
    const int64_t batch = x.size(0), I = x.size(1), L = x.size(2), O = w.size(0), K = w.size(2), steps = L - K + 1;
    Tensor dx = zeros_like(x), dw = zeros_like(w);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pw = w.data<T>(), *pdy = dy.data<T>();
      T *pdx = dx.mutable_data<T>(name), *pdw = dw.mutable_data<T>(name);
      for (int64_t n = 0; n < batch; ++n)
        for (int64_t o = 0; o < O; ++o)
          for (int64_t i = 0; i < I; ++i)
            for (int64_t k = 0; k < K; ++k) {
              T total = 0;
              for (int64_t l = 0; l < steps; ++l) {
                const T g = pdy[(n * O + o) * steps + l];
                total += g * px[(n * I + i) * L + l + k];
                pdx[(n * I + i) * L + l + k] += g * pw[(o * I + i) * K + k];
              }
              T& to = pdw[(o * I + i) * K + k];
              to = kWrong ? total : to + total;
            }
    });
    return {dx, dw};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Convolve1d>(); }
};

// --- Slips in a formula ----------------------------------------------------------------------------------------------

/// y = x r gamma with r = 1 / sqrt(mean(x^2) + eps).
/// With h = x r, g = dy gamma:  dx = r (g - h mean(g h)),  dgamma = sum over rows of dy h.
struct RootMeanSquareNormBase {
  static inline const std::array inputs{In{"x"}, In{"gamma"}};
  struct Args {
    double eps = 1e-6;
  };
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t d = x.size(-1);
    for (int64_t r = 0; r < x.shape.rows(); ++r) {
      S square(0);
      for (int64_t j = 0; j < d; ++j) square += x[r * d + j] * x[r * d + j] / S(d);
      for (int64_t j = 0; j < d; ++j) y[r * d + j] = x[r * d + j] / sc::sqrt(square + S(a.eps)) * in[1][j];
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous(), gamma = in[1].contiguous();
    Tensor y = empty_like(x);
    const int64_t d = x.size(-1);
    dispatch_float("root_mean_square_norm", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pg = gamma.data<T>();
      T* py = y.mutable_data<T>("root_mean_square_norm");
      for (int64_t r = 0; r < x.shape().rows(); ++r, px += d, py += d) {
        double square = 0;
        for (int64_t j = 0; j < d; ++j) square += std::pow(static_cast<double>(px[j]), 2) / static_cast<double>(d);
        for (int64_t j = 0; j < d; ++j) py[j] = px[j] * static_cast<T>(1 / std::sqrt(square + a.eps)) * pg[j];
      }
    });
    saved.keep_input(0, x);
    saved.keep_input(1, gamma);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {normal(r, {3, 5}), positive(r, {5})}},
            {"(2, 4, 6)", {}, {normal(r, {2, 4, 6}), positive(r, {6})}}};
  }
};
template <bool kWrong>
struct RootMeanSquareNorm : RootMeanSquareNormBase {
  static constexpr std::string_view name = kWrong ? "root_mean_square_norm_wrong" : "root_mean_square_norm_right";
  static constexpr std::string_view kind = "formula",
                                    mistake =
                                        "backward adds eps to the root where forward adds it below the root; shows for "
                                        "rows of about sqrt(eps), or a larger eps";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &gamma = b[1], dy = b.dy().contiguous();
    Tensor dx = empty_like(x), dgamma = zeros_like(gamma);
    const int64_t d = x.size(-1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pg = gamma.data<T>(), *pdy = dy.data<T>();
      T *pdx = dx.mutable_data<T>(name), *pdg = dgamma.mutable_data<T>(name);
      for (int64_t r = 0; r < x.shape().rows(); ++r, px += d, pdy += d, pdx += d) {
        double square = 0, mean = 0;
        for (int64_t j = 0; j < d; ++j) square += std::pow(static_cast<double>(px[j]), 2) / static_cast<double>(d);
        const T scale =
            static_cast<T>(kWrong ? 1 / (std::sqrt(square) + b.args.eps) : 1 / std::sqrt(square + b.args.eps));
        for (int64_t j = 0; j < d; ++j)
          mean += static_cast<double>(pdy[j] * pg[j] * px[j] * scale) / static_cast<double>(d);
        for (int64_t j = 0; j < d; ++j) {
          const T h = px[j] * scale;
          pdx[j] = scale * (pdy[j] * pg[j] - h * static_cast<T>(mean));
          pdg[j] += pdy[j] * h;
        }
      }
    });
    return {dx, dgamma};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RootMeanSquareNorm>(); }
};

/// SELU: y = l x for x > 0, l a (exp(x) - 1) else, l and a as published.  dx = dy l, or dy l a exp(x).
struct SeluBase {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;
  static constexpr double kL = 1.0507009873554804934193349852946, kA = 1.6732632423543772848170429916717;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x > S(0) ? S(kL) * x : S(kL * kA) * (sc::exp(x) - S(1)); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("selu", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("selu");
      for (int64_t i = 0; i < x.numel(); ++i)
        py[i] = px[i] > 0 ? static_cast<T>(kL) * px[i] : static_cast<T>(kL * kA) * std::expm1(px[i]);
    });
    saved.keep_input(0, x);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {away_from_zero(r, {3, 5}, 0.1, 2)}},
            {"(2, 4, 6)", {}, {away_from_zero(r, {2, 4, 6}, 0.1, 2)}}};
  }
};
template <bool kWrong>
struct Selu : SeluBase {
  static constexpr std::string_view name = kWrong ? "selu_wrong" : "selu_right";
  static constexpr std::string_view kind = "formula",
                                    mistake =
                                        "backward has the constants with five digits, 1.0507 and 1.6733; shows for "
                                        "negative x by two parts in 10^5";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], dy = b.dy().contiguous();
    const double l = kWrong ? 1.0507 : kL, a = kWrong ? 1.6733 : kA;
    Tensor dx = empty_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i)
        pdx[i] = pdy[i] * (px[i] > 0 ? static_cast<T>(l) : static_cast<T>(l * a) * std::exp(px[i]));
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Selu>(); }
};

/// Focal loss of logits x and labels +1 or -1: with p = sigmoid(label x), y = -(1 - p)^gamma log p.
/// dx = dy label (1 - p)^gamma (gamma p log p - (1 - p)).
struct FocalLossBase {
  static inline const std::array inputs{In{"x"}, In{"labels", false}};
  struct Args {
    double gamma = 2;
  };
  template <class T>
  static T log_logistic(T z) {
    return std::min(z, T(0)) - std::log1p(std::exp(-std::abs(z)));
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    Arr<S> y(in[0].shape);
    for (int64_t i = 0; i < y.numel(); ++i) {
      const S z = S(in[1].index(i)) * in[0][i];
      const S log_p = z < S(0) ? z - sc::log1p(sc::exp(z)) : -sc::log1p(sc::exp(-z));
      y[i] = -sc::pow(sc::sigmoid(-z), S(a.gamma)) * log_p;
    }
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args& a) {
    const Tensor x = in[0].contiguous(), labels = in[1].contiguous();
    Tensor y = empty_like(x);
    dispatch_float("focal_loss", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      const int64_t* label = labels.data<int64_t>();
      T* py = y.mutable_data<T>("focal_loss");
      for (int64_t i = 0; i < x.numel(); ++i) {
        const T z = static_cast<T>(label[i]) * px[i];
        py[i] = -std::pow(logistic(-z), static_cast<T>(a.gamma)) * log_logistic(z);
      }
    });
    saved.keep_input(0, x);
    saved.keep_input(1, labels);
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {normal(r, {5}), indices({1, -1, -1, 1, 1}, {5})}},
            {"(2, 3)", {}, {normal(r, {2, 3}), indices({-1, 1, -1, 1, 1, -1}, {2, 3})}}};
  }
};
template <bool kWrong>
struct FocalLoss : FocalLossBase {
  static constexpr std::string_view name = kWrong ? "focal_loss_wrong" : "focal_loss_right";
  static constexpr std::string_view kind = "formula",
                                    mistake =
                                        "the factor of the logarithm is 2 in place of gamma; shows when gamma is not "
                                        "its default of 2";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &labels = b[1], dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>(), gamma = static_cast<T>(b.args.gamma);
      const int64_t* label = labels.data<int64_t>();
      T* pdx = dx.mutable_data<T>(name);
      for (int64_t i = 0; i < x.numel(); ++i) {
        const T sign = static_cast<T>(label[i]), z = sign * px[i], p = logistic(z), q = logistic(-z);
        pdx[i] = pdy[i] * sign * std::pow(q, gamma) * ((kWrong ? T(2) : gamma) * p * log_logistic(z) - q);
      }
    });
    return {dx, Tensor()};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<FocalLoss>(); }
};

/// Running product along the last dimension, of positive numbers: y_t = prod_(s <= t) x_s.
/// dx_t = sum_(s >= t) dy_s y_s / x_t.
struct RunningProductBase {
  static inline const std::array inputs{In{"x", Domain::positive}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    Arr<S> y = in[0];
    const int64_t n = y.size(-1);
    for (int64_t i = 0; i < y.numel(); ++i)
      if (i % n) y[i] *= y[i - 1];
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous();
    Tensor y = empty_like(x);
    const int64_t n = x.size(-1);
    dispatch_float("running_product", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("running_product");
      for (int64_t i = 0; i < x.numel(); ++i) py[i] = i % n ? py[i - 1] * px[i] : px[i];
    });
    saved.keep_input(0, x);
    saved.keep(y.clone());
    return y;
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 5)", {}, {positive(r, {3, 5})}}, {"(2, 4, 6)", {}, {positive(r, {2, 4, 6})}}};
  }
};
template <bool kWrong>
struct RunningProduct : RunningProductBase {
  static constexpr std::string_view name = kWrong ? "running_product_wrong" : "running_product_right";
  static constexpr std::string_view kind = "formula",
                                    mistake =
                                        "backward uses the kept products as its work space, so that a second backward "
                                        "through the same node starts from spoilt ones";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], work = kWrong ? b[1] : b[1].clone(), dy = b.dy().contiguous();
    Tensor dx = empty_like(x);
    const int64_t n = x.size(-1);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pdy = dy.data<T>();
      T *pw = const_cast<T*>(work.data<T>()), *pdx = dx.mutable_data<T>(name);
      for (int64_t i = x.numel() - 1; i >= 0; --i) {
        pw[i] *= pdy[i];
        if (i % n != n - 1) pw[i] += pw[i + 1];
        pdx[i] = pw[i] / px[i];
      }
    });
    return {dx};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<RunningProduct>(); }
};

/// Rows blurred with a normal window: y_i = sum_(|k| <= radius) w_k x_(i+k), x 0 outside, w_k ~ exp(-k^2 / 2 sigma^2)
/// of sum 1.  dx_i = sum_k w_k dy_(i-k), which is the same blur as w is symmetric.
struct BlurBase {
  static inline const std::array inputs{In{"x"}};
  struct Args {
    int64_t radius = 2;
    double sigma = 1;
  };
  static std::vector<double> window(const Args& a) {
    std::vector<double> w;
    double total = 0;
    for (int64_t k = -a.radius; k <= a.radius; ++k) {
      w.push_back(std::exp(-static_cast<double>(k * k) / (2 * a.sigma * a.sigma)));
      total += w.back();
    }
    for (double& each : w) each /= total;
    return w;
  }
  static Tensor blur(const Tensor& x, const std::vector<double>& w, int64_t radius) {
    Tensor y = zeros_like(x);
    const int64_t n = x.size(-1);
    dispatch_float("blur", x.dtype(), [&]<class T>() {
      const T* px = x.data<T>();
      T* py = y.mutable_data<T>("blur");
      for (int64_t r = 0; r < x.shape().rows(); ++r)
        for (int64_t i = 0; i < n; ++i)
          for (int64_t k = std::max(-radius, -i); k <= std::min(radius, n - 1 - i); ++k)
            py[r * n + i] += static_cast<T>(w[static_cast<size_t>(k + radius)]) * px[r * n + i + k];
    });
    return y;
  }
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args& a) {
    const Arr<S>& x = in[0];
    Arr<S> y(x.shape);
    const int64_t n = x.size(-1);
    const std::vector<double> w = window(a);
    for (int64_t r = 0; r < x.shape.rows(); ++r)
      for (int64_t i = 0; i < n; ++i)
        for (int64_t k = -a.radius; k <= a.radius; ++k)
          if (i + k >= 0 && i + k < n) y[r * n + i] += S(w[static_cast<size_t>(k + a.radius)]) * x[r * n + i + k];
    return {y};
  }
  static Tensor forward(Saved&, const Tensors& in, const Args& a) {
    return blur(in[0].contiguous(), window(a), a.radius);
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(3, 8)", {2, 1}, {normal(r, {3, 8})}},
            {"(2, 6), radius 1", {1, 0.6}, {normal(r, {2, 6})}},
            {"(2, 9), sigma 1.5", {2, 1.5}, {normal(r, {2, 9})}}};
  }
};
template <bool kWrong>
struct Blur : BlurBase {
  static constexpr std::string_view name = kWrong ? "blur_wrong" : "blur_right";
  static constexpr std::string_view kind = "formula",
                                    mistake =
                                        "backward keeps its window between calls by radius alone; shows when a second "
                                        "sigma is used with the same radius";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Args& a = b.args;
    static std::mutex one_at_a_time;
    static std::map<std::pair<int64_t, double>, std::vector<double>> windows;
    const std::lock_guard lock(one_at_a_time);
    std::vector<double>& w = windows[{a.radius, kWrong ? 0 : a.sigma}];
    if (w.empty()) w = window(a);
    return {blur(b.dy().contiguous(), w, a.radius)};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<Blur>(); }
};

/// Squared distance of rows to a centre in a metric A (d, d): y_r = e^T A e with e = x_r - m.
/// dx_r = dy_r (A + A^T) e,  dm = -sum_r dx_r,  dA = sum_r dy_r e e^T.
struct MetricDistanceBase {
  static inline const std::array inputs{In{"x"}, In{"m"}, In{"A"}};
  using Args = NoArgs;
  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    const Arr<S>&x = in[0], &m = in[1], &A = in[2];
    Arr<S> y(Shape{x.size(0)});
    for (int64_t r = 0; r < x.size(0); ++r)
      for (int64_t i = 0; i < x.size(1); ++i)
        for (int64_t j = 0; j < x.size(1); ++j) y[r] += (x(r, i) - m[i]) * A(i, j) * (x(r, j) - m[j]);
    return {y};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    const Tensor x = in[0].contiguous(), m = in[1].contiguous(), A = in[2].contiguous();
    const int64_t n = x.size(0), d = x.size(1);
    Tensor y = Tensor::zeros({n}, x.dtype());
    dispatch_float("metric_distance", x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pm = m.data<T>(), *pA = A.data<T>();
      T* py = y.mutable_data<T>("metric_distance");
      for (int64_t r = 0; r < n; ++r)
        for (int64_t i = 0; i < d; ++i)
          for (int64_t j = 0; j < d; ++j) py[r] += (px[r * d + i] - pm[i]) * pA[i * d + j] * (px[r * d + j] - pm[j]);
    });
    saved.keep_input(0, x);
    saved.keep_input(1, m);
    saved.keep_input(2, A);
    return y;
  }
  /// A metric as it comes from a covariance: symmetric, positive.
  static Tensor metric(Rng& r, int64_t d) {
    const Tensor root = normal(r, {d, d});
    return num::matmul(root, root.transpose(0, 1));
  }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5, 3)", {}, {normal(r, {5, 3}), normal(r, {3}), metric(r, 3)}},
            {"(2, 4)", {}, {normal(r, {2, 4}), normal(r, {4}), metric(r, 4)}}};
  }
};
template <bool kWrong>
struct MetricDistance : MetricDistanceBase {
  static constexpr std::string_view name = kWrong ? "metric_distance_wrong" : "metric_distance_right";
  static constexpr std::string_view kind = "formula",
                                    mistake =
                                        "dx is 2 A e, which is (A + A^T) e only for a symmetric A; shows when A is "
                                        "any matrix, as a learned one is";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    const Tensor &x = b[0], &m = b[1], &A = b[2], dy = b.dy().contiguous();
    const int64_t n = x.size(0), d = x.size(1);
    Tensor dx = empty_like(x), dm = zeros_like(m), dA = zeros_like(A);
    dispatch_float(name, x.dtype(), [&]<class T>() {
      const T *px = x.data<T>(), *pm = m.data<T>(), *pA = A.data<T>(), *pdy = dy.data<T>();
      T *pdx = dx.mutable_data<T>(name), *pdm = dm.mutable_data<T>(name), *pdA = dA.mutable_data<T>(name);
      for (int64_t r = 0; r < n; ++r)
        for (int64_t i = 0; i < d; ++i) {
          T total = 0;
          for (int64_t j = 0; j < d; ++j) {
            const T ei = px[r * d + i] - pm[i], ej = px[r * d + j] - pm[j];
            total += (kWrong ? 2 * pA[i * d + j] : pA[i * d + j] + pA[j * d + i]) * ej;
            pdA[i * d + j] += pdy[r] * ei * ej;
          }
          pdx[r * d + i] = pdy[r] * total;
          pdm[i] -= pdy[r] * total;
        }
    });
    return {dx, dm, dA};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() { return negated<MetricDistance>(); }
};

}  // namespace strangers_a
