// Reads tensors from one file and writes them to another, for comparison with other implementations
// (formats_vs_python.py). The formats are those of the extensions: .safetensors, .npz, .npy.
//
//   convert_tool IN OUT
#include <cstdio>
#include <exception>

#include "core/io/npy.h"
#include "core/io/safetensors.h"

namespace {

bg::TensorFile read_tensors(const std::filesystem::path& path) {
  if (path.extension() == ".npy") return {{{"array", bg::read_npy(path)}}, {}};
  if (path.extension() == ".npz") return {bg::read_npz(path), {}};
  return bg::read_safetensors(path);
}

void write_tensors(const std::filesystem::path& path, const bg::TensorFile& file) {
  if (path.extension() == ".npy") return bg::write_npy(path, file.tensors.at("array"));
  if (path.extension() == ".npz") return bg::write_npz(path, file.tensors);
  bg::write_safetensors(path, file);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: convert_tool IN OUT\n");
    return 2;
  }
  try {
    write_tensors(argv[2], read_tensors(argv[1]));
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
