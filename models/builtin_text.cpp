#include "models/builtin_text.h"

#include <array>
#include <string_view>

#include "core/rng.h"

namespace bg {
namespace {

using Words = std::array<std::string_view, 12>;

constexpr Words kNouns{"river",  "stone", "fox",  "miller", "lantern", "ship",
                       "garden", "king",  "bird", "road",   "winter",  "child"};
constexpr Words kAdjectives{"old",    "quiet",  "bright", "small", "green", "cold",
                            "gentle", "broken", "golden", "tall",  "lost",  "new"};
constexpr Words kVerbs{"follows", "remembers", "carries", "watches", "finds", "leaves",
                       "calls",   "keeps",     "warms",   "hides",   "meets", "loves"};
constexpr Words kPlaces{"by the sea",    "in the valley",   "under the hill",   "at the gate",
                        "near the mill", "beyond the wood", "before dawn",      "after the rain",
                        "in the snow",   "on the bridge",   "behind the house", "far away"};
constexpr Words kAdverbs{"slowly", "often", "never", "always", "gladly",  "again",
                         "softly", "alone", "soon",  "still",  "at last", "once"};

class Speaker {
 public:
  explicit Speaker(uint64_t seed) : rng_(seed, 77) {}

  std::string sentence() {
    std::string s = phrase();
    s += ' ';
    s += pick(kVerbs);
    s += ' ';
    s += phrase();
    if (rng_.below(2)) (s += ' ') += pick(kPlaces);
    if (rng_.below(3) == 0) (s += ' ') += pick(kAdverbs);
    if (rng_.below(4) == 0) s += ", and " + phrase() + ' ' + std::string(pick(kVerbs)) + " it";
    s[0] = static_cast<char>(s[0] - 'a' + 'A');
    return s + (rng_.below(8) ? ". " : ".\n");
  }

 private:
  std::string_view pick(const Words& words) { return words[rng_.below(words.size())]; }
  std::string phrase() {
    std::string s = rng_.below(3) ? "the " : "a ";
    if (rng_.below(2)) (s += pick(kAdjectives)) += ' ';
    return s += pick(kNouns);
  }
  Rng rng_;
};

}  // namespace

std::string builtin_text(std::size_t bytes, uint64_t seed) {
  Speaker speaker(seed);
  std::string text;
  while (text.size() < bytes) text += speaker.sentence();
  return text;
}

}  // namespace bg
