// Names of an enum's values, for options, files and messages: one table each way.
#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "core/error.h"

namespace bg {

/// The enum's values are 0, 1, ... in the order of the names. `what` names the choice in errors, such as "gate".
template <class E, size_t N>
struct EnumNames {
  std::string_view what;
  std::array<std::string_view, N> names;

  std::string name(E value) const { return std::string(names[static_cast<size_t>(value)]); }
  /// Throws UsageError that lists the choices.
  E parse(std::string_view text) const {
    const auto found = std::find(names.begin(), names.end(), text);
    if (found == names.end()) fail<UsageError>(what, str("unknown ", what), str("'", text, "'"), choices());
    return static_cast<E>(found - names.begin());
  }
  /// "a, b or c"
  std::string choices() const {
    std::string list;
    for (size_t i = 0; i < N; ++i) list += str(i == 0 ? "" : i + 1 == N ? " or " : ", ", names[i]);
    return list;
  }
};

}  // namespace bg
