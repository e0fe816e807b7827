// Tutorial 3: a network learns what no line can separate. Two layers, written with plain ops, trained with AdamW.
#include <cmath>
#include <cstdio>

#include "autograd/ops/matmul.h"
#include "autograd/ops/unary.h"
#include "nn/module.h"
#include "nn/optim.h"

using namespace bg;

// A module names its parameters; the optimizer finds them by path.
class Xor : public Module {
 public:
  explicit Xor(Rng& r)
      : w1_(register_parameter("w1", Tensor::randn({2, 8}, r, DType::f64))),
        b1_(register_parameter("b1", Tensor::zeros({8}, DType::f64))),
        w2_(register_parameter("w2", Tensor::randn({8, 1}, r, DType::f64, 0.35))),
        b2_(register_parameter("b2", Tensor::zeros({1}, DType::f64))) {}

  Var forward(const Var& x) const { return sigmoid(matmul(tanh(matmul(x, w1_) + b1_), w2_) + b2_); }

 private:
  Var &w1_, &b1_, &w2_, &b2_;
};

int main() {
  const Var x(Tensor::of({0, 0, 0, 1, 1, 0, 1, 1}, {4, 2}));
  const Var target(Tensor::of({0, 1, 1, 0}, {4, 1}));
  Rng rng(1);
  Xor model(rng);
  AdamW optimizer(model.parameters(), {.weight_decay = 0});

  double loss_value = 1;
  for (int step = 0; step < 500; ++step) {
    const Var error = model.forward(x) - target;
    const Var loss = sum(error * error) * 0.25;
    loss.backward();
    optimizer.step(0.05);
    model.zero_grad();
    loss_value = loss.item();
    if (step % 100 == 0) std::printf("step %3d  loss %.5f\n", step, loss_value);
  }
  const Tensor y = model.forward(x).value();
  std::printf("0^0 = %.3f   0^1 = %.3f   1^0 = %.3f   1^1 = %.3f   loss %.2g\n", y.flat(0), y.flat(1), y.flat(2),
              y.flat(3), loss_value);
  return loss_value < 0.01 ? 0 : 1;
}
