// What apply checks for every op: the number of its inputs, and that declared zero gradients arrive as zeros.
#include "autograd/engine.h"
#include "autograd/ops/all.h"
#include "core/tensor_ops.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;

namespace {

/// Ops that may take several numbers of inputs.
bool takes(std::string_view op, size_t count) {
  if (op == "concat") return true;
  if (op == "linear") return count == 2 || count == 3;
  if (op == "layer_norm") return count >= 1 && count <= 3;
  if (op == "rms_norm") return count == 1 || count == 2;
  return false;
}

}  // namespace

TEST_CASE("every op refuses one input too few and one too many, in one sentence") {
  int refused = 0;
  AllOps::for_each([&]<class O>() {
    Rng r(1);
    for (const auto& sample : O::samples(r)) {
      const size_t right = sample.inputs.size();
      for (const size_t count : {right - 1, right + 1}) {
        if (takes(O::name, count)) continue;
        Vars in;
        for (size_t i = 0; i < count; ++i) in.emplace_back(sample.inputs[std::min(i, right - 1)]);
        INFO(O::name << ", " << sample.label << ": " << count << " inputs");
        CHECK_THROWS_WITH(apply<O>(sample.args, in),
                          Contains(str("[", O::name, "] wrong number of inputs: got ", count, ", expected ")));
        ++refused;
      }
    }
  });
  CHECK(refused > 300);
}

TEST_CASE("a wrong number of inputs is found before an input is read") {
  Rng r(2);
  const Var q(Tensor::randn({1, 2, 4}, r)), lengths(Tensor::of<int64_t>({2}, {1}));
  CHECK_THROWS_WITH(apply<Attention>({.lengths = true}, {q, q, q}),
                    Contains("[attention] wrong number of inputs: got 3, expected 4: q, k, v, lengths"));
  CHECK_THROWS_WITH(apply<Attention>({.lengths = false}, {q, q, q, lengths}),
                    Contains("[attention] wrong number of inputs: got 4, expected 3: q, k, v"));
  CHECK_THROWS_WITH(apply<Add>({}, {}), Contains("[add] wrong number of inputs: got 0, expected 2"));
}

TEST_CASE("backward gives zeros where an op declares a zero gradient, as grad() does") {
  int declared = 0;
  AllOps::for_each([&]<class O>() {
    Rng r(3);
    for (const auto& sample : O::samples(r)) {
      if (sample.zero_grads.empty()) continue;
      const std::vector<In> infos = inputs_of<O>(sample.args, sample.inputs.size());
      Vars in;
      for (size_t i = 0; i < infos.size(); ++i) in.emplace_back(sample.inputs[i], infos[i].differentiable);
      Tensors cotangents;
      const Vars out = apply<O>(sample.args, in);
      for (const Var& y : out) cotangents.push_back(Tensor::randn(y.shape(), r, y.dtype()));
      backward(out, cotangents);
      for (const int i : sample.zero_grads) {
        INFO(O::name << ", " << sample.label << ", " << infos[static_cast<size_t>(i)].name);
        const Tensor& g = in[static_cast<size_t>(i)].grad();
        REQUIRE(g.defined());
        CHECK(num::max_abs(g) < 1e-12);
        ++declared;
      }
    }
  });
  CHECK(declared > 20);
}
