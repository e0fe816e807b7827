#include "models/checkpoint.h"

#include <algorithm>

#include "core/atomic_file.h"
#include "core/io/json.h"
#include "core/io/safetensors.h"
#include "core/read_file.h"

namespace bg {
namespace {

constexpr std::string_view kModel = "model.", kOptimizer = "optimizer.", kMeta = "boostgrad";

TensorFile tensor_file(const Checkpoint& checkpoint) {
  TensorFile file;
  for (const auto& [name, t] : checkpoint.model) file.tensors[str(kModel, name)] = t;
  for (const auto& [name, t] : checkpoint.optimizer) file.tensors[str(kOptimizer, name)] = t;
  file.metadata[std::string(kMeta)] = checkpoint.meta.dump();
  return file;
}

Checkpoint checkpoint_in(const TensorFile& file, std::string_view source) {
  Checkpoint c;
  for (const auto& [name, t] : file.tensors) {
    if (name.starts_with(kModel))
      c.model[name.substr(kModel.size())] = t;
    else if (name.starts_with(kOptimizer))
      c.optimizer[name.substr(kOptimizer.size())] = t;
  }
  const auto meta = file.metadata.find(std::string(kMeta));
  BG_CHECK(meta != file.metadata.end(), "checkpoint", "not a Boostgrad checkpoint", source,
           str("metadata '", kMeta, "'"));
  c.meta = parse_json(meta->second, "checkpoint", str("the metadata of ", source));
  BG_CHECK(c.meta.is_object() && c.meta.contains("step") && c.meta["step"].is_number_integer(), "checkpoint",
           "damaged metadata", source, "a JSON object with the step");
  return c;
}

}  // namespace

void save_checkpoint(const std::filesystem::path& path, const Checkpoint& checkpoint) {
  write_safetensors(path, tensor_file(checkpoint));
}

std::string checkpoint_bytes(const Checkpoint& checkpoint) { return safetensors_bytes(tensor_file(checkpoint)); }

Checkpoint load_checkpoint(const std::filesystem::path& path) {
  return checkpoint_in(read_safetensors(path), path.string());
}

Checkpoint parse_checkpoint(std::string_view bytes, std::string_view source) {
  return checkpoint_in(parse_safetensors(bytes, source), source);
}

std::vector<std::pair<int64_t, std::filesystem::path>> CheckpointFolder::list() const {
  std::vector<std::pair<int64_t, std::filesystem::path>> found;
  for (const std::filesystem::path& path : list_folder(folder_)) {
    const std::string name = path.filename().string();
    long long step = 0;
    int used = 0;
    if (std::sscanf(name.c_str(), "step-%lld.safetensors%n", &step, &used) == 1 &&
        used == static_cast<int>(name.size()))
      found.emplace_back(step, path);
  }
  std::sort(found.rbegin(), found.rend());
  return found;
}

void CheckpointFolder::save(int64_t step, const Checkpoint& checkpoint) const {
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
    } catch (const UnreadableFile&) {  // is perhaps a good one
      throw;
    } catch (const Error& e) {
      report(str("damaged checkpoint ", path.string(), " passed over: ", e.what()));
    }
  }
  return std::nullopt;
}

}  // namespace bg
