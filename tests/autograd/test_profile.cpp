// The profile: what is recorded, that nested spans count once, and the trace file's form.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "autograd/engine.h"
#include "autograd/ops/all.h"
#include "autograd/profile.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;
using Kind = Profile::Kind;

namespace {

// tanh(x W) summed, with x used twice, so that two gradients of it are added.
void work(int64_t n) {
  Rng rng(1);
  const Var x(Tensor::randn({n, n}, rng), true), w(Tensor::randn({n, n}, rng), true);
  Var loss;
  {
    const ProfileSpan phase("forward", Kind::phase);
    const Scope scope("layer");
    loss = mean(tanh(matmul(x, w)) * x);
  }
  const ProfileSpan phase("backward", Kind::phase);
  loss.backward();
}

const Profile::Row* find(const std::vector<Profile::Row>& rows, const std::string& name, Kind kind) {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const auto& r) { return r.name == name && r.kind == kind; });
  return found == rows.end() ? nullptr : &*found;
}

}  // namespace

TEST_CASE("a profile records every op forward and backward, with its scope and phase") {
  std::vector<Profile::Event> events;
  std::vector<Profile::Row> rows;
  {
    Profile profile;
    work(8);
    events = profile.events();
    rows = profile.summary();
  }
  for (const char* op : {"matmul", "tanh", "mul"}) {
    const Profile::Row *forward = find(rows, op, Kind::forward), *backward = find(rows, op, Kind::backward);
    REQUIRE(forward);
    REQUIRE(backward);
    CHECK(forward->phase == "forward");
    CHECK(backward->phase == "backward");
    CHECK(backward->count == 1);
  }
  const Profile::Row* added = find(rows, "accumulate", Kind::other);  // both gradients of x
  REQUIRE(added);
  CHECK(added->phase == "backward");
  for (const auto& e : events) {
    CHECK(e.seconds >= 0);
    if (e.name == "tanh") CHECK(e.scope == "layer");
  }
}

TEST_CASE("own times of a profile add up to their phases, and nested spans count once") {
  Profile profile;
  work(8);
  double own = 0, phases = 0;
  for (const auto& e : profile.events()) {
    own += e.own;
    if (e.kind == Kind::phase) phases += e.seconds;
    if (e.parent >= 0) {  // a span lies within its parent
      const auto& p = profile.events()[static_cast<size_t>(e.parent)];
      CHECK(e.begin >= p.begin);
      CHECK(e.begin + e.seconds <= p.begin + p.seconds + 1e-9);
    }
  }
  CHECK(close(own, phases, 1e-5));
  double rows = 0;
  for (const auto& r : profile.summary()) rows += r.seconds;
  CHECK(close(rows, phases, 1e-5));
}

TEST_CASE("ops account for at least 95 % of a profiled phase") {
  double largest_rest = 1;  // on a busy machine any moment may be lost anywhere: the best of some attempts
  for (int attempt = 0; attempt < 50 && largest_rest > 0.05; ++attempt) {
    Profile profile;
    work(256);
    largest_rest = 0;
    for (const auto& e : profile.events())
      if (e.kind == Kind::phase) largest_rest = std::max(largest_rest, e.own / e.seconds);
  }
  CHECK(largest_rest <= 0.05);
}

TEST_CASE("nothing is recorded outside a profile's life, and an inner profile takes over") {
  Profile outer;
  {
    Profile inner;
    work(2);
    CHECK(!inner.events().empty());
    CHECK(outer.events().empty());
  }
  work(2);
  CHECK(!outer.events().empty());
}

TEST_CASE("a span ends when an op throws") {
  Profile profile;
  const Var a(Tensor::zeros({2, 3}), true);
  CHECK_THROWS_AS(matmul(a, a), Error);
  work(2);
  for (const auto& e : profile.events())
    if (e.kind == Kind::phase) CHECK(e.parent == -1);
}

TEST_CASE("a trace file holds one complete event per span") {
  Profile profile;
  work(4);
  const nlohmann::json trace = nlohmann::json::parse(profile.chrome_trace());
  REQUIRE(trace["traceEvents"].size() == profile.events().size());
  for (const auto& e : trace["traceEvents"]) {
    CHECK(e["ph"] == "X");
    CHECK(e["ts"].is_number());
    CHECK(e["dur"].get<double>() >= 0);
    CHECK(e.contains("tid"));
    CHECK(e.contains("pid"));
    CHECK(!e["name"].get<std::string>().empty());
  }
}
