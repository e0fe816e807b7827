#include "models/denoise/study.h"

#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <tuple>

#include "core/parallel.h"
#include "models/denoise/iterate.h"
#include "models/denoise/model.h"
#include "models/denoise/routing.h"

namespace bg::denoise {
namespace {

using Values = std::shared_ptr<std::vector<double>>;  // by seed; filled in by the trainings

Metric metric(std::string name, const std::vector<double>& values, std::optional<Figure> paper = {},
              std::optional<Figure> rerun = {}) {
  return {std::move(name), values, paper, rerun};
}

Metric gain(const std::vector<double>& values, const std::vector<double>& base, std::optional<Figure> paper = {},
            std::optional<Figure> rerun = {}) {
  std::vector<double> paired(values.size());
  for (size_t s = 0; s < values.size(); ++s) paired[s] = values[s] - base[s];
  return {"gain", std::move(paired), paper, rerun};
}

/// What to train and, once that is done, which rows to make of it.
class Plan {
 public:
  explicit Plan(const StudyOptions& options) : options_(options) {}

  size_t seeds() const { return static_cast<size_t>(options_.seeds); }

  /// Accuracies of boosted attention, trained once for all tables that ask.
  Values retrieval(const Setting& s, int rounds, Gate gate) {
    if (rounds == 1) gate = Gate::none;
    Values& known = retrieval_[{s.d, s.patterns, s.sigma, rounds, gate}];
    if (known) return known;
    known = std::make_shared<std::vector<double>>(seeds());
    const double width = static_cast<double>(s.d) / 64;
    each_seed((0.3 + 0.7 * rounds * width) * width, [=, this, out = known](size_t i) {
      Retriever model(s.d, rounds, gate, root(i).fork(1));
      (*out)[i] = train_and_score(model, task(s, i), root(i).fork(2), root(i).fork(3));
    });
    return known;
  }

  /// Accuracies of the pattern nearest to the query itself. Nothing can be better: patterns are equally likely and
  /// equally long, and the noise is the same in all directions.
  Values best_possible(const Setting& s) {
    auto values = std::make_shared<std::vector<double>>(seeds());
    each_seed(0.03, [=, this](size_t i) {
      Rng fresh = root(i).fork(3);
      (*values)[i] = accuracy(task(s, i), fresh, [](const Batch& b) { return Var(b.queries); });
    });
    return values;
  }

  /// job(i) for every seed, one after the other or at once, in any order. `cost`: how long one takes, in units of a
  /// training of plain attention at d = 64.
  void each_seed(double cost, const std::function<void(size_t)>& job) {
    for (size_t i = 0; i < seeds(); ++i) jobs_.push_back({cost, [job, i] { job(i); }});
  }
  /// Afterwards: a row.
  void row(std::string table, std::string label, const Setting& s, std::function<std::vector<Metric>()> metrics) {
    rows_.push_back([=] { return Row{table, label, s, metrics()}; });
  }

  uint64_t seed(size_t i) const { return i + 1; }
  Rng root(size_t i) const { return Rng(seed(i)); }
  Task task(const Setting& s, size_t i) const {
    constexpr uint64_t kPatternSeed = 42;
    const bool fixed = options_.patterns == Patterns::fixed;
    return Task(s, Rng(fixed ? kPatternSeed : seed(i)).fork(0));
  }

  std::vector<Row> run(const StudyProgress& progress) {
    std::mutex mutex;
    int64_t done = 0;
    double spent = 0;
    const int64_t total = static_cast<int64_t>(jobs_.size());
    const double all =
        std::accumulate(jobs_.begin(), jobs_.end(), 0.0, [](double sum, auto& j) { return sum + j.cost; });
    parallel_for(total, 1, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j) {
        jobs_[static_cast<size_t>(j)].run();
        const std::lock_guard lock(mutex);
        spent += jobs_[static_cast<size_t>(j)].cost;
        if (progress) progress(++done, total, spent / all);
      }
    });
    std::vector<Row> rows;
    for (const auto& make : rows_) rows.push_back(make());
    return rows;
  }

 private:
  struct Job {
    double cost;
    std::function<void()> run;
  };
  const StudyOptions options_;
  std::vector<Job> jobs_;
  std::vector<std::function<Row()>> rows_;
  std::map<std::tuple<int64_t, int64_t, double, int, Gate>, Values> retrieval_;
};

