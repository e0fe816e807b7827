#include "core/io/safetensors.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/atomic_file.h"
#include "core/io/json.h"
#include "core/read_file.h"

namespace bg {
namespace {

using nlohmann::json;
static_assert(std::endian::native == std::endian::little, "file formats are little-endian; numbers are copied as is");

constexpr std::string_view kOp = "safetensors";
constexpr std::string_view kMetadata = "__metadata__";
constexpr size_t kLengthBytes = 8;
constexpr uint64_t kMaxHeader = 100'000'000;  // the format's own limit
constexpr int kMaxDepth = 3;                  // header, tensor, its shape or offsets

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"F32", DType::f32}, {"F64", DType::f64}, {"I32", DType::i32}, {"I64", DType::i64}, {"BF16", DType::bf16}};

std::string_view format_name(DType t) {
  for (const auto& [name, dtype] : kDTypes)
    if (dtype == t) return name;
  return "?";
}

std::map<std::string, std::string> parse_metadata(const json& value, std::string_view source) {
  BG_CHECK(value.is_object(), kOp, str(source, ": bad ", kMetadata), value.type_name(), "an object of strings");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    BG_CHECK(text.is_string(), kOp, str(source, ": metadata '", key, "' is not a text"), text.type_name(), "a string");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

uint64_t parse_count(const json& value, const std::string& where) {
  BG_CHECK(value.is_number_unsigned() && value.get<uint64_t>() < (uint64_t{1} << 62), kOp,
           str(where, " is not a count"), json_excerpt(value),
           "a whole number from 0 to 2^62");
  return value.get<uint64_t>();
}

TensorFileHeader::Entry parse_entry(const json& value, const std::string& where) {
  BG_CHECK(value.is_object() && value.size() == 3 && value.contains("dtype") && value.contains("shape") &&
               value.contains("data_offsets"),
           kOp, str(where, " is badly described"), "", "an object of exactly dtype, shape and data_offsets");
  const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  BG_CHECK(dtype.is_string() && shape.is_array() && offsets.is_array() && offsets.size() == 2, kOp,
           str(where, " is badly described"), "", "dtype a string, shape an array, data_offsets an array of two");
  const auto found = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                  [&](const auto& d) { return d.first == dtype.get_ref<const std::string&>(); });
  BG_CHECK(found != std::end(kDTypes), kOp, str(where, " has a dtype that is not supported"),
           str("'", dtype.get<std::string>(), "'"), "F32, F64, I32, I64 or BF16",
           "convert it with the program that wrote it");
  BG_CHECK(shape.size() <= Shape::kMaxRank, kOp, str(where, " has too many dimensions"), str(shape.size()),
           str("at most ", Shape::kMaxRank));

  TensorFileHeader::Entry entry{found->second, {}, 0, 0};
  uint64_t bytes = static_cast<uint64_t>(size_of(entry.dtype));
  bool overflow = false, empty = false;
  for (const json& size : shape) {
    const uint64_t n = parse_count(size, str(where, ", size ", entry.shape.rank()));
    entry.shape.push_back(static_cast<int64_t>(n));
    empty = empty || n == 0;
    overflow = overflow || __builtin_mul_overflow(bytes, std::max<uint64_t>(n, 1), &bytes);
  }
  BG_CHECK(!overflow, kOp, str(where, " is too large"), str(entry.shape), "fewer than 2^64 bytes");
  if (empty) bytes = 0;
  entry.begin = parse_count(offsets[0], where + ", data_offsets[0]");
  entry.end = parse_count(offsets[1], where + ", data_offsets[1]");
  BG_CHECK(entry.begin <= entry.end && entry.end - entry.begin == bytes, kOp,
           str(where, " has offsets that do not fit its shape"), str("[", entry.begin, ", ", entry.end, ")"),
           str(bytes, " bytes for ", entry.dtype, " ", entry.shape));
  return entry;
}

// The ranges, in order, must meet exactly and end where the data ends.
void check_coverage(const TensorFileHeader& header, size_t data_bytes, std::string_view source) {
  std::vector<std::pair<const std::string*, const TensorFileHeader::Entry*>> order;
  for (const auto& [name, entry] : header.tensors) order.emplace_back(&name, &entry);
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return std::pair(a.second->begin, a.second->end) < std::pair(b.second->begin, b.second->end);
  });
  size_t at = 0;
  for (const auto& [name, entry] : order) {
    BG_CHECK(entry->begin == at, kOp,
             str(source, ": tensor '", *name, "' ", entry->begin < at ? "overlaps" : "leaves a gap"),
             str("start ", entry->begin), str(at));
    BG_CHECK(entry->end <= data_bytes, kOp, str(source, ": tensor '", *name, "' reaches beyond the end of the file"),
             str("end ", entry->end), str("at most ", data_bytes), "fetch the file again: it may be cut off");
    at = entry->end;
  }
  BG_CHECK(at == data_bytes, kOp, str(source, ": bytes that belong to no tensor"), str(data_bytes), str(at));
}

class Checksum {
 public:
  void add(const void* data, size_t bytes) { crc_ = crc32_z(crc_, static_cast<const Bytef*>(data), bytes); }
  void add(std::string_view text) {
    add(text.data(), text.size());
    add("", 1);
  }
  std::string text() const {
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08lx", static_cast<unsigned long>(crc_));
    return digits;
  }

 private:
  uLong crc_ = crc32_z(0, nullptr, 0);
};

