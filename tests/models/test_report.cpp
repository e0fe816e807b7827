// Reports: what is gathered of runs, whatever they lack; plots that fit into a page; a page that is whole and safe.
#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "core/atomic_file.h"
#include "core/read_file.h"
#include "models/gnuplot.h"
#include "models/report.h"
#include "models/report_plots.h"
#include "tests/file_size_limit.h"
#include "tests/match.h"
#include "tests/models/run_support.h"

using namespace bg;
using namespace bg::test;
namespace fs = std::filesystem;

namespace {

bool can_draw() { return std::system("command -v gnuplot >/dev/null 2>&1") == 0; }

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++n;
  return n;
}

const std::function<void(const std::string&)> kQuiet = [](const std::string&) {};

TrainOptions options_of(nn::AttentionKind kind, uint64_t seed = 42) {
  TrainOptions o = small_run(6);
  o.model.model = kind;
  o.seed = seed;
  o.eval_every = 3;
  return o;
}

ReportOptions small_report() {
  ReportOptions o;
  o.analysis.tokens = 64;
  o.analysis.hull_tokens = 16;
  o.analysis.shown_tokens = 2;
  o.sample_tokens = 5;
  return o;
}

}  // namespace

TEST_CASE("curves are thinned to means of equal stretches, linear or logarithmic") {
  CurveSeries curve{"a", {}, {}};
  for (int i = 1; i <= 1000; ++i) {
    curve.steps.push_back(i);
    curve.values.push_back(2 * i);
  }
  for (const bool logarithmic : {false, true}) {
    const CurveSeries thin = thinned(curve, 50, logarithmic);
    CHECK(thin.steps.size() <= 50);
    CHECK(thin.steps.size() > 20);
    CHECK(std::is_sorted(thin.steps.begin(), thin.steps.end()));
    for (size_t i = 0; i < thin.steps.size(); ++i) CHECK(close(thin.values[i], 2 * thin.steps[i], 1e-12));
    CHECK(thin.steps[0] == (logarithmic ? 1 : 10.5));  // the mean of 1 .. 20
  }
  CHECK(thinned(curve, 1000, false).steps.size() == 1000);
}

TEST_CASE("series differ in colour and in dashes") {
  CHECK(series_style(0).color != series_style(1).color);
  CHECK(series_style(0).dashes != series_style(1).dashes);
  for (size_t i = 1; i < 12; ++i) {
    const SeriesStyle a = series_style(0), b = series_style(i);
    CHECK((a.color != b.color || a.dashes != b.dashes));
  }
}

TEST_CASE("names reach gnuplot as they are") {
  RunLog log;
  log.curve.resize(2);
  for (int64_t i = 0; i < 2; ++i) log.curve[static_cast<size_t>(i)].step = 1 + i;
  for (CurvePoint& p : log.curve) p.train_loss = 5 - static_cast<double>(p.step);
  const Plot plot = curve_plot({&log}, {"a_b{c}'`d`"}, CurveKind::training, true);
  CHECK(contains(plot.program, R"(title "a\134_b\134\173c\134\175\047\140d\140")"));
  CHECK(curve_plot({&log}, {"a"}, CurveKind::validation, false).program.empty());
  if (can_draw()) CHECK(contains(gnuplot(plot.program), "<title>a_b{c}'`d`</title>"));
}

TEST_CASE("a plot that cannot be passed to gnuplot leaves no file open") {
  const auto open_files = [] {
    return std::distance(fs::directory_iterator("/proc/self/fd"), fs::directory_iterator{});
  };
  const std::ptrdiff_t files = open_files();
  {
    const FileSizeLimit limit(6);
    CHECK_THROWS_WITH(gnuplot("plot 0"), Contains("cannot pass a plot to gnuplot: got File too large"));
  }
  CHECK(open_files() == files);
}

TEST_CASE("an SVG of gnuplot's becomes a part of a page") {
  if (!can_draw()) return;
  const InlineSvg drawn = inline_svg(gnuplot("set terminal svg size 300,200\nset grid lt 1 lc rgb '#c0c0c0'\nset "
                                             "xlabel 'a<b'\nplot 1 notitle with points pt 7"),
                                     "one \"and\" <only>");
  CHECK(drawn.svg.starts_with(
      "<svg role=\"img\" viewBox=\"0 0 300 200\" aria-label=\"one &quot;and&quot; &lt;only&gt;\">"));
  CHECK(contains(drawn.svg, "</svg>"));
  CHECK(contains(drawn.svg, "a&lt;b"));
  CHECK(contains(drawn.svg, "var(--line)"));
  CHECK(contains(drawn.svg, "href='#gpPt6'"));
  CHECK(contains(drawn.shapes, "gpPt6"));
  for (const char* gone : {"<defs>", "<?xml", "black", " id=", "Gnuplot", "gnuplot_plot", "http"})
    CHECK(!contains(drawn.svg, gone));
  CHECK(count(drawn.svg, "<g") == count(drawn.svg, "</g>"));
  CHECK_THROWS_AS(inline_svg("no svg", "x"), Error);
}