// The difference of two published figures, which have one decimal.
Figure difference(double a, double b) { return {std::round(10 * (a - b)) / 10, {}}; }

constexpr Setting kUsual{64, 16, 0.5};

void plan_rounds(Plan& plan) {
  static constexpr double kPaper[] = {41.3, 53.3, 54.8, 56.3, 55.8};
  static constexpr Figure kRerun[] = {{46.9, 2.7}, {53.7, 0.9}, {55.5, 0.8}, {56.4, 0.6}, {56.3, 0.4}};
  const Values one = plan.retrieval(kUsual, 1, Gate::none), best = plan.best_possible(kUsual);
  for (int m = 1; m <= 5; ++m) {
    const Values values = plan.retrieval(kUsual, m, Gate::mlp);
    plan.row("rounds", str("M = ", m), kUsual, [=] {
      std::vector<Metric> metrics{metric("accuracy", *values, Figure{kPaper[m - 1], {}}, kRerun[m - 1])};
      if (m > 1)
        metrics.push_back(
            gain(*values, *one, difference(kPaper[m - 1], kPaper[0]), difference(kRerun[m - 1].mean, kRerun[0].mean)));
      metrics.push_back(metric("best_possible", *best));
      return metrics;
    });
  }
}

void plan_gates(Plan& plan) {
  struct Known {
    Gate gate;
    const char* name;
    std::optional<Figure> paper, rerun;
  };
  static const Known kKnown[] = {{Gate::none, "none", Figure{54.3, {}}, Figure{55.5, {}}},
                                 {Gate::scalar, "scalar", Figure{55.0, {}}, Figure{55.1, {}}},
                                 {Gate::linear, "linear", {}, {}},
                                 {Gate::mlp, "mlp", Figure{55.2, {}}, Figure{54.6, {}}}};
  const Values one = plan.retrieval(kUsual, 1, Gate::none);
  for (const Known& k : kKnown) {
    const Values values = plan.retrieval(kUsual, 2, k.gate);
    plan.row("gates", k.name, kUsual, [=] {
      return std::vector<Metric>{metric("accuracy", *values, k.paper, k.rerun), gain(*values, *one)};
    });
  }
}

void plan_difficulty(Plan& plan) {
  static constexpr Setting kSettings[] = {{32, 8, 0.3},   {32, 8, 0.5},   {32, 8, 0.8},  {32, 8, 1.2},
                                          {64, 16, 0.3},  {64, 16, 0.5},  {64, 16, 0.8}, {64, 16, 1.2},
                                          {128, 32, 0.3}, {128, 32, 0.5}, {128, 32, 0.8}};
  for (const Setting& s : kSettings) {
    const Values one = plan.retrieval(s, 1, Gate::none), two = plan.retrieval(s, 2, Gate::mlp),
                 best = plan.best_possible(s);
    std::optional<Figure> paper, rerun;
    if (s.sigma == 0.3 && s.d == 64) paper = Figure{18.7, {}}, rerun = Figure{10.7, 4.4};
    if (s.sigma == 0.3 && s.d == 128) paper = Figure{15.7, {}}, rerun = Figure{14.3, 4.7};
    plan.row("difficulty", "M = 1 and M = 2", s, [=] {
      return std::vector<Metric>{metric("one_round", *one), metric("two_rounds", *two), gain(*two, *one, paper, rerun),
                                 metric("best_possible", *best)};
    });
  }
}

