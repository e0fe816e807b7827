// The fields of a struct by position: what they are called as types, what they hold, and whether two structs differ in
// them. C++20 has no reflection; a struct that is initialised from a list of values can be taken apart by one binding
// for each number of fields.
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <concepts>
#include <optional>
#include <ranges>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace bg::verifier {

/// The name of a type as the compiler writes it, out of "... [with O = name]" or "... [O = name]".
template <class O>
std::string type_name() {
  const std::string_view text = __PRETTY_FUNCTION__, mark = "O = ";
  const size_t begin = text.find(mark) + mark.size();
  std::string name(text.substr(begin, text.find_first_of(";]", begin) - begin));
  for (const std::string_view noise : {"{anonymous}::", "(anonymous namespace)::", "__cxx11::"})
    for (size_t at; (at = name.find(noise)) != std::string::npos;) name.erase(at, noise.size());
  return name;
}

namespace detail {

inline constexpr size_t kMostFields = 16;

/// Initialises any field; a base class of A only through its own fields.
template <class A>
struct AnyField {
  template <class T>
  requires(!std::is_base_of_v<T, A>) operator T() const;
};
template <class A>
struct AnyBase {
  template <class T>
  requires(std::is_base_of_v<T, A> && !std::same_as<T, A>) operator T() const;
};

template <class A, size_t>
using AnyFieldOf = AnyField<A>;

template <class A, size_t... I>
constexpr bool takes(std::index_sequence<I...>) {
  return requires { A{AnyFieldOf<A, I>{}...}; };
}
/// With `{}` between `Before` and `After` other values: it stands for one whole field, also where that is an array.
template <class A, size_t... Before, size_t... After>
constexpr bool takes_whole(std::index_sequence<Before...>, std::index_sequence<After...>) {
  return requires { A{AnyFieldOf<A, Before>{}..., {}, AnyFieldOf<A, After>{}...}; };
}

/// The number of values that initialise A, at most one more than can be bound.
template <class A, size_t N = kMostFields + 1>
constexpr size_t value_count() {
  if constexpr (N == 0 || takes<A>(std::make_index_sequence<N>()))
    return N;
  else
    return value_count<A, N - 1>();
}

/// Whether every one of N values initialises one field, and no field is left: no arrays, no fields that only their own
/// constructors initialise.
template <class A, size_t N, size_t... I>
constexpr bool one_value_a_field(std::index_sequence<I...>) {
  return !takes_whole<A>(std::make_index_sequence<N>(), std::index_sequence<>()) &&
         (takes_whole<A>(std::make_index_sequence<I>(), std::make_index_sequence<N - 1 - I>()) && ...);
}

/// The number of fields of A; 0 where it cannot be taken apart (no aggregate, a base class, an array, too many).
template <class A>
constexpr size_t field_count() {
  if constexpr (!std::is_aggregate_v<A> || !std::is_class_v<A>) {
    return 0;
  } else if constexpr (requires { A{AnyBase<A>{}}; }) {
    return 0;
  } else {
    constexpr size_t n = value_count<A>();
    return n <= kMostFields && one_value_a_field<A, n>(std::make_index_sequence<n>()) ? n : 0;
  }
}

/// f(the fields of x).
template <class A, class F>
decltype(auto) with_fields(A& x, F&& run) {
  constexpr size_t n = field_count<std::remove_const_t<A>>();
  static_assert(n > 0, "a struct that can be taken apart");
#define BG_BIND(count, ...)                   \
  else if constexpr (n == count) {            \
    auto& [__VA_ARGS__] = x;                  \
    return std::forward<F>(run)(__VA_ARGS__); \
  }
  if constexpr (n == 0) {
  }
  BG_BIND(1, a)
  BG_BIND(2, a, b)
  BG_BIND(3, a, b, c)
  BG_BIND(4, a, b, c, d)
  BG_BIND(5, a, b, c, d, e)
  BG_BIND(6, a, b, c, d, e, f)
  BG_BIND(7, a, b, c, d, e, f, g)
  BG_BIND(8, a, b, c, d, e, f, g, h)
  BG_BIND(9, a, b, c, d, e, f, g, h, i)
  BG_BIND(10, a, b, c, d, e, f, g, h, i, j)
  BG_BIND(11, a, b, c, d, e, f, g, h, i, j, k)
  BG_BIND(12, a, b, c, d, e, f, g, h, i, j, k, l)
  BG_BIND(13, a, b, c, d, e, f, g, h, i, j, k, l, m)
  BG_BIND(14, a, b, c, d, e, f, g, h, i, j, k, l, m, o)
  BG_BIND(15, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p)
  BG_BIND(16, a, b, c, d, e, f, g, h, i, j, k, l, m, o, p, q)
#undef BG_BIND
}

/// A range of other things than itself (a path is one of paths).
template <class T>
concept Sequence =
    std::ranges::forward_range<const T> && !std::same_as<std::remove_cvref_t<std::ranges::range_value_t<const T>>, T>;

/// Whether two values are equal, as far as that can be found out: element by element, by their ==, or field by field.
template <class T>
std::optional<bool> same(const T& a, const T& b) {
  if constexpr (Sequence<T>) {
    if (std::ranges::distance(a) != std::ranges::distance(b)) return false;
    std::optional<bool> all = true;
    auto other = std::ranges::begin(b);
    for (const auto& x : a) {
      const std::optional<bool> one = same<std::ranges::range_value_t<const T>>(x, *other++);
      if (one == false) return false;
      if (!one) all = std::nullopt;
    }
    return all;
  } else if constexpr (std::equality_comparable<T>) {
    return a == b;
  } else if constexpr (std::is_empty_v<T>) {
    return true;
  } else if constexpr (field_count<T>() > 0) {
    return with_fields(a, [&](const auto&... x) {
      return with_fields(b, [&](const auto&... y) {
        std::optional<bool> all = true;
        for (const std::optional<bool> one : {same(x, y)...})
          if (one == false || !one) all = all == false ? all : one;
        return all;
      });
    });
  } else {
    return std::nullopt;
  }
}

/// A value as text; empty where it cannot be written.
template <class T>
std::string text_of(const T& value) {
  std::string list;
  auto add = [&list](const std::string& one) { list += (list.empty() ? "" : ", ") + (one.empty() ? "?" : one); };
  if constexpr (std::same_as<T, bool>) {
    return value ? "true" : "false";
  } else if constexpr (std::floating_point<T>) {
    std::array<char, 64> digits;
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
  } else if constexpr (std::convertible_to<T, std::string_view> && !std::is_pointer_v<T>) {
    return str('"', std::string_view(value), '"');
  } else if constexpr (std::is_enum_v<T>) {
    return str(static_cast<long long>(value));
  } else if constexpr (requires(std::ostream & out) { out << value; }) {
    return str(value);
  } else if constexpr (Sequence<T>) {
    for (const auto& x : value) add(text_of<std::ranges::range_value_t<const T>>(x));
    return "[" + list + "]";
  } else if constexpr (field_count<T>() > 0) {
    with_fields(value, [&](const auto&... x) { (add(text_of(x)), ...); });
    return "{" + list + "}";
  } else {
    return {};
  }
}

/// Whether a value is made of single numbers and names: no table whose length may belong to something else.
template <class T>
bool single_values(const T& value) {
  if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_empty_v<T>)
    return true;
  else if constexpr (std::convertible_to<const T&, std::string_view> && !std::is_pointer_v<T>)
    return true;
  else if constexpr (!Sequence<T> && field_count<T>() > 0)
    return with_fields(value, [](const auto&... field) { return (single_values(field) && ...); });
  else
    return false;
}

