#include "models/gnuplot.h"

#include <sys/wait.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/atomic_file.h"
#include "core/error.h"

namespace bg {
namespace {

// A folder of one's own for the time of a plot.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "boostgrad-plot-XXXXXX").string();
    BG_CHECK(mkdtemp(name.data()) != nullptr, "plot", "cannot make a temporary folder", name, "a writable place",
             "set TMPDIR");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::filesystem::path operator/(const char* name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

std::string contents(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::string quoted(const std::filesystem::path& path) {
  std::string out = "'";
  for (const char c : path.string()) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

}  // namespace

std::string gnuplot(const std::string& program) {
  const TemporaryFolder folder;
  const auto in = folder / "program", out = folder / "out", errors = folder / "errors";
  write_file_atomically(in, program);
  const int status =
      std::system(str("gnuplot ", quoted(in), " >", quoted(out), " 2>", quoted(errors), " </dev/null").c_str());
  constexpr int kNotFound = 127;
  BG_CHECK(!WIFEXITED(status) || WEXITSTATUS(status) != kNotFound, "plot", "gnuplot is not installed", "",
           "the program gnuplot, which draws all plots", "sudo apt-get install gnuplot-nox");
  std::string told = contents(errors);
  for (char& c : told)
    if (c == '\n') c = ' ';
  const std::string drawn = contents(out);
  BG_CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0 && !drawn.empty(), "plot", "gnuplot failed",
           told.substr(0, 300));
  return drawn;
}

}  // namespace bg
