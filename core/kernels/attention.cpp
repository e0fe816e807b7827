// Attention by blocks of queries: a block's logits against all keys it sees form a strip of a few rows, which stays in
// the cache between the products (core/gemm.h) and the softmax (vector code below, chosen at run time).
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include <cmath>
#include <cstdint>
#include <limits>

#ifndef BG_CORE_KERNELS_ATTENTION_STRIP
#define BG_CORE_KERNELS_ATTENTION_STRIP
namespace bg::strip {

// Rows of logits. Row r starts at data + r * stride, sees its first visible[r] columns, and has room for the padding
// up to `stride`, so that whole vectors may be read and written. `columns` are used by the products.
template <class T>
struct Strip {
  T* data;
  int64_t stride, rows, columns;
  const int64_t* visible;

  T* row(int64_t r) const { return data + r * stride; }
};

constexpr int64_t kPad = 16;  // elements: a multiple of the vector length of every target for float and double

}  // namespace bg::strip
#endif

HWY_BEFORE_NAMESPACE();
namespace bg {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using strip::Strip;

template <class T>
using Tag = hn::CappedTag<T, strip::kPad>;

// exp(x) for x <= 0 (or a rounding above), below 1.5 ulp; 0 where the result would be denormal; NaN stays NaN.
// x = n ln 2 + r with |r| <= ln(2) / 2: exp(r) by its Taylor series, whose remainder is below 0.1 ulp, times 2^n.
// Adding 1.5 * 2^(mantissa bits) rounds to the integer n and leaves it in the low bits.
template <class T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr float magic = 12582912.0f, ln2_high = 0.693359375f, ln2_low = -2.12194440e-4f, lowest = -87.0f;
  static constexpr int mantissa = 23, bias = 127, degree = 7;
};
template <>
struct ExpConstants<double> {
  static constexpr double magic = 6755399441055744.0, ln2_high = 6.93147180369123816490e-01,
                          ln2_low = 1.90821492927058770002e-10, lowest = -708.0;
  static constexpr int mantissa = 52, bias = 1023, degree = 13;
};

template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_negative(D d, V x) {
  using T = hn::TFromD<D>;
  using C = ExpConstants<T>;
  const hn::RebindToSigned<D> di;
  const V shifted = hn::MulAdd(x, hn::Set(d, T(1.4426950408889634)), hn::Set(d, C::magic));
  const V n = hn::Sub(shifted, hn::Set(d, C::magic));
  const V r = hn::NegMulAdd(n, hn::Set(d, C::ln2_low), hn::NegMulAdd(n, hn::Set(d, C::ln2_high), x));
  // Even and odd halves of the series run side by side: a chain half as long.
  constexpr double inverse_factorial[] = {
      1.0,        1.0,         1.0 / 2,      1.0 / 6,       1.0 / 24,       1.0 / 120,       1.0 / 720,
      1.0 / 5040, 1.0 / 40320, 1.0 / 362880, 1.0 / 3628800, 1.0 / 39916800, 1.0 / 479001600, 1.0 / 6227020800};
  const V r2 = hn::Mul(r, r);
  V odd = hn::Set(d, T(inverse_factorial[C::degree])), even = hn::Set(d, T(inverse_factorial[C::degree - 1]));
  for (int i = C::degree - 2; i > 1; i -= 2) {
    odd = hn::MulAdd(odd, r2, hn::Set(d, T(inverse_factorial[i])));
    even = hn::MulAdd(even, r2, hn::Set(d, T(inverse_factorial[i - 1])));
  }
  // exp(r) = 1 + (r + r^2 (odd r + even)), adding the largest term last. The loop left odd = 1/3! + ..., even = 1/2! +
  // ...
  const V series = hn::Add(hn::MulAdd(hn::MulAdd(odd, r, even), r2, r), hn::Set(d, T(1)));
  const V power = hn::BitCast(d, hn::ShiftLeft<C::mantissa>(hn::Add(hn::BitCast(di, shifted), hn::Set(di, C::bias))));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, C::lowest)), hn::Mul(series, power));
}

