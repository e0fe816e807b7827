// The one reader of JSON: every file and every header in that format is parsed here, whoever wrote it.
//
// A text is refused, with one sentence that names it and the place, when it is not JSON in UTF-8, when a number in it
// is too large for a double, when a name occurs twice in one object (parsers differ in which of the two they take), or
// when it is nested more deeply than anything that Boostgrad or its peers write: copying, comparing and printing a JSON
// value recurse, so that depth is stack. Its size is the reader's business.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace bg {

inline constexpr int kMaxJsonDepth = 100;

/// The value of a whole JSON text. Throws Error `[op] source is ...`; `source` may be a path, or any words for a place.
nlohmann::json parse_json(std::string_view text, std::string_view op, std::string_view source,
                          int max_depth = kMaxJsonDepth);

/// The value, or null where parse_json would throw: for a log whose last line may have been cut off.
nlohmann::json parse_json_or_null(std::string_view text);

/// A value as a message shows it: on one line, in UTF-8, cut after about 80 bytes.
std::string json_excerpt(const nlohmann::json& value);

/// Any bytes, a name in a file for one, as a message shows them: 'name', cut in the same way, with JSON's escapes and
/// U+FFFD where they are not UTF-8.
std::string in_quotes(std::string_view text);

/// A number without a fractional part or exponent, within the bounds; 97.0 is refused as 97.5 is. Throws Error
/// `[op] WHAT: got 97.5, expected a whole number ...`.
int64_t json_whole(const nlohmann::json& value, std::string_view op, std::string_view what,
                   int64_t least = std::numeric_limits<int64_t>::min(),
                   int64_t most = std::numeric_limits<int64_t>::max());

/// The members of one JSON object by name, each with the type and the range that its reader wants. What is missing or
/// different is an Error `[op] bad NAME: got A, expected B`. The object must outlive this.
class JsonFields {
 public:
  /// Throws Error `[op] WHAT is not an object`.
  JsonFields(const nlohmann::json& object, std::string_view op, std::string_view what);

  /// The member, or null where it is missing.
  const nlohmann::json& find(const char* name) const;

  const nlohmann::json& at(const char* name) const;
  int64_t whole(const char* name, int64_t least = std::numeric_limits<int64_t>::min(),
                int64_t most = std::numeric_limits<int64_t>::max()) const;
  uint64_t whole_unsigned(const char* name) const;
  double number(const char* name, double least = std::numeric_limits<double>::lowest()) const;
  bool flag(const char* name) const;
  const std::string& text(const char* name) const;
  /// A text that should be one of a few words, for the parser of these: any other comes printable and cut, as in_quotes
  /// has it, and so as no word.
  std::string word(const char* name) const;

 private:
  [[noreturn]] void refuse(const char* name, std::string_view expected) const;

  const nlohmann::json& object_;
  std::string op_;
};

}  // namespace bg
