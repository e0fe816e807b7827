// The page of a report: HTML around the plots of report_plots.h.
#include <algorithm>
#include <cmath>

#include "core/format.h"
#include "core/html.h"
#include "models/gnuplot.h"
#include "models/report.h"
#include "models/report_plots.h"

namespace bg {
namespace {

constexpr const char* kStyle = R"(
:root { --heat: 47, 127, 193; }
h3 { font-size: 1.05rem; margin: 1.5rem 0 .25rem; } h4 { margin: 1rem 0 .25rem; }
a { color: inherit; } nav a { margin-right: 1rem; }
table { font-size: .88rem; } .left { text-align: left; } td.left { white-space: normal; min-width: 11rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr)); gap: 1rem; }
.wide { grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); }
.maps { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, calc(var(--rounds) * 18rem)), 1fr));
  gap: .6rem; }
.layer { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 16rem), 1fr)); gap: .6rem; }
figure { margin: 0; } figcaption b, figcaption span { display: block; }
figcaption span { color: var(--soft); font-size: .85rem; line-height: 1.4; }
figure svg { display: block; width: 100%; max-width: 34rem; height: auto; margin: .4rem auto 0; }
figure svg image { image-rendering: pixelated; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .1rem 1rem; margin: .4rem 0; padding: 0;
  font-size: .88rem; }
.legend li { display: flex; align-items: center; gap: .4rem; }
.legend svg { width: 30px; height: 10px; flex: none; }
details { margin: .5rem 0; } summary { cursor: pointer; font-weight: 600; padding: .3rem 0; }
.tokens { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 30rem), 1fr)); gap: .8rem; }
.tokens p { margin: 0 0 .3rem; }
.context { font: 13px/1.7 ui-monospace, monospace; white-space: pre-wrap; margin: .2rem 0; }
.context i { font-style: normal; background: rgba(var(--heat), calc(var(--w) * .85)); border-radius: .2rem; }
.context small { color: var(--soft); font-family: system-ui, sans-serif; }
.token { font-family: ui-monospace, monospace; background: rgba(var(--heat), .2); border-radius: .2rem;
  padding: 0 .2rem; white-space: pre-wrap; }
pre { white-space: pre-wrap; }
)";

std::string paragraph(const std::string& html, const char* kind = "") {
  return str("<p", *kind ? str(" class=\"", kind, "\"") : "", ">", html, "</p>\n");
}

std::string swatch(size_t style) {
  const SeriesStyle s = series_style(style);
  return str("<svg viewBox=\"0 0 30 10\" aria-hidden=\"true\"><path d=\"M0 5H30\" stroke=\"", s.color,
             "\" stroke-width=\"3\"", s.dashes.empty() ? "" : str(" stroke-dasharray=\"", s.dashes, "\""), "/></svg>");
}

// Names by the number of their style; an empty name has no entry.
std::string legend(const std::vector<std::string>& names) {
  std::string items;
  for (size_t i = 0; i < names.size(); ++i)
    if (!names[i].empty()) items += str("<li>", swatch(i), html_escaped(names[i]), "</li>");
  return items.empty() ? "" : "<ul class=\"legend\">" + items + "</ul>\n";
}

std::string digits(double x, int after) { return std::isfinite(x) ? formatted("%.*f", after, x) : "-"; }

class Page {
 public:
  explicit Page(const Report& report) : report_(report) {}

  std::string html() {
    std::string body;
    for (const auto part :
         {&Page::runs, &Page::curves, &Page::inside, &Page::maps, &Page::tokens, &Page::samples, &Page::reproduce})
      body += (this->*part)();
    return html_document("Boostgrad: " + title(), kStyle,
                         str("<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs>",
                             shapes_, "</defs></svg>\n", head(), body));
  }

 private:
  std::string title() const {
    return report_.runs.size() == 1 ? "one language model, looked at"
                                    : str(report_.runs.size(), " language models, side by side");
  }

  std::string head() const {
    std::string nav;
    for (const auto& [id, name] : sections_) nav += str("<a href=\"#", id, "\">", name, "</a> ");
    return str("<h1>Boostgrad: ", title(), "</h1>\n",
               paragraph("Training runs of language models with standard, twicing or gradient-boosted attention: how "
                         "they learned, how well they predict, and what each round of their attention does. A boosted "
                         "layer attends once, F<sub>0</sub>; each further round attends from the residual x - F to "
                         "correct it, and a gate g between 0 and 1 decides how much of the correction c is taken: "
                         "F<sub>m</sub> = F<sub>m-1</sub> + g c."),
               "<nav>", nav, "</nav>\n");
  }

