// Text by printf's rules, where columns or digits matter; str() of core/error.h for everything else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace bg {

std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));

/// As str() gives it, but "nan" without the sign that a NaN happens to have.
std::string number_text(double value);

/// "1 token", "2 tokens".
std::string counted(int64_t n, const std::string& thing);

/// A word for a POSIX shell: as it is, or in single quotes where it has to be.
std::string shell_word(const std::string& word);

using TableLines = std::vector<std::vector<std::string>>;

/// Lines of cells, the first of them the heading, as a table in Markdown that is aligned as text too: the first `left`
/// columns to the left, the others to the right. All lines have equally many cells, in ASCII.
std::string markdown_table(const TableLines& lines, std::size_t left = 1);

/// A curve in a line of text: at most `cells` block characters of eight heights, from the smallest to the largest
/// value, each the mean of its share of the values. In UTF-8; empty without values or cells.
std::string sparkline(std::span<const double> values, std::size_t cells);

}  // namespace bg
