// Attention by blocks of queries: a block's logits against all keys it sees form a strip of a few rows that stays in
// the cache between the products (tile-inl.h) and the softmax. Tiles that a causal mask hides are not computed.
#include "core/kernels/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "core/kernels/math-inl.h"
#include "core/kernels/tile-inl.h"

#ifndef BG_CORE_KERNELS_ATTENTION_COMMON
#define BG_CORE_KERNELS_ATTENTION_COMMON
namespace bg::kernels {

// Queries per block: a multiple of every tile's rows. Enough to reuse the keys; few enough for the cache.
constexpr int64_t kBlock = 48;

template <class T>
struct Forward {
  const AttentionShape& shape;
  HeadView<const T> q, k, v;
  HeadView<T> o;
  T *row_max, *log_sum, *entropy;  // (B, H, Tq); entropy may be null
};

template <class T>
struct Backward {
  const AttentionShape& shape;
  HeadView<const T> q, k, v, o, d_o;
  const T *row_max, *log_sum, *d_entropy;
  HeadView<T> dq, dk, dv;
  bool accumulate;
};

// Where each part of a worker's scratch begins, in elements; every part is a matrix with padded rows.
struct ScratchLayout {
  int64_t strip_stride, key_width, value_width;                         // elements per row
  int64_t k_t, v_t, k, v, q, d_o, logits, gradients, masks, total = 0;  // offsets

  ScratchLayout(const AttentionShape& s, bool backward)
      // Beyond whole tiles, half a tile more: rows at a power of two apart would share cache sets.
      : strip_stride(round_up(s.keys, kTileCols) + kTileCols / 2),
        key_width(round_up(s.d_key, kTileCols)),
        value_width(round_up(s.d_value, kTileCols)) {
    auto part = [&](bool wanted, int64_t rows, int64_t width) {
      const int64_t at = total;
      if (wanted) total += round_up(rows * width, kTileCols);
      return at;
    };
    k_t = part(true, s.d_key, strip_stride);
    v_t = part(backward, s.d_value, strip_stride);
    k = part(backward, s.keys, key_width);
    v = part(!backward, s.keys, value_width);
    q = part(true, kBlock, key_width);
    d_o = part(backward, kBlock, value_width);
    logits = part(true, kBlock, strip_stride);
    gradients = part(backward, kBlock, strip_stride);
    masks = part(s.dropout > 0, kBlock, strip_stride);
  }
};

// One head of one batch row.
struct Head {
  const AttentionShape& shape;
  int64_t b, h;

  template <class T>
  T* at(HeadView<T> x, int64_t t) const {
    return x.data + b * x.batch + t * x.row + h * x.head;
  }
  bool last() const { return h + 1 == shape.heads && b + 1 == shape.batch; }
  Head next() const { return h + 1 < shape.heads ? Head{shape, b, h + 1} : Head{shape, b + 1, 0}; }
  int64_t valid() const { return shape.lengths ? shape.lengths[b] : shape.keys; }
  // How many keys query i sees: the first ones.
  int64_t visible(int64_t i) const {
    return shape.causal ? std::clamp<int64_t>(i + 1 + shape.keys - shape.queries, 0, valid()) : valid();
  }
};

// A block of consecutive queries of one head.
struct Block {
  const Head& head;
  int64_t first, rows, columns;  // columns: keys that its last query sees
  int64_t visible[kBlock];

  Block(const Head& head_, int64_t first_, int64_t end)
      : head(head_), first(first_), rows(std::min(kBlock, end - first_)) {
    for (int64_t r = 0; r < rows; ++r) visible[r] = head.visible(first + r);
    columns = visible[rows - 1];
  }
  int64_t index(int64_t r) const { return (head.b * head.shape.heads + head.h) * head.shape.queries + first + r; }

  template <class T>
  void draw_masks(T* out, int64_t stride) const {
    const AttentionShape& s = head.shape;
    for (int64_t r = 0; r < rows; ++r)
      mask_scale<T>(s.mask, static_cast<uint64_t>(index(r) * s.keys), visible[r], s.dropout, out + r * stride);
  }
};

// The kernels of one instruction set.
template <class T>
struct AttentionKernels {
  void (*forward)(const Forward<T>&, int64_t b, int64_t h, int64_t first, int64_t end, T* scratch);
  void (*backward)(const Backward<T>&, int64_t b, int64_t h, T* scratch);
};

}  // namespace bg::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {

