// The boostgrad program: finds the sub-command, and turns what goes wrong into one line and an exit code.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <limits>
#include <new>
#include <numeric>
#include <system_error>
#include <type_traits>

#include "core/kernels/simd.h"
#include "examples/boostgrad/commands.h"
#include "examples/boostgrad/process.h"
#include "models/unicode.h"

namespace bg {

std::vector<std::string> near_names(const std::string& name, const std::vector<std::string>& candidates) {
  auto distance = [&](const std::string& other) {  // Levenshtein's, one row at a time
    std::vector<size_t> row(other.size() + 1);
    std::iota(row.begin(), row.end(), size_t{0});
    for (size_t i = 0; i < name.size(); ++i) {
      size_t diagonal = row[0]++;
      for (size_t j = 0; j < other.size(); ++j) {
        const size_t substituted = diagonal + (name[i] != other[j]);
        diagonal = row[j + 1];
        row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
      }
    }
    return row.back();
  };
  constexpr size_t kShown = 3;
  std::vector<std::string> sorted = candidates;
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const std::string& a, const std::string& b) { return distance(a) < distance(b); });
  if (sorted.size() > kShown) sorted.resize(kShown);
  return sorted;
}

namespace {

// Checks of CLI11 answer with what they expected; usage_text() makes the sentence.

// CLI11 cuts a whole number that is too large to the largest one, and -1 to 2^64 - 1. The range of an option is checked
// where it is used, and is smaller than that of the type, but for seeds, which are all of the unsigned numbers.
template <class T>
std::string check_whole_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  if (std::is_unsigned_v<T>) return str("a whole number from 0 to ", std::numeric_limits<T>::max());
  if (error == std::errc::result_out_of_range) return str("a whole number nearer to 0");
  return "a whole number";
}

bool is_flag(const CLI::Option& option) { return option.get_items_expected_max() == 0; }

// CLI11 takes an empty number for one that was not given, and an empty path, as a shell gives for a variable that is
// not set, would pass for an option that was not either.
std::string check_not_empty(const std::string& text) { return text.empty() ? "a value" : ""; }

void check_values(CLI::App& command) {
  for (CLI::App* sub : command.get_subcommands({})) check_values(*sub);
  for (CLI::Option* option : command.get_options()) {
    if (is_flag(*option)) continue;
    option->check(check_not_empty);
    if (option->get_type_name() == "INT") option->check(check_whole_number<int64_t>);
    if (option->get_type_name() == "UINT") option->check(check_whole_number<uint64_t>);
  }
}

// The last command given: the program, one of its commands, or one of that one's.
struct Given {
  const CLI::App* command;
  std::string path;  // "boostgrad bench step"
  int depth = 1;     // words of it
};
Given given_command(const CLI::App& app) {
  Given g{&app, "boostgrad"};
  for (; !g.command->get_subcommands().empty(); ++g.depth) {
    g.command = g.command->get_subcommands()[0];
    g.path += " " + g.command->get_name();
  }
  return g;
}

// The option that CLI11's message is about: the first one in it.
const CLI::Option* option_in(const std::string& message, const CLI::App& command) {
  const CLI::Option* first = nullptr;
  size_t at = std::string::npos;
  for (const CLI::Option* o : command.get_options()) {
    const std::string name = o->get_name();
    for (size_t i = message.find(name); i != std::string::npos; i = message.find(name, i + 1)) {
      const bool begins = i == 0 || message[i - 1] == ' ';
      const size_t end = i + name.size();
      const bool ends = end == message.size() || message[end] == ' ' || message[end] == ':';
      if (!begins || !ends) continue;
      if (i < at) first = o, at = i;
      break;
    }
  }
  return first;
}

// What kind of value an option takes.
std::string expected_value(const CLI::Option& option) {
  if (is_flag(option)) return "no value";
  const std::string type = option.get_type_name();
  if (type == "INT" || type == "UINT") return "a whole number";
  return type == "FLOAT" ? "a number" : "a value";
}

// What is wrong with an option, in the agreed form instead of CLI11's.
std::string option_text(const CLI::ParseError& e, const CLI::App& command, const std::string& hint) {
  const std::string kind = e.get_name(), message = e.what();
  const CLI::Option* option = option_in(message, command);
  if (!option) return error_text(command.get_name(), message, {}, {}, hint);
  const std::string name = option->get_name();
  const std::vector<std::string> values = option->results();
  if (kind == "RequiredError") return error_text(command.get_name(), "no " + name, {}, "a value", hint);
  if (kind == "ExcludesError") {
    const size_t other = message.find("--", message.find(name) + name.size());
    return error_text(command.get_name(), str("both ", name, " and ", message.substr(other)), {}, "one of them", hint);
  }
  if (kind == "ArgumentMismatch" && values.size() > 1)
    return error_text(command.get_name(), str(name, " is given more than once"),
                      str("'", values[0], "' and '", values[1], "'"), "one value", hint);
  if (kind == "ArgumentMismatch")
    return error_text(command.get_name(), "no value for " + name, {}, expected_value(*option), hint);
  const std::string expected = kind == "ValidationError" && message.starts_with(name + ": ")
                                   ? message.substr(name.size() + 2)
                                   : expected_value(*option);
  std::string got;
  for (const std::string& value : values) got += str(got.empty() ? "'" : ", '", value, "'");
  return error_text(command.get_name(), "bad " + name, got, expected, hint);
}

