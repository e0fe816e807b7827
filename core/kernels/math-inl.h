// Elementwise mathematics on vectors, compiled once per instruction set: included only by the kernels in this folder,
// inside Highway's foreach_target scheme (hence the toggling guard). NaN goes through; infinities give the limit.
#if defined(BG_CORE_KERNELS_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef BG_CORE_KERNELS_MATH_INL_H_
#undef BG_CORE_KERNELS_MATH_INL_H_
#else
#define BG_CORE_KERNELS_MATH_INL_H_
#endif

#include <hwy/cache_control.h>
#include <hwy/contrib/math/math-inl.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// ---- strips: a span cut into full vectors and one last part ----

struct FullVector {
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p, hn::TFromD<D> = 0) const {
    return hn::LoadU(d, p);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) const {
    hn::StoreU(v, d, p);
  }
};

// Writes past the caches: for results that are too large to be found there by who reads them next. An ordinary store
// would first fetch the line that it overwrites.
struct StreamedVector : FullVector {
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) const {
    hn::Stream(v, d, p);
  }
};

// Goes through a buffer: masked stores may touch the bytes after the span, which another thread may be writing.
struct PartVector {
  size_t count;
  template <class D>
  HWY_INLINE hn::Vec<D> load(D d, const hn::TFromD<D>* p, hn::TFromD<D> fill = 0) const {
    HWY_ALIGN hn::TFromD<D> buffer[hn::MaxLanes(D())];
    hn::Store(hn::Set(d, fill), d, buffer);
    for (size_t i = 0; i < count; ++i) buffer[i] = p[i];
    return hn::Load(d, buffer);
  }
  template <class D>
  HWY_INLINE void store(D d, hn::Vec<D> v, hn::TFromD<D>* p) const {
    HWY_ALIGN hn::TFromD<D> buffer[hn::MaxLanes(D())];
    hn::Store(v, d, buffer);
    for (size_t i = 0; i < count; ++i) p[i] = buffer[i];
  }
};

// f(i, lanes) for every vector of [0, n); lanes loads and stores it.
template <class D, class F>
HWY_INLINE void for_vectors(D d, int64_t n, F f) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + step <= n; i += step) f(i, FullVector{});
  if (i < n) f(i, PartVector{static_cast<size_t>(n - i)});
}
// The same where f stores to y alone, and past the caches if `streamed`; FlushStream() must follow.
template <class D, class F>
HWY_INLINE void for_vectors_into(D d, const hn::TFromD<D>* y, int64_t n, bool streamed, F f) {
  const int64_t step = static_cast<int64_t>(hn::Lanes(d));
  if (!streamed || reinterpret_cast<uintptr_t>(y) % (hn::Lanes(d) * sizeof(*y)) != 0) return for_vectors(d, n, f);
  int64_t i = 0;
  for (; i + step <= n; i += step) f(i, StreamedVector{});
  if (i < n) f(i, PartVector{static_cast<size_t>(n - i)});
}
#define BG_LANES HWY_ATTR __attribute__((always_inline))  // for the lambdas given to for_vectors

// ---- polynomials ----

// c[I] + x (c[I + 1] + x (...)), unrolled.
template <size_t I = 0, class D, size_t N>
HWY_INLINE hn::Vec<D> horner(D d, hn::Vec<D> x, const hn::TFromD<D> (&c)[N]) {
  if constexpr (I + 1 == N) {
    return hn::Set(d, c[I]);
  } else {
    return hn::MulAdd(horner<I + 1>(d, x, c), x, hn::Set(d, c[I]));
  }
}

// The numbers below were fitted for this file: Chebyshev interpolation in 50 digits, then rounded.
//   exp_poly:  (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2
//   tail_poly: (1 + 3/4 a) Q(a) e^(a^2 / 2) as a polynomial in (a - K) / (a + K), where Q is the upper tail of the
//   normal
//              distribution; the form is Shepherd and Laframboise's for erfc (Math. Comp. 36, 1981)
template <class T>
struct MathConstants;

