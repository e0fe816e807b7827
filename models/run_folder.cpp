#include "models/run_folder.h"

#include <algorithm>
#include <sstream>

#include "core/io/json.h"
#include "core/read_file.h"

namespace bg {

namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr const char* kLog = "metrics.jsonl";

fs::path made(fs::path folder) {
  make_folders(folder);
  return folder;
}

}  // namespace

RunFolder::RunFolder(fs::path path) : path_(made(std::move(path))), lock_(path_) {}

fs::path RunFolder::to_write(const std::string& name) const {
  lock_.check();
  if (log_) {  // opened once config.json is there
    log_->check();
    BG_CHECK(is_there(path_ / "config.json"), "run",
             str((path_ / "config.json").string(), " was removed while this program trained into its folder"), {}, {},
             "let no other program change it");
  }
  return path_ / name;
}

void RunFolder::open_log(const std::string& kept) {
  write_file_atomically(to_write(kLog), kept);
  log_ = std::make_unique<AppendFile>(path_ / kLog);
}

void RunFolder::log(const json& row) {
  to_write(kLog);
  log_->append(row.dump() + '\n');
}

std::string log_until(const fs::path& folder, int64_t step) {
  const fs::path path = folder / kLog;
  constexpr const char* kHint = "a copy of it, or train again into another --out";
  int64_t last = 0;
  std::string kept;
  BG_CHECK(step == 0 || is_there(path), "run", "the log of the run is missing", path.string(), str("steps 1 to ", step),
           kHint);
  if (is_there(path)) {
    std::istringstream in(read_file(path, FileKind::log));
    for (std::string line; std::getline(in, line);) {
      const json j = parse_json_or_null(line);
      if (!j.is_object() || !j.contains("step") || !j["step"].is_number_integer()) continue;
      const auto at = j["step"].get<int64_t>();
      if (at < 1 || at > step || at > last + 1) continue;
      last = std::max(last, at);
      kept += line + '\n';
    }
  }
  BG_CHECK(last == step, "run", str("damaged ", path.string()), str("steps 1 to ", last), str("1 to ", step), kHint);
  return kept;
}

json owner_facts(const TrainOptions& options, const json& tokenizer) {
  json all = options.to_json();
  all.erase("data");  // the text may lie elsewhere, and is known by its checksum
  return {{"options", all}, {"tokenizer", tokenizer}};
}

namespace {

// The first key of `stored` whose value is another one now, as "model.heads"; empty when there is none.
std::string first_difference(const json& stored, const json& now, json& was, json& is) {
  for (const auto& [key, value] : stored.items()) {
    const json other = now.is_object() ? now.value(key, json()) : json();
    if (value == other) continue;
    if (value.is_object()) {
      const std::string below = first_difference(value, other, was, is);
      if (!below.empty()) return str(key, ".", below);
      continue;
    }
    was = value;
    is = other;
    return key;
  }
  return {};
}

}  // namespace

void check_owner(const json& stored, const json& now, OwnerPart part, const std::string& file) {
  if (!stored.is_object()) return;
  json theirs = stored;
  if (part == OwnerPart::function && theirs.contains("options") && theirs["options"].is_object()) {
    json kept = json::object();
    for (const char* key : {"model", "window"})
      if (theirs["options"].contains(key)) kept[key] = theirs["options"][key];
    theirs["options"] = std::move(kept);
  }
  json was, is;
  const std::string name = first_difference(theirs, now, was, is);
  if (!name.empty())
    fail<UsageError>("run", str(file, " belongs to another configuration"), str(name, " ", is.dump()), was.dump(),
                     "the config.json and tokenizer.json that train wrote");
}

void check_text_is_there(const std::string& data, const fs::path& run) {
  if (data != "builtin:" && !is_there(data))
    fail<UsageError>("run", str("the text of the run in ", run.string(), " is not where it was"), data, "",
                     "--data with its place now");
}

}  // namespace bg
