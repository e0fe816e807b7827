// Prints the ids of a text, one a line, for comparison with another implementation (tokenizer_vs_hf.py), and on stderr
// how long training and encoding took.
//
//   encode_tool byte|bpe:SIZE|FILE TEXT [SAVE_AS]
#include <chrono>
#include <cstdio>
#include <exception>

#include "core/read_file.h"
#include "models/tokenizer.h"

namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

int run(int argc, char** argv) {
  const std::string text = bg::read_file(argv[2], bg::FileKind::text);
  const auto start = std::chrono::steady_clock::now();
  const auto tokenizer = bg::make_tokenizer(argv[1], text);
  const double made = seconds_since(start);
  const auto ids = tokenizer->encode(text);
  std::fprintf(stderr, "%s: made in %.2f s, %zu bytes gave %zu ids in %.2f s\n", tokenizer->describe().c_str(), made,
               text.size(), ids.size(), seconds_since(start) - made);
  if (argc == 4) tokenizer->save(argv[3]);
  for (const int32_t id : ids) std::printf("%d\n", id);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 && argc != 4) {
    std::fprintf(stderr, "usage: encode_tool byte|bpe:SIZE|FILE TEXT [SAVE_AS]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
