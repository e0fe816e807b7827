// The list of parameter paths in nn/README.md against every model.
#include <fstream>
#include <map>
#include <set>

#include "models/transformer.h"
#include "tests/match.h"
#include "tests/models/lm_support.h"

using namespace bg;
using namespace bg::test;

namespace {

struct Row {
  std::string path, shape, condition;
};

/// The rows of the table whose first cell is a path in backquotes.
std::vector<Row> listed() {
  std::vector<Row> rows;
  std::ifstream in(BG_PARAMETER_LIST);
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line == "| path | shape | there when |") inside = true;
    if (line.empty()) inside = false;
    if (!inside || !line.starts_with("| `")) continue;
    const size_t a = line.find('`', 3), b = line.find(" | ", a + 4), end = line.rfind(" |");
    rows.push_back({line.substr(3, a - 3), line.substr(a + 4, b - a - 4), line.substr(b + 3, end - b - 3)});
  }
  return rows;
}

bool holds(const std::string& condition, const TransformerConfig& c, int64_t round) {
  if (condition == "always") return true;
  if (condition == "untied") return !c.tied;
  if (condition == "norm pre") return c.norm == nn::NormPlace::pre;
  for (const Gate gate : {Gate::scalar, Gate::linear, Gate::mlp})
    if (condition == "gate " + nn::kGateNames.name(gate) + ", M > 0")
      return c.model == nn::AttentionKind::boosted && c.gate == gate && round > 0;
  FAIL("a condition that this test does not know: " << condition);
  return false;
}

Shape shape_of(std::string text, const TransformerConfig& c) {
  const int64_t d = c.d_model;
  const std::map<std::string, int64_t> sizes{
      {"vocab", c.vocab}, {"seq_len", c.seq_len}, {"d", d}, {"h", c.mlp_ratio * d},
      {"2d", 2 * d},      {"2d+1", 2 * d + 1},    {"1", 1}, {"32", 32}};
  Shape shape;
  text = text.substr(1, text.size() - 2) + ", ";
  for (size_t at = 0, comma = 0; (comma = text.find(", ", at)) != std::string::npos; at = comma + 2)
    shape.push_back(sizes.at(text.substr(at, comma - at)));
  return shape;
}

std::string with(std::string path, const std::string& letter, int64_t i) {
  const size_t at = path.find(letter);
  return at == std::string::npos ? path : path.replace(at, letter.size(), "." + std::to_string(i) + ".");
}

}  // namespace

TEST_CASE("nn/README.md lists exactly the parameters that models have") {
  const std::vector<Row> rows = listed();
  REQUIRE(rows.size() == 28);
  std::vector<Variant> variants = all_variants();
  variants.push_back({"untied", tiny_config()});
  variants.back().config.tied = false;
  for (const Variant& v : variants) {
    const TransformerConfig& c = v.config;
    std::map<std::string, Shape> expected;
    const int64_t rounds = c.model == nn::AttentionKind::boosted ? c.rounds : 1;
    for (const Row& row : rows)
      for (int64_t block = 0; block < c.layers; ++block)
        for (int64_t round = 0; round < rounds; ++round)
          if (holds(row.condition, c, round))
            expected[with(with(row.path, ".B.", block), ".M.", round)] = shape_of(row.shape, c);
    Rng rng(1);
    std::map<std::string, Shape> got;
    for (const NamedParameter& p : Transformer(c, rng).named_parameters()) got[p.path] = p.var.shape();
    INFO(v.label);
    for (const auto& [path, shape] : expected) {
      INFO(path);
      CHECK(got.contains(path));
      CHECK(got[path] == shape);
    }
    CHECK(got.size() == expected.size());
  }
}