// What is wrong with the command line, in the agreed form.
std::string usage_text(const CLI::ParseError& e, int argc, char** argv, const CLI::App& app) {
  const auto [last, path, depth] = given_command(app);
  const CLI::App& command = *last;
  std::vector<std::string> names;
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; }))
    names.push_back(sub->get_name());
  if (!names.empty()) {
    std::sort(names.begin(), names.end());
    std::string list;
    for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
    const bool given = argc > depth;
    return error_text(command.get_name(), given ? "no such command" : "no command",
                      given ? str("'", argv[depth], "'") : "", str("one of ", list),
                      str(path, given ? " " + near_names(argv[depth], names)[0] : "", " --help"));
  }
  const std::string hint = path + " --help";
  // Named before what is missing: a mistyped option is why it is.
  if (const auto unknown = command.remaining(); !unknown.empty()) {
    std::vector<std::string> options;
    for (const CLI::Option* o : command.get_options()) options.push_back(o->get_name());
    return error_text(command.get_name(), "unknown argument", str("'", unknown[0], "'"),
                      str("an option such as ", near_names(unknown[0], options)[0]), hint);
  }
  return option_text(e, command, hint);
}

// `--out --resume` means two options, of which one lacks its value; CLI11 would make a folder of that name.
void check_no_option_as_value(int argc, char** argv, const CLI::App& app) {
  const CLI::App* command = &app;
  for (int i = 1; i + 1 < argc; ++i) {
    const std::string word = argv[i], next = argv[i + 1];
    if (word == "--") return;
    const auto named = command->get_subcommands([&](const CLI::App* sub) { return sub->get_name() == word; });
    if (!named.empty()) command = named[0];
    const CLI::Option* option = command->get_option_no_throw(word);
    if (!option || word[0] != '-' || is_flag(*option) || !next.starts_with("--")) continue;
    if (!command->get_option_no_throw(next.substr(0, next.find('=')))) continue;  // such as a text: --prompt "--- a/x"
    fail<UsageError>(command->get_name(), "no value for " + word, str("'", next, "'"), expected_value(*option),
                     str(word, "=", next, " where that is the value meant"));
  }
}

// What went wrong, in the agreed form also where a library says it.
std::string sentence_of(const std::exception& e) {
  if (dynamic_cast<const Error*>(&e)) return e.what();
  if (dynamic_cast<const std::bad_alloc*>(&e))
    return error_text("memory", "out of memory", {}, {}, "a smaller model or batch");
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&e))
    return error_text("file", str("cannot use '", file->path1().string(), "': ", file->code().message()), {}, {}, {});
  if (const auto* system = dynamic_cast<const std::system_error*>(&e))
    return error_text("system", system->code().message(), {}, {}, {});
  return error_text("program", "an error that nothing has foreseen", e.what(), {}, {});
}

// Why standard output failed. The library may have kept only that it did: then one more byte shows it.
std::string output_error(int error) {
  if (error == 0 && ::write(STDOUT_FILENO, "\n", 1) < 0) error = errno;
  return error ? std::strerror(error) : "";
}

std::string version_text() {
  return str("boostgrad ", BG_VERSION, " (", BG_BUILD_TYPE, " build, parallel work by ", BG_PARALLEL, ", SIMD ",
             simd_target(), ")");
}

constexpr const char* kExitCodes =
    "Exit codes, of every command:\n"
    "  0  done\n"
    "  1  it could not be done: a file's content is damaged or of no use, memory or disk are full, a number is not\n"
    "     finite, a comparison failed\n"
    "  2  it was asked for wrongly: a command, option or value; a path where nothing can be read or made; options, "
    "text\n"
    "     or tokenizer that are not those which a run was started with\n"
    "  129, 130, 143  ended by SIGHUP, Ctrl-C or SIGTERM; a training keeps a checkpoint";

int run(int argc, char** argv) {
  CLI::App app("Boostgrad: attention, autograd and gradient verification from scratch", "boostgrad");
  app.set_version_flag("--version", version_text, "version, build type, what runs parallel work, SIMD instructions");
  app.require_subcommand(1);
  app.footer(kExitCodes);
  std::vector<std::pair<CLI::App*, Command::Run>> runs;
  std::vector<Command*> commands = Command::all();
  std::sort(commands.begin(), commands.end(), [](auto* a, auto* b) { return a->name < b->name; });
  for (Command* c : commands) {
    CLI::App* sub = app.add_subcommand(c->name, c->summary);
    runs.emplace_back(sub, c->set_up(*sub));
    check_values(*sub);
  }
  check_no_option_as_value(argc, argv, app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    throw UsageError(usage_text(e, argc, argv, app));
  }
  for (auto& [sub, action] : runs)
    if (sub->parsed()) return action();
  return 2;
}

}  // namespace
}  // namespace bg

int main(int argc, char** argv) {
  bg::prepare_process();
  try {
    const int code = bg::run(argc, argv);
    errno = 0;
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout))  // a full disk must not look like success
      bg::fail("output", "cannot write all results to standard output", bg::output_error(errno));
    return code;
  } catch (const std::exception& e) {
    // a path may hold any bytes; a sentence about it is one line of UTF-8
    std::cerr << "boostgrad: " << bg::printable(bg::sentence_of(e)) << "\n";
    return dynamic_cast<const bg::UsageError*>(&e) ? 2 : 1;
  }
}
