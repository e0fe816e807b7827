// What pages written by the program share.
#pragma once

#include <string>
#include <string_view>

namespace bg {

/// Text for HTML, in elements and in quoted attributes.
std::string html_escaped(std::string_view text);

}  // namespace bg