  std::string section(const char* id, const char* name, const std::string& html) {
    if (html.empty()) return {};
    sections_.emplace_back(id, name);
    return str("<section id=\"", id, "\">\n<h2>", name, "</h2>\n", html, "</section>\n");
  }

  std::string figure(const Plot& plot) {
    if (plot.program.empty()) return {};
    const InlineSvg drawn =
        inline_svg(gnuplot(plot.program), plot.note.empty() ? plot.title : plot.title + ". " + plot.note);
    if (shapes_.empty()) shapes_ = drawn.shapes;
    return str("<figure class=\"card\"><figcaption><b>", html_escaped(plot.title), "</b>",
               plot.note.empty() ? "" : str("<span>", html_escaped(plot.note), "</span>"), "</figcaption>\n", drawn.svg,
               legend(plot.series), "</figure>\n");
  }

  // One block per run; open is the first of several rounds, or the first of all.
  template <class Body>
  std::string by_run(Body&& body) {
    const auto rounds = [](const ReportedRun& r) { return r.analysis && r.analysis->layers[0].rounds.size() > 1; };
    const auto several = std::find_if(report_.runs.begin(), report_.runs.end(), rounds);
    const ReportedRun* open = several == report_.runs.end() ? &report_.runs.front() : &*several;
    std::string out;
    for (const ReportedRun& run : report_.runs)
      if (const std::string html = body(run); !html.empty())
        out += str("<details", &run == open ? " open" : "", "><summary>", html_escaped(run.name), "</summary>\n", html,
                   "</details>\n");
    return out;
  }

  std::vector<std::string> names() const {
    std::vector<std::string> all;
    for (const ReportedRun& run : report_.runs) all.push_back(run.name);
    return all;
  }

  // -- The table of runs ----------------------------------------------------------------------------------------------

  static std::string perplexities(const std::optional<Evaluation>& e) {
    if (!e) return "<td>-</td><td>-</td><td>-</td>";
    const auto cell = [](const std::optional<double>& ppl, int places) { return ppl ? digits(*ppl, places) : "-"; };
    return str("<td>", digits(e->token_ppl(), 2), "</td><td>", cell(e->word_ppl(), 1), "</td><td>",
               cell(e->byte_ppl(), 3), "</td>");
  }

  static std::string row(const ReportedRun& r) {
    return str(
        "<tr><td>", html_escaped(r.name), "</td><td class=\"left\">",
        html_escaped(describe(r.log.options.model) + ", " + r.log.options.tokenizer), "</td><td>", r.parameters,
        "</td><td>", r.log.options.seed, "</td><td>", r.log.steps(), r.log.finished ? "" : " so far", "</td><td>",
        r.best_step > 0 ? str(r.best_step) : "-", "</td>", perplexities(r.valid), perplexities(r.test), "<td>",
        r.log.curve.empty() ? "-" : digits(1000 * median_step_seconds(r.log.curve, r.log.options), 0), "</td></tr>\n");
  }

  std::string runs() {
    std::string rows, missing;
    for (const ReportedRun& r : report_.runs) {
      rows += row(r);
      for (const std::string& m : r.missing)
        missing += str("<li><b>", html_escaped(r.name), "</b>: ", html_escaped(m), "</li>\n");
    }
    return section(
        "runs", "Runs",
        paragraph("Perplexity by token compares runs of the same tokenizer alone; by word or byte it compares all runs "
                  "on the same text. Taken with the weights of the best validation step. Step time: median.") +
            "<div class=\"scroll\"><table><thead>\n"
            "<tr><th rowspan=\"2\">run</th><th rowspan=\"2\" class=\"left\">model</th>"
            "<th rowspan=\"2\">parameters</th><th rowspan=\"2\">seed</th><th rowspan=\"2\">steps</th>"
            "<th rowspan=\"2\">best step</th><th colspan=\"3\">validation, perplexity by</th>"
            "<th colspan=\"3\">test, perplexity by</th><th rowspan=\"2\">ms a step</th></tr>\n"
            "<tr><th>token</th><th>word</th><th>byte</th><th>token</th><th>word</th><th>byte</th></tr>\n"
            "</thead><tbody>\n" +
            rows + "</tbody></table></div>\n" +
            (missing.empty() ? "" : "<h3>What is missing</h3>\n<ul>\n" + missing + "</ul>\n"));
  }

  // -- Curves ---------------------------------------------------------------------------------------------------------

