// Tutorial 2: prove that a backward written by hand is right - and see what a wrong one looks like.
//
// swish(x) = x sigmoid(x) has the derivative s (1 + x (1 - s)) with s = sigmoid(x). An op is one struct: what it
// computes (reference), how (forward), its derivative (backward), where to look (samples), and wrong derivatives that
// the verifier must reject, so that a pass means something (mutants).
#include <cmath>
#include <cstdio>

#include "autograd/ops/unary.h"
#include "autograd/verify/verify.h"
#include "core/elementwise.h"
#include "core/tensor_ops.h"

using namespace bg;

struct Swish {
  static constexpr std::string_view name = "swish";
  static inline const std::array inputs{In{"x"}};
  using Args = NoArgs;

  template <class S>
  static Arrs<S> reference(const Arrs<S>& in, const Args&) {
    return {map(in[0], [](S x) { return x * sc::sigmoid(x); })};
  }
  static Tensor forward(Saved& saved, const Tensors& in, const Args&) {
    saved.keep_input(0, in[0]);
    return each(in[0], [](auto x) { return x / (1 + std::exp(-x)); });
  }
  static Tensors backward(const Backward<Tensor, Args>& b) { return {num::mul(b.dy(), slope(b[0], 1))}; }
  static std::vector<Sample<Args>> samples(Rng& r) {
    return {{"(5,)", {}, {normal(r, {5})}}, {"(2, 3)", {}, {normal(r, {2, 3})}}};
  }
  static std::vector<Mutant<Tensor, Args>> mutants() {
    return {
        {"the product rule's second term dropped", [](auto& b) { return Tensors{num::mul(b.dy(), slope(b[0], 0))}; }}};
  }
  // s (1 + term x (1 - s)): the derivative for term = 1
  static Tensor slope(const Tensor& x, double term) {
    return each(x, [term](auto v) {
      const auto s = 1 / (1 + std::exp(-v));
      return s * (1 + static_cast<decltype(v)>(term) * v * (1 - s));
    });
  }
  // f of every element, in f32 or f64
  template <class F>
  static Tensor each(const Tensor& x, F f) {
    return dispatch_float(name, x.dtype(), [&]<class T>() { return map<T, T>(name, x, f); });
  }
};

// The same op with a slip: a wrong sign in its backward at one element.
struct SlippedSwish : Swish {
  static constexpr std::string_view name = "slipped_swish";
  static Tensors backward(const Backward<Tensor, Args>& b) {
    Tensors g = Swish::backward(b);
    Tensor last = g[0].reshape({-1}).slice(0, g[0].numel() - 1, g[0].numel());
    last.copy_from(num::scale(last, -1));
    return g;
  }
};

int main() {
  const OpReport right = verify<Swish>(), wrong = verify<SlippedSwish>();
  std::printf("%s\n\n%s\n", right.to_string().c_str(), wrong.to_string().c_str());
  const bool pinpointed = !wrong.failures.empty() && wrong.failures[0].input == "x";
  std::printf("\nright passes: %s; wrong is rejected: %s\n", right.passed() ? "yes" : "no",
              wrong.passed() ? "no" : "yes");
  return right.passed() && !wrong.passed() && pinpointed ? 0 : 1;
}