// f(j, mask of the lanes below n) for each vector of [0, n). Rows of strips are padded: vectors are read and written
// whole.
template <class D, class F>
HWY_INLINE void for_strip(D d, int64_t n, F&& f) {
  const int64_t lanes = hn::Lanes(d);
  int64_t j = 0;
  const auto all = hn::FirstN(d, lanes);
  for (; j + lanes <= n; j += lanes) f(j, all);
  if (j < n) f(j, hn::FirstN(d, n - j));
}

template <class T>
T sum_of(hn::Vec<TileTag<T>> v) {
  return hn::GetLane(hn::SumOfLanes(TileTag<T>(), v));
}

// Turns n > 0 logits into exp(S - max). kEntropy: also -sum P log P = log(sum) - sum P (S - max).
template <bool kEntropy, class T>
HWY_INLINE void softmax_row(T* x, int64_t n, T& row_max, T& log_sum, T& inverse_sum, T* entropy) {
  const TileTag<T> d;
  const auto lowest = hn::Set(d, -std::numeric_limits<T>::infinity());
  auto top = lowest;
  for_strip(d, n,
            [&](int64_t j, auto m) BG_LANES { top = hn::Max(top, hn::IfThenElse(m, hn::Load(d, x + j), lowest)); });
  top = hn::MaxOfLanes(d, top);
  auto sum = hn::Zero(d), weighted = hn::Zero(d);
  for_strip(d, n, [&](int64_t j, auto m) BG_LANES {
    const auto below = hn::Sub(hn::Load(d, x + j), top);
    const auto e = hn::IfThenElseZero(m, exp_nonpositive(d, below));
    sum = hn::Add(sum, e);
    if constexpr (kEntropy) weighted = hn::MulAdd(e, hn::IfThenElseZero(m, below), weighted);
    hn::Store(e, d, x + j);
  });
  const T total = sum_of<T>(sum);
  row_max = hn::GetLane(top);
  log_sum = std::log(total);
  inverse_sum = T(1) / total;
  if constexpr (kEntropy) *entropy = log_sum - sum_of<T>(weighted) / total;
}

// Turns one row of logits x and of dO V^T in dx into P~ and dS. drop: the row's mask; dot: <dO, O>; d_entropy: the
// gradient at this row's entropy.
template <bool kDrop, bool kEntropy, class T>
HWY_INLINE void softmax_backward_row(T* x, T* dx, const T* drop, int64_t n, T row_max, T log_sum, T dot, T d_entropy) {
  const TileTag<T> d;
  const auto top = hn::Set(d, row_max), log_total = hn::Set(d, log_sum), mean = hn::Set(d, dot);
  auto entropy = hn::Zero(d);
  if constexpr (kEntropy) {
    for_strip(d, n, [&](int64_t j, auto m) BG_LANES {
      const auto log_p = hn::Sub(hn::Sub(hn::Load(d, x + j), top), log_total);
      entropy = hn::NegMulAdd(hn::IfThenElseZero(m, exp_nonpositive(d, log_p)), hn::IfThenElseZero(m, log_p), entropy);
    });
    entropy = hn::SumOfLanes(d, entropy);
  }
  for_strip(d, n, [&](int64_t j, auto m) BG_LANES {
    const auto log_p = hn::Sub(hn::Sub(hn::Load(d, x + j), top), log_total);
    const auto p = exp_nonpositive(d, log_p);
    auto dp = hn::Load(d, dx + j), dropped = p;
    if constexpr (kDrop) {
      const auto keep = hn::Load(d, drop + j);
      dp = hn::Mul(dp, keep);
      dropped = hn::Mul(p, keep);
    }
    dp = hn::Sub(dp, mean);
    if constexpr (kEntropy) dp = hn::NegMulAdd(hn::Add(log_p, entropy), hn::Set(d, d_entropy), dp);
    hn::Store(hn::IfThenElseZero(m, dropped), d, x + j);
    hn::Store(hn::IfThenElseZero(m, hn::Mul(p, dp)), d, dx + j);
  });
}

