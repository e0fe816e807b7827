// Checkpoints: one safetensors file with model, optimizer and the little else that training needs to go on.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "nn/optim.h"

namespace bg {

struct Checkpoint {
  StateDict model, optimizer;
  nlohmann::json meta;  ///< step, best validation loss, the model's configuration
};

/// Writes a checkpoint atomically, with a checksum. Throws Error as AtomicFile does; the old file is untouched then.
void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint);
/// Throws Error, naming the file, when it is missing, damaged, or no checkpoint.
Checkpoint load_checkpoint(const std::filesystem::path& path);

/// The same in memory; `source` names the bytes in errors.
std::string checkpoint_bytes(const Checkpoint& checkpoint);
Checkpoint parse_checkpoint(std::string_view bytes, std::string_view source);

/// The numbered checkpoints of a run, step-00000100.safetensors and so on: the last few are kept, so that a damaged
/// one has a predecessor.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::filesystem::path folder) : folder_(std::move(folder)) {}

  /// Saves as step `step` and removes all but the newest kKept. The folder must exist.
  void save(int64_t step, const Checkpoint& checkpoint) const;
  /// The newest checkpoint that reads well. A damaged one is reported, by name and reason, and passed over.
  /// Throws UnreadableFile, as all of these do, when the folder is there and cannot be read, or one of its files
  /// cannot.
  std::optional<Checkpoint> newest(const std::function<void(const std::string&)>& report) const;

  bool empty() const { return list().empty(); }
  /// The step of the newest file, whether it reads well or not.
  std::optional<int64_t> newest_step() const;

  static constexpr int kKept = 2;

 private:
  std::vector<std::pair<int64_t, std::filesystem::path>> list() const;  // newest first
  std::filesystem::path folder_;
};

}  // namespace bg
