// Modules: paths, tied parameters, state by path, modes.
#include "core/tensor_ops.h"
#include "nn/init.h"
#include "nn/module.h"
#include "tests/match.h"

using namespace bg;

namespace {

class Leaf : public Module {
 public:
  explicit Leaf(double value) : w(register_parameter("w", Tensor::full({2}, value))) {}
  std::string scope() const {
    const Scope here = enter();
    return Scope::current();
  }
  Var& w;
};

class Branch : public Module {
 public:
  Branch() : left(add_child<Leaf>("left", 1)), right(add_child<Leaf>("rights.0", 2)) {
    register_parameter("b", Tensor::full({3, 1}, 3));
  }
  std::string right_scope() const {
    const Scope here = enter();
    return right.scope();
  }
  Leaf &left, &right;
};

class Tree : public Module {
 public:
  Tree() : branch(add_child<Branch>("branch")), tied(register_tied("tied", branch.left.w)) {}
  std::string right_scope() const {
    const Scope here = enter();
    return branch.right_scope();
  }
  Branch& branch;
  Var& tied;
};

std::vector<std::string> paths(const NamedParameters& ps) {
  std::vector<std::string> out;
  for (const auto& p : ps) out.push_back(p.path);
  return out;
}

using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("Module: parameters by path, in order of registration, a tied one once [R32]") {
  Tree tree;
  CHECK(paths(tree.named_parameters()) == Names{"tied", "branch.b", "branch.left.w", "branch.rights.0.w"});
  CHECK(paths(tree.parameters()) == Names{"tied", "branch.b", "branch.rights.0.w"});
  CHECK(tree.parameter_count() == 2 + 3 + 2);
  CHECK(tree.right_scope() == "branch.rights.0");
  {
    const Scope outer("study");
    CHECK(tree.right_scope() == "study.branch.rights.0");
  }
  CHECK(Scope::current().empty());
}

TEST_CASE("Module: what cannot be registered") {
  struct Twice : Module {
    Twice() {
      register_parameter("w", Tensor::zeros({1}));
      register_parameter("w", Tensor::zeros({1}));
    }
  };
  struct NotLeaf : Module {
    NotLeaf() { register_tied("w", Var(Tensor::zeros({1}))); }
  };
  struct Shared : Module {
    Shared() {
      const Tensor t = Tensor::zeros({2});
      register_parameter("a", t);
      register_parameter("b", t);
    }
  };
  CHECK_THROWS_WITH(Twice(), Contains("name used twice: got w"));
  CHECK_THROWS_WITH(NotLeaf(), Contains("parameter w cannot be trained"));
  const Shared shared;
  CHECK_THROWS_WITH(shared.parameters(), Contains("share memory") && Contains("a and b"));
}

TEST_CASE("Module: state by path goes round, in place") {
  Tree a, b;
  a.branch.right.w.value().fill(7);
  const Tensor before = b.tied.value();
  b.load_state_dict(a.state_dict());
  CHECK(b.branch.right.w.value().to_vector<double>() == std::vector<double>{7, 7});
  CHECK(before.same_storage(b.branch.left.w.value()));
}

TEST_CASE("Module: a state that does not fit changes nothing and is described whole") {
  Tree tree;
  StateDict state = tree.state_dict();
  state["tied"] = Tensor::full({2}, 9);
  state.erase("branch.b");
  state["branch.rights.0.w"] = Tensor::zeros({3});
  state["extra"] = Tensor::zeros({1});
  CHECK_THROWS_WITH(tree.load_state_dict(state, "model.safetensors"),
                    Contains("[model.safetensors]") && Contains("missing branch.b (3, 1)") &&
                        Contains("branch.rights.0.w is f32 (3,) instead of f32 (2,)") && Contains("unexpected extra"));
  CHECK(tree.tied.value().flat(0) == 1);
  state = tree.state_dict();
  state["tied"] = Tensor::zeros({2}, DType::f64);
  CHECK_THROWS_WITH(tree.load_state_dict(state), Contains("tied is f64 (2,) instead of f32 (2,)"));
}

TEST_CASE("Module: conversion keeps ties, training mode reaches children") {
  Tree tree;
  tree.tied.set_grad(Tensor::zeros({2}));
  tree.to(DType::f64);
  CHECK(tree.branch.left.w.dtype() == DType::f64);
  CHECK(tree.tied.meta() == tree.branch.left.w.meta());
  CHECK_FALSE(tree.tied.grad().defined());
  CHECK(paths(tree.parameters()).size() == 3);
  CHECK_THROWS_WITH(tree.to(DType::i64), Contains("parameters cannot have this dtype"));

  CHECK(tree.branch.right.training());
  tree.eval();
  CHECK_FALSE(tree.branch.right.training());
  tree.train();
  CHECK(tree.branch.right.training());

  tree.tied.set_grad(Tensor::zeros({2}, DType::f64));
  tree.zero_grad();
  CHECK_FALSE(tree.branch.left.w.grad().defined());
}

TEST_CASE("Init: moments and bounds of first values, repeatable from the seed") {
  Rng rng(3), again(3);
  const Tensor w = Init::normal(rng).weight({200, 100}, 200);
  double sum = 0, squares = 0;
  for (double x : w.to_vector<double>()) sum += x, squares += x * x;
  CHECK(close(sum / 2e4, 0, 0, 5e-4));
  CHECK(close(std::sqrt(squares / 2e4), 0.02, 0.02));
  CHECK(w.to_vector<double>() == Init::normal(again).weight({200, 100}, 200).to_vector<double>());
  CHECK(num::max_abs(Init::normal(rng).bias({50}, 200)) == 0);

  const Init uniform = Init::uniform_fan_in(rng);
  for (const Tensor& t : {uniform.weight({100, 100}, 100), uniform.bias({10000}, 100)}) {
    CHECK(num::max_abs(t) <= 0.1);
    CHECK(num::max_abs(t) > 0.099);
    CHECK(close(num::sum(t).item() / 1e4, 0, 0, 3e-3));
  }
  CHECK_THROWS_WITH(uniform.weight({1}, 0), Contains("fan-in must be positive"));
}