  std::string curves() {
    std::vector<const RunLog*> logs;
    for (const ReportedRun& run : report_.runs) logs.push_back(&run.log);
    std::string figures;
    for (const CurveKind kind : {CurveKind::training, CurveKind::validation})
      for (const bool logarithmic : {false, true}) figures += figure(curve_plot(logs, names(), kind, logarithmic));
    if (figures.empty()) return section("curves", "Curves", paragraph("No run has made a step yet."));
    return section("curves", "Curves",
                   paragraph("Loss in nats a token; runs of different tokenizers do not compare here.", "soft") +
                       legend(names()) + "<div class=\"plots wide\">\n" + figures + "</div>\n");
  }

  // -- Inside attention -----------------------------------------------------------------------------------------------

  std::string inside() {
    std::string out;
    for (const ReportedRun& run : report_.runs) {
      if (!run.analysis) continue;
      const Analysis& a = *run.analysis;
      std::string figures =
          figure(entropy_plot(a)) + figure(residual_plot(a)) + figure(gate_plot(a)) + figure(hull_plot(a));
      for (size_t m = 1; m < a.layers[0].rounds.size(); ++m)
        figures += figure(gate_dimensions_plot(a, m)) + figure(openness_plot(a, m));
      out +=
          str("<h3>", html_escaped(run.name), "</h3>\n",
              paragraph(str(html_escaped(describe(run.log.options.model)), ". On ", a.tokens, " tokens in ", a.windows,
                            a.windows == 1 ? " window" : " windows", " (loss there ", digits(a.loss, 3), ").",
                            a.layers[0].rounds.size() == 1 ? " A model of one round: no gates, no corrections." : ""),
                        "soft"),
              "<div class=\"plots\">\n", figures, "</div>\n", numbers(a));
    }
    if (out.empty()) return section("inside", "Inside attention", paragraph("No run has weights to look into yet."));
    return section(
        "inside", "Inside attention",
        paragraph("Every layer computed again in plain steps, with dropout off, on windows of the validation "
                  "text (of one given with --data, if so) that the seed chose.") +
            out);
  }

  // A row per layer; mean over heads where there are several.
  static std::string numbers(const Analysis& a) {
    const size_t rounds = a.layers[0].rounds.size();
    std::string head = "<tr><th>layer</th>", rows;
    for (size_t m = 0; m < rounds; ++m) {
      head += str("<th>entropy, round ", m, "</th><th>residual after round ", m, "</th>");
      if (a.layers[0].rounds[m].gate.count() > 0)
        head += str("<th>gate, round ", m, "</th><th>its spread</th><th>correlation of openness and entropy</th>");
      if (!a.layers[0].rounds[m].hull.empty()) head += str("<th>share outside the hull, round ", m, "</th>");
    }
    for (size_t l = 0; l < a.layers.size(); ++l) {
      rows += str("<tr><td>", l, "</td>");
      for (const RoundLook& r : a.layers[l].rounds) {
        double entropy = 0, share = 0;
        for (const Spread& s : r.entropy) entropy += s.mean() / static_cast<double>(r.entropy.size());
        for (const HullShare& h : r.hull) share += h.share.mean() / static_cast<double>(r.hull.size());
        rows += str("<td>", digits(entropy, 3), "</td><td>", digits(r.residual.mean(), 3), "</td>");
        if (r.gate.count() > 0)
          rows += str("<td>", digits(r.gate.mean(), 3), "</td><td>", digits(r.gate.sd(), 3), "</td><td>",
                      digits(r.openness_correlation, 2), "</td>");
        if (!r.hull.empty()) rows += str("<td>", digits(share, 3), "</td>");
      }
      rows += "</tr>\n";
    }
    return str("<details><summary>Numbers</summary>\n<div class=\"scroll\"><table><thead>", head,
               "</tr></thead>\n<tbody>\n", rows, "</tbody></table></div></details>\n");
  }

  // -- Attention maps -------------------------------------------------------------------------------------------------

  std::string maps() {
    std::string out;
    for (size_t s = 0; s < report_.options.sentences.size(); ++s) out += by_sentence(s);
    if (out.empty()) return {};
    return section(
        "maps", "Attention maps",
        paragraph("Of the first tokens of a sentence: each row is one that attends, each column one that it sees; mean "
                  "over heads. The stronger the colour, the larger the weight (by its square root, so that small ones "
                  "show).") +
            out);
  }

  std::string by_sentence(size_t s) {
    const std::string runs = by_run([&](const ReportedRun& run) {
      std::string figures;
      if (s >= run.maps.size()) return figures;
      const AttentionMaps& m = run.maps[s];
      if (m.tokens.size() < 2) return figures;
      for (size_t l = 0; l < m.layers.size(); ++l) {
        figures += "<div class=\"layer\">\n";
        for (size_t r = 0; r < m.layers[l].size(); ++r) figures += figure(attention_map_plot(m, l, r));
        figures += "</div>\n";
      }
      return str("<div class=\"maps\" style=\"--rounds:", m.layers[0].size(), "\">\n", figures, "</div>\n");
    });
    return runs.empty() ? "" : str("<h3>", html_escaped(report_.options.sentences[s]), "</h3>\n", runs);
  }

