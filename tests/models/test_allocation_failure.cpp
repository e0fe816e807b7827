// Memory that runs out anywhere in a training step: one sentence, nothing lost, nothing half done.
#include <map>
#include <optional>

#include "autograd/engine.h"
#include "core/parallel.h"
#include "models/transformer.h"
#include "nn/optim.h"
#include "tests/match.h"
#include "tests/models/lm_support.h"

using namespace bg;
using namespace bg::test;

namespace {

using Bits = std::map<std::string, std::vector<double>>;  // doubles hold every f32

Bits bits_of(const StateDict& state) {
  Bits bits;
  for (const auto& [key, t] : state) bits[key] = t.to_vector<double>();
  return bits;
}

Bits gradients_of(const Module& model) {
  Bits bits;
  for (const NamedParameter& p : model.parameters())
    bits[p.path] = p.var.grad().defined() ? p.var.grad().to_vector<double>() : std::vector<double>{};
  return bits;
}

// A small boosted model, its optimizer, and one batch.
struct Training {
  explicit Training(bool checkpointing) {
    TransformerConfig c = tiny_config();
    c.model = nn::AttentionKind::boosted;
    c.gate = Gate::mlp;
    c.dropout = 0.1;
    Rng rng(3);
    model.emplace(c, rng);
    model->set_checkpointing(checkpointing);
    enliven(*model, rng);
    optimizer.emplace(model->parameters());
    ids = random_ids(2, 6, c.vocab, rng);
    targets = random_ids(2, 6, c.vocab, rng);
  }

  void backward() {
    Rng dropout(4);
    model->loss(ids, targets, {.rng = &dropout}).backward();
  }
  double step() {
    optimizer->zero_grad();
    backward();
    const double norm = clip_grad_norm(model->parameters(), 0.5);
    optimizer->step(1e-2);
    return norm;
  }
  Bits state() const {
    Bits all = bits_of(model->state_dict());
    all.merge(bits_of(optimizer->state_dict()));
    return all;
  }

  std::optional<Transformer> model;
  std::optional<AdamW> optimizer;
  Tensor ids, targets;
};

// Calls work() with its n-th allocation failing; false when it has fewer.
template <class F>
bool fails_at(int64_t n, F&& work) {
  const FailAllocation failure(n);
  try {
    work();
  } catch (const Error& e) {
    REQUIRE(failure.happened());
    REQUIRE_THAT(e.what(), Contains("[storage] out of memory"));
    return true;
  }
  REQUIRE(!failure.happened());  // nothing swallows it
  return false;
}

}  // namespace

TEST_CASE("memory that runs out in a training step leaves everything as it was, and the step can be done again") {
  const bool checkpointing = GENERATE(false, true), cached = GENERATE(true, false);
  const int threads = checkpointing == cached ? 1 : 4, before_threads = num_threads();
  INFO((checkpointing ? "checkpointing, " : "")
       << threads << " threads, " << (cached ? "with" : "without") << " cached blocks");
  set_num_threads(threads);
  const std::optional<FineChunks> fine = threads > 1 ? std::optional<FineChunks>(std::in_place) : std::nullopt;

  Training expected(checkpointing);
  const Bits first = expected.state();
  const double norm = expected.step();
  const Bits then = expected.state();
  REQUIRE(norm > 0.5);  // it is clipped
  REQUIRE(then != first);

  Training t(checkpointing);
  const StateDict start_model = [&] {
    StateDict copies;
    for (const auto& [key, value] : t.model->state_dict()) copies.emplace(key, value.clone());
    return copies;
  }();
  const StateDict start_optimizer = [&] {
    StateDict copies;
    for (const auto& [key, value] : t.optimizer->state_dict()) copies.emplace(key, value.clone());
    return copies;
  }();
  const size_t live = memory_stats().live_bytes;
  int64_t failures = 0;
  for (;; ++failures) {
    if (!cached) release_cached_memory();
    if (!fails_at(failures + 1, [&] { t.step(); })) break;
    t.optimizer->zero_grad();
    REQUIRE(memory_stats().live_bytes == live);
    REQUIRE(t.state() == first);  // a step happens as a whole or not at all
    if (failures % 7 == 0) {      // steps again from here; seven is odd, so every kind of place has its turn
      REQUIRE(t.step() == norm);
      REQUIRE(t.state() == then);
      t.model->load_state_dict(start_model);
      t.optimizer->load_state_dict(start_optimizer);
      t.optimizer->zero_grad();
    }
  }
  CHECK(failures > 100);
  CHECK(t.state() == then);  // the step in which nothing failed
  set_num_threads(before_threads);
}

TEST_CASE("memory that runs out while gradients accumulate leaves those that were there") {
  Training t(false);
  t.backward();
  const Bits once = gradients_of(*t.model);
  const size_t live = memory_stats().live_bytes;
  int64_t failures = 0;
  while (fails_at(failures + 1, [&] { t.backward(); })) {
    ++failures;
    REQUIRE(memory_stats().live_bytes == live);
    REQUIRE(gradients_of(*t.model) == once);
  }
  CHECK(failures > 50);
  CHECK(gradients_of(*t.model) != once);
}

TEST_CASE("memory that runs out while gradients are clipped leaves them all as they were") {
  Training t(false);
  t.backward();
  std::vector<Tensor> held;  // somebody who looks at gradients: they cannot be scaled where they are
  for (const NamedParameter& p : t.model->parameters()) held.push_back(p.var.grad());
  const Bits before = gradients_of(*t.model);
  int64_t failures = 0;
  while (fails_at(failures + 1, [&] { clip_grad_norm(t.model->parameters(), 1e-3); })) {
    ++failures;
    REQUIRE(gradients_of(*t.model) == before);
  }
  CHECK(failures > 10);
  CHECK(gradients_of(*t.model) != before);
}

TEST_CASE("memory that runs out in an optimizer's step changes neither parameters nor moments") {
  const auto parameter = [](const char* path, DType dtype) {
    Rng rng(5);
    NamedParameter p{path, Var(Tensor::randn({4, 3}, rng, dtype), true)};
    p.var.set_grad(Tensor::randn({3, 4}, rng, dtype).transpose(0, 1));  // the step needs a copy
    return p;
  };
  AdamW optimizer({parameter("a", DType::f32), parameter("b", DType::f32), parameter("c", DType::f64)});
  const auto state = [&] {
    Bits all = bits_of(optimizer.state_dict());
    for (const NamedParameter& p : optimizer.parameters()) all[p.path] = p.var.value().to_vector<double>();
    return all;
  };
  const Bits before = state();
  int64_t failures = 0;
  while (fails_at(failures + 1, [&] { optimizer.step(0.1); })) {
    ++failures;
    REQUIRE(state() == before);
    REQUIRE(optimizer.steps() == 0);
  }
  CHECK(failures == 2);  // copies that a failed step has made are kept: the third has one less to make
  CHECK(optimizer.steps() == 1);
}