template <>
struct MathConstants<float> {
  static constexpr float magic = 0x1.8p23f;  // adding it rounds to an integer, which is then in the low bits
  static constexpr int mantissa_bits = 23, exponent_bias = 127;
  static constexpr uint32_t high_half = 0xfffff000;  // a factor of at most 12 bits has an exact square
  static constexpr float exp_low = -104, exp_high = 104, tail_end = 15, logistic_end = 120;
  static constexpr float ln2_high = 0.693145751953125f, ln2_low = 1.42860677e-06f;
  static constexpr float exp_poly[] = {0.5f, 0.166665763f, 0.0416665561f, 0.00836317893f, 0.0013926184f};
  static constexpr float tail_k = 4;
  static constexpr float tail_poly[] = {0.377642572f,    -0.115127034f,    0.0415945388f,   0.00352324848f,
                                        -0.0164320823f,  0.0113308607f,    -0.00362553704f, -6.28442358e-05f,
                                        0.000474817789f, -6.38080164e-05f, -5.3879412e-05f};
};

template <>
struct MathConstants<double> {
  static constexpr double magic = 0x1.8p52;
  static constexpr int mantissa_bits = 52, exponent_bias = 1023;
  static constexpr uint64_t high_half = 0xfffffffff8000000;
  static constexpr double exp_low = -746, exp_high = 710, tail_end = 39, logistic_end = 800;
  static constexpr double ln2_high = 0.69314718036912382, ln2_low = 1.9082149292705877e-10;
  static constexpr double exp_poly[] = {0.5,
                                        0.16666666666666671,
                                        0.041666666666666671,
                                        0.0083333333333261358,
                                        0.0013888888888883748,
                                        0.00019841269874820627,
                                        2.4801587325547743e-05,
                                        2.7557255400206422e-06,
                                        2.7557273643110297e-07,
                                        2.5105217004720745e-08,
                                        2.0914686968086876e-09};
  static constexpr double tail_k = 6;
  static constexpr double tail_poly[] = {
      0.35628622878445765,     -0.094568205093582783,  0.056316441784440043,    -0.023756550034494874,
      0.0020996501595453671,   0.0081807153407263775,  -0.010077939670545976,   0.0077235391323826636,
      -0.0044403825626063379,  0.0019483786024767466,  -0.00060665276529468272, 9.2710777043808948e-05,
      2.3218829878465477e-05,  -1.839358373652891e-05, 3.4285151627735122e-06,  1.1586510602063043e-06,
      -7.2124110255068322e-07, 1.5268148421342797e-08, 9.3135469583235071e-08,  -1.6216826523567178e-08,
      -1.095167063770655e-08,  2.315051321841026e-09,  1.1405151195536123e-09};
};

// ---- functions ----

template <class D>
HWY_INLINE hn::Vec<D> clamp_keep_nan(D d, hn::Vec<D> x, hn::TFromD<D> low, hn::TFromD<D> high) {
  const auto l = hn::Set(d, low), h = hn::Set(d, high);
  return hn::IfThenElse(hn::Lt(x, l), l, hn::IfThenElse(hn::Gt(x, h), h, x));
}

// exp(high + low), low small beside high or beside 1: e^x = 2^n e^r with n = round(x / ln 2).
template <class D>
HWY_INLINE hn::Vec<D> exp_of_sum(D d, hn::Vec<D> high, hn::Vec<D> low) {
  using T = hn::TFromD<D>;
  using K = MathConstants<T>;
  const hn::RebindToUnsigned<D> du;
  using U = hn::TFromD<decltype(du)>;
  const auto magic = hn::Set(d, K::magic);
  const auto pow2 = [&](hn::Vec<D> shifted) BG_LANES {  // 2^k from magic + k
    const auto biased = hn::Add(hn::BitCast(du, shifted), hn::Set(du, U{K::exponent_bias}));
    return hn::BitCast(d, hn::ShiftLeft<K::mantissa_bits>(biased));
  };
  high = clamp_keep_nan(d, high, K::exp_low, K::exp_high);
  const auto n = hn::Sub(hn::MulAdd(high, hn::Set(d, T(1.4426950408889634)), magic), magic);
  auto r = hn::NegMulAdd(n, hn::Set(d, K::ln2_high), high);
  r = hn::Add(hn::NegMulAdd(n, hn::Set(d, K::ln2_low), r), low);
  const auto y = hn::Add(hn::MulAdd(horner(d, r, K::exp_poly), hn::Mul(r, r), r), hn::Set(d, T(1)));
  // In two factors, for results beyond the range of one: near overflow, and subnormal.
  const auto half = hn::MulAdd(n, hn::Set(d, T(0.5)), magic);
  const auto rest = hn::Add(hn::Sub(n, hn::Sub(half, magic)), magic);
  return hn::Mul(hn::Mul(y, pow2(half)), pow2(rest));
}

