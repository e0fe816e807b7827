// The list of all ops. An op that is not here is in no table and is verified by nobody; a test compares this list with
// the headers of this folder.
#pragma once

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/boosted_attention.h"
#include "autograd/ops/cross_entropy.h"
#include "autograd/ops/dropout.h"
#include "autograd/ops/embedding.h"
#include "autograd/ops/fixed_point.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/linear.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/norm.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/select.h"
#include "autograd/ops/shape.h"
#include "autograd/ops/softmax.h"
#include "autograd/ops/unary.h"

namespace bg {

template <class... O>
struct OpList {
  static constexpr size_t size = sizeof...(O);
  /// f.operator()<O>() for every op, in order.
  template <class F>
  static void for_each(F&& f) {
    (f.template operator()<O>(), ...);
  }
};

using AllOps = OpList<Identity, Add, Sub, Mul, Div, Affine,                           // arithmetic.h
                      Sum, SumTo, Expand, LogSumExp,                                  // reduce.h
                      Reshape, Permute, Slice, Place, Concat, Split,                  // shape.h
                      Gather, ScatterAdd, Max, Min,                                   // indexing.h
                      Where, Maximum, Minimum,                                        // select.h
                      Exp, Log, Log1p, Sqrt, Sin, Cos, Square, Erf, Pow, Abs, Clamp,  // unary.h, primitive
                      Tanh, Sigmoid, Relu, Silu, Gelu,                                // unary.h, fused
                      MatMul, Linear,                                                 // matmul.h, linear.h
                      Softmax, LogSoftmax, LayerNorm, RMSNorm,                        // softmax.h, norm.h
                      Embedding, Dropout,                                             // embedding.h, dropout.h
                      CrossEntropy, LinearCrossEntropy,                               // cross_entropy.h
                      Attention, Twicing,                                             // attention.h
                      StandardAttention, TwicingAttention, BoostedAttention,          // boosted_attention.h
                      AttentionFixedPoint>;                                           // fixed_point.h

}  // namespace bg