size_t bytes_of(const Tensor& t) { return static_cast<size_t>(t.numel() * size_of(t.dtype())); }

const char* raw(const Tensor& t) {
  return dispatch_any(t.dtype(), [&]<class T>() { return reinterpret_cast<const char*>(t.data<T>()); });
}

// Of contiguous tensors.
std::string checksum_of(const TensorFile& file) {
  Checksum sum;
  for (const auto& [key, value] : file.metadata) {
    sum.add(key);
    sum.add(value);
  }
  for (const auto& [name, t] : file.tensors) {
    sum.add(str(name, " ", t.dtype(), " ", t.shape()));
    sum.add(raw(t), bytes_of(t));
  }
  return sum.text();
}

// Contiguous handles of what is to be written, checked.
TensorFile prepared(const TensorFile& file, const std::string& path) {
  BG_CHECK(!file.metadata.count(std::string(kChecksumKey)), kOp, str(path, ": reserved metadata key"),
           str("'", kChecksumKey, "'"), "another name");
  TensorFile out{{}, file.metadata};
  for (const auto& [name, t] : file.tensors) {
    BG_CHECK(name != kMetadata, kOp, str(path, ": reserved tensor name"), str("'", name, "'"), "another name");
    BG_CHECK(t.defined(), kOp, str(path, ": tensor '", name, "' is undefined"), "no data", "a tensor with values");
    out.tensors[name] = t.contiguous();
  }
  return out;
}

}  // namespace

TensorFileHeader parse_safetensors_header(std::string_view bytes, std::string_view source) {
  BG_CHECK(bytes.size() >= kLengthBytes, kOp, str(source, ": too short"), str(bytes.size(), " bytes"), "8 or more");
  uint64_t length;
  std::memcpy(&length, bytes.data(), kLengthBytes);
  BG_CHECK(length <= kMaxHeader && length <= bytes.size() - kLengthBytes, kOp, str(source, ": bad header length"),
           str(length), str("at most ", std::min<uint64_t>(kMaxHeader, bytes.size() - kLengthBytes)),
           "fetch the file again: it may be cut off, or of another format");
  const std::string_view text = bytes.substr(kLengthBytes, length);
  BG_CHECK(!text.empty() && text[0] == '{', kOp, str(source, ": the header does not begin with {"), "",
           "a JSON object");
  const json parsed = parse_json(text, kOp, str(source, ": the header"), kMaxDepth);

  TensorFileHeader header;
  header.data_begin = kLengthBytes + length;
  for (const auto& [name, value] : parsed.items()) {
    if (name == kMetadata)
      header.metadata = parse_metadata(value, source);
    else
      header.tensors.emplace(name, parse_entry(value, str(source, ": tensor '", name, "'")));
  }
  check_coverage(header, bytes.size() - header.data_begin, source);
  return header;
}

TensorFile parse_safetensors(std::string_view bytes, std::string_view source) {
  TensorFileHeader header = parse_safetensors_header(bytes, source);
  TensorFile file{{}, std::move(header.metadata)};
  const char* data = bytes.data() + header.data_begin;
  for (const auto& [name, entry] : header.tensors) {
    Tensor t = Tensor::empty(entry.shape, entry.dtype);
    if (entry.end > entry.begin) std::memcpy(t.storage()->data(), data + entry.begin, entry.end - entry.begin);
    file.tensors.emplace(name, std::move(t));
  }
  if (const auto stored = file.metadata.extract(std::string(kChecksumKey))) {
    const std::string actual = checksum_of(file);
    BG_CHECK(stored.mapped() == actual, kOp, str(source, ": damaged, the checksum is wrong"), actual, stored.mapped(),
             "an earlier checkpoint");
  }
  return file;
}

TensorFile read_safetensors(const std::filesystem::path& path) {
  return parse_safetensors(read_file(path, FileKind::data), path.string());
}

TensorFileHeader read_safetensors_header(const std::filesystem::path& path) {
  return parse_safetensors_header(read_file(path, FileKind::data), path.string());
}

void write_safetensors(const std::filesystem::path& path, const TensorFile& content) {
  const TensorFile file = prepared(content, path.string());
  std::vector<std::pair<std::string, Tensor>> order(file.tensors.begin(), file.tensors.end());
  std::stable_sort(order.begin(), order.end(),
                   [](const auto& a, const auto& b) { return size_of(a.second.dtype()) > size_of(b.second.dtype()); });
  nlohmann::ordered_json header;
  header[std::string(kMetadata)] = file.metadata;
  header[std::string(kMetadata)][std::string(kChecksumKey)] = checksum_of(file);
  size_t at = 0;
  for (const auto& [name, t] : order) {
    header[name] = {{"dtype", format_name(t.dtype())},
                    {"shape", std::vector<int64_t>(t.shape().begin(), t.shape().end())},
                    {"data_offsets", {at, at + bytes_of(t)}}};
    at += bytes_of(t);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail(kOp, str(path.string(), ": a name or metadata text is not UTF-8"));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins aligned
  const uint64_t length = text.size();
  BG_CHECK(length <= kMaxHeader, kOp, str(path.string(), ": header too long"), str(length),
           str("at most ", kMaxHeader));

  AtomicFile out(path);
  out.write(&length, kLengthBytes);
  out.write(text);
  for (const auto& [name, t] : order) out.write(raw(t), bytes_of(t));
  out.commit();
}

}  // namespace bg
