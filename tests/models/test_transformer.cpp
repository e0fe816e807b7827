// The language model: sizes, gradients of the whole, causality, checkpointing, scopes, configuration.
#include <cmath>
#include <nlohmann/json.hpp>

#include "autograd/engine.h"
#include "autograd/ops/reduce.h"
#include "core/parallel.h"
#include "core/tensor_ops.h"
#include "models/flops.h"
#include "models/transformer.h"
#include "nn/optim.h"
#include "tests/match.h"
#include "tests/models/lm_support.h"

using namespace bg;
using namespace bg::test;

namespace {

TransformerConfig paper(nn::AttentionKind kind, int64_t d = 256) {
  TransformerConfig c;
  c.model = kind;
  c.vocab = 16384;
  c.d_model = d;
  return c;
}

int64_t parameter_count(const TransformerConfig& c) {
  Rng rng(1);
  return Transformer(c, rng).parameter_count();
}

/// Loss and every gradient: all parameters have one, the key biases' are zeros.
std::vector<double> loss_and_gradients(Transformer& model, const Tensor& ids, const Tensor& targets, Rng* rng) {
  model.zero_grad();
  const Var loss = model.loss(ids, targets, {rng});
  loss.backward();
  std::vector<double> all{loss.item()};
  for (const NamedParameter& p : model.parameters())
    for (double x : p.var.grad().to_vector<double>()) all.push_back(x);
  return all;
}

/// CHECK would print all the numbers.
bool same(const std::vector<double>& a, const std::vector<double>& b) { return a == b; }

}  // namespace

TEST_CASE("Transformer: the paper's parameter counts") {
  CHECK(parameter_count(paper(nn::AttentionKind::standard)) == 7419392);
  CHECK(parameter_count(paper(nn::AttentionKind::twicing)) == 7419392);
  CHECK(parameter_count(paper(nn::AttentionKind::standard, 288)) == 8789184);
  CHECK(parameter_count(paper(nn::AttentionKind::boosted)) == 8734208);
}

TEST_CASE("FLOPs per token of the paper's shapes") {
  CHECK(flops_per_token(paper(nn::AttentionKind::standard)) == 45613056);
  CHECK(flops_per_token(paper(nn::AttentionKind::twicing)) == 45613056 + 3 * 4 * 65536);
  CHECK(flops_per_token(paper(nn::AttentionKind::boosted)) == 55050240);
  TransformerConfig residual = paper(nn::AttentionKind::boosted);
  residual.kv = Kv::residual;
  CHECK(flops_per_token(residual) == 55050240);
  residual.gate = Gate::none;
  CHECK(flops_per_token(residual) == 55050240 - 3 * 4 * 262144);
}

TEST_CASE("Transformer: parameter paths, tied and untied output") {
  TransformerConfig c = tiny_config();
  c.model = nn::AttentionKind::boosted;
  Rng rng(2);
  const Transformer tied(c, rng);
  const StateDict state = tied.state_dict();
  for (const char* path : {"tokens.w", "positions.w", "blocks.0.norm1.gamma", "blocks.1.attn.rounds.1.w_q",
                           "blocks.1.attn.rounds.1.w_g", "blocks.1.attn.b_out", "blocks.1.mlp.up.w", "norm.beta"})
    CHECK(state.contains(path));
  CHECK_FALSE(state.contains("head"));
  c.tied = false;
  const Transformer untied(c, rng);
  CHECK(untied.parameter_count() == tied.parameter_count() + 17 * 8);
  CHECK(untied.state_dict().contains("head"));
}

TEST_CASE("Transformer: first loss is that of guessing, and equals cross-entropy of the logits") {
  for (const Variant& v : all_variants()) {
    Rng rng(3);
    Transformer model(v.config, rng);
    const Tensor ids = random_ids(3, 10, 17, rng), targets = random_ids(3, 10, 17, rng);
    INFO(v.label);
    if (v.config.norm == nn::NormPlace::pre) CHECK(close(model.loss(ids, targets).item(), std::log(17.0), 0.02));
    enliven(model, rng);
    const double loss = model.loss(ids, targets).item();
    CHECK(close(cross_entropy(Var(model.logits(ids)), targets).item(), loss, 1e-5));
    const LossSum sum = model.loss_sum(ids, targets);
    CHECK(sum.count == 30);
    CHECK(close(sum.sum / 30, loss, 1e-5));
  }
}

