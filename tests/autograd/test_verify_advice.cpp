// Right ops that the verifier calls inconclusive: its advice, followed, leads to a verdict.
#include "autograd/verify/verify.h"
#include "tests/catch.h"
#include "tests/match.h"
#include "tests/verifiers/difficult.h"

using namespace bg;

namespace {

// "declare the inputs without gradients: In{name, false}"
template <class O>
struct WithoutGradient : O {
  static inline const std::array inputs{In{"x", false}};
};

// The same, where the op is to be cut off from what it depends on: with the reason.
struct StoppedWithReason : difficult::StopGradient {
  static inline const std::array inputs{In{"x", false, "stopped: the output counts as a constant"}};
};

// "no slope jumps here: differences apply, so leave at_kink away"
struct HuberAnywhere : difficult::Huber {
  static std::vector<Sample<Args>> samples(Rng& r) {
    std::vector<Sample<Args>> all = difficult::Huber::samples(r);
    for (Sample<Args>& s : all) s.kink.clear();
    return all;
  }
};

template <class O>
void check_inconclusive(const std::string& advice) {
  const OpReport r = verify<O>();
  INFO(r.to_string());
  CHECK_FALSE(r.passed());
  CHECK_FALSE(r.wrong());
  CHECK_THAT(r.to_string(), Contains(advice));
}

template <class O>
void check_passes() {
  const OpReport r = verify<O>();
  INFO(r.to_string());
  CHECK(r.passed());
}

}  // namespace

TEST_CASE("advice on an inconclusive op, followed, leads to a verdict") {
  const std::string declare = "declare the inputs without gradients: In{name, false}";
  check_inconclusive<difficult::Stairs>(declare);
  check_passes<WithoutGradient<difficult::Stairs>>();
  check_inconclusive<difficult::CeilAndStep>(declare);
  check_passes<WithoutGradient<difficult::CeilAndStep>>();
  check_inconclusive<difficult::CenteredSum>(declare);
  check_passes<WithoutGradient<difficult::CenteredSum>>();
  check_inconclusive<difficult::StopGradient>(declare);
  check_passes<StoppedWithReason>();
  check_inconclusive<difficult::Huber>("leave at_kink away");
  check_passes<HuberAnywhere>();
}
