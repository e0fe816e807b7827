// Row-wise kernels over contiguous (rows, d) arrays, parallel over rows. T is float or double. Sums over rows (dgamma,
// dbeta) use chunks that depend on (rows, d) alone. Outputs may be the very array of an input where it says so.
#pragma once

#include <cstdint>

namespace bg::kernels {

/// y = exp(x - max) / sum, over each row. A row of -infinity alone gives zeros. y may be x.
template <class T>
void softmax_forward(const T* x, T* y, int64_t rows, int64_t d);

/// dx = y (dy - <y, dy>). A row of zeros (fully masked) gives zeros. dx may be dy or y.
template <class T>
void softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t d);

/// y = x - log sum exp x. A row of -infinity alone stays so. y may be x.
template <class T>
void log_softmax_forward(const T* x, T* y, int64_t rows, int64_t d);

/// dx = dy - exp(y) sum dy. A row of -infinity alone gives zeros. dx may be dy or y.
template <class T>
void log_softmax_backward(const T* y, const T* dy, T* dx, int64_t rows, int64_t d);

/// y = (x - mean) rstd gamma + beta with rstd = 1 / sqrt(var + eps), var the mean square deviation in two passes. Saves
/// mean and rstd, (rows). gamma and beta are (d); either may be null (1 and 0). y may be x.
template <class T>
void layer_norm_forward(const T* x, const T* gamma, const T* beta, double eps, T* y, T* mean, T* rstd, int64_t rows,
                        int64_t d);

/// With h = (x - mean) rstd and g = dy gamma: dx = rstd (g - mean(g) - h mean(g h)), dgamma = sum over rows of dy h,
/// dbeta = sum over rows of dy. gamma may be null; dgamma and dbeta may be null together, and dx alone; they are
/// overwritten. dx may be dy or x.
template <class T>
void layer_norm_backward(const T* x, const T* gamma, const T* mean, const T* rstd, const T* dy, T* dx, T* dgamma,
                         T* dbeta, int64_t rows, int64_t d);

/// y = x rstd gamma with rstd = 1 / sqrt(mean(x^2) + eps). Saves rstd, (rows). gamma may be null. y may be x.
template <class T>
void rms_norm_forward(const T* x, const T* gamma, double eps, T* y, T* rstd, int64_t rows, int64_t d);

/// With h = x rstd and g = dy gamma: dx = rstd (g - h mean(g h)), dgamma = sum over rows of dy h. gamma, dgamma and dx
/// may be null. dx may be dy or x.
template <class T>
void rms_norm_backward(const T* x, const T* gamma, const T* rstd, const T* dy, T* dx, T* dgamma, int64_t rows,
                       int64_t d);

/// loss[r] = lse[r] - logits[r, targets[r]] with lse the log of the sum of exponentials of row r. A row whose target is
/// ignore_index has loss 0 and lse 0; a row of -infinity alone has loss infinity. Throws, with position and value, on
/// any other target outside [0, classes).
template <class T>
void cross_entropy_forward(const T* logits, const int64_t* targets, int64_t ignore_index, T* loss, T* lse, int64_t rows,
                           int64_t classes);

/// dlogits = (exp(logits - lse) - onehot(target)) dloss[r]; zeros for ignored rows and for rows of -infinity alone.
/// dlogits may be logits. Targets must be those of the forward.
template <class T>
void cross_entropy_backward(const T* logits, const int64_t* targets, int64_t ignore_index, const T* lse, const T* dloss,
                            T* dlogits, int64_t rows, int64_t classes);

}  // namespace bg::kernels