// Calls f(j, mask of the lanes below n) for each vector of [0, n).
template <class D, class F>
HWY_INLINE void for_vectors(D d, int64_t n, F&& f) {
  const int64_t lanes = hn::Lanes(d);
  const auto all = hn::FirstN(d, lanes);
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) f(j, all);
  if (j < n) f(j, hn::FirstN(d, n - j));
}

template <class T>
HWY_INLINE void zero_rest(T* row, int64_t from, int64_t to) {
  for (int64_t j = from; j < to; ++j) row[j] = T(0);
}

// Turns logits into exp(S - max), zero where not visible, and keeps max and log(sum). Rows that see nothing keep 0, 0.
// inverse_sum is what the weights are still to be multiplied by. entropy, if asked for, is that of each row:
// -sum P log P = log(sum) - sum P (S - max).
template <class T>
void softmax_rows(const Strip<T>& s, T* row_max, T* log_sum, T* inverse_sum, T* entropy) {
  const Tag<T> d;
  for (int64_t r = 0; r < s.rows; ++r) {
    T* x = s.row(r);
    const int64_t n = s.visible[r];
    if (n == 0) {
      row_max[r] = log_sum[r] = inverse_sum[r] = T(0);
      if (entropy) entropy[r] = T(0);
      zero_rest(x, 0, s.columns);
      continue;
    }
    const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
    auto top = lowest;
    for_vectors(d, n,
                [&](int64_t j, auto m) HWY_ATTR { top = hn::Max(top, hn::IfThenElse(m, hn::Load(d, x + j), lowest)); });
    top = hn::MaxOfLanes(d, top);
    auto sum = hn::Zero(d), weighted = hn::Zero(d);
    if (entropy) {
      for_vectors(d, n, [&](int64_t j, auto m) HWY_ATTR {
        const auto below = hn::Sub(hn::Load(d, x + j), top);
        const auto e = hn::IfThenElseZero(m, exp_negative(d, below));
        sum = hn::Add(sum, e);
        weighted = hn::MulAdd(e, hn::IfThenElseZero(m, below), weighted);
        hn::Store(e, d, x + j);
      });
    } else {
      for_vectors(d, n, [&](int64_t j, auto m) HWY_ATTR {
        const auto e = hn::IfThenElseZero(m, exp_negative(d, hn::Sub(hn::Load(d, x + j), top)));
        sum = hn::Add(sum, e);
        hn::Store(e, d, x + j);
      });
    }
    zero_rest(x, n, s.columns);
    const T total = hn::GetLane(hn::SumOfLanes(d, sum));
    row_max[r] = hn::GetLane(top);
    log_sum[r] = std::log(total);
    inverse_sum[r] = T(1) / total;
    if (entropy) entropy[r] = log_sum[r] - hn::GetLane(hn::SumOfLanes(d, weighted)) / total;
  }
}

template <class T>
void multiply(T* x, const T* by, int64_t n) {
  const Tag<T> d;
  for_vectors(d, n, [&](int64_t j, auto m) HWY_ATTR {
    hn::BlendedStore(hn::Mul(hn::Load(d, x + j), hn::Load(d, by + j)), m, d, x + j);
  });
}

template <class T>
void scale_row(T* x, T by, int64_t n) {
  const Tag<T> d;
  const auto factor = hn::Set(d, by);
  const int64_t lanes = hn::Lanes(d);
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, x + j), factor), d, x + j);
  for (; j < n; ++j) x[j] *= by;
}

