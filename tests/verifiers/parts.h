// What the ops of several authors share.
#pragma once

#include "autograd/ops/all.h"

namespace bg::strangers {

/// The simplest wrong backward of O: every gradient with its sign flipped.
template <class O>
std::vector<Mutant<Tensor, typename O::Args>> negated() {
  return {{"sign flipped", [](const Backward<Tensor, typename O::Args>& b) {
             Tensors g = O::backward(b);
             for (Tensor& t : g)
               if (t.defined()) t = num::scale(t, -1);
             return g;
           }}};
}

/// An element-wise y = f(x) of a struct that has `name` and `f`. Saves x.
template <class Self>
struct Elementwise {
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return Self::f(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return dispatch_float(Self::name, in[0].dtype(),
                          [&]<class T>() { return map<T, T>(Self::name, in[0], [](T x) { return Self::f(x); }); });
  }
  /// dx = dy slope(x).
  template <class F>
  static Tensors by_slope(const Backward<Tensor, Args>& b, F slope) {
    return {dispatch_float(Self::name, b.dy().dtype(), [&]<class T>() {
      return zip<T, T>(Self::name, b[0], b.dy(), [&](T x, T dy) { return dy * slope(x); });
    })};
  }
};

}  // namespace bg::strangers
