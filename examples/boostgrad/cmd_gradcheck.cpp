// boostgrad gradcheck: the verifier over every op and node.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <nlohmann/json.hpp>

#include "autograd/verify/accuracy.h"
#include "autograd/verify/html.h"
#include "core/atomic_file.h"
#include "examples/boostgrad/commands.h"

namespace bg {
namespace {

using Json = nlohmann::ordered_json;

struct Options {
  std::vector<std::string> ops;
  VerifyOptions verify;
  bool json = false, accuracy = false;
  std::string html;
};

// JSON has no NaN: as text, so that it is seen.
Json number(double x) { return std::isfinite(x) ? Json(x) : Json(str(x)); }

Json to_json(const Failure& f) {
  return {{"step", name_of(f.step)},
          {"inconclusive", f.inconclusive},
          {"what", f.what},
          {"sample", f.sample},
          {"sample_label", f.sample_label},
          {"input", f.input},
          {"index", f.index},
          {"analytic", number(f.analytic)},
          {"reference", number(f.reference)},
          {"error", number(f.error)},
          {"tolerance", f.tolerance},
          {"fd_step", f.fd_step},
          {"seed", f.seed},
          {"rerun", f.rerun},
          {"note", f.note}};
}

Json to_json(const OpReport& r) {
  Json steps = Json::object(), mutants = Json::array(), failures = Json::array();
  for (int v = 1; v <= kSteps; ++v) {
    const StepCount& c = r.count(static_cast<Step>(v));
    if (c.comparisons > 0)
      steps[str("V", v)] = {{"comparisons", c.comparisons}, {"worst", number(c.worst)}, {"tolerance", c.tolerance}};
  }
  for (const MutantResult& m : r.mutants) {
    Json j{{"name", m.name}, {"killed", m.killed}};
    if (m.killed) j["by"] = m.killed_by;
    if (!m.not_counted.empty()) j["not_counted"] = m.not_counted;
    mutants.push_back(std::move(j));
  }
  for (const Failure& f : r.failures) failures.push_back(to_json(f));
  return {{"op", r.op},
          {"passed", r.passed()},
          {"samples", r.samples},
          {"comparisons", r.comparisons()},
          {"steps", std::move(steps)},
          {"na", r.na},
          {"mutants", std::move(mutants)},
          {"generated", r.generated},
          {"generated_killed", r.generated_killed},
          {"generated_na", r.generated_na},
          {"skipped", r.skipped},
          {"failure_count", r.failure_count},
          {"inconclusive_count", r.inconclusive_count},
          {"failures", std::move(failures)},
          {"advice", r.advice},
          {"seconds", r.seconds}};
}

std::vector<const verifier::Entry*> chosen_entries(const std::vector<std::string>& names) {
  const std::vector<verifier::Entry>& all = verifier::all_entries();
  std::vector<const verifier::Entry*> chosen;
  if (names.empty())
    for (const auto& e : all) chosen.push_back(&e);
  for (const std::string& name : names) {
    const auto it = std::find_if(all.begin(), all.end(), [&](const auto& e) { return e.name == name; });
    if (it == all.end()) {
      std::vector<std::string> known;
      for (const auto& e : all) known.push_back(e.name);
      std::string near;
      for (const std::string& n : near_names(name, known)) near += (near.empty() ? "" : ", ") + n;
      fail<UsageError>("gradcheck", "no such op", name, str("one of ", all.size(), " ops, such as ", near));
    }
    chosen.push_back(&*it);
  }
  return chosen;
}

Json to_json(const ErrorSummary& e) {
  return {{"median_ulp", number(e.median_ulp)},
          {"max_ulp", number(e.max_ulp)},
          {"median_relative", number(e.median_relative)},
          {"max_relative", number(e.max_relative)},
          {"elements", e.elements}};
}

int accuracy(const Options& o) {
  if (!o.html.empty() || o.verify.sample >= 0)
    fail<UsageError>("gradcheck", str("--accuracy has no ", o.html.empty() ? "--sample" : "--html"), {},
                     "one of the two");
  std::vector<AccuracyRow> rows;
  for (const verifier::Entry* e : chosen_entries(o.ops))
    for (AccuracyRow& r : measure_accuracy(*e, o.verify)) rows.push_back(std::move(r));
  const bool boosted = std::any_of(rows.begin(), rows.end(), [](auto& r) { return r.op == "boosted_attention"; });
  const std::vector<GrowthRow> growth = boosted ? measure_growth(o.verify.seed) : std::vector<GrowthRow>();
  if (!o.json) {
    std::cout << accuracy_table(rows);
    if (boosted) std::cout << "\n" << growth_table(growth);
    return 0;
  }
  for (const AccuracyRow& r : rows) {
    Json j{{"op", r.op}, {"value", r.what}, {"f64", to_json(r.f64)}, {"f32", to_json(r.f32)}};
    if (r.composed_f32.elements) {
      j["composed_f32"] = to_json(r.composed_f32);
      j["f32_ratio"] = number(r.f32_ratio());
    }
    j["bf16_inputs"] = to_json(r.bf16_inputs);
    std::cout << j.dump() << "\n";
  }
  for (const GrowthRow& r : growth)
    std::cout << Json{{"op", "boosted_attention"},
                      {"value", "growth with the rounds"},
                      {"rounds", r.rounds},
                      {"unit_gain", {{"median", number(r.unit_gain.median)}, {"max", number(r.unit_gain.max)}}},
                      {"twice_gain", {{"median", number(r.twice_gain.median)}, {"max", number(r.twice_gain.max)}}}}
                     .dump()
              << "\n";
  return 0;
}

// All reports added up.
struct Totals {
  int64_t ops = 0, wrong = 0, inconclusive = 0, samples = 0, comparisons = 0, mutants = 0, killed = 0;
  int64_t not_counted = 0, generated_na = 0;
  double seconds = 0;
  std::map<std::string, std::map<std::string, int64_t>> na;  // step -> reason -> ops
  std::map<std::string, int64_t> skipped;                    // reason -> comparisons

