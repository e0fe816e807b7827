// Attention layers against PyTorch's numbers, which tests/oracle/golden.py computed once: cross attention, lengths,
// learned scales, widths of their own, and each gate, with all gradients.
#include <set>

#include "autograd/engine.h"
#include "autograd/ops/boosted_attention.h"
#include "core/io/npy.h"
#include "tests/golden.h"

using namespace bg;
using namespace bg::test;

namespace {

using Arrays = std::map<std::string, Tensor>;
using Layer = Var (*)(const Vars&, const AttentionLayerArgs&);

struct Case {
  const char* name;
  Layer layer;
  AttentionLayerArgs args;
};

std::vector<Case> cases() {
  std::vector<Case> all{
      {"standard_memory", standard_attention, {.heads = 2, .memory = true, .lengths = true, .learned_scale = true}},
      {"standard_shared_memory", standard_attention, {.memory = true, .bias = false, .project_out = false}},
      {"standard_causal_memory", standard_attention, {.heads = 2, .causal = true, .memory = true, .lengths = true}},
      {"twicing", twicing_attention, {.heads = 2, .lengths = true, .learned_scale = true}},
      {"twicing_causal", twicing_attention, {.causal = true}}};
  for (const auto& [name, gate] : {std::pair{"boosted_memory_none", Gate::none},
                                   {"boosted_memory_scalar", Gate::scalar},
                                   {"boosted_memory_linear", Gate::linear},
                                   {"boosted_memory_mlp", Gate::mlp}})
    all.push_back({name,
                   boosted_attention,
                   {.heads = 2, .memory = true, .lengths = true, .learned_scale = true, .rounds = 3, .gate = gate}});
  for (const auto& [name, kv, gate] : {std::tuple{"boosted_input_mlp", Kv::input, Gate::mlp},
                                       {"boosted_residual_linear", Kv::residual, Gate::linear},
                                       {"boosted_residual_none", Kv::residual, Gate::none}})
    all.push_back(
        {name, boosted_attention, {.heads = 2, .causal = true, .lengths = true, .rounds = 2, .kv = kv, .gate = gate}});
  return all;
}

// The arrays of one case, by the rest of their names.
Arrays part_of(const Arrays& all, const std::string& start) {
  Arrays part;
  for (const auto& [name, t] : all)
    if (name.starts_with(start)) part[name.substr(start.size())] = t;
  return part;
}

}  // namespace

TEST_CASE("golden: attention layers and all their gradients are PyTorch's") {
  const Arrays golden = read_npz(golden_folder() / "layers.npz");
  std::set<std::string> in_file;
  for (const auto& [name, t] : golden) in_file.insert(name.substr(0, name.find('/')));
  CHECK(in_file.size() == cases().size());
  for (const Case& c : cases()) {
    INFO(c.name);
    const Arrays arrays = part_of(golden, std::string(c.name) + "/"), given = part_of(arrays, "in/");
    const std::vector<In>& inputs = attention_layout(c.args).inputs;
    REQUIRE(given.size() == inputs.size());
    Vars in;
    for (const In& i : inputs) in.emplace_back(given.at(i.name), i.differentiable);
    const Var y = c.layer(in, c.args);
    CHECK(difference(y.value(), arrays.at("y")) < 1e-12);
    y.backward(arrays.at("dy"));
    Arrays gradients;
    for (size_t i = 0; i < inputs.size(); ++i)
      if (inputs[i].differentiable)
        gradients[inputs[i].name] = in[i].grad().defined() ? in[i].grad() : Tensor::zeros(in[i].shape(), DType::f64);
    check_gradients(gradients, arrays.at("grad"));
  }
}
