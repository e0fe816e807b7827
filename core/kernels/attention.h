// Scaled dot-product attention of many heads, forward and backward, on raw memory; the T x T weights are never stored.
//
// For each batch row b and head h, with S = scale Q K^T, P = softmax(S) over the visible keys, D the dropout mask
// (0 or 1 / (1 - p)) and P~ = D * P:
//
//   forward    O = P~ V                                       kept: per query row, max_j S and log sum_j exp(S - max)
//   backward   dV = P~^T dO
//              dP = D * (dO V^T)
//              dS = P * (dP - <dO, O>)                        because sum_j P_j dP_j = <dO, P~ V> = <dO, O>
//              dQ = scale dS K,   dK = scale dS^T Q
//   entropy    H = -sum_j P log P (of P before dropout) adds -P (log P + H) dH to dS
//
// P is recomputed in the backward pass from the two kept numbers. They stay apart, since max + log-sum would round away
// the log-sum of large logits.
#pragma once

#include <cstdint>

#include "core/rng.h"

namespace bg {

/// A (batch, time, head, d) array by element strides: x[b, t, h, i] = data[b * batch + t * row + h * head + i].
template <class T>
struct HeadView {
  T* data = nullptr;
  int64_t batch = 0, row = 0, head = 0;
};

struct AttentionShape {
  int64_t batch = 1, heads = 1, queries = 0, keys = 0, d_key = 0, d_value = 0;
  bool causal = false;               ///< query i sees keys j <= i + keys - queries, so the last query sees all
  double scale = 1;                  ///< of the logits, usually 1 / sqrt(d_key)
  const int64_t* lengths = nullptr;  ///< (batch): the first lengths[b] keys are valid; null: all are
  double dropout = 0;                ///< probability, in [0, 1), of dropping a weight
  MaskKey mask;                      ///< of dropout; weight (b, h, i, j) has index ((b heads + h) queries + i) keys + j
};

/// o = attention(q, k, v). q (B, Tq, H, d_key), k (B, Tk, H, d_key), v (B, Tk, H, d_value), o (B, Tq, H, d_value);
/// a batch stride of 0 shares k or v between batch rows. row_max and log_sum (B, H, Tq) are for the backward pass.
/// entropy (B, Tq), or null: the mean over heads of H. A query that sees no key gives 0 everywhere. Work on memory:
/// O(Tk) per worker. Throws Error on impossible sizes, lengths or dropout.
template <class T>
void attention_forward(const AttentionShape& shape, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                       HeadView<T> o, T* row_max, T* log_sum, T* entropy);

/// Gradients dq, dk, dv (shaped as q, k, v; data == nullptr: not wanted) of a loss with gradient d_o at o and, unless
/// null, d_entropy (B, Tq) at entropy; o, row_max and log_sum as the forward pass of the same shape left them.
/// `accumulate` adds to dq, dk, dv instead of overwriting. A query that sees no key contributes 0. The outputs must not
/// overlap each other or the inputs; dk and dv must not share memory between batch rows (stride 0), which is an Error:
/// give them a dense buffer and sum it over the batch.
template <class T>
void attention_backward(const AttentionShape& shape, HeadView<const T> q, HeadView<const T> k, HeadView<const T> v,
                        HeadView<const T> o, const T* row_max, const T* log_sum, HeadView<const T> d_o,
                        const T* d_entropy, HeadView<T> dq, HeadView<T> dk, HeadView<T> dv, bool accumulate);

}  // namespace bg
