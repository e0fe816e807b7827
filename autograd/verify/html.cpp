#include "autograd/verify/html.h"

#include <algorithm>
#include <cmath>

#include "autograd/verify/checks.h"
#include "core/format.h"
#include "core/hash.h"
#include "core/html.h"

namespace bg {
namespace {

constexpr const char* kStyle = R"(
:root { --heat: 184, 66, 18; }
@media (prefers-color-scheme: dark) { :root { --heat: 255, 158, 94; } }
p { color: var(--soft); } strong { color: var(--ink); } table { width: 100%; } .bad { font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(15rem, 1fr)); gap: .8rem; }
.cards .card { overflow: hidden; }
.card b { display: block; } .card span { display: block; color: var(--soft); font-size: .82rem; }
svg { display: block; margin-top: .5rem; max-width: 100%; } svg rect { stroke: var(--line); stroke-width: .05; }
.scale { display: flex; flex-wrap: wrap; gap: .4rem; align-items: center; margin: .5rem 0 .8rem; color: var(--soft);
  font-size: .85rem; }
.scale i { width: 1.2rem; height: .8rem; display: inline-block; border: 1px solid var(--line); }
@media (max-width: 40rem) { table { font-size: .8rem; } th { white-space: normal; } .scale i { width: .9rem; } }
)";

// 0 for an exact zero, 1 at the tolerance of V2; logarithmic between.
double heat(double error) {
  constexpr double kFloor = 1e-18;
  if (!(error > 0)) return std::isnan(error) ? 1 : 0;
  const double t = std::log10(error / kFloor) / std::log10(verifier::kTolerance.exact / kFloor);
  return std::clamp(0.08 + 0.92 * t, 0.08, 1.0);
}

std::string heat_map(const ErrorMap& m) {
  const int64_t n = static_cast<int64_t>(m.error.size());
  const int64_t columns = m.shape.rank() ? std::max<int64_t>(1, m.shape.back()) : 1, rows = (n + columns - 1) / columns;
  // cells stay squares of a readable size; wide maps shrink to the card
  const double width = std::min<double>(220, 22.0 * static_cast<double>(columns));
  std::string out = str("<svg role=\"img\" aria-label=\"errors of ", html_escaped(m.input), "\" viewBox=\"0 0 ",
                        columns, " ", rows, "\" width=\"", width, "\">");
  for (int64_t i = 0; i < n; ++i)
    out += str("<rect x=\"", i % columns, "\" y=\"", i / columns,
               "\" width=\"1\" height=\"1\" style=\"fill:rgba(var(--heat),", formatted("%.2f", heat(m.error[i])),
               ")\"><title>", html_escaped(verifier::describe_index(m.shape, i)), ": ", formatted("%.2e", m.error[i]),
               "</title></rect>");
  return out + "</svg>";
}

std::string cell(const OpReport& r, Step step) {
  const StepCount& c = r.count(step);
  if (r.failed(step)) return str("<td class=\"bad\">", formatted("%.1e", c.worst), " wrong</td>");
  const bool unsure = std::any_of(r.failures.begin(), r.failures.end(),
                                  [&](const Failure& f) { return f.step == step && f.inconclusive; });
  if (unsure) return "<td class=\"bad\">inconclusive</td>";
  if (c.comparisons == 0) return "<td class=\"soft\">n/a</td>";
  return str("<td>", c.worst == 0 ? "exact" : formatted("%.1e", c.worst), "</td>");
}

std::string second_cells(const OpReport& r) {
  if (r.jvp_error < 0 && !r.failed(Step::V8) && r.count(Step::V8).comparisons > 0)
    return "<td class=\"soft\">refused</td><td class=\"soft\">refused</td>";
  if (r.jvp_error < 0) return "<td class=\"soft\">n/a</td>" + cell(r, Step::V8);
  return str("<td>", r.jvp_error == 0 ? "exact" : formatted("%.1e", r.jvp_error), "</td>", cell(r, Step::V8));
}

std::string table_row(const OpReport& r) {
  const bool all = r.mutants_killed() == r.mutants_counted();
  return str("<tr><td><span class=\"",
             r.passed()  ? "good\">✓"
             : r.wrong() ? "bad\">✗"
                         : "bad\">?",
             "</span> ", html_escaped(r.op), "</td>", cell(r, Step::V1), cell(r, Step::V2), second_cells(r),
             cell(r, Step::V7), "<td class=\"", all ? "" : "bad", "\">", r.mutants_killed(), " of ",
             r.mutants_counted(), "</td></tr>\n");
}

std::string advice_item(const OpReport& r) {
  std::string text;
  for (const std::string& a : r.advice) text += (text.empty() ? "" : "<br>") + html_escaped(a);
  return str("<li><strong>", html_escaped(r.op), "</strong>: ", text, "</li>\n");
}

}  // namespace

