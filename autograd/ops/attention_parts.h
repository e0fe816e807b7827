// The attention kernels on tensors: what the core ops and the layers share. Not for users.
#pragma once

#include "core/kernels/attention.h"
#include "core/tensor.h"

namespace bg::attn {

/// One call of the kernel: its sizes and the lengths that they point to.
struct Call {
  AttentionShape shape;
  std::vector<int64_t> lengths;

  AttentionShape with_lengths() const {
    AttentionShape s = shape;
    s.lengths = lengths.empty() ? nullptr : lengths.data();
    return s;
  }
};

/// Columns [column, column + heads d) of a (B or 1, T, width) buffer. Undefined: not wanted.
struct Operand {
  Tensor buffer;
  int64_t column = 0;
};

struct Gradients {
  Operand q, k, v;
  Operand& of(size_t i) { return i == 0 ? q : i == 1 ? k : v; }
};

struct Attended {
  Tensor o, stats, entropy;  // (B, Tq, H d_value), (2, B, H, Tq), (B, Tq) or undefined
};

Attended attend(const Call& call, const Operand& q, const Operand& k, const Operand& v, bool entropy);

/// Writes (or adds) the gradients of the operands given cotangents of o and, if defined, of the entropy.
void attend_backward(const Call& call, const Operand& q, const Operand& k, const Operand& v, const Tensor& o,
                     const Tensor& stats, const Tensor& d_o, const Tensor& d_entropy, const Gradients& d,
                     bool accumulate);

/// Both passes of twicing: u and t are their outputs. All gradients are wanted.
void twicing_backward(const Call& call, const Operand& q, const Operand& k, const Operand& v, const Tensor& u,
                      const Tensor& t, const Tensor& stats, const Tensor& d_o, const Gradients& d);

/// v - u where v is some columns of a buffer: contiguous (B, T, width of u).
Tensor difference(const Operand& v, const Tensor& u);

}  // namespace bg::attn
