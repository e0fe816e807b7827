// The sub-commands of the boostgrad program. Each lives in one file, cmd_NAME.cpp, and registers itself; nothing else
// knows it:
//
//   static const Command command("info", "what this build can do", [](CLI::App& app) {
//     auto options = std::make_shared<Options>();
//     app.add_option(...);
//     return [options] { ...; return 0; };              // runs after parsing; the program's exit code
//   });
//
// Errors: throw UsageError for what the user asked wrongly (exit 2), Error for anything else (exit 1); `boostgrad
// --help` has the rule. The program prints one line. With --json, standard output carries one JSON object per line and
// nothing else.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/error.h"

namespace bg {

class Command {
 public:
  using Run = std::function<int()>;
  using SetUp = std::function<Run(CLI::App&)>;

  Command(std::string name, std::string summary, SetUp set_up)
      : name(std::move(name)), summary(std::move(summary)), set_up(std::move(set_up)) {
    all().push_back(this);
  }
  Command(const Command&) = delete;

  static std::vector<Command*>& all() {
    static std::vector<Command*> commands;
    return commands;
  }

  std::string name, summary;
  SetUp set_up;
};

/// The candidates most like `name`, nearest first: "did you mean".
std::vector<std::string> near_names(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace bg
