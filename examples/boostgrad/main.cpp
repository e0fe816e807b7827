// The boostgrad program: finds the sub-command, and turns what goes wrong into one line and an exit code.
#include <algorithm>
#include <iostream>
#include <numeric>

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

int run(int argc, char** argv) {
  CLI::App app("Boostgrad: attention, autograd and gradient verification from scratch", "boostgrad");
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, Command::Run>> runs;
  std::vector<Command*> commands = Command::all();
  std::sort(commands.begin(), commands.end(), [](auto* a, auto* b) { return a->name < b->name; });
  for (Command* c : commands) {
    CLI::App* sub = app.add_subcommand(c->name, c->summary);
    runs.emplace_back(sub, c->set_up(*sub));
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::string text = e.what();
    std::replace(text.begin(), text.end(), '\n', ' ');
    std::cerr << "boostgrad: " << text << " (see --help)\n";
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
    return bg::run(argc, argv);
  } catch (const bg::UsageError& e) {
    std::cerr << "boostgrad: " << e.what() << "\n";
    return 2;
  } catch (const std::exception& e) {
    std::cerr << "boostgrad: " << e.what() << "\n";
    return 1;
  }
}
