#include "core/html.h"

#include <cstring>

namespace bg {
namespace {

constexpr const char* kStyle = R"(
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --ink: #1b1f24; --soft: #5b6570; --line: #d5dadf;
  --good: #1a7f37; --bad: #c62828; }
@media (prefers-color-scheme: dark) { :root { --page: #14171a; --card: #1c2126; --ink: #e6e9ec; --soft: #9aa5b1;
  --line: #3a434d; --good: #57c272; --bad: #ff7b72; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 1.5rem; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.6rem; margin: 0 0 .25rem; } h2 { font-size: 1.25rem; margin: 2.25rem 0 .5rem; }
p { margin: .25rem 0 .5rem; max-width: 62rem; }
.good { color: var(--good); } .bad { color: var(--bad); } .soft { color: var(--soft); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .5rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--soft); font-weight: 600; vertical-align: bottom; }
tr:first-child > th:first-child, td:first-child { text-align: left; position: sticky; left: 0; background: var(--page); }
.card, pre { background: var(--card); border: 1px solid var(--line); border-radius: .5rem; padding: .7rem; }
pre { overflow-x: auto; font-size: .85rem; }
@media (max-width: 40rem) { body { padding: .9rem; } th, td { padding: .25rem .35rem; } }
)";

}  // namespace

std::string html_escaped(std::string_view text) {
  std::string out;
  for (const char c : text) switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:  // control characters are not allowed in HTML: shown as what cannot be shown
        out += static_cast<unsigned char>(c) < 0x20 && !std::strchr("\t\n\r", c) ? "\xef\xbf\xbd" : std::string(1, c);
    }
  return out;
}

std::string html_document(std::string_view title, std::string_view style, std::string_view body) {
  std::string page =
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>";
  page.append(html_escaped(title)).append("</title>\n<style>").append(kStyle).append(style);
  return page.append("</style></head><body>\n").append(body).append("</body></html>\n");
}

}  // namespace bg