  // -- Tokens helped and hurt -----------------------------------------------------------------------------------------

  static std::string context(const TokenLook& t, size_t round) {
    const auto& rounds = t.attention[t.telling_layer];
    double most = 1e-12;
    for (const auto& weights : {rounds.front(), rounds.back()})
      most = std::max(most, *std::max_element(weights.begin(), weights.end()));
    std::string words;
    for (size_t i = 0; i < t.context.size(); ++i)
      words += formatted("<i style=\"--w:%.2f\">", rounds[round][i] / most) + html_escaped(t.context[i]) + "</i>";
    return str("<div class=\"context\"><small>round ", round, "</small> ", words, "</div>\n");
  }

  static std::string card(const TokenLook& t) {
    const double gain = t.reference_loss - t.loss;
    return str("<div class=\"card\"><p><span class=\"token\">", html_escaped(t.target), "</span> <b class=\"",
               gain > 0 ? "good" : "bad", "\">", formatted("%+.2f", -gain), "</b> nats: ", digits(t.loss, 2),
               " instead of ", digits(t.reference_loss, 2), " <span class=\"soft\">(layer ", t.telling_layer,
               " shown)</span></p>\n", context(t, 0), context(t, t.attention[t.telling_layer].size() - 1), "</div>\n");
  }

  std::string tokens() {
    const std::string runs = by_run([&](const ReportedRun& run) {
      if (!run.tokens) return std::string();
      const TokenLooks& t = *run.tokens;
      std::string helped, hurt;
      for (const TokenLook& look : t.helped) helped += card(look);
      for (const TokenLook& look : t.hurt) hurt += card(look);
      return str(paragraph(str("Against ", html_escaped(run.reference), ", over ", t.gain.count(),
                               " predictions: loss ", digits(std::abs(t.gain.mean()), 4), " nats ",
                               t.gain.mean() < 0 ? "higher" : "lower", " on average (standard deviation ",
                               digits(t.gain.sd(), 2), "), lower at ", digits(100 * t.better, 1), " % of them.")),
                 "<h4>Helped most</h4>\n<div class=\"tokens\">\n", helped, "</div>\n<h4>Hurt most</h4>\n",
                 "<div class=\"tokens\">\n", hurt, "</div>\n");
    });
    if (runs.empty()) return {};
    return section(
        "tokens", "Tokens helped and hurt",
        paragraph("The predictions that gain and lose most by the corrections. Each shows the token that came, its "
                  "loss, and the end of the text before it, shaded by how much the last token attends to each (mean "
                  "over heads) in the first and in the last round of the layer where the two differ most.") +
            runs);
  }

  // -- Samples, commands ----------------------------------------------------------------------------------------------

  std::string samples() {
    std::string out;
    for (const ReportedRun& run : report_.runs)
      if (!run.sample.empty())
        out += str("<h3>", html_escaped(run.name), "</h3>\n<pre><b>", html_escaped(report_.options.prompt), "</b>",
                   html_escaped(run.sample), "</pre>\n");
    if (out.empty()) return {};
    return section(
        "samples", "Samples",
        paragraph(str("What each model goes on with after the same words, with the same seed (",
                      report_.options.analysis.seed, ") at temperature ", report_.options.temperature, ".")) +
            out);
  }

  static std::string facts(const nlohmann::json& all) {
    std::string list;
    for (const auto& [name, value] : all.items())
      list += str(list.empty() ? "" : ", ", name, " ", value.is_string() ? value.get<std::string>() : value.dump());
    return html_escaped(list);
  }

  std::string reproduce() {
    std::string out = str("<h3>This page</h3>\n<pre>", html_escaped(report_.command), "</pre>\n",
                          paragraph("Made by: " + facts(build_facts()) + ".", "soft"));
    for (const ReportedRun& run : report_.runs)
      out += str("<h3>", html_escaped(run.name), "</h3>\n<pre>", html_escaped(run.command), "</pre>\n",
                 paragraph(str("Made by: ", facts(run.log.build), ". Text: ", facts(run.log.text), "."), "soft"));
    return section(
        "reproduce", "To do it again",
        paragraph("Each command makes its run again, bit for bit where program, BLAS core and SIMD target are "
                  "those named with it.") +
            out);
  }

  const Report& report_;
  std::string shapes_;
  std::vector<std::pair<const char*, const char*>> sections_;
};

}  // namespace

std::string report_page(const Report& report) { return Page(report).html(); }

}  // namespace bg
