// What pages written by the program share: their frame and look, and text that is safe in them.
#pragma once

#include <string>
#include <string_view>

namespace bg {

/// Text for HTML, in elements and in quoted attributes.
std::string html_escaped(std::string_view text);

/// A whole page that loads nothing and reads well on light and dark, wide and narrow screens. `style` is CSS besides
/// the common one, which has colours (--page, --card, --ink, --soft, --line, --good, --bad), tables (in a .scroll where
/// they may be wide), .card, pre, and .good, .bad, .soft for text. `title` is escaped here, `body` is HTML.
std::string html_document(std::string_view title, std::string_view style, std::string_view body);

}  // namespace bg