// One row of the backward pass: logits x and dO V^T in dx become P~ and dS. drop: the row's mask or null; dot:
// <dO, O>; d_entropy: the gradient at this row's entropy.
template <bool kDrop, bool kEntropy, class T>
HWY_INLINE void softmax_backward_row(T* x, T* dx, const T* drop, int64_t n, T row_max, T log_sum, T dot, T d_entropy) {
  const Tag<T> d;
  const auto top = hn::Set(d, row_max), log_total = hn::Set(d, log_sum), vdot = hn::Set(d, dot);
  T entropy = T(0);
  if constexpr (kEntropy) {
    auto h = hn::Zero(d);
    for_vectors(d, n, [&](int64_t j, auto m) HWY_ATTR {
      const auto log_p = hn::Sub(hn::Sub(hn::Load(d, x + j), top), log_total);
      h = hn::NegMulAdd(hn::IfThenElseZero(m, exp_negative(d, log_p)), hn::IfThenElseZero(m, log_p), h);
    });
    entropy = hn::GetLane(hn::SumOfLanes(d, h));
  }
  for_vectors(d, n, [&](int64_t j, auto m) HWY_ATTR {
    const auto log_p = hn::Sub(hn::Sub(hn::Load(d, x + j), top), log_total);
    const auto p = exp_negative(d, log_p);
    auto dp = hn::Load(d, dx + j);
    auto dropped = p;
    if constexpr (kDrop) {
      const auto keep = hn::Load(d, drop + j);
      dp = hn::Mul(dp, keep);
      dropped = hn::Mul(p, keep);
    }
    dp = hn::Sub(dp, vdot);
    if constexpr (kEntropy) {
      // -P (log P + H) dH
      dp = hn::NegMulAdd(hn::Add(log_p, hn::Set(d, entropy)), hn::Set(d, d_entropy), dp);
    }
    hn::Store(hn::IfThenElseZero(m, dropped), d, x + j);
    hn::Store(hn::IfThenElseZero(m, hn::Mul(p, dp)), d, dx + j);
  });
}

// All rows of a block; masks holds one dropout mask per row at the strip's stride, or is null; dots <dO, O> per row;
// d_entropy one number per row or null.
template <class T>
void softmax_backward_rows(const Strip<T>& s, T* d_strip, const T* masks, const T* row_max, const T* log_sum,
                           const T* dots, const T* d_entropy) {
  for (int64_t r = 0; r < s.rows; ++r) {
    T *x = s.row(r), *dx = d_strip + r * s.stride;
    const T* drop = masks ? masks + r * s.stride : nullptr;
    const int64_t n = s.visible[r];
    const T dh = d_entropy ? d_entropy[r] : T(0);
    const auto row = drop ? (d_entropy ? softmax_backward_row<true, true, T> : softmax_backward_row<true, false, T>)
                          : (d_entropy ? softmax_backward_row<false, true, T> : softmax_backward_row<false, false, T>);
    row(x, dx, drop, n, row_max[r], log_sum[r], dots[r], dh);
    zero_rest(x, n, s.columns);
    zero_rest(dx, n, s.columns);
  }
}

template <class T>
T dot(const T* a, const T* b, int64_t n) {
  const Tag<T> d;
  const int64_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) sum = hn::MulAdd(hn::LoadU(d, a + j), hn::LoadU(d, b + j), sum);
  T total = hn::GetLane(hn::SumOfLanes(d, sum));
  for (; j < n; ++j) total += a[j] * b[j];
  return total;
}

// Non-template names for run-time dispatch.
#define BG_STRIP_KERNELS(T, suffix)                                                                    \
  void softmax_rows_##suffix(const Strip<T>& s, T* row_max, T* log_sum, T* inverse_sum, T* entropy) {  \
    softmax_rows(s, row_max, log_sum, inverse_sum, entropy);                                           \
  }                                                                                                    \
  void softmax_backward_rows_##suffix(const Strip<T>& s, T* d_strip, const T* masks, const T* row_max, \
                                      const T* log_sum, const T* dots, const T* d_entropy) {           \
    softmax_backward_rows(s, d_strip, masks, row_max, log_sum, dots, d_entropy);                       \
  }                                                                                                    \
  void multiply_##suffix(T* x, const T* by, int64_t n) { multiply(x, by, n); }                         \
  void scale_row_##suffix(T* x, T by, int64_t n) { scale_row(x, by, n); }                              \
  T dot_##suffix(const T* a, const T* b, int64_t n) { return dot(a, b, n); }
BG_STRIP_KERNELS(float, f32)
BG_STRIP_KERNELS(double, f64)
#undef BG_STRIP_KERNELS

}  // namespace HWY_NAMESPACE
}  // namespace bg
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <hwy/aligned_allocator.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/gemm.h"
#include "core/kernels/attention.h"
#include "core/parallel.h"