template <class T>
HWY_INLINE T dot_of(const T* a, const T* b, int64_t n) {
  const TileTag<T> d;
  const int64_t lanes = hn::Lanes(d);
  auto sum = hn::Zero(d);
  int64_t j = 0;
  for (; j + lanes <= n; j += lanes) sum = hn::MulAdd(hn::LoadU(d, a + j), hn::LoadU(d, b + j), sum);
  T total = sum_of<T>(sum);
  for (; j < n; ++j) total += a[j] * b[j];
  return total;
}

// strip (rows, columns) = alpha rows_of columns_of, where some query of the tile sees some key of it.
template <class T>
void strip_product(const Block& x, int64_t inner, const T* a, int64_t lda, const T* b, T alpha, T* strip,
                   int64_t stride) {
  product<Left::kRowMajor, Edge::kPadded>(x.rows, x.columns, a, lda, b, stride, alpha, strip, stride, false,
                                          [&](int64_t i, int64_t j, int64_t rows) BG_LANES {
                                            return Range{0, j < x.visible[i + rows - 1] ? inner : 0};
                                          });
}

// out (rows, n) = alpha strip b over the keys that the tile's last query sees; the rows above have zeros for those that
// they do not see.
template <class T>
void over_keys(const Block& x, int64_t n, const T* strip, int64_t stride, const T* b, int64_t ldb, T alpha, T* out,
               int64_t ldo, bool add) {
  product<Left::kRowMajor, Edge::kExact>(x.rows, n, strip, stride, b, ldb, alpha, out, ldo, add,
                                         [&](int64_t i, int64_t, int64_t rows) BG_LANES {
                                           return Range{0, x.visible[i + rows - 1]};
                                         });
}

// out (rows from..to of keys, n) = alpha strip^T b, or +=, over the queries from the first that sees the tile's first
// key.
template <class T>
void over_queries(const Block& x, int64_t from, int64_t to, int64_t n, const T* strip, int64_t stride, const T* b,
                  int64_t ldb, T alpha, T* out, int64_t ldo, bool add) {
  product<Left::kColMajor, Edge::kExact>(
      to - from, n, strip + from, stride, b, ldb, alpha, out + from * ldo, ldo, add,
      [&](int64_t j, int64_t, int64_t) BG_LANES {
        return Range{std::upper_bound(x.visible, x.visible + x.rows, from + j) - x.visible, x.rows};
      });
}

// Fetches rows [first, end) of x in this head over `steps` steps.
template <class T>
Prefetcher<T> fetch_rows(const Head& head, HeadView<const T> x, int64_t first, int64_t end, int64_t d, int64_t steps) {
  return {head.at(x, first), x.row, end - first, d, steps};
}

// Fetches the block of queries after the one that starts at `start`: of this head or, at its end, the next one.
template <class T>
Prefetcher<T> fetch_block(const Head& head, HeadView<const T> x, int64_t start, int64_t end, int64_t d, int64_t steps) {
  if (start + kBlock < end) return fetch_rows(head, x, start + kBlock, std::min(start + 2 * kBlock, end), d, steps);
  if (head.last()) return {};
  return fetch_rows(head.next(), x, 0, std::min(kBlock, head.shape.queries), d, steps);
}