TEST_CASE("a report gathers what runs have, and says what they lack") {
  Scratch scratch;
  const fs::path boosted = scratch.path / "a" / "run", standard = scratch.path / "b" / "run",
                 young = scratch.path / "young<b>";
  train(options_of(nn::AttentionKind::boosted), boosted, false, {});
  train(options_of(nn::AttentionKind::standard), standard, false, {});
  fs::create_directories(young);
  for (const char* file : {"config.json", "tokenizer.json"}) fs::copy_file(boosted / file, young / file);

  ReportOptions o = small_report();
  o.sentences = {"the old <script>alert(1)</script>", "x"};
  o.prompt = "a<&\"";
  Report report = make_report({boosted, standard, young / ""}, o, kQuiet);
  REQUIRE(report.runs.size() == 3);
  const ReportedRun &b = report.runs[0], &s = report.runs[1], &y = report.runs[2];
  CHECK(b.name == "a/run");
  CHECK(s.name == "b/run");
  CHECK(contains(y.name, "young<b>"));
  CHECK(b.parameters > s.parameters);
  REQUIRE(b.analysis);
  CHECK(b.analysis->tokens == 64);
  REQUIRE(b.tokens);
  CHECK(b.reference == "the standard run b/run");
  CHECK(b.maps.size() == 2);
  CHECK(!b.sample.empty());
  REQUIRE(s.analysis);
  CHECK(!s.tokens);
  CHECK(b.missing.empty());
  CHECK(!y.analysis);
  REQUIRE(y.missing.size() == 2);
  CHECK(contains(y.missing[0], "Not finished: 0 steps"));
  CHECK(contains(y.missing[1], "the run has no weights"));

  const auto j = to_json(b);
  CHECK(j["analysis"]["layers"].size() == 2);
  CHECK(j["tokens"]["gain"]["count"] == 64);
  CHECK(to_json(y)["missing"].size() == 2);

  // The same run by itself is compared with itself without corrections; without its text, what needs none is left.
  const Report alone = make_report({boosted}, small_report(), kQuiet);
  CHECK(alone.runs[0].name == "run");
  CHECK(contains(alone.runs[0].reference, "corrections left out"));
  const fs::path faster = scratch.path / "c" / "run", config = faster / "config.json";
  TrainOptions fast = options_of(nn::AttentionKind::standard);
  fast.lr = 0.02;
  train(fast, faster, false, {});
  CHECK(contains(make_report({boosted, faster}, o, kQuiet).runs[0].reference, "(learning rate 0.02; this one has "));
  nlohmann::json other = nlohmann::json::parse(read_file(config, FileKind::settings));
  other["text"]["crc32"] = 1;  // trained on another text: nothing to compare it with
  write_file_atomically(config, other.dump());
  CHECK(contains(make_report({boosted, faster}, o, kQuiet).runs[0].reference, "corrections left out"));
  CHECK(to_json(alone.runs[0])["sample"] == to_json(make_report({boosted}, small_report(), kQuiet).runs[0])["sample"]);
  TrainOptions lost = options_of(nn::AttentionKind::boosted);
  lost.data = (scratch.path / "lost.txt").string();
  write_file_atomically(lost.data, load_corpus("builtin:").train);
  train(lost, scratch.path / "lost", false, {});
  fs::remove(lost.data);
  const Report without_text = make_report({scratch.path / "lost"}, small_report(), kQuiet);
  CHECK(!without_text.runs[0].analysis);
  CHECK(!without_text.runs[0].maps.empty());
  CHECK(contains(without_text.runs[0].missing.back(), "lost.txt"));

  ReportOptions elsewhere = small_report();
  elsewhere.data = lost.data;
  CHECK_THROWS_WITH(make_report({boosted}, elsewhere, kQuiet), Contains("lost.txt"));  // a text that was asked for
  CHECK_THROWS_WITH(make_report({boosted, boosted / "."}, o, kQuiet), Contains("named twice"));
  CHECK_THROWS_AS(make_report({scratch.path}, o, kQuiet), UsageError);
  CHECK_THROWS_AS(make_report({}, o, kQuiet), UsageError);
  o.prompt = "";
  CHECK_THROWS_WITH(make_report({boosted}, o, kQuiet), Contains("bad --prompt"));
  o = small_report();
  o.sentences = {"a\xff"};
  CHECK_THROWS_WITH(make_report({boosted}, o, kQuiet), Contains("bad --sentence: got 'a\\xff'"));
  o = small_report();
  o.analysis.tokens = 0;
  CHECK_THROWS_AS(make_report({boosted}, o, kQuiet), UsageError);

  if (!can_draw()) return;
  report.command = "boostgrad report <all>";
  const std::string page = report_page(report);
  for (const char* part :
       {"id=\"runs\"", "id=\"curves\"", "id=\"inside\"", "id=\"maps\"", "id=\"tokens\"", "id=\"samples\"",
        "id=\"reproduce\"", "What is missing", "young&lt;b&gt;", "report &lt;all&gt;", "&lt;script&gt;",
        "a&lt;&amp;&quot;", "Gate by dimension, round 1", "prefers-color-scheme"})
    CHECK(contains(page, part));
  for (const char* never : {"<script", "http:", "https:", " src=", "@import", "url(", "young<b>"})
    CHECK(!contains(page, never));
  for (const char* tag : {"section", "figure", "details", "div", "table", "svg", "g", "ul", "dl"})
    CHECK(count(page, str("<", tag, ">")) + count(page, str("<", tag, " ")) == count(page, str("</", tag, ">")));
  CHECK(count(page, "role=\"img\"") == count(page, "aria-label="));
}

TEST_CASE("a page of runs that have nothing to show yet") {
  if (!can_draw()) return;
  Scratch scratch;
  train(options_of(nn::AttentionKind::twicing), scratch.path / "run", false, {});
  for (const char* part : {"model.safetensors", "checkpoints", "metrics.jsonl", "results.json"})
    fs::remove_all(scratch.path / "run" / part);
  const std::string page = report_page(make_report({scratch.path / "run"}, small_report(), kQuiet));
  CHECK(contains(page, "No run has made a step yet."));
  CHECK(contains(page, "No run has weights to look into yet."));
}