namespace bg {
namespace {

using strip::Strip;

#define BG_STRIP_DISPATCH(name)                         \
  HWY_EXPORT(name##_f32);                               \
  HWY_EXPORT(name##_f64);                               \
  template <class T, class... A>                        \
  auto name(A... args) {                                \
    if constexpr (std::is_same_v<T, float>) {           \
      return HWY_DYNAMIC_DISPATCH(name##_f32)(args...); \
    } else {                                            \
      return HWY_DYNAMIC_DISPATCH(name##_f64)(args...); \
    }                                                   \
  }
BG_STRIP_DISPATCH(softmax_rows)
BG_STRIP_DISPATCH(softmax_backward_rows)
BG_STRIP_DISPATCH(multiply)
BG_STRIP_DISPATCH(scale_row)
BG_STRIP_DISPATCH(dot)
#undef BG_STRIP_DISPATCH

// Queries per block. Enough rows for the products to be efficient; few enough that the strip stays in the cache and
// that little is computed above the diagonal of a causal block.
constexpr int64_t kBlock = 64;

// Below this many multiply-adds per chunk, blocks share a chunk.
constexpr int64_t kChunkFlops = int64_t{1} << 18;

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

void check(const AttentionShape& s) {
  BG_CHECK(s.batch >= 0 && s.heads >= 0 && s.queries >= 0 && s.keys >= 0 && s.d_key >= 0 && s.d_value >= 0, "attention",
           "negative size",
           str("batch ", s.batch, ", heads ", s.heads, ", queries ", s.queries, ", keys ", s.keys, ", d_key ", s.d_key,
               ", d_value ", s.d_value));
  BG_CHECK(s.dropout >= 0 && s.dropout < 1, "attention", "bad dropout probability", str(s.dropout), "0 <= p < 1");
  for (int64_t b = 0; s.lengths && b < s.batch; ++b)
    BG_CHECK(s.lengths[b] >= 0 && s.lengths[b] <= s.keys, "attention", str("bad length of row ", b), str(s.lengths[b]),
             str("0 to ", s.keys, " (the number of keys)"));
}

// Scratch of one worker, made on first use.
template <class T>
struct Scratch {
  hwy::AlignedFreeUniquePtr<T[]> logits, gradients, masks;

  void reserve(int64_t size, bool backward, bool dropout) {
    auto make = [&](auto& p) {
      if (!p) p = hwy::AllocateAligned<T>(size);
      BG_CHECK(p, "attention", "no memory for the scratch strip", "", str(size * sizeof(T), " bytes"));
    };
    make(logits);
    if (backward) make(gradients);
    if (dropout) make(masks);
  }
};

// One block of queries of one head: where its rows are and what they see.
template <class T>
struct Block {
  const AttentionShape& shape;
  int64_t b, h, first, rows, columns, stride;
  int64_t visible[kBlock];

  Block(const AttentionShape& s, int64_t b_, int64_t h_, int64_t first_)
      : shape(s), b(b_), h(h_), first(first_), rows(std::min(kBlock, s.queries - first_)), stride(row_stride(s)) {
    const int64_t valid = s.lengths ? s.lengths[b] : s.keys;
    for (int64_t r = 0; r < rows; ++r)
      visible[r] = s.causal ? std::clamp<int64_t>(first + r + 1 + s.keys - s.queries, 0, valid) : valid;
    columns = visible[rows - 1];  // the last query sees most
  }

  // Padded to whole vectors, and by one cache line more so that the rows of a column do not share a cache set.
  static int64_t row_stride(const AttentionShape& s) { return round_up(s.keys, strip::kPad) + strip::kPad; }

  T* at(HeadView<T> x, int64_t t) const { return x.data + b * x.batch + t * x.row + h * x.head; }
  const T* at(HeadView<const T> x, int64_t t) const { return x.data + b * x.batch + t * x.row + h * x.head; }
  int64_t index(int64_t r) const { return (b * shape.heads + h) * shape.queries + first + r; }
  Strip<T> strip_of(T* data) const { return {data, stride, rows, columns, visible}; }

  void logits(HeadView<const T> q, HeadView<const T> k, T* out) const {
    gemm_serial<T>(Trans::no, Trans::yes, rows, columns, shape.d_key, static_cast<T>(shape.scale), at(q, first), q.row,
                   at(k, 0), k.row, T(0), out, stride);
  }
  void draw_masks(T* out) const {
    for (int64_t r = 0; r < rows; ++r)
      mask_scale<T>(shape.mask, static_cast<uint64_t>(index(r) * shape.keys), visible[r], shape.dropout,
                    out + r * stride);
  }
};

template <class T>
void forward_block(const Block<T>& block, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v, HeadView<T> o,
                   T* row_max, T* log_sum, T* entropy, Scratch<T>& scratch) {
  const AttentionShape& s = block.shape;
  scratch.reserve(kBlock * block.stride, false, s.dropout > 0);
  T* p = scratch.logits.get();
  T inverse_sum[kBlock];
  const int64_t at = block.index(0);
  block.logits(q, k, p);
  softmax_rows<T>(block.strip_of(p), row_max + at, log_sum + at, inverse_sum, entropy ? entropy + at : nullptr);
  if (s.dropout > 0) {
    block.draw_masks(scratch.masks.get());
    for (int64_t r = 0; r < block.rows; ++r)
      multiply<T>(p + r * block.stride, scratch.masks.get() + r * block.stride, block.visible[r]);
  }
  gemm_serial<T>(Trans::no, Trans::no, block.rows, s.d_value, block.columns, T(1), p, block.stride, block.at(v, 0),
                 v.row, T(0), block.at(o, block.first), o.row);
  for (int64_t r = 0; r < block.rows; ++r) scale_row<T>(block.at(o, block.first + r), inverse_sum[r], s.d_value);
}

template <class T>
struct BackwardViews {
  HeadView<const T> q, k, v, o, d_o;
  const T *row_max, *log_sum, *d_entropy;
  HeadView<T> dq, dk, dv;
};

template <class T>
void backward_block(const Block<T>& block, const BackwardViews<T>& x, bool accumulate, Scratch<T>& scratch) {
  const AttentionShape& s = block.shape;
  scratch.reserve(kBlock * block.stride, true, s.dropout > 0);
  T *p = scratch.logits.get(), *ds = scratch.gradients.get();
  const int64_t rows = block.rows, columns = block.columns, stride = block.stride, at = block.index(0);
  const T scale = static_cast<T>(s.scale);
  // forward: S = scale Q K^T, P = exp(S - max - log sum), O = (D * P) V
  block.logits(x.q, x.k, p);
  gemm_serial<T>(Trans::no, Trans::yes, rows, columns, s.d_value, T(1), block.at(x.d_o, block.first), x.d_o.row,
                 block.at(x.v, 0), x.v.row, T(0), ds, stride);
  T dots[kBlock], dh[kBlock];
  for (int64_t r = 0; r < rows; ++r) {
    dots[r] = dot<T>(block.at(x.d_o, block.first + r), block.at(x.o, block.first + r), s.d_value);
    if (x.d_entropy) dh[r] = x.d_entropy[block.b * s.queries + block.first + r] / static_cast<T>(s.heads);
  }
  if (s.dropout > 0) block.draw_masks(scratch.masks.get());
  softmax_backward_rows<T>(block.strip_of(p), ds, s.dropout > 0 ? scratch.masks.get() : nullptr, x.row_max + at,
                           x.log_sum + at, dots, x.d_entropy ? dh : nullptr);
  if (x.dv.data)  // dV += P~^T dO
    gemm_serial<T>(Trans::yes, Trans::no, columns, s.d_value, rows, T(1), p, stride, block.at(x.d_o, block.first),
                   x.d_o.row, T(1), block.at(x.dv, 0), x.dv.row);
  if (x.dk.data)  // dK += scale dS^T Q
    gemm_serial<T>(Trans::yes, Trans::no, columns, s.d_key, rows, scale, ds, stride, block.at(x.q, block.first),
                   x.q.row, T(1), block.at(x.dk, 0), x.dk.row);
  if (x.dq.data)  // dQ = scale dS K
    gemm_serial<T>(Trans::no, Trans::no, rows, s.d_key, columns, scale, ds, stride, block.at(x.k, 0), x.k.row,
                   accumulate ? T(1) : T(0), block.at(x.dq, block.first), x.dq.row);
}

template <class T>
void clear(HeadView<T> x, int64_t b, int64_t h, int64_t rows, int64_t d) {
  for (int64_t t = 0; t < rows; ++t) std::fill_n(x.data + b * x.batch + t * x.row + h * x.head, d, T(0));
}

}  // namespace

template <class T>
void attention_forward(const AttentionShape& shape, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                       HeadView<T> o, T* row_max, T* log_sum, T* entropy) {
  check(shape);
  const int64_t blocks = (shape.queries + kBlock - 1) / kBlock;
  std::vector<T> head_entropy(entropy ? shape.batch * shape.heads * shape.queries : 0);
  std::vector<Scratch<T>> scratch(num_threads());
  const int64_t flops = std::min(kBlock, shape.queries) * shape.keys * (shape.d_key + shape.d_value);
  const int64_t grain = std::max<int64_t>(1, kChunkFlops / std::max<int64_t>(1, flops));
  parallel_for(shape.batch * shape.heads * blocks, grain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t head = c / blocks;
      const Block<T> block(shape, head / shape.heads, head % shape.heads, c % blocks * kBlock);
      forward_block<T>(block, q, k, v, o, row_max, log_sum, entropy ? head_entropy.data() : nullptr,
                       scratch[worker_index()]);
    }
  });
  if (!entropy) return;
  for (int64_t b = 0; b < shape.batch; ++b) {
    for (int64_t i = 0; i < shape.queries; ++i) {
      T sum = T(0);
      for (int64_t h = 0; h < shape.heads; ++h) sum += head_entropy[(b * shape.heads + h) * shape.queries + i];
      entropy[b * shape.queries + i] = sum / static_cast<T>(shape.heads);
    }
  }
}

template <class T>
void attention_backward(const AttentionShape& shape, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                        HeadView<const T> o, const T* row_max, const T* log_sum, HeadView<const T> d_o,
                        const T* d_entropy, HeadView<T> dq, HeadView<T> dk, HeadView<T> dv, bool accumulate) {
  check(shape);
  for (const HeadView<T>& x : {dq, dk, dv})
    BG_CHECK(!x.data || x.batch != 0 || shape.batch <= 1, "attention backward", "a gradient's batch rows share memory",
             "batch stride 0", "a dense gradient", "give it its own rows and sum them over the batch");
  const BackwardViews<T> views{q, k, v, o, d_o, row_max, log_sum, d_entropy, dq, dk, dv};
  std::vector<Scratch<T>> scratch(num_threads());
  const int64_t flops = shape.queries * shape.keys * (shape.d_key + shape.d_value);
  const int64_t grain = std::max<int64_t>(1, kChunkFlops / std::max<int64_t>(1, flops));
  // A head's blocks all add to its dK and dV, so one worker walks them in order.
  parallel_for(shape.batch * shape.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head) {
      const int64_t b = head / shape.heads, h = head % shape.heads;
      if (dk.data && !accumulate) clear(dk, b, h, shape.keys, shape.d_key);
      if (dv.data && !accumulate) clear(dv, b, h, shape.keys, shape.d_value);
      for (int64_t first = 0; first < shape.queries; first += kBlock)
        backward_block<T>(Block<T>(shape, b, h, first), views, accumulate, scratch[worker_index()]);
    }
  });
}

#define BG_ATTENTION(T)                                                                                                \
  template void attention_forward<T>(const AttentionShape&, HeadView<const T>, HeadView<const T>, HeadView<const T>,   \
                                     HeadView<T>, T*, T*, T*);                                                         \
  template void attention_backward<T>(const AttentionShape&, HeadView<const T>, HeadView<const T>, HeadView<const T>,  \
                                      HeadView<const T>, const T*, const T*, HeadView<const T>, const T*, HeadView<T>, \
                                      HeadView<T>, HeadView<T>, bool);
BG_ATTENTION(float)
BG_ATTENTION(double)
#undef BG_ATTENTION

}  // namespace bg
#endif  // HWY_ONCE