  void add(const OpReport& r) {
    ++ops;
    wrong += r.wrong();
    inconclusive += !r.wrong() && !r.passed();
    samples += r.samples;
    comparisons += r.comparisons();
    mutants += r.mutants_counted();
    killed += r.mutants_killed();
    for (const MutantResult& m : r.mutants) not_counted += !m.not_counted.empty();
    generated_na += r.generated_na;
    seconds += r.seconds;
    for (const auto& [step, reason] : r.na) ++na[step][reason];
    for (const auto& [reason, times] : r.skipped) skipped[reason] += times;
  }
  int64_t failed() const { return wrong + inconclusive; }
  double score() const { return mutants ? static_cast<double>(killed) / static_cast<double>(mutants) : 0; }

  Json json(uint64_t seed) const {
    return {{"summary", true},
            {"passed", failed() == 0},
            {"ops", ops},
            {"ops_failed", failed()},
            {"ops_inconclusive", inconclusive},
            {"samples", samples},
            {"comparisons", comparisons},
            {"mutants", mutants},
            {"mutants_killed", killed},
            {"score", score()},
            {"mutants_not_counted", not_counted},
            {"generated_na", generated_na},
            {"na", na},
            {"skipped", skipped},
            {"seed", seed},
            {"seconds", seconds}};
  }
  std::string text(uint64_t seed) const {
    std::string out =
        str(wrong          ? "FAIL "
            : inconclusive ? "?    "
                           : "ok   ",
            ops, " ops, ", wrong, " wrong, ", inconclusive, " inconclusive; ", samples, " samples, ", comparisons,
            " comparisons; ", killed, " of ", mutants, " wrong backwards rejected (", not_counted, " equivalent, ",
            generated_na, " generated ones would change nothing); seed ", seed, "\n");
    for (const auto& [step, reasons] : na)
      for (const auto& [reason, count] : reasons) out += str("     ", step, " n/a for ", count, " ops: ", reason, "\n");
    for (const auto& [reason, times] : skipped) out += str("     skipped ", times, " x ", reason, "\n");
    return out;
  }
};

int gradcheck(const Options& o) {
  if (!o.html.empty()) check_writable(o.html);
  const std::vector<const verifier::Entry*> entries = chosen_entries(o.ops);
  if (o.verify.sample >= 0 && entries.size() != 1)
    fail<UsageError>("gradcheck", "--sample needs one --op", str(entries.size(), " ops"), "exactly one");
  Totals totals;
  std::vector<OpReport> reports;
  for (const verifier::Entry* e : entries) {
    OpReport r = verifier::verify_entry(*e, o.verify);
    totals.add(r);
    if (o.json)
      std::cout << to_json(r).dump() << std::endl;
    else
      std::cout << r.to_string() << std::flush;
    reports.push_back(std::move(r));
  }
  if (!o.html.empty()) {
    std::vector<ErrorMap> maps;
    for (size_t i = 0; i < entries.size(); ++i) maps.push_back(error_map(*entries[i], reports[i], o.verify));
    write_file_atomically(o.html, html_page(reports, maps, o.verify));
  }
  if (o.json)
    std::cout << totals.json(o.verify.seed).dump() << std::endl;
  else
    std::cout << totals.text(o.verify.seed);
  return totals.failed() ? 1 : 0;
}

const Command command("gradcheck", "verify the backward of every op and node", [](CLI::App& app) {
  auto o = std::make_shared<Options>();
  app.add_option("--op", o->ops, "only this op (may be given several times)")->type_name("NAME");
  app.add_option("--seed", o->verify.seed, "seed of samples, cotangents and directions")->capture_default_str();
  app.add_option("--sample", o->verify.sample, "only this sample of the op")->check([](const std::string& text) {
    return text.starts_with('-') ? std::string("0 or more") : "";
  });
  app.add_flag("--quick", o->verify.quick, "fewer draws, masks and layouts");
  app.add_flag("--accuracy", o->accuracy, "instead: errors in units in the last place, against long double");
  app.add_option("--html", o->html, "also write the results as one page")->type_name("FILE");
  app.add_flag("--json", o->json, "one JSON object per op and one summary on standard output");
  return [o] { return o->accuracy ? accuracy(*o) : gradcheck(*o); };
});

}  // namespace
}  // namespace bg
