// Text by printf's rules, where columns or digits matter; str() of core/error.h for everything else.
#pragma once

#include <string>

namespace bg {

std::string formatted(const char* format, ...) __attribute__((format(printf, 1, 2)));

}  // namespace bg
