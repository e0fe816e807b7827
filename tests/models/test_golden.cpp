// Language models against PyTorch's numbers, which tests/oracle/golden.py computed once: logits, loss, every gradient,
// and what ten updates do to the losses.
#include <memory>

#include "core/io/npy.h"
#include "core/tensor_ops.h"
#include "models/transformer.h"
#include "nn/optim.h"
#include "tests/golden.h"
#include "tests/match.h"

using namespace bg;
using namespace bg::test;

namespace {

using Arrays = std::map<std::string, Tensor>;

// Sizes from the arrays, and the weights.
std::unique_ptr<Transformer> model_of(const Arrays& golden, TransformerConfig c) {
  const Tensor &tokens = golden.at("w/tokens.w"), &up = golden.at("w/blocks.0.mlp.up.w");
  c.vocab = tokens.size(0);
  c.d_model = tokens.size(1);
  c.mlp_ratio = up.size(1) / up.size(0);
  c.seq_len = golden.at("w/positions.w").size(0);
  c.heads = 2;
  c.tied = !golden.contains("w/head");
  Rng rng(1);
  auto model = std::make_unique<Transformer>(c, rng);
  model->to(DType::f64);
  StateDict weights;
  for (const auto& [name, t] : golden)
    if (name.starts_with("w/")) weights[name.substr(2)] = t;
  model->load_state_dict(weights);  // refuses names too many or too few
  return model;
}

struct Named {
  const char* file;
  TransformerConfig config;
};

const std::vector<Named>& models() {
  using nn::AttentionKind;
  static const std::vector<Named> all{
      {"lm_standard.npz", {.model = AttentionKind::standard, .layers = 3}},
      {"lm_twicing.npz", {.model = AttentionKind::twicing, .layers = 2}},
      {"lm_boosted.npz", {.model = AttentionKind::boosted, .rounds = 3, .kv = Kv::residual, .layers = 2}},
      {"lm_boosted_post.npz",
       {.model = AttentionKind::boosted, .gate = Gate::scalar, .norm = nn::NormPlace::post, .layers = 2}},
      {"lm_boosted_mlp.npz", {.model = AttentionKind::boosted, .gate = Gate::mlp, .layers = 1}}};
  return all;
}

}  // namespace

TEST_CASE("golden: logits, loss and every gradient of language models are PyTorch's") {
  for (const Named& m : models()) {
    const Arrays golden = read_npz(golden_folder() / m.file);
    const std::unique_ptr<Transformer> model = model_of(golden, m.config);
    const Tensor ids = golden.at("ids").select(0, 0), targets = golden.at("targets").select(0, 0);
    INFO(m.file);
    CHECK(difference(model->logits(ids), golden.at("logits")) < 1e-12);
    const Var loss = model->loss(ids, targets);
    CHECK(difference(loss.value().reshape({1}), golden.at("loss")) < 1e-12);
    loss.backward();
    std::map<std::string, Tensor> gradients;
    for (const NamedParameter& p : model->parameters())
      gradients[p.path] = p.var.grad().defined() ? p.var.grad() : Tensor::zeros(p.var.shape(), DType::f64);
    check_gradients(gradients, golden.at("grad"));
  }
}

TEST_CASE("golden: ten steps of AdamW lose what PyTorch's lose") {
  for (const Named& m : models()) {
    const Arrays golden = read_npz(golden_folder() / m.file);
    const std::unique_ptr<Transformer> model = model_of(golden, m.config);
    const Tensor &ids = golden.at("ids"), &targets = golden.at("targets");
    AdamW optimizer(model->parameters(), {.weight_decay = 0.1});
    std::vector<double> losses;
    for (int64_t step = 0; step < ids.size(0); ++step) {
      const Var loss = model->loss(ids.select(0, step), targets.select(0, step));
      losses.push_back(loss.item());
      loss.backward();
      optimizer.step(1e-2);
      optimizer.zero_grad();
    }
    losses.push_back(model->loss(ids.select(0, 0), targets.select(0, 0)).item());
    INFO(m.file);
    CHECK(difference(Tensor::of(losses, {std::ssize(losses)}), golden.at("losses")) < 1e-10);
    CHECK(std::abs(losses.back() - losses.front()) > 0.1);  // something was learned
  }
}
