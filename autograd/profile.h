// Where the time goes: every op's forward and backward, as timed spans.
//
//   Profile profile;                                            // records this thread while it lives
//   {
//     const ProfileSpan phase("forward", Profile::Kind::phase);
//     loss = model.loss(...);
//   }
//   for (const Profile::Row& row : profile.summary()) ...       // per phase and op
//   write_file_atomically("trace.json", profile.chrome_trace());
//
// Ops, the engine and the optimizers open spans; without a Profile a span costs one comparison with null.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"

namespace bg {

class Profile {
 public:
  enum class Kind { phase, forward, backward, recomputed, other };

  struct Event {
    std::string name;   ///< of the op or the phase
    std::string scope;  ///< the part of the model, such as blocks.3.attn
    Kind kind;
    double begin;    ///< seconds since the profile was made
    double seconds;  ///< from begin to end
    double own;      ///< seconds without those of the spans inside
    int parent;      ///< index of the event around it; -1: none
  };

  /// Sums over events of one phase, name and kind. A phase's own row is what no op accounts for.
  struct Row {
    std::string phase, name;
    Kind kind;
    int64_t count = 0;
    double seconds = 0;  ///< own times: the rows of a phase add up to it
  };

  /// Records what this thread does until the object goes; a profile made inside another takes over meanwhile.
  Profile();
  ~Profile();
  Profile(const Profile&) = delete;
  Profile& operator=(const Profile&) = delete;

  /// In the order in which they began. Complete where no span is open.
  const std::vector<Event>& events() const { return events_; }
  /// Phases in order of appearance ("" outside any), rows by falling time.
  std::vector<Row> summary() const;
  /// The events in the Trace Event Format of chrome://tracing and Perfetto: complete events, times in microseconds.
  std::string chrome_trace() const;

 private:
  friend class ProfileSpan;
  int begin(std::string_view name, Kind kind, const std::string& scope);
  void end(int event);
  double now() const { return seconds_now() - start_; }

  Profile* before_;
  double start_ = seconds_now();
  std::vector<Event> events_;
  int open_ = -1;  // innermost open span
};

/// "phase", "forward", ...
std::string_view name_of(Profile::Kind kind);

namespace detail {
inline constinit thread_local Profile* current_profile = nullptr;
}

/// A span of time of this thread's profile, if there is one. Spans must end in the order opposite to their beginning,
/// and before their profile.
class ProfileSpan {
 public:
  /// In the current Scope of the model, or in `scope`.
  explicit ProfileSpan(std::string_view name, Profile::Kind kind, const std::string* scope = nullptr)
      : profile_(detail::current_profile) {
    if (profile_) [[unlikely]]
      open(name, kind, scope);
  }
  ~ProfileSpan() {
    if (profile_) [[unlikely]]
      profile_->end(event_);
  }
  ProfileSpan(const ProfileSpan&) = delete;
  ProfileSpan& operator=(const ProfileSpan&) = delete;

 private:
  void open(std::string_view name, Profile::Kind kind, const std::string* scope);

  Profile* profile_;
  int event_ = -1;
};

}  // namespace bg