/// Other values for one field that are as good as the one it has: switches turned, numbers halved and doubled.
template <class T>
std::vector<std::pair<std::string_view, T>> other_values(const T& value) {
  if constexpr (std::same_as<T, bool>) {
    return {{"turned", !value}};
  } else if constexpr (std::floating_point<T>) {
    if (value == 0) return {};
    return {{"halved", value / 2}, {"doubled", value * 2}};
  } else {
    return {};
  }
}

}  // namespace detail

/// A struct with one field changed, and how: "argument 2 of 3 halved".
template <class A>
struct Varied {
  std::string how;
  A value;
};

/// Every way to change one field of `a` to another value that is as good (numbers and switches; counts and names have
/// meanings that others rest on). `fixed`: fields, from 1, that are left as they are.
template <class A>
std::vector<Varied<A>> varied_fields(const A& a, const std::vector<size_t>& fixed) {
  std::vector<Varied<A>> out;
  if constexpr (!std::is_empty_v<A> && detail::field_count<A>() > 0) {
    constexpr size_t count = detail::field_count<A>();
    size_t number = 0;
    auto vary = [&](const auto& field) {
      const size_t at = ++number;
      if (std::find(fixed.begin(), fixed.end(), at) != fixed.end()) return;
      for (const auto& [how, value] : detail::other_values(field)) {
        A other = a;
        size_t k = 0;
        detail::with_fields(other, [&, &value = value](auto&... mine) {
          auto set = [&](auto& one) {
            const bool here = ++k == at;
            if constexpr (std::is_assignable_v<decltype(one), decltype(value)> &&
                          std::same_as<std::remove_cvref_t<decltype(one)>, std::remove_cvref_t<decltype(value)>>)
              if (here) one = value;
          };
          (set(mine), ...);
        });
        out.push_back({str("argument ", at, " of ", count, " is ", how), std::move(other)});
      }
    };
    detail::with_fields(a, [&](const auto&... field) { (vary(field), ...); });
  }
  return out;
}