// Queries [first, end) of one head.
template <class T>
void forward(const Forward<T>& x, int64_t b, int64_t h, int64_t first, int64_t end, T* scratch) {
  const AttentionShape& s = x.shape;
  const ScratchLayout at(s, false);
  const Head head{s, b, h};
  const int64_t stride = at.strip_stride, seen = head.visible(end - 1);
  T *p = scratch + at.logits, *masks = scratch + at.masks, *q = scratch + at.q, *v = scratch + at.v;
  transpose_into(head.at(x.k, 0), x.k.row, seen, s.d_key, scratch + at.k_t, stride);
  copy_into(head.at(x.v, 0), x.v.row, seen, s.d_value, v, at.value_width);
  Prefetcher<T> fetch_k, fetch_v;
  if (!head.last()) {
    fetch_k = fetch_rows(head.next(), x.k, 0, s.keys, s.d_key, end - first);
    fetch_v = fetch_rows(head.next(), x.v, 0, s.keys, s.d_value, end - first);
  }
  for (int64_t start = first; start < end; start += kBlock) {
    const Block block(head, start, end);
    auto fetch_q = fetch_block(head, x.q, start, end, s.d_key, block.rows);
    copy_into(head.at(x.q, start), x.q.row, block.rows, s.d_key, q, at.key_width);
    // S = scale Q K^T
    strip_product(block, s.d_key, q, at.key_width, scratch + at.k_t, static_cast<T>(s.scale), p, stride);
    if (s.dropout > 0) block.draw_masks(masks, stride);
    T inverse_sum[kBlock];
    for (int64_t r = 0; r < block.rows; ++r) {
      fetch_q.step(), fetch_k.step(), fetch_v.step();
      T* row = p + r * stride;
      const int64_t n = block.visible[r], i = block.index(r);
      if (n == 0) {
        x.row_max[i] = x.log_sum[i] = inverse_sum[r] = T(0);
        if (x.entropy) x.entropy[i] = T(0);
      } else if (x.entropy) {
        softmax_row<true>(row, n, x.row_max[i], x.log_sum[i], inverse_sum[r], x.entropy + i);
      } else {
        softmax_row<false>(row, n, x.row_max[i], x.log_sum[i], inverse_sum[r], x.entropy);
      }
      if (s.dropout > 0)
        for_strip(TileTag<T>(), n, [&](int64_t j, auto) BG_LANES {
          const TileTag<T> d;
          hn::Store(hn::Mul(hn::Load(d, row + j), hn::Load(d, masks + r * stride + j)), d, row + j);
        });
      std::fill(row + n, row + block.columns, T(0));
    }
    // O = (D * P) V
    over_keys(block, s.d_value, p, stride, v, at.value_width, T(1), head.at(x.o, start), x.o.row, false);
    for (int64_t r = 0; r < block.rows; ++r) {
      T* o = head.at(x.o, start + r);
      for (int64_t e = 0; e < s.d_value; ++e) o[e] *= inverse_sum[r];
    }
  }
}

// One block's P~ into the logits' strip and dS into the gradients'. fetch is called for each row.
template <class T, class F>
HWY_INLINE void softmax_backward(const Backward<T>& x, const Block& block, T* logits, T* gradients, const T* masks,
                                 int64_t stride, F&& fetch) {
  const AttentionShape& s = x.shape;
  for (int64_t r = 0; r < block.rows; ++r) {
    fetch();
    const int64_t n = block.visible[r], i = block.index(r), t = block.first + r;
    T *p = logits + r * stride, *ds = gradients + r * stride;
    const T* drop = masks + r * stride;
    const T dot = dot_of(block.head.at(x.d_o, t), block.head.at(x.o, t), s.d_value);
    const T dh = x.d_entropy ? x.d_entropy[block.head.b * s.queries + t] / static_cast<T>(s.heads) : T(0);
    const auto row = s.dropout > 0
                         ? (x.d_entropy ? softmax_backward_row<true, true, T> : softmax_backward_row<true, false, T>)
                         : (x.d_entropy ? softmax_backward_row<false, true, T> : softmax_backward_row<false, false, T>);
    row(p, ds, drop, n, x.row_max[i], x.log_sum[i], dot, dh);
    const int64_t columns = round_up(block.columns, kTileRows);
    std::fill(p + n, p + columns, T(0));
    std::fill(ds + n, ds + columns, T(0));
  }
}