TEST_CASE("Transformer: gradient of the whole model against finite differences") {
  for (Variant& v : all_variants()) {
    Rng rng(4);
    v.config.dropout = 0.2;
    Transformer model(v.config, rng);
    model.to(DType::f64);
    enliven(model, rng);
    const Tensor ids = random_ids(2, 7, 17, rng), targets = random_ids(2, 7, 17, rng);
    const auto loss_at = [&] {
      Rng masks(9);  // the same masks each time
      return model.loss(ids, targets, {&masks});
    };
    loss_at().backward();
    std::vector<std::pair<NamedParameter, Tensor>> directions;
    double norm = 0, slope = 0;
    for (const NamedParameter& p : model.parameters()) {
      const Tensor u = Tensor::randn(p.var.shape(), rng, DType::f64);
      norm += num::dot(u, u);
      if (p.var.grad().defined()) slope += num::dot(u, p.var.grad());
      directions.emplace_back(p, u);
    }
    norm = std::sqrt(norm);
    const auto moved = [&](double step) {
      for (auto& [p, u] : directions) p.var.value().copy_from(num::add(p.var.value(), num::scale(u, step / norm)));
      return loss_at().item();
    };
    const double h = 3e-3, up1 = moved(h), up2 = moved(h), down1 = moved(-3 * h), down2 = moved(-h);
    const double numeric = (8 * (up1 - down1) - (up2 - down2)) / (12 * h);
    INFO(v.label << ": analytic " << slope / norm << ", numeric " << numeric);
    CHECK(close(slope / norm, numeric, 0, 1e-8));
  }
}

TEST_CASE("Transformer: later tokens do not reach earlier logits") {
  for (const Variant& v : all_variants()) {
    Rng rng(5);
    Transformer model(v.config, rng);
    enliven(model, rng);
    Tensor ids = random_ids(1, 9, 17, rng);
    const Tensor before = model.logits(ids);
    ids.slice(1, 6, 7).fill(ids.at({0, 6}) == 3 ? 4 : 3);
    const Tensor after = model.logits(ids), change = num::sub(after, before);
    INFO(v.label);
    CHECK(num::max_abs(change.slice(1, 0, 6)) == 0);
    CHECK(num::max_abs(change.slice(1, 6, 7)) > 1e-3);
    CHECK(num::max_abs(change.slice(1, 8, 9)) > 1e-6);
  }
}

TEST_CASE("Transformer: checkpointed gradients have the same bits, dropout on [R33]") {
  for (const auto kind : {nn::AttentionKind::standard, nn::AttentionKind::twicing, nn::AttentionKind::boosted}) {
    TransformerConfig c = tiny_config();
    c.model = kind;
    c.dropout = 0.3;
    Rng rng(6);
    Transformer model(c, rng);
    enliven(model, rng);
    const Tensor ids = random_ids(2, 12, 17, rng), targets = random_ids(2, 12, 17, rng);
    Rng plain(7), rewound(7);
    const std::vector<double> kept = loss_and_gradients(model, ids, targets, &plain);
    model.set_checkpointing(true);
    CHECK(same(loss_and_gradients(model, ids, targets, &rewound), kept));
    CHECK(plain == rewound);
    CHECK_FALSE(same(loss_and_gradients(model, ids, targets, &plain), kept));  // other masks, so dropout is on

    const Var loss = model.loss(ids, targets, {&plain});
    model.eval();
    CHECK_THROWS_WITH(loss.backward(), Contains("the mode changed between forward and backward"));
  }
}

