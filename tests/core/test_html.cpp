// Pages: text that is safe in them, and their frame.
#include "core/html.h"
#include "tests/match.h"

using namespace bg;

TEST_CASE("HTML: every character that means something is escaped, nothing else") {
  CHECK(html_escaped("<a href=\"x\">Tom & 'Jerry'</a>") ==
        "&lt;a href=&quot;x&quot;&gt;Tom &amp; &#39;Jerry&#39;&lt;/a&gt;");
  CHECK(html_escaped("plain, \xc3\xa9 and \n stay") == "plain, \xc3\xa9 and \n stay");
  CHECK(html_escaped("").empty());
  CHECK(html_escaped("\x1b[31m\t\x01") == "\xef\xbf\xbd[31m\t\xef\xbf\xbd");  // not allowed on a page
}

TEST_CASE("HTML: a document has its title escaped, its style and its body as they are") {
  const std::string page = html_document("a < b", "b { color: red; }", "<p>x</p>\n");
  CHECK(page.starts_with("<!doctype html>\n<html lang=\"en\">"));
  CHECK_THAT(page, Contains("<title>a &lt; b</title>"));
  CHECK_THAT(page, Contains("b { color: red; }</style></head><body>\n<p>x</p>\n</body></html>\n"));
  CHECK_THAT(page, Contains("prefers-color-scheme: dark"));
}
