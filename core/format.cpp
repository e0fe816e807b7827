#include "core/format.h"

#include <algorithm>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include "core/error.h"

namespace bg {

std::string formatted(const char* format, ...) {
  va_list arguments, again;
  va_start(arguments, format);
  va_copy(again, arguments);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, arguments)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(arguments);
  return text;
}

std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string sparkline(std::span<const double> values, std::size_t cells) {
  constexpr const char* kBlocks[] = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  cells = std::min(cells, values.size());
  std::vector<double> means(cells);
  for (std::size_t i = 0; i < cells; ++i) {
    const std::size_t begin = i * values.size() / cells, end = (i + 1) * values.size() / cells;
    for (std::size_t j = begin; j < end; ++j) means[i] += values[j] / static_cast<double>(end - begin);
  }
  if (means.empty()) return {};
  const auto [low, high] = std::minmax_element(means.begin(), means.end());
  const double step = (*high - *low) / 8;
  std::string text;
  for (const double m : means) text += kBlocks[step > 0 ? std::min(static_cast<int>((m - *low) / step), 7) : 0];
  return text;
}

std::string markdown_table(const TableLines& lines, std::size_t left) {
  std::vector<std::size_t> width(lines.empty() ? 0 : lines[0].size());
  for (const auto& line : lines)
    for (std::size_t i = 0; i < line.size(); ++i) width[i] = std::max(width[i], line[i].size());
  std::string text;
  for (std::size_t n = 0; n < lines.size(); ++n) {
    for (std::size_t i = 0; i < width.size(); ++i) {
      const std::string pad(width[i] - lines[n][i].size(), ' ');
      text += str(i == 0 ? "| " : " | ", i < left ? lines[n][i] + pad : pad + lines[n][i]);
    }
    text += " |\n";
    if (n > 0) continue;
    for (std::size_t i = 0; i < width.size(); ++i)
      text += str("|", std::string(width[i] + 1, '-'), i < left ? "-" : ":");
    text += "|\n";
  }
  return text;
}

std::string counted(int64_t n, const std::string& thing) { return str(n, " ", thing, n == 1 ? "" : "s"); }

std::string number_text(double value) { return std::isnan(value) ? "nan" : str(value); }

}  // namespace bg
