// Writing into a run folder (models/trainer.h): one process at a time, and only while the folder is still its own.
#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "core/atomic_file.h"
#include "core/folder_lock.h"
#include "models/trainer.h"

namespace bg {

/// Holds the folder of a run, and metrics.jsonl in it, for the process that trains.
class RunFolder {
 public:
  /// Makes the folder where it is missing. Throws Error when another process holds it.
  explicit RunFolder(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }

  /// The path of a file in it that is to be written now. Throws Error when the folder or its log was removed, moved or
  /// replaced: another process may have begun another run under the same name.
  std::filesystem::path to_write(const std::string& name) const;

  /// Opens metrics.jsonl to go on after `step`. `kept` is what log_until gave for it.
  void open_log(const std::string& kept);
  /// Adds a line.
  void log(const nlohmann::json& row);
  /// What was logged survives a power cut from here on, as the checkpoint does that comes next.
  void flush_log() { log_->flush(); }

 private:
  std::filesystem::path path_;
  FolderLock lock_;
  std::unique_ptr<AppendFile> log_;
};

/// The lines of metrics.jsonl up to `step`, for a training that goes on after it: a log may be ahead of the checkpoint,
/// or end in half a line. Throws Error when one of the steps is missing. Changes nothing.
std::string log_until(const std::filesystem::path& folder, int64_t step);

/// What weights belong to, kept beside them: the options of the run and its tokenizer.
nlohmann::json owner_facts(const TrainOptions& options, const nlohmann::json& tokenizer);
/// The metadata key of weight files under which they are.
inline constexpr const char* kOwnerKey = "boostgrad.run";
/// Which of the options count: all for a training that goes on, those that decide what the model computes for others.
enum class OwnerPart { all, function };
/// Throws UsageError, naming the first difference, when the weights in `file` belong to another configuration than
/// `now`. Those of older builds carry none (null) and pass.
void check_owner(const nlohmann::json& stored, const nlohmann::json& now, OwnerPart part, const std::string& file);

/// Throws UsageError when the text of a run is not where `data` says, seen from where this program was started.
void check_text_is_there(const std::string& data, const std::filesystem::path& run);

}  // namespace bg
