// The reader of JSON: what it gives, and one printable sentence for everything it refuses.
#include "core/error.h"
#include "core/io/json.h"
#include "tests/catch.h"
#include "tests/match.h"

using namespace bg;
using nlohmann::json;

namespace {

std::string error_of(const std::string& text, int depth = kMaxJsonDepth) {
  try {
    parse_json(text, "test", "x.json", depth);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

std::string repeated(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) all += text;
  return all;
}

}  // namespace

TEST_CASE("json: values of every kind, as the library itself reads them") {
  for (const char* text : {"null", "true", " 12 ", "-3", "18446744073709551615", "1.5e3", R"("a\u00e9\n")", "[]", "{}",
                           R"({"a": [1, [2, {"b": null}], "c"], "d": {"e": false}, "": {}})", "\xEF\xBB\xBF[1]"})
    CHECK(parse_json(text, "test", "x") == json::parse(text));
  const json numbers = parse_json("[1, -1, 1.0]", "test", "x");
  CHECK(numbers[0].is_number_unsigned());
  CHECK((numbers[1].is_number_integer() && !numbers[1].is_number_unsigned()));
  CHECK(numbers[2].is_number_float());
}

TEST_CASE("json: what is not JSON is refused in a sentence with the place, in valid UTF-8") {
  CHECK(error_of("") == "[test] x.json is not valid JSON: got no bytes.");
  CHECK(error_of("{\"a\": 1,\n \"b\": tru}") ==
        "[test] x.json is not valid JSON: got invalid literal at line 2, column 10.");
  CHECK(error_of("[1, 2") ==
        "[test] x.json is not valid JSON: got unexpected end of input; expected ']' at line 1, "
        "column 6.");
  CHECK(error_of("[1e999]") ==
        "[test] x.json is not valid JSON: got number overflow parsing '1e999' at line 1, column 6.");
  CHECK_THAT(error_of("[1] 2"), Contains("unexpected number literal; expected end of input at line 1, column 5"));
  for (const std::string bad : {"\"\xff\"", "{\"a\xc3\": 1}", "\x93NUMPY", "\xff\xfe{\0}\0", "\"\x01\"", "{'a': 1}"}) {
    const std::string error = error_of(bad);
    CHECK_THAT(error, Contains("[test] x.json is not valid JSON: got "));
    CHECK_THAT(error, !Contains("json.exception"));
    CHECK_NOTHROW(json(error).dump());  // throws when it is not UTF-8
    CHECK(error.find_first_of("\n\x01") == std::string::npos);
  }
  CHECK(error_of("[1" + std::string(1 << 20, '0') + "e9999]").size() < 200);
}

TEST_CASE("json: nesting is limited, whatever the depth") {
  CHECK(error_of(repeated("[", 100) + repeated("]", 100)) == "accepted");
  const std::string too_deep = "[test] x.json is nested too deeply: expected at most 100 levels.";
  for (const int depth : {101, 100'000, 3'000'000}) {
    CHECK(error_of(repeated("[", depth)) == too_deep);
    CHECK(error_of(repeated("{\"a\":", depth)) == too_deep);
    CHECK(error_of(repeated("[{\"a\":", depth)) == too_deep);
  }
  CHECK_THAT(error_of("[[1]]", 1), Contains("at most 1 levels"));
  CHECK(error_of(repeated("[],", 1000).insert(0, "[") + "1]") == "accepted");
}

TEST_CASE("json: a name twice in one object is refused, in two objects it is not") {
  CHECK(error_of(R"({"a": 1, "b": {"a": 2}, "c": [{"a": 3}, {"a": 4}]})") == "accepted");
  CHECK(error_of(R"({"a": 1, "b": {"c": 2, "c": 2}})") ==
        "[test] x.json holds a name twice in one object: got 'c', expected distinct names.");
  CHECK_THAT(error_of(R"({"\u0001\n": 1, "\u0001\n": 1})"), Contains(R"('\u0001\n')"));
}

TEST_CASE("json: a log's broken line is null") {
  CHECK(parse_json_or_null(R"({"step": 1})")["step"] == 1);
  CHECK(parse_json_or_null(R"({"step": )").is_null());
  CHECK(parse_json_or_null(repeated("[", 100'000)).is_null());
}

TEST_CASE("json: whole numbers are whole and within their bounds") {
  const json j = parse_json(R"({"n": 97, "half": 97.5, "round": 97.0, "huge": 1e20, "large": 4294967296,
                                "most": 9223372036854775807, "beyond": 9223372036854775808, "negative": -1,
                                "text": "97", "seed": 18446744073709551615, "x": 0.25, "yes": true})",
                            "test", "x");
  const JsonFields f(j, "test", "x");
  constexpr int64_t k32 = std::numeric_limits<int32_t>::max();
  CHECK(f.whole("n", 0, k32) == 97);
  CHECK(f.whole("most") == std::numeric_limits<int64_t>::max());
  CHECK(f.whole("negative") == -1);
  CHECK_THROWS_WITH(f.whole("half"), "[test] bad half: got 97.5, expected a whole number below 2^63.");
  CHECK_THROWS_WITH(f.whole("round"), Contains("got 97.0, expected a whole number"));
  CHECK_THROWS_WITH(f.whole("huge", 1), "[test] bad huge: got 1e+20, expected a whole number, at least 1.");
  CHECK_THROWS_WITH(f.whole("large", 0, k32),
                    "[test] bad large: got 4294967296, expected a whole number from 0 to 2147483647.");
  CHECK_THROWS_WITH(f.whole("beyond"), Contains("got 9223372036854775808"));
  CHECK_THROWS_WITH(f.whole("negative", 0), Contains("got -1"));
  CHECK_THROWS_WITH(f.whole("text"), Contains("got \"97\""));
  CHECK_THROWS_WITH(f.whole("nothing"), "[test] 'nothing' is missing.");
  CHECK(f.whole_unsigned("seed") == std::numeric_limits<uint64_t>::max());
  CHECK(JsonFields(json{{"a", 5}}, "test", "x").whole_unsigned("a") == 5);
  CHECK_THROWS_WITH(f.whole_unsigned("negative"), Contains("from 0 to 2^64 - 1"));
  CHECK(f.number("x", 0) == 0.25);
  CHECK(f.number("n") == 97);
  CHECK_THROWS_WITH(f.number("negative", 0), "[test] bad negative: got -1, expected a number, at least 0.");
  CHECK_THROWS_WITH(f.number("text"), Contains("expected a number"));
  CHECK(f.flag("yes"));
  CHECK_THROWS_WITH(f.flag("n"), Contains("expected true or false"));
  CHECK(f.text("text") == "97");
  CHECK_THROWS_WITH(f.text("n"), Contains("expected a string"));
  CHECK(f.word("text") == "97");
  CHECK(JsonFields(json{{"a", "b\n"}}, "test", "x").word("a") == "b\\n");
  CHECK(f.find("nothing").is_null());
  CHECK_THROWS_WITH(JsonFields(json::array({1}), "test", "x"),
                    "[test] x is not an object: got [1], expected members "
                    "with names.");
}

TEST_CASE("json: what a message shows of a value is short, on one line and UTF-8") {
  CHECK(json_excerpt(json{{"a", "b\nc"}}) == R"({"a":"b\nc"})");
  const std::string cut = json_excerpt(std::string(79, 'x') + "\u00e9");  // the quote makes the character straddle
  CHECK(cut == "\"" + std::string(79, 'x') + "...");
  CHECK(json_excerpt(std::string(78, 'x') + "\u00e9") == "\"" + std::string(78, 'x') + "...");
  CHECK(in_quotes("a'\n\xff") == "'a'\\n\xEF\xBF\xBD'");
  CHECK(in_quotes(std::string(100'000, 'x')).size() == 85);
  CHECK(json_excerpt("\xff") == "\"\xEF\xBF\xBD\"");
}
