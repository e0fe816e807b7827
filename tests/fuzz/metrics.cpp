#include <cmath>

#include "models/run_log.h"
#include "tests/fuzz/fuzz.h"

using namespace bg;

namespace {

std::string lines(const std::vector<CurvePoint>& curve) {
  std::string text;
  for (const CurvePoint& p : curve) {
    nlohmann::json row{{"step", p.step},
                       {"train_loss", p.train_loss},
                       {"lr", p.lr},
                       {"grad_norm", p.grad_norm},
                       {"tokens_per_s", p.tokens_per_s}};
    if (p.val_loss) row["val_loss"] = *p.val_loss;
    text += row.dump() + "\n";
  }
  return text;
}

}  // namespace

void read_input(std::string_view input) {
  const auto curve = fuzz::value_or_refusal(input, [&] { return parse_curve(input); });
  if (!curve) return;
  int64_t before = 0;
  for (const CurvePoint& p : *curve) {
    fuzz::require(p.step > before && std::isfinite(p.train_loss), "steps that increase, with finite losses");
    before = p.step;
  }
  const std::string written = lines(*curve);
  fuzz::require(lines(parse_curve(written)) == written, "the same curve");
}