// One whole head: its blocks all add to dK and dV, in order.
template <class T>
void backward(const Backward<T>& x, int64_t b, int64_t h, T* scratch) {
  const AttentionShape& s = x.shape;
  const ScratchLayout at(s, true);
  const Head head{s, b, h};
  const int64_t stride = at.strip_stride, seen = head.visible(s.queries - 1);
  const T scale = static_cast<T>(s.scale);
  T *p = scratch + at.logits, *ds = scratch + at.gradients, *q = scratch + at.q, *d_o = scratch + at.d_o;
  transpose_into(head.at(x.k, 0), x.k.row, seen, s.d_key, scratch + at.k_t, stride);
  transpose_into(head.at(x.v, 0), x.v.row, seen, s.d_value, scratch + at.v_t, stride);
  copy_into(head.at(x.k, 0), x.k.row, seen, s.d_key, scratch + at.k, at.key_width);
  Prefetcher<T> fetch_k, fetch_v;
  if (!head.last()) {
    fetch_k = fetch_rows(head.next(), x.k, 0, s.keys, s.d_key, s.queries);
    fetch_v = fetch_rows(head.next(), x.v, 0, s.keys, s.d_value, s.queries);
  }
  int64_t set = 0;  // keys whose dK and dV have been written
  for (int64_t start = 0; start < s.queries; start += kBlock) {
    const Block block(head, start, s.queries);
    auto fetch_q = fetch_block(head, x.q, start, s.queries, s.d_key, block.rows);
    auto fetch_o = fetch_block(head, x.o, start, s.queries, s.d_value, block.rows);
    auto fetch_d_o = fetch_block(head, x.d_o, start, s.queries, s.d_value, block.rows);
    copy_into(head.at(x.q, start), x.q.row, block.rows, s.d_key, q, at.key_width);
    copy_into(head.at(x.d_o, start), x.d_o.row, block.rows, s.d_value, d_o, at.value_width);
    // forward: S = scale Q K^T, P = exp(S - max - log sum), O = (D * P) V
    strip_product(block, s.d_key, q, at.key_width, scratch + at.k_t, scale, p, stride);
    strip_product(block, s.d_value, d_o, at.value_width, scratch + at.v_t, T(1), ds, stride);
    if (s.dropout > 0) block.draw_masks(scratch + at.masks, stride);
    softmax_backward(x, block, p, ds, scratch + at.masks, stride,
                     [&] { fetch_q.step(), fetch_o.step(), fetch_d_o.step(), fetch_k.step(), fetch_v.step(); });
    // Keys in whole tiles; those that no block before has seen are set, the others added to.
    const int64_t now = std::min(round_up(block.columns, kTileRows), s.keys);
    const auto add_to_keys = [&](HeadView<T> to, int64_t d, const T* strip, const T* right, int64_t width, T factor) {
      if (!to.data) return;
      T* out = head.at(to, 0);
      over_queries(block, 0, set, d, strip, stride, right, width, factor, out, to.row, true);
      over_queries(block, set, now, d, strip, stride, right, width, factor, out, to.row, x.accumulate);
    };
    add_to_keys(x.dv, s.d_value, p, d_o, at.value_width, T(1));  // dV += (D * P)^T dO
    add_to_keys(x.dk, s.d_key, ds, q, at.key_width, scale);      // dK += scale dS^T Q
    set = now;
    if (x.dq.data)  // dQ = scale dS K
      over_keys(block, s.d_key, ds, stride, scratch + at.k, at.key_width, scale, head.at(x.dq, start), x.dq.row,
                x.accumulate);
  }
  for (; set < s.keys && !x.accumulate; ++set) {  // keys that no query sees
    if (x.dk.data) std::fill_n(head.at(x.dk, set), s.d_key, T(0));
    if (x.dv.data) std::fill_n(head.at(x.dv, set), s.d_value, T(0));
  }
}