void plan_iterate(Plan& plan) {
  struct Known {
    Setting setting;
    double one_step_paper, one_step_rerun, fixed_paper, fixed_rerun;
  };
  static constexpr Known kKnown[] = {{{16, 4, 0.5}, 78.9, 75.7, 25.6, 24.7}, {{16, 4, 0.8}, 59.7, 58.6, 25.6, 24.7},
                                     {{32, 8, 0.5}, 59.8, 59.7, 11.9, 12.3}, {{32, 8, 0.8}, 39.5, 39.0, 11.9, 12.3},
                                     {{64, 16, 0.5}, 39.2, 44.2, 5.6, 6.5},  {{64, 16, 0.8}, 22.9, 24.7, 5.6, 6.5}};
  struct Kind {
    IterateModel model;
    const char* label;
    double cost;
  };
  static constexpr Kind kKinds[] = {{IterateModel::one_step, "one step", 0.8},
                                    {IterateModel::implicit, "fixed point, implicit gradient", 2},
                                    {IterateModel::unrolled, "fixed point, unrolled", 3}};
  for (const Known& k : kKnown)
    for (const Kind& kind : kKinds) {
      const bool one_step = kind.model == IterateModel::one_step;
      const double width = static_cast<double>(k.setting.d) / 64;
      auto results = std::make_shared<std::vector<IterateResult>>(plan.seeds());
      plan.each_seed(kind.cost * width, [&plan, results, s = k.setting, m = kind.model](size_t i) {
        (*results)[i] = run_iterate(plan.task(s, i), m, plan.seed(i));
      });
      plan.row("iterate", kind.label, k.setting, [=] {
        auto of = [&](double IterateResult::*field) {
          std::vector<double> values;
          for (const IterateResult& r : *results) values.push_back(r.*field);
          return values;
        };
        std::optional<Figure> paper, rerun;
        if (kind.model != IterateModel::unrolled) {
          paper = Figure{one_step ? k.one_step_paper : k.fixed_paper, {}};
          rerun = Figure{one_step ? k.one_step_rerun : k.fixed_rerun, {}};
        }
        std::vector<Metric> metrics{metric("accuracy", of(&IterateResult::accuracy), paper, rerun)};
        if (one_step) return metrics;
        metrics.push_back(metric("residual", of(&IterateResult::residual)));
        metrics.push_back(metric("iterations", of(&IterateResult::iterations)));
        metrics.push_back(metric("distinct", of(&IterateResult::distinct)));
        metrics.push_back(metric("radius", of(&IterateResult::radius)));
        return metrics;
      });
    }
  for (bool zeroed : {false, true}) {
    auto results = std::make_shared<std::vector<ControlResult>>(plan.seeds());
    plan.each_seed(0.5, [&plan, results, zeroed](size_t i) { (*results)[i] = run_control(plan.seed(i), zeroed); });
    plan.row("control", zeroed ? "gradient zeroed" : "implicit gradient", {8, 5, 0}, [=] {
      auto of = [&](double ControlResult::*field) {
        std::vector<double> values;
        for (const ControlResult& r : *results) values.push_back(r.*field);
        return values;
      };
      return std::vector<Metric>{metric("loss_before", of(&ControlResult::loss_before)),
                                 metric("loss_after", of(&ControlResult::loss_after)),
                                 metric("radius", of(&ControlResult::radius))};
    });
  }
}

void plan_routing(Plan& plan) {
  for (const Setting& s : {Setting{16, 4, 0.8}, Setting{32, 8, 0.8}, Setting{64, 16, 0.8}}) {
    auto results = std::make_shared<std::vector<RoutingResult>>(plan.seeds());
    plan.each_seed(2 * (0.5 + static_cast<double>(s.d) / 128),
                   [&plan, results, s](size_t i) { (*results)[i] = run_routing(plan.task(s, i), plan.seed(i)); });
    for (size_t set = 0; set < kRouteFeatures.size(); ++set)
      plan.row("routing", std::string(kRouteFeatures[set]), s, [=] {
        auto of = [&](auto get) {
          std::vector<double> values;
          for (const RoutingResult& r : *results) values.push_back(get(r));
          return values;
        };
        const auto one = of([](auto& r) { return r.one_step; });
        const auto routed = of([&](auto& r) { return r.accuracy[set]; });
        return std::vector<Metric>{metric("one_step", one),
                                   metric("fixed_point", of([](auto& r) { return r.fixed_point; })),
                                   metric("best", of([](auto& r) { return r.best; })),
                                   metric("accuracy", routed),
                                   gain(routed, one),
                                   metric("routed", of([&](auto& r) { return r.routed[set]; }))};
      });
  }
}

}  // namespace

const Metric* Row::find(std::string_view name) const {
  for (const Metric& m : metrics)
    if (m.name == name) return &m;
  return nullptr;
}

std::vector<Row> run_study(const StudyOptions& options, const StudyProgress& progress) {
  if (options.seeds < 1 || options.seeds > 10'000)
    fail<UsageError>("denoise", "bad number of seeds", str(options.seeds), "1 to 10,000");
  static constexpr void (*kPlans[])(Plan&) = {plan_rounds, plan_gates, plan_difficulty, plan_iterate, plan_routing};
  Plan plan(options);
  for (Table t : options.tables) kPlans[static_cast<size_t>(t)](plan);
  return plan.run(progress);
}

}  // namespace bg::denoise
