// The list of all ops. An op that is not here is in no table and is verified by nobody; a test compares this list with
// the headers of this folder.
#pragma once

#include "autograd/ops/arithmetic.h"
#include "autograd/ops/attention.h"
#include "autograd/ops/boosted_attention.h"
#include "autograd/ops/indexing.h"
#include "autograd/ops/matmul.h"
#include "autograd/ops/reduce.h"
#include "autograd/ops/select.h"
#include "autograd/ops/shape.h"
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
                      MatMul,                                                         // matmul.h
                      Attention, Twicing,                                             // attention.h
                      StandardAttention, TwicingAttention, BoostedAttention>;         // boosted_attention.h

}  // namespace bg
