#include "autograd/profile.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "autograd/var.h"

namespace bg {

Profile::Profile() : before_(detail::current_profile) { detail::current_profile = this; }
Profile::~Profile() { detail::current_profile = before_; }

int Profile::begin(std::string_view name, Kind kind, const std::string& scope) {
  const int event = static_cast<int>(events_.size());
  events_.push_back({std::string(name), scope, kind, 0, 0, 0, open_});
  open_ = event;
  events_.back().begin = now();
  return event;
}

void Profile::end(int event) {
  Event& e = events_[static_cast<size_t>(event)];
  e.seconds = now() - e.begin;
  e.own += e.seconds;
  open_ = e.parent;
  if (open_ >= 0) events_[static_cast<size_t>(open_)].own -= e.seconds;
}

std::vector<Profile::Row> Profile::summary() const {
  std::vector<Row> rows;
  std::vector<std::string> phases;                    // in order of appearance
  std::vector<std::string> phase_of(events_.size());  // parents come first
  for (size_t i = 0; i < events_.size(); ++i) {
    const Event& e = events_[i];
    const std::string phase = e.kind == Kind::phase ? e.name
                              : e.parent >= 0       ? phase_of[static_cast<size_t>(e.parent)]
                                                    : std::string();
    phase_of[i] = phase;
    if (std::find(phases.begin(), phases.end(), phase) == phases.end()) phases.push_back(phase);
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](const Row& r) { return r.phase == phase && r.name == e.name && r.kind == e.kind; });
    if (row == rows.end()) row = rows.insert(rows.end(), Row{phase, e.name, e.kind});
    ++row->count;
    row->seconds += e.own;
  }
  auto place = [&](const Row& r) { return std::find(phases.begin(), phases.end(), r.phase) - phases.begin(); };
  std::stable_sort(rows.begin(), rows.end(), [&](const Row& a, const Row& b) {
    return place(a) != place(b) ? place(a) < place(b) : a.seconds > b.seconds;
  });
  return rows;
}

std::string Profile::chrome_trace() const {
  constexpr double kMicroseconds = 1e6;
  nlohmann::ordered_json events = nlohmann::ordered_json::array();
  for (const Event& e : events_)
    events.push_back({{"name", e.name},
                      {"cat", name_of(e.kind)},
                      {"ph", "X"},
                      {"ts", e.begin * kMicroseconds},
                      {"dur", e.seconds * kMicroseconds},
                      {"pid", 1},
                      {"tid", 1},
                      {"args", {{"scope", e.scope}}}});
  return nlohmann::ordered_json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

std::string_view name_of(Profile::Kind kind) {
  constexpr std::string_view kNames[] = {"phase", "forward", "backward", "recomputed", "other"};
  return kNames[static_cast<int>(kind)];
}

void ProfileSpan::open(std::string_view name, Profile::Kind kind, const std::string* scope) {
  event_ = profile_->begin(name, kind, scope ? *scope : Scope::current());
}

}  // namespace bg