ErrorMap error_map(const verifier::Entry& entry, const OpReport& report, const VerifyOptions& options) {
  constexpr int64_t kBudget = 4000, kLargest = 512;  // elements: each is a run of the reference
  Rng rng(options.seed, hash_bytes(entry.name));
  const auto points = entry.samples(rng);
  std::vector<size_t> order;  // the sample that came off worst in V2 first
  for (size_t p = 0; p < points.size(); ++p) order.push_back(p);
  if (report.worst_sample > 0) std::swap(order[0], order[static_cast<size_t>(report.worst_sample)]);
  ErrorMap worst;
  double largest = -1;
  int64_t looked_at = 0;
  for (size_t p : order) {
    const verifier::Point& point = *points[p];
    const verifier::Subject s(point);
    const verifier::Forward f = s.forward(point.values);
    Rng draw = rng.fork(p + 1);
    const Tensors v = verifier::random_cotangents(f.out, draw);
    const Tensors g = s.backward(f, v, s.need_all());
    for (size_t i : s.differentiable()) {
      if (g[i].numel() == 0 || g[i].numel() > kLargest || looked_at > kBudget) continue;
      looked_at += g[i].numel();
      const std::vector<double> a = g[i].to_vector<double>();
      const std::vector<double> b = verifier::exact_gradient(point, f, v, i).to_vector<double>();
      double scale = 1, top = 0;
      for (double x : b) scale = std::max(scale, std::abs(x));
      ErrorMap m{point.inputs[i].name, point.label, point.values[i].shape(), {}};
      for (size_t k = 0; k < a.size(); ++k) {
        m.error.push_back(std::abs(a[k] - b[k]) / scale);
        if (!(m.error.back() <= top)) top = m.error.back();  // a NaN stays
      }
      if (top <= largest) continue;
      largest = top;
      worst = std::move(m);
    }
  }
  return worst;
}

std::string html_page(const std::vector<OpReport>& reports, const std::vector<ErrorMap>& maps,
                      const VerifyOptions& options) {
  int64_t samples = 0, comparisons = 0, counted = 0, killed = 0, wrong = 0, inconclusive = 0;
  std::string rows, cards, failures, exact, advice, skipped;
  std::map<std::string, int64_t> left_out;
  for (size_t i = 0; i < reports.size(); ++i) {
    const OpReport& r = reports[i];
    samples += r.samples;
    comparisons += r.comparisons();
    counted += r.mutants_counted();
    killed += r.mutants_killed();
    wrong += r.wrong();
    inconclusive += !r.wrong() && !r.passed();
    for (const auto& [reason, times] : r.skipped) left_out[reason] += times;
    rows += table_row(r);
    for (const Failure& f : r.failures) failures += "<pre>" + html_escaped(f.to_string()) + "</pre>\n";
    if (!r.advice.empty()) advice += advice_item(r);
    const ErrorMap& m = maps[i];
    if (m.error.empty()) continue;
    const double worst = *std::max_element(m.error.begin(), m.error.end());
    if (worst == 0) {
      exact += (exact.empty() ? "" : ", ") + html_escaped(r.op);
      continue;
    }
    cards += str("<div class=\"card\"><b>", html_escaped(r.op), "</b><span>gradient of ", html_escaped(m.input), " ",
                 m.shape, ", sample ", html_escaped(m.sample), "</span><span>largest error ", formatted("%.1e", worst),
                 "</span>", heat_map(m), "</div>\n");
  }
  std::string scale = "<div class=\"scale\">exact";
  for (double e : {0.0, 1e-17, 1e-16, 1e-15, 1e-14, 1e-13, 1e-12, 1e-11})
    scale += str("<i title=\"", e, "\" style=\"background:rgba(var(--heat),", formatted("%.2f", heat(e)), ")\"></i>");
  scale += str(formatted("%.0e", verifier::kTolerance.exact), " (rejected)</div>");
  if (!exact.empty()) exact = "<p>No error at all: " + exact + ".</p>\n";
  for (const auto& [reason, times] : left_out)
    skipped += str("<li>", times, " &times; ", html_escaped(reason), "</li>\n");
  std::string verdict = str("all ", reports.size(), " ops pass");
  if (wrong + inconclusive > 0)
    verdict = str("of ", reports.size(), " ops ", wrong, " wrong, ", inconclusive, " inconclusive");
  const std::string body = str(
      "<h1>Verified gradients</h1>\n<p><strong class=\"", wrong + inconclusive > 0 ? "bad" : "good", "\">", verdict,
      "</strong>: ", samples, " samples, ", comparisons, " comparisons, ", killed, " of ", counted,
      " planted errors rejected; seed ", options.seed, options.quick ? ", quick" : "", ".</p>\n", failures,
      "<h2>Ops</h2>\n<p>Worst errors, on the scale of each step's tolerance. Forward: against the reference. Vjp: the "
      "backward against dual numbers. Jvp: forward mode by double backward, against dual numbers. Double backward: "
      "against differences of the backward; an op that cannot offer one refuses. f32: its backward against f64.</p>\n"
      "<div class=\"scroll\"><table>\n<thead><tr><th>op</th><th>forward</th><th>vjp</th><th>jvp</th><th>double "
      "backward</th><th>f32</th><th>planted errors rejected</th></tr></thead>\n<tbody>\n",
      rows,
      "</tbody></table></div>\n<h2>Where each op is least exact</h2>\n<p>The error of every element of the gradient "
      "that came off worst, against dual numbers, relative to the largest element or 1. Rows and columns are the "
      "tensor's; hover for the numbers.</p>\n",
      exact, scale, "\n<div class=\"cards\">\n", cards,
      "</div>\n<h2>Advice on the samples</h2>\n<p>What all samples of an op are too weak to show, and how large they "
      "are. "
      "It fails no op.</p>\n<ul>\n",
      advice, "</ul>\n<h2>Comparisons that were left out</h2>\n<p>By reason; others stand in for them.</p>\n<ul>\n",
      skipped, "</ul>\n");
  return html_document("Boostgrad: verified gradients", kStyle, body);
}

}  // namespace bg