struct Exp {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    return exp_of_sum(d, x, hn::Zero(d));
  }
};

// exp(x), or exp(x + low), for x <= 0 or a rounding above, below 2 ulp; 0 where the result would be subnormal; NaN
// stays NaN. As exp_of_sum, without what the range saves.
template <class D, class V = hn::Vec<D>, class... Low>
HWY_INLINE V exp_nonpositive(D d, V x, Low... low) {
  using T = hn::TFromD<D>;
  using K = MathConstants<T>;
  const hn::RebindToUnsigned<D> du;
  const V magic = hn::Set(d, K::magic);
  const V shifted = hn::MulAdd(x, hn::Set(d, T(1.4426950408889634)), magic);
  const V n = hn::Sub(shifted, magic);
  V r = hn::NegMulAdd(n, hn::Set(d, K::ln2_low), hn::NegMulAdd(n, hn::Set(d, K::ln2_high), x));
  ((r = hn::Add(r, low)), ...);
  const V y = hn::Add(hn::MulAdd(horner(d, r, K::exp_poly), hn::Mul(r, r), r), hn::Set(d, T(1)));
  const auto biased = hn::Add(hn::BitCast(du, shifted), hn::Set(du, hn::TFromD<decltype(du)>{K::exponent_bias}));
  const V power = hn::BitCast(d, hn::ShiftLeft<K::mantissa_bits>(biased));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, T(sizeof(T) == 4 ? -87 : -708))), hn::Mul(y, power));
}

struct Log {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    const auto zero = hn::Zero(d), inf = hn::Inf(d);
    auto y = hn::IfThenElse(hn::Lt(x, inf), hn::Log(d, x), x);  // infinity and NaN are their own logarithms
    y = hn::IfThenElse(hn::Lt(x, zero), hn::NaN(d), y);
    return hn::IfThenElse(hn::Eq(x, zero), hn::Neg(inf), y);
  }
};

struct Sqrt {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D, hn::Vec<D> x) const {
    return hn::Sqrt(x);
  }
};

struct Tanh {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    return hn::Tanh(d, x);
  }
};

// Both sigmoid(x) and 1 - sigmoid(x) to full relative accuracy.
template <class V>
struct SigmoidPair {
  V value, complement;
};

template <class D>
HWY_INLINE SigmoidPair<hn::Vec<D>> sigmoid_pair(D d, hn::Vec<D> x) {
  const auto one = hn::Set(d, hn::TFromD<D>(1));
  const auto e = exp_of_sum(d, hn::Neg(hn::Abs(x)), hn::Zero(d));  // at most 1: no overflow
  const auto large = hn::Div(one, hn::Add(one, e));
  const auto small = hn::Mul(e, large);
  const auto negative = hn::Lt(x, hn::Zero(d));
  return {hn::IfThenElse(negative, small, large), hn::IfThenElse(negative, large, small)};
}

struct Sigmoid {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    return sigmoid_pair(d, x).value;
  }
};

struct Relu {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Zero(d), x);  // NaN is not below zero: it stays
  }
};

// x * sigmoid(x); the clamp makes -inf * 0 its limit 0.
struct Silu {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    const auto low = hn::Set(d, -MathConstants<hn::TFromD<D>>::logistic_end);
    x = hn::IfThenElse(hn::Lt(x, low), low, x);
    return hn::Mul(x, sigmoid_pair(d, x).value);
  }
};

// The normal distribution's tail beyond a = |x|, Q(a) = ratio * bell with bell = exp(-a^2 / 2), each to full relative
// accuracy; the bell is 0 where it would be subnormal. a stops at tail_end, from where on all is 0, so that products
// with it have their limits. Phi(x) is the tail for negative x, else 1 - tail.
template <class V>
struct NormalTail {
  V a, ratio, bell;
};