/// `a` with one field of `other` each, where they differ: "argument 2 of 3 is that of ...". `of` names the other one.
template <class A>
std::vector<Varied<A>> crossed_fields(const A& a, const A& other, const std::string& of) {
  std::vector<Varied<A>> out;
  if constexpr (!std::is_empty_v<A> && std::is_copy_assignable_v<A> && detail::field_count<A>() > 1) {
    constexpr size_t count = detail::field_count<A>();
    for (size_t at = 0; at < count; ++at) {
      A crossed = a;
      bool changed = false;
      detail::with_fields(crossed, [&](auto&... mine) {
        detail::with_fields(other, [&](const auto&... theirs) {
          size_t k = 0;
          auto take = [&](auto& one, const auto& that) {
            if (k++ != at || detail::same(one, that) != false) return;
            one = that;
            changed = true;
          };
          (take(mine, theirs), ...);
        });
      });
      if (changed) out.push_back({str("argument ", at + 1, " of ", count, " is that of ", of), std::move(crossed)});
    }
  }
  return out;
}

/// One field of two structs of one type.
struct Field {
  std::string type;          ///< "double"
  std::string text;          ///< what the first struct holds, "0.1"; empty where it cannot be written
  std::optional<bool> same;  ///< whether the second holds the same; nothing where that cannot be compared
};

/// The fields of `a`, compared with those of `b`. A struct that cannot be taken apart (a constructor, a base class, an
/// array, more than 16 fields) is one field; an empty one has none.
template <class A>
std::vector<Field> compared_fields(const A& a, const A& b) {
  auto field = []<class T>(const T& x, const T& y) {
    return Field{type_name<T>(), detail::text_of(x), detail::same(x, y)};
  };
  if constexpr (std::is_empty_v<A>) {
    return {};
  } else if constexpr (detail::field_count<A>() > 0) {
    return detail::with_fields(a, [&](const auto&... x) {
      return detail::with_fields(b, [&](const auto&... y) { return std::vector<Field>{field(x, y)...}; });
    });
  } else {
    return {field(a, b)};
  }
}

}  // namespace bg::verifier
