#include "autograd/ops/attention_parts.h"

#include "core/tensor_ops.h"

namespace bg::attn {
namespace {

template <class T>
HeadView<const T> reading(const Operand& x, int64_t d_head) {
  const Tensor& t = x.buffer;
  return {t.data<T>() + x.column, t.size(0) == 1 ? 0 : t.strides()[0], t.strides()[1], d_head};
}

template <class T>
HeadView<T> writing(const Operand& x, int64_t d_head) {
  if (!x.buffer.defined()) return {};
  Tensor t = x.buffer;
  return {t.mutable_data<T>("attention") + x.column, t.strides()[0], t.strides()[1], d_head};
}

}  // namespace

Attended attend(const Call& call, const Operand& q, const Operand& k, const Operand& v, bool entropy) {
  const AttentionShape s = call.with_lengths();
  Attended r;
  r.o = Tensor::empty({s.batch, s.queries, s.heads * s.d_value}, q.buffer.dtype());
  r.stats = Tensor::empty({2, s.batch, s.heads, s.queries}, q.buffer.dtype());
  if (entropy) r.entropy = Tensor::empty({s.batch, s.queries}, q.buffer.dtype());
  dispatch_float("attention", q.buffer.dtype(), [&]<class T>() {
    T* stats = r.stats.mutable_data<T>("attention");
    attention_forward<T>(s, reading<T>(q, s.d_key), reading<T>(k, s.d_key), reading<T>(v, s.d_value),
                         writing<T>({r.o, 0}, s.d_value), stats, stats + r.stats.numel() / 2,
                         entropy ? r.entropy.mutable_data<T>("attention") : nullptr);
  });
  return r;
}

void attend_backward(const Call& call, const Operand& q, const Operand& k, const Operand& v, const Tensor& o,
                     const Tensor& stats, const Tensor& d_o, const Tensor& d_entropy, const Gradients& d,
                     bool accumulate) {
  const AttentionShape s = call.with_lengths();
  const Tensor dense = d_o.contiguous(), dense_entropy = d_entropy.contiguous();
  dispatch_float("attention", q.buffer.dtype(), [&]<class T>() {
    attention_backward<T>(s, reading<T>(q, s.d_key), reading<T>(k, s.d_key), reading<T>(v, s.d_value),
                          reading<T>({o, 0}, s.d_value), stats.data<T>(), stats.data<T>() + stats.numel() / 2,
                          reading<T>({dense, 0}, s.d_value),
                          dense_entropy.defined() ? dense_entropy.data<T>() : nullptr, writing<T>(d.q, s.d_key),
                          writing<T>(d.k, s.d_key), writing<T>(d.v, s.d_value), accumulate);
  });
}

Tensor difference(const Operand& v, const Tensor& u) {
  return num::sub(v.buffer.slice(2, v.column, v.column + u.size(2)), u);
}

void twicing_backward(const Call& call, const Operand& q, const Operand& k, const Operand& v, const Tensor& u,
                      const Tensor& t, const Tensor& stats, const Tensor& d_o, const Gradients& d) {
  const Operand rest{difference(v, u), 0};
  attend_backward(call, q, k, rest, t, stats, d_o, Tensor(), d, false);  // d.v is dw now, and dv so far
  const Tensor du = num::sub(d_o, d.v.buffer.slice(2, d.v.column, d.v.column + u.size(2)));
  attend_backward(call, q, k, v, u, stats, du, Tensor(), d, true);
}

}  // namespace bg::attn
