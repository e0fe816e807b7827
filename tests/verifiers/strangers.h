// Ops by people who did not know what the verifier looks at: wrong ones with their right twins, right ones of difficult
// kinds, and lists of weak samples. tests/verifiers/main.cpp gives them to the verifiers.
#pragma once

#include <string>
#include <vector>

#include "autograd/verify/entry.h"
#include "autograd/verify/gradcheck.h"

namespace bg::strangers {

/// A wrong op and its right twin.
struct Pair {
  std::string name, kind, mistake;
  verifier::Entry wrong, right;
};

/// A right function of Vars.
struct Function {
  std::string name;
  std::function<Vars(const Vars&)> f;
  Vars inputs;
};

std::vector<Pair> group_a();
std::vector<Pair> group_b();
std::vector<Pair> group_c();
std::vector<Pair> weak_lists();
std::vector<verifier::Entry> difficult_ops();
std::vector<Function> difficult_functions(uint64_t seed);

/// The pairs of `Cases<C...>`, a list of templates over "is it wrong?".
template <template <template <bool> class...> class Cases, template <bool> class... C>
std::vector<Pair> pairs_of(Cases<C...>) {
  std::vector<Pair> out;
  auto add = [&]<class Wrong, class Right>() {
    Pair p{std::string(Wrong::name), {}, {}, verifier::make_entry<Wrong>(), verifier::make_entry<Right>()};
    if (p.name.ends_with("_wrong")) p.name.resize(p.name.size() - 6);
    if constexpr (requires { Wrong::kind; }) p.kind = Wrong::kind;
    if constexpr (requires { Wrong::mistake; }) p.mistake = Wrong::mistake;
    if constexpr (requires { Wrong::weakness; }) p.kind = Wrong::weakness;
    out.push_back(std::move(p));
  };
  (add.template operator()<C<true>, C<false>>(), ...);
  return out;
}

}  // namespace bg::strangers