TEST_CASE("Transformer: Hessian-vector products are the same with checkpointing") {
  for (const auto kind : {nn::AttentionKind::standard, nn::AttentionKind::twicing, nn::AttentionKind::boosted}) {
    TransformerConfig c = tiny_config();
    c.model = kind;
    c.dropout = 0.2;
    Rng rng(8);
    Transformer model(c, rng);
    enliven(model, rng);
    model.to(DType::f64);
    const Tensor ids = random_ids(2, 5, 17, rng), targets = random_ids(2, 5, 17, rng);
    const Vars parameters = vars_of(model.parameters());
    Tensors direction;
    for (const Var& p : parameters) direction.push_back(Tensor::randn(p.shape(), rng, DType::f64));
    auto product = [&] {
      Rng masks(9);
      const Vars g = grad({model.loss(ids, targets, {&masks})}, parameters, {}, {.create_graph = true});
      Var along;
      for (size_t i = 0; i < g.size(); ++i) {
        const Var part = sum(g[i] * Var(direction[i]));
        along = along.defined() ? along + part : part;
      }
      return grad({along}, parameters);
    };
    const Vars plain = product();
    model.set_checkpointing(true);
    const Vars checkpointed = product();
    double largest = 0;
    for (size_t i = 0; i < plain.size(); ++i) {
      INFO(model.parameters()[i].path);
      CHECK(num::max_abs(num::sub(plain[i].value(), checkpointed[i].value())) < 1e-12);
      largest = std::max(largest, num::max_abs(plain[i].value()));
    }
    CHECK(largest > 0.1);
  }
}

TEST_CASE("Transformer: unequal micro-batches add up to the gradient of one batch") {
  for (const bool tied : {true, false}) {
    TransformerConfig c = tiny_config();
    c.tied = tied;
    c.model = nn::AttentionKind::boosted;
    Rng rng(13);
    Transformer model(c, rng);
    enliven(model, rng);
    model.to(DType::f64);
    const Tensor ids = random_ids(6, 7, 17, rng);
    Tensor targets = random_ids(6, 7, 17, rng);
    targets.slice(0, 1, 2).fill(static_cast<double>(kIgnoreIndex));
    targets.slice(0, 4, 6).slice(1, 0, 3).fill(static_cast<double>(kIgnoreIndex));
    const std::vector<double> whole = loss_and_gradients(model, ids, targets, nullptr);
    model.zero_grad();
    double sum = 0;
    int64_t count = 0;
    for (const auto& [begin, end] : std::vector<std::pair<int64_t, int64_t>>{{0, 1}, {1, 2}, {2, 6}}) {
      const auto part = model.loss_and_count(ids.slice(0, begin, end), targets.slice(0, begin, end).to(DType::i32));
      (part.sum * (1.0 / 29)).backward();
      sum += part.sum.item();
      count += part.count;
    }
    CHECK(count == 42 - 7 - 6);
    CHECK(close(sum / 29, whole[0], 1e-12));
    size_t at = 1;
    double worst = 0;
    for (const NamedParameter& p : model.parameters())
      for (double g : p.var.grad().to_vector<double>()) worst = std::max(worst, std::abs(g - whole[at++]));
    CHECK(at == whole.size());
    CHECK(worst < 1e-12);
  }
}

TEST_CASE("Transformer: logits can be differentiated and give the loss") {
  for (const bool tied : {true, false}) {
    TransformerConfig c = tiny_config();
    c.tied = tied;
    c.dropout = 0.2;
    Rng rng(14);
    Transformer model(c, rng);
    enliven(model, rng);
    model.to(DType::f64);
    const Tensor ids = random_ids(2, 7, 17, rng), targets = random_ids(2, 7, 17, rng);
    Rng masks(15), again(15);
    const std::vector<double> want = loss_and_gradients(model, ids, targets, &masks);
    model.zero_grad();
    const Var logits = model.logits(ids, {&again});
    CHECK(logits.shape() == Shape{2, 7, 17});
    const Var loss = cross_entropy(logits, targets);
    loss.backward();
    double worst = std::abs(loss.item() - want[0]);
    size_t at = 1;
    for (const NamedParameter& p : model.parameters())
      for (double g : p.var.grad().to_vector<double>()) worst = std::max(worst, std::abs(g - want[at++]));
    CHECK(worst < 1e-12);
    model.eval();
    CHECK(num::max_abs(num::sub(model.logits(ids, {}).value(), model.logits(ids))) == 0);
  }
}