template <class D>
HWY_INLINE NormalTail<hn::Vec<D>> normal_tail(D d, hn::Vec<D> x) {
  using T = hn::TFromD<D>;
  using K = MathConstants<T>;
  const auto k = hn::Set(d, K::tail_k), minus_half = hn::Set(d, T(-0.5)), one = hn::Set(d, T(1));
  const auto end = hn::Set(d, K::tail_end);
  auto a = hn::Abs(x);
  a = hn::IfThenElse(hn::Gt(a, end), end, a);
  const auto square = hn::Mul(a, a);
  // What rounding took from the square: it would be multiplied by the square's size in the exponential.
#if HWY_NATIVE_FMA
  const auto rest = hn::MulSub(a, a, square);
#else
  // a = high + low with an exact high^2
  const hn::RebindToUnsigned<D> du;
  const auto high = hn::BitCast(d, hn::And(hn::BitCast(du, a), hn::Set(du, K::high_half)));
  const auto rest = hn::Add(hn::Sub(hn::Mul(high, high), square), hn::Mul(hn::Sub(a, high), hn::Add(a, high)));
#endif
  // t = (a - k) / (a + k) and 1 / (1 + 3/4 a) by one division
  const auto sum = hn::Add(a, k), scale = hn::MulAdd(a, hn::Set(d, T(0.75)), one);
  const auto inverse = hn::Div(one, hn::Mul(sum, scale));
  const auto t = hn::Mul(hn::Mul(hn::Sub(a, k), scale), inverse);
  return {a, hn::Mul(horner(d, t, K::tail_poly), hn::Mul(sum, inverse)),
          exp_nonpositive(d, hn::Mul(square, minus_half), hn::Mul(rest, minus_half))};
}

// x * Phi(x).
struct Gelu {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x) const {
    const auto q = normal_tail(d, x);
    const auto tail = hn::Mul(hn::Mul(q.a, q.ratio), q.bell);
    return hn::IfThenElse(hn::Lt(x, hn::Zero(d)), hn::Neg(tail), hn::Sub(x, tail));
  }
};

// ---- derivatives times the cotangent: dx = f'(...) dy ----

struct ReluBackward {  // the derivative at 0 is 0
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x, hn::Vec<D> dy) const {
    return hn::IfThenElseZero(hn::Gt(x, hn::Zero(d)), dy);
  }
};

struct TanhBackward {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> y, hn::Vec<D> dy) const {
    const auto one = hn::Set(d, hn::TFromD<D>(1));
    return hn::Mul(dy, hn::Mul(hn::Sub(one, y), hn::Add(one, y)));
  }
};

struct SigmoidBackward {
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> y, hn::Vec<D> dy) const {
    return hn::Mul(dy, hn::Mul(y, hn::Sub(hn::Set(d, hn::TFromD<D>(1)), y)));
  }
};

struct SiluBackward {  // s + x s (1 - s)
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x, hn::Vec<D> dy) const {
    using K = MathConstants<hn::TFromD<D>>;
    x = clamp_keep_nan(d, x, -K::logistic_end, K::logistic_end);
    const auto s = sigmoid_pair(d, x);
    return hn::Mul(dy, hn::MulAdd(hn::Mul(x, s.complement), s.value, s.value));
  }
};

struct GeluBackward {  // Phi(x) + x phi(x)
  template <class D>
  HWY_INLINE hn::Vec<D> operator()(D d, hn::Vec<D> x, hn::Vec<D> dy) const {
    using T = hn::TFromD<D>;
    const auto q = normal_tail(d, x);
    const auto tail = hn::NegMulAdd(q.a, hn::Set(d, T(0.3989422804014327)), q.ratio);  // (Q - a phi) / bell
    const auto slope = hn::Mul(tail, q.bell);
    return hn::Mul(dy, hn::IfThenElse(hn::Lt(x, hn::Zero(d)), slope, hn::Sub(hn::Set(d, T(1)), slope)));
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#endif  // per-target guard
