// The boostgrad program: finds the sub-command, and turns what goes wrong into one line and an exit code.
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <limits>
#include <new>
#include <numeric>

#include "core/kernels/simd.h"
#include "examples/boostgrad/commands.h"

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

// CLI11 cuts a whole number that is too large to the largest one, and -1 to 2^64 - 1.
template <class T>
std::string check_whole_number(const std::string& text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error == std::errc() && end == text.data() + text.size()) return {};
  return error_text("number", "bad value", str("'", text, "'"),
                    str("a whole number from ", std::numeric_limits<T>::min(), " to ", std::numeric_limits<T>::max()),
                    {});
}

// CLI11 takes an empty number for one that was not given, and an empty path, as a shell gives for a variable that is
// not set, would pass for an option that was not either.
std::string check_not_empty(const std::string& text) {
  return text.empty() ? error_text("option", "bad value", "''", "something", {}) : "";
}

void check_values(CLI::App& command) {
  for (CLI::App* sub : command.get_subcommands({})) check_values(*sub);
  for (CLI::Option* option : command.get_options()) {
    if (option->get_type_size() == 0) continue;  // a flag
    option->check(check_not_empty);
    if (option->get_type_name() == "INT") option->check(check_whole_number<int64_t>);
    if (option->get_type_name() == "UINT") option->check(check_whole_number<uint64_t>);
  }
}

// A path may hold a line break; a sentence about it must not.
std::string one_line(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, ' ');
  return text;
}

// What is wrong with the command line, in the agreed form.
std::string usage_text(const CLI::ParseError& e, int argc, char** argv, const CLI::App& app) {
  // The last command given: the program, one of its commands, or one of that one's.
  const CLI::App* last = &app;
  std::string path = "boostgrad";
  int depth = 1;
  for (; !last->get_subcommands().empty(); ++depth) {
    last = last->get_subcommands()[0];
    path += " " + last->get_name();
  }
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
  return error_text(command.get_name(), one_line(e.what()), {}, {}, hint);
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

int run(int argc, char** argv) {
  CLI::App app("Boostgrad: attention, autograd and gradient verification from scratch", "boostgrad");
  app.set_version_flag("--version", version_text, "version, build type, what runs parallel work, SIMD instructions");
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, Command::Run>> runs;
  std::vector<Command*> commands = Command::all();
  std::sort(commands.begin(), commands.end(), [](auto* a, auto* b) { return a->name < b->name; });
  for (Command* c : commands) {
    CLI::App* sub = app.add_subcommand(c->name, c->summary);
    runs.emplace_back(sub, c->set_up(*sub));
    check_values(*sub);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::cerr << "boostgrad: " << one_line(usage_text(e, argc, argv, app)) << "\n";
    return 2;
  }
  for (auto& [sub, action] : runs)
    if (sub->parsed()) return action();
  return 2;
}

}  // namespace
}  // namespace bg

int main(int argc, char** argv) {
  try {
    const int code = bg::run(argc, argv);
    errno = 0;
    std::cout.flush();
    if (!std::cout || std::fflush(stdout) != 0 || std::ferror(stdout))  // a full disk must not look like success
      bg::fail("output", "cannot write all results to standard output", bg::output_error(errno));
    return code;
  } catch (const bg::UsageError& e) {
    std::cerr << "boostgrad: " << bg::one_line(e.what()) << "\n";
    return 2;
  } catch (const std::bad_alloc&) {
    std::cerr << "boostgrad: " << bg::error_text("memory", "out of memory", {}, {}, "a smaller model or batch") << "\n";
    return 1;
  } catch (const std::exception& e) {
    std::cerr << "boostgrad: " << bg::one_line(e.what()) << "\n";
    return 1;
  }
}