template <class T>
constexpr AttentionKernels<T> attention_table = {&forward<T>, &backward<T>};
const AttentionKernels<float>* attention_f32() { return &attention_table<float>; }
const AttentionKernels<double>* attention_f64() { return &attention_table<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
#include <hwy/aligned_allocator.h>

#include <vector>

#include "core/error.h"
#include "core/parallel.h"

namespace bg {
namespace kernels {
namespace {

HWY_EXPORT(attention_f32);
HWY_EXPORT(attention_f64);

template <class T>
const AttentionKernels<T>& attention_kernels() {
  if constexpr (sizeof(T) == 4) {
    return *HWY_DYNAMIC_DISPATCH(attention_f32)();
  } else {
    return *HWY_DYNAMIC_DISPATCH(attention_f64)();
  }
}

}  // namespace
}  // namespace kernels

namespace {

using kernels::kBlock;

// Chunks below this many multiply-adds are put together; queries of a head are split above it.
constexpr int64_t kSmallChunk = int64_t{1} << 18, kLargeChunk = int64_t{1} << 24;

void check(const AttentionShape& s) {
  BG_CHECK(s.batch >= 0 && s.heads >= 0 && s.queries >= 0 && s.keys >= 0 && s.d_key > 0 && s.d_value >= 0, "attention",
           "impossible size",
           str("batch ", s.batch, ", heads ", s.heads, ", queries ", s.queries, ", keys ", s.keys, ", d_key ", s.d_key,
               ", d_value ", s.d_value),
           "no negative size and d_key of at least 1");
  BG_CHECK(s.dropout >= 0 && s.dropout < 1, "attention", "bad dropout probability", str(s.dropout), "0 <= p < 1");
  for (int64_t b = 0; s.lengths && b < s.batch; ++b)
    BG_CHECK(s.lengths[b] >= 0 && s.lengths[b] <= s.keys, "attention", str("bad length of row ", b), str(s.lengths[b]),
             str("0 to ", s.keys, " (the number of keys)"));
}

// One scratch area for each worker, made on its first use.
template <class T>
class Scratch {
 public:
  Scratch(const AttentionShape& s, bool backward) : size_(kernels::ScratchLayout(s, backward).total) {}

  T* mine() {
    auto& p = areas_[worker_index()];
    if (!p) p = hwy::AllocateAligned<T>(size_);
    BG_CHECK(p, "attention", "no memory for scratch", "", str(size_ * sizeof(T), " bytes"));
    return p.get();
  }

 private:
  int64_t size_;
  std::vector<hwy::AlignedFreeUniquePtr<T[]>> areas_ = std::vector<hwy::AlignedFreeUniquePtr<T[]>>(num_threads());
};

}  // namespace

template <class T>
void attention_forward(const AttentionShape& shape, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                       HeadView<T> o, T* row_max, T* log_sum, T* entropy) {
  check(shape);
  if (shape.queries == 0) return;
  const auto kernel = kernels::attention_kernels<T>().forward;
  std::vector<T> head_entropy(entropy ? shape.batch * shape.heads * shape.queries : 0);
  const kernels::Forward<T> args{shape, q, k, v, o, row_max, log_sum, entropy ? head_entropy.data() : nullptr};
  Scratch<T> scratch(shape, false);
  // A head's queries go together, since they share the turned keys, unless there are very many of them.
  const int64_t per_query = std::max<int64_t>(1, shape.keys * (shape.d_key + shape.d_value));
  const int64_t group = std::max<int64_t>(4, kLargeChunk / per_query / kBlock) * kBlock;
  const int64_t groups = (shape.queries + group - 1) / group;
  const int64_t grain = std::max<int64_t>(1, kSmallChunk / (std::min(group, shape.queries) * per_query));
  parallel_for(shape.batch * shape.heads * groups, grain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) {
      const int64_t head = c / groups, first = c % groups * group;
      kernel(args, head / shape.heads, head % shape.heads, first, std::min(first + group, shape.queries),
             scratch.mine());
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
  const auto kernel = kernels::attention_kernels<T>().backward;
  const kernels::Backward<T> args{shape, q, k, v, o, d_o, row_max, log_sum, d_entropy, dq, dk, dv, accumulate};
  Scratch<T> scratch(shape, true);
  const int64_t flops = shape.queries * shape.keys * (shape.d_key + shape.d_value);
  const int64_t grain = std::max<int64_t>(1, kSmallChunk / std::max<int64_t>(1, flops));
  parallel_for(shape.batch * shape.heads, grain, [&](int64_t begin, int64_t end) {
    for (int64_t c = begin; c < end; ++c) kernel(args, c / shape.heads, c % shape.heads, scratch.mine());
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
