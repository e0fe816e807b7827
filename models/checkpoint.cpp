#include "models/checkpoint.h"

#include <algorithm>

#include "core/atomic_file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"

namespace bg {
namespace {

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.", kMeta = "boostgrad";

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  TensorFile file;
  for (const auto& [name, t] : checkpoint.model) file.tensors[str(kModel, name)] = t;
  for (const auto& [name, t] : checkpoint.optimizer) file.tensors[str(kOptimizer, name)] = t;
  file.metadata[std::string(kMeta)] = checkpoint.meta.dump();
  write_safetensors(path, file);
}

Checkpoint load_checkpoint(const std::filesystem::path& path) {
  const TensorFile file = read_safetensors(path);
  Checkpoint c;
  for (const auto& [name, t] : file.tensors) {
    if (name.starts_with(kModel))
      c.model[name.substr(kModel.size())] = t;
    else if (name.starts_with(kOptimizer))
      c.optimizer[name.substr(kOptimizer.size())] = t;
  }
  const auto meta = file.metadata.find(std::string(kMeta));
  BG_CHECK(meta != file.metadata.end(), "checkpoint", "not a Boostgrad checkpoint", path.string(),
           str("metadata '", kMeta, "'"));
  c.meta = parse_json(meta->second, "checkpoint", str("the metadata of ", path.string()));
  BG_CHECK(c.meta.is_object() && c.meta.contains("step") && c.meta["step"].is_number_integer(), "checkpoint",
           "damaged metadata", path.string(), "a JSON object with the step");
  return c;
}

std::vector<std::pair<int64_t, std::filesystem::path>> CheckpointFolder::list() const {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, none)) {
    const std::string name = entry.path().filename().string();
    long long step = 0;
    int used = 0;
    if (std::sscanf(name.c_str(), "step-%lld.safetensors%n", &step, &used) == 1 &&
        used == static_cast<int>(name.size()))
      found.emplace_back(step, entry.path());
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void CheckpointFolder::save(int64_t step, const Checkpoint& checkpoint) const {
  make_folders(folder_);
  char name[64];
  std::snprintf(name, sizeof name, "step-%08lld.safetensors", static_cast<long long>(step));
  save_checkpoint(folder_ / name, checkpoint);
  const auto all = list();
  for (size_t i = kKept; i < all.size(); ++i) {
    std::error_code ignored;
    std::filesystem::remove(all[i].second, ignored);
  }
}

std::optional<int64_t> CheckpointFolder::newest_step() const {
  const auto all = list();
  return all.empty() ? std::nullopt : std::optional(all[0].first);
}

std::optional<Checkpoint> CheckpointFolder::newest(const std::function<void(const std::string&)>& report) const {
  for (const auto& [step, path] : list()) {
    try {
      return load_checkpoint(path);
    } catch (const Error& e) {
      report(str("damaged checkpoint ", path.string(), " passed over: ", e.what()));
    }
  }
  return std::nullopt;
}

}  // namespace bg