TEST_CASE("Transformer: a tied table is updated once, from both of its uses [R32]") {
  Rng rng(12);
  Transformer model(tiny_config(), rng);
  model.to(DType::f64);
  const Tensor ids = random_ids(2, 6, 17, rng), targets = random_ids(2, 6, 17, rng);
  Sgd optimizer(model.parameters(), {.momentum = 0.9});
  CHECK(optimizer.state_dict().count("momentum.tokens.w") == 1);
  CHECK(optimizer.parameters()[0].path == "tokens.w");
  const Var table = model.output_table();
  StateDict start;
  for (const auto& [path, value] : model.state_dict()) start[path] = value.clone();
  const Tensor before = start.at("tokens.w");
  model.loss(ids, targets).backward();
  const Tensor both = table.grad().clone();
  optimizer.step(0.5);
  CHECK(num::max_abs(num::sub(num::sub(before, table.value()), num::scale(both, 0.5))) < 1e-15);

  // an untied model of the same weights gets the two parts of that gradient apart
  TransformerConfig apart = tiny_config();
  apart.tied = false;
  Transformer untied(apart, rng);
  untied.to(DType::f64);
  StateDict state = start;
  state["head"] = state.at("tokens.w");
  untied.load_state_dict(state);
  untied.loss(ids, targets).backward();
  Tensor sum = untied.output_table().grad();
  for (const NamedParameter& p : untied.parameters())
    if (p.path == "tokens.w") sum = num::add(sum, p.var.grad());
  CHECK(num::max_abs(num::sub(sum, both)) < 1e-14);
}

TEST_CASE("Transformer: accumulated micro-batches equal one batch [R17]") {
  TransformerConfig c = tiny_config();
  c.model = nn::AttentionKind::boosted;
  Rng rng(13);
  Transformer model(c, rng);
  model.to(DType::f64);
  enliven(model, rng);
  const Tensor ids = random_ids(6, 8, 17, rng), targets = random_ids(6, 8, 17, rng);
  const std::vector<double> whole = loss_and_gradients(model, ids, targets, nullptr);
  model.zero_grad();
  for (int64_t row = 0; row < 6; row += 2)
    (model.loss(ids.slice(0, row, row + 2), targets.slice(0, row, row + 2)) / 3).backward();
  size_t i = 1;
  double worst = 0;
  for (const NamedParameter& p : model.parameters()) {
    const Tensor g = p.var.grad().defined() ? p.var.grad() : Tensor::zeros(p.var.shape());
    for (double x : g.to_vector<double>()) worst = std::max(worst, std::abs(x - whole[i++]));
  }
  CHECK(i == whole.size());
  CHECK(worst < 1e-12);
}

TEST_CASE("Transformer: bits do not depend on the number of threads") {
  TransformerConfig c = tiny_config();
  c.model = nn::AttentionKind::boosted;
  c.d_model = 32;
  c.dropout = 0.1;
  Rng rng(8);
  Transformer model(c, rng);
  const Tensor ids = random_ids(16, 12, 17, rng), targets = random_ids(16, 12, 17, rng);
  const int before = num_threads();
  std::vector<std::vector<double>> results;
  for (const int threads : {1, 2, 4}) {
    set_num_threads(threads);
    Rng masks(1);
    results.push_back(loss_and_gradients(model, ids, targets, &masks));
  }
  set_num_threads(before);
  CHECK(same(results[0], results[1]));
  CHECK(same(results[0], results[2]));
}

TEST_CASE("Transformer: a model of each kind learns a sequence by heart") {
  for (const auto kind : {nn::AttentionKind::standard, nn::AttentionKind::twicing, nn::AttentionKind::boosted}) {
    TransformerConfig c = tiny_config();
    c.model = kind;
    c.d_model = 16;
    Rng rng(9);
    Transformer model(c, rng);
    const Tensor text = random_ids(2, 13, 17, rng);
    const Tensor ids = text.slice(1, 0, 12), targets = text.slice(1, 1, 13);
    AdamW optimizer(model.parameters());
    double loss = 0;
    for (int step = 0; step < 150; ++step) {
      model.zero_grad();
      const Var l = model.loss(ids, targets);
      l.backward();
      clip_grad_norm(model.parameters(), 1);
      optimizer.step(1e-2);
      loss = l.item();
    }
    INFO(nn::kAttentionNames.name(kind));
    CHECK(loss < 0.05);
  }
}

