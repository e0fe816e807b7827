// Elementwise kernels: the loops over spans around the functions of math-inl.h, and their dispatch.
#include "core/kernels/vec_math.h"

#include <limits>

#include "core/kernels/stream.h"
#include "core/parallel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/vec_math.cpp"
#include <hwy/foreach_target.h>
// After foreach_target:
#include <hwy/highway.h>

#include "core/kernels/math-inl.h"

#ifndef BG_VEC_MATH_TABLE
#define BG_VEC_MATH_TABLE
namespace bg::kernels {

// The kernels of one instruction set.
template <class T>
struct VecMath {
  using Unary = void (*)(const T* x, T* y, int64_t n, bool streamed);
  using Binary = void (*)(const T* a, const T* b, T* y, int64_t n, bool streamed);
  Unary exp, log, sqrt, tanh, sigmoid, relu, silu, gelu;
  Binary tanh_backward, sigmoid_backward, relu_backward, silu_backward, gelu_backward;
  T (*max)(const T* x, int64_t n);
  T (*exp_sub)(const T* x, T shift, T scale, T* y, int64_t n);
};

}  // namespace bg::kernels
#endif

HWY_BEFORE_NAMESPACE();
namespace bg::kernels {
namespace HWY_NAMESPACE {

template <class Op, class T>
void map(const T* x, T* y, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for_vectors_into(d, y, n, streamed,
                   [&](int64_t i, auto lanes) BG_LANES { lanes.store(d, Op()(d, lanes.load(d, x + i)), y + i); });
}

template <class Op, class T>
void map2(const T* a, const T* b, T* y, int64_t n, bool streamed) {
  const hn::ScalableTag<T> d;
  for_vectors_into(d, y, n, streamed, [&](int64_t i, auto lanes) BG_LANES {
    lanes.store(d, Op()(d, lanes.load(d, a + i), lanes.load(d, b + i)), y + i);
  });
}

template <class T>
T max_of(const T* x, int64_t n) {
  const hn::ScalableTag<T> d;
  const T lowest = -std::numeric_limits<T>::infinity();
  auto top = hn::Set(d, lowest);
  for_vectors(d, n, [&](int64_t i, auto lanes) BG_LANES { top = hn::Max(top, lanes.load(d, x + i, lowest)); });
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

template <class T>
T exp_sub(const T* x, T shift, T scale, T* y, int64_t n) {
  const hn::ScalableTag<T> d;
  const T lowest = -std::numeric_limits<T>::infinity();
  const auto by = hn::Set(d, scale), minus = hn::Set(d, shift == lowest ? T(0) : shift);
  auto sum = hn::Zero(d);
  for_vectors(d, n, [&](int64_t i, auto lanes) BG_LANES {
    lanes.store(d, exp_nonpositive(d, hn::MulSub(lanes.load(d, x + i), by, minus)), y + i);
    sum = hn::Add(sum, lanes.load(d, y + i));  // read back, so that what fills up the last vector counts as 0
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

template <class T>
constexpr VecMath<T> table = {&map<Exp, T>,
                              &map<Log, T>,
                              &map<Sqrt, T>,
                              &map<Tanh, T>,
                              &map<Sigmoid, T>,
                              &map<Relu, T>,
                              &map<Silu, T>,
                              &map<Gelu, T>,
                              &map2<TanhBackward, T>,
                              &map2<SigmoidBackward, T>,
                              &map2<ReluBackward, T>,
                              &map2<SiluBackward, T>,
                              &map2<GeluBackward, T>,
                              &max_of<T>,
                              &exp_sub<T>};

const VecMath<float>* table_f32() { return &table<float>; }
const VecMath<double>* table_f64() { return &table<double>; }

}  // namespace HWY_NAMESPACE
}  // namespace bg::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace bg::kernels {
namespace {

HWY_EXPORT(table_f32);
HWY_EXPORT(table_f64);

template <class T>
const VecMath<T>& vec_math() {
  if constexpr (sizeof(T) == 4) {
    return *HWY_DYNAMIC_DISPATCH(table_f32)();
  } else {
    return *HWY_DYNAMIC_DISPATCH(table_f64)();
  }
}

constexpr int64_t kCostly = 8192, kCheap = 32768;  // elements per chunk, so that a chunk takes some 10 us

}  // namespace

#define BG_UNARY(name, grain)                                                                                      \
  template <class T>                                                                                               \
  void name(const T* x, T* y, int64_t n) {                                                                         \
    const auto f = vec_math<T>().name;                                                                             \
    const bool streamed = beyond_caches(n * sizeof(T), x == y);                                                    \
    parallel_for(n, grain, [&](int64_t b, int64_t e) { f(x + b, y + b, e - b, streamed), end_stream(streamed); }); \
  }                                                                                                                \
  template void name(const float*, float*, int64_t);                                                               \
  template void name(const double*, double*, int64_t);
BG_UNARY(exp, kCostly)
BG_UNARY(log, kCostly)
BG_UNARY(sqrt, kCostly)
BG_UNARY(tanh, kCostly)
BG_UNARY(sigmoid, kCostly)
BG_UNARY(relu, kCheap)
BG_UNARY(silu, kCostly)
BG_UNARY(gelu, kCostly)

#define BG_BACKWARD(name, grain)                                                                                      \
  template <class T>                                                                                                  \
  void name(const T* saved, const T* dy, T* dx, int64_t n) {                                                          \
    const auto f = vec_math<T>().name;                                                                                \
    const bool streamed = beyond_caches(n * sizeof(T), dx == dy || dx == saved);                                      \
    parallel_for(n, grain,                                                                                            \
                 [&](int64_t b, int64_t e) { f(saved + b, dy + b, dx + b, e - b, streamed), end_stream(streamed); }); \
  }                                                                                                                   \
  template void name(const float*, const float*, float*, int64_t);                                                    \
  template void name(const double*, const double*, double*, int64_t);
BG_BACKWARD(tanh_backward, kCheap)
BG_BACKWARD(sigmoid_backward, kCheap)
BG_BACKWARD(relu_backward, kCheap)
BG_BACKWARD(silu_backward, kCostly)
BG_BACKWARD(gelu_backward, kCostly)

template <class T>
T max_serial(const T* x, int64_t n) {
  return vec_math<T>().max(x, n);
}

template <class T>
T exp_sub_serial(const T* x, T shift, T scale, T* y, int64_t n) {
  return vec_math<T>().exp_sub(x, shift, scale, y, n);
}

template float max_serial(const float*, int64_t);
template double max_serial(const double*, int64_t);
template float exp_sub_serial(const float*, float, float, float*, int64_t);
template double exp_sub_serial(const double*, double, double, double*, int64_t);

}  // namespace bg::kernels
#endif  // HWY_ONCE
