// Errors have one form everywhere:
//
//   [op] what is wrong: got A, expected B. Try: ...
//
// They are exceptions; nothing in Boostgrad aborts, asserts on user input or clamps silently.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>

namespace bg {

/// Any failure that Boostgrad reports. The command-line program exits 1 on it.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller asked for something that cannot be (bad option, bad value). The program exits 2 on it.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Concatenates anything that can be streamed: str("d is ", 7).
template <class... A>
std::string str(const A&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

/// The agreed sentence. Empty parts are left out; a part may be a sentence itself, whose full stop is then left out.
inline std::string error_text(std::string_view op, std::string_view what, std::string_view got,
                              std::string_view expected, std::string_view hint) {
  const auto part = [](std::string_view text) { return text.substr(0, text.find_last_not_of('.') + 1); };
  std::string text = str("[", op, "] ", part(what));
  if (!got.empty()) text += str(": got ", part(got));
  if (!expected.empty()) text += str(got.empty() ? ": expected " : ", expected ", part(expected));
  text += ".";
  if (!hint.empty()) text += str(" Try: ", part(hint), ".");
  return text;
}

/// Throws E with the agreed sentence.
template <class E = Error>
[[noreturn]] void fail(std::string_view op, std::string_view what, std::string_view got = {},
                       std::string_view expected = {}, std::string_view hint = {}) {
  throw E(error_text(op, what, got, expected, hint));
}

}  // namespace bg

/// BG_CHECK(condition, op, what, got, expected, hint): throws bg::Error when the condition is false. The texts after
/// the condition are evaluated only then, so build them with bg::str(...) freely.
#define BG_CHECK(condition, ...)               \
  do {                                         \
    if (!(condition)) ::bg::fail(__VA_ARGS__); \
  } while (false)