TEST_CASE("Transformer: a bad value is reported with the part of the model it came from") {
  TransformerConfig c = tiny_config();
  Rng rng(10);
  Transformer model(c, rng);
  for (NamedParameter& p : model.parameters())
    if (p.path == "blocks.1.attn.rounds.0.w_v") p.var.value().fill(3e38);  // overflows
  const AnomalyMode on;
  const Tensor ids = random_ids(1, 4, 17, rng);
  CHECK_THROWS_WITH(model.loss(ids, ids), Contains("blocks.1.attn"));
}

TEST_CASE("Transformer: impossible inputs") {
  TransformerConfig c = tiny_config();
  c.dropout = 0.1;
  Rng rng(11);
  Transformer model(c, rng);
  const Tensor ids = random_ids(1, 4, 17, rng);
  CHECK_THROWS_WITH(model.loss(ids, ids), Contains("drop") && Contains("needs random numbers"));
  model.eval();
  CHECK_NOTHROW(model.loss(ids, ids));
  CHECK_THROWS_WITH(model.loss(random_ids(1, 13, 17, rng), random_ids(1, 13, 17, rng)),
                    Contains("sequence too long: got 13 tokens, expected at most seq_len = 12"));
  CHECK_THROWS_WITH(model.loss(Tensor::zeros({1, 4}), ids), Contains("wrong token ids: got f32 (1, 4)"));
  CHECK_THROWS_AS(model.loss(Tensor::full({1, 4}, 17, DType::i64), ids), Error);
  CHECK_THROWS_AS(model.loss(Tensor::full({1, 4}, -1, DType::i64), ids), Error);
  CHECK_THROWS_AS(model.loss(ids, Tensor::full({1, 4}, 17, DType::i64)), Error);
  CHECK_THROWS_AS(model.loss(ids, random_ids(1, 3, 17, rng)), Error);
}

TEST_CASE("TransformerConfig: to JSON and back, what is wrong is named") {
  for (const Variant& v : all_variants()) CHECK(TransformerConfig::from_json(v.config.to_json()) == v.config);
  const auto with = [](const char* key, nlohmann::json value) {
    nlohmann::json json = tiny_config().to_json();
    json[key] = std::move(value);
    return json;
  };
  nlohmann::json missing = tiny_config().to_json();
  missing.erase("heads");
  CHECK_THROWS_WITH(TransformerConfig::from_json(missing), Contains("'heads' is missing"));
  CHECK_THROWS_WITH(TransformerConfig::from_json(with("size", 3)), Contains("unknown field: got 'size'"));
  CHECK_THROWS_WITH(TransformerConfig::from_json(with("heads", "2")),
                    Contains("bad heads: got \"2\", expected a whole number"));
  CHECK_THROWS_WITH(TransformerConfig::from_json(with("heads", 2.5)),
                    Contains("bad heads: got 2.5, expected a whole number"));
  CHECK_THROWS_WITH(TransformerConfig::from_json(with("gate", "open")),
                    Contains("unknown gate: got 'open', expected none, scalar, linear or mlp"));
  CHECK_THROWS_WITH(TransformerConfig::from_json(with("heads", 3)),
                    Contains("--heads does not divide --d-model: got --d-model 8, --heads 3") &&
                        Contains("--heads 2, or --d-model 9"));
  CHECK_THROWS_WITH(TransformerConfig::from_json(with("heads", (int64_t{1} << 32) + 2)), Contains("bad --heads"));
  for (const char* key : {"vocab", "d_model", "layers", "heads", "seq_len", "mlp_ratio", "rounds"})
    for (const int value : {0, -1}) CHECK_THROWS_AS(TransformerConfig::from_json(with(key, value)), UsageError);
  for (const double value : {-0.1, 1.0})
    CHECK_THROWS_AS(TransformerConfig::from_json(with("dropout", value)), UsageError);
  CHECK_THROWS_WITH(TransformerConfig::from_json(nlohmann::json::array()), Contains("not an object"));
}
