// Elementwise kernels over spans, vectorised and parallel. T is float or double; y (or dx) may be the very span of an
// input, but must not overlap one otherwise. NaN goes through; infinities give the limit (gelu(-inf) = 0).
// The `_serial` ones run on the calling thread, for strips inside other kernels.
//
// Error bounds, held by tests on every instruction set: exp, log, sqrt, tanh, sigmoid and silu 4 ulp and gelu 5 ulp of
// the result (of the smallest normal number where the result is subnormal, which gelu may replace by 0); backwards 8
// ulp of dy.
#pragma once

#include <cstdint>

namespace bg::kernels {

template <class T>
void exp(const T* x, T* y, int64_t n);
template <class T>
void log(const T* x, T* y, int64_t n);
template <class T>
void sqrt(const T* x, T* y, int64_t n);
template <class T>
void tanh(const T* x, T* y, int64_t n);
template <class T>
void sigmoid(const T* x, T* y, int64_t n);
template <class T>
void relu(const T* x, T* y, int64_t n);
template <class T>
void silu(const T* x, T* y, int64_t n);  ///< x sigmoid(x)
template <class T>
void gelu(const T* x, T* y, int64_t n);  ///< x Phi(x), exact: Phi is the normal distribution

// dx = f'(x) dy, from the input x or the output y, whichever the first argument names.
template <class T>
void tanh_backward(const T* y, const T* dy, T* dx, int64_t n);
template <class T>
void sigmoid_backward(const T* y, const T* dy, T* dx, int64_t n);
template <class T>
void relu_backward(const T* x, const T* dy, T* dx, int64_t n);  ///< relu'(0) = 0
template <class T>
void silu_backward(const T* x, const T* dy, T* dx, int64_t n);
template <class T>
void gelu_backward(const T* x, const T* dy, T* dx, int64_t n);

/// The largest of n values; -infinity when n is 0. A NaN may or may not be seen (exp_sub_serial will see it).
template <class T>
T max_serial(const T* x, int64_t n);

/// y[i] = exp(scale * x[i] - shift), which must not exceed 1 by more than a rounding, and returns their sum in an order
/// fixed by n. With the scale of attention logits and shift = scale * max, y is the unnormalised softmax; with shift =
/// log-sum-exp it is the softmax itself. shift = -infinity (a fully masked strip: every x is -infinity) gives zeros.
template <class T>
T exp_sub_serial(const T* x, T shift, T scale, T* y, int64_t n);

}  // namespace bg::kernels
