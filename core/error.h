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

/// Any failure that Boostgrad reports. The command-line program exits 1 on it: it could not do what it was told,
/// because of what is in a file, the memory, the disk, or numbers that are not finite.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The caller asked for something that cannot be. The program exits 2 on it: an option or a value is wrong, a path
/// names nothing that could be read or made, or options, text or tokenizer are not those that a run was started with.
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
/// The dots of a path (`..`, `runs/.`) and of what is cut (`abc...`) stay.
inline std::string error_text(std::string_view op, std::string_view what, std::string_view got,
                              std::string_view expected, std::string_view hint) {
  const auto part = [](std::string_view text) {
    const size_t stop = text.size() - 1;
    const bool sentence =
        text.ends_with('.') && text.find(' ') < stop && text.find_last_of("./ ", stop - 1) != stop - 1;
    return sentence ? text.substr(0, stop) : text;
  };
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
