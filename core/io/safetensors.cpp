#include "core/io/safetensors.h"

#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/atomic_file.h"
#include "core/io/elements.h"
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

using Kind = ElementFormat::Kind;

// A type of the format, and how its numbers are read, if they can be.
struct Type {
  std::string_view name;
  int bits;
  std::optional<ElementFormat> format;

  bool is_ours() const { return name == "F32" || name == "F64" || name == "I32" || name == "I64" || name == "BF16"; }
};

constexpr Type integer(std::string_view name, int bits) {
  return {name, bits, ElementFormat{name[0] == 'U' ? Kind::unsigned_int : Kind::signed_int, bits / 8}};
}

constexpr Type kTypes[] = {{"F32", 32, ElementFormat{Kind::ieee, 4}},
                           {"F64", 64, ElementFormat{Kind::ieee, 8}},
                           {"F16", 16, ElementFormat{Kind::ieee, 2}},
                           {"BF16", 16, ElementFormat{Kind::bfloat16, 2}},
                           integer("I64", 64),
                           integer("I32", 32),
                           integer("I16", 16),
                           integer("I8", 8),
                           integer("U64", 64),
                           integer("U32", 32),
                           integer("U16", 16),
                           integer("U8", 8),
                           {"BOOL", 8, ElementFormat{Kind::boolean, 1}},
                           {"F8_E4M3", 8, ElementFormat{Kind::e4m3, 1}},
                           {"F8_E5M2", 8, ElementFormat{Kind::e5m2, 1}},
                           {"F8_E8M0", 8, {}},
                           {"F8_E4M3FNUZ", 8, {}},
                           {"F8_E5M2FNUZ", 8, {}},
                           {"F6_E2M3", 6, {}},
                           {"F6_E3M2", 6, {}},
                           {"F4", 4, {}},
                           {"C64", 64, {}}};

const Type* find_type(std::string_view name) {
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes), [&](const Type& t) { return t.name == name; });
  return found == std::end(kTypes) ? nullptr : &*found;
}

std::string_view format_name(DType t) {
  const auto found = std::find_if(std::begin(kTypes), std::end(kTypes),
                                  [&](const Type& type) { return type.is_ours() && type.format->dtype() == t; });
  return found->name;
}

std::map<std::string, std::string> parse_metadata(const json& value, std::string_view source) {
  BG_CHECK(value.is_object(), kOp, str(source, ": bad ", kMetadata), value.type_name(), "an object of strings");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    BG_CHECK(text.is_string(), kOp, str(source, ": metadata ", in_quotes(key), " is not a text"), text.type_name(),
             "a string");
    metadata[key] = text.get<std::string>();
  }
  return metadata;
}

uint64_t parse_count(const json& value, const std::string& where) {
  BG_CHECK(value.is_number_unsigned() && value.get<uint64_t>() < (uint64_t{1} << 62), kOp,
           str(where, " is not a count"), json_excerpt(value), "a whole number from 0 to 2^62");
  return value.get<uint64_t>();
}

TensorFileHeader::Entry parse_entry(const json& value, const std::string& where) {
  BG_CHECK(value.is_object() && value.size() == 3 && value.contains("dtype") && value.contains("shape") &&
               value.contains("data_offsets"),
           kOp, str(where, " is badly described"), "", "an object of exactly dtype, shape and data_offsets");
  const json &dtype = value["dtype"], &shape = value["shape"], &offsets = value["data_offsets"];
  BG_CHECK(dtype.is_string() && shape.is_array() && offsets.is_array() && offsets.size() == 2, kOp,
           str(where, " is badly described"), "", "dtype a string, shape an array, data_offsets an array of two");
  const Type* type = find_type(dtype.get_ref<const std::string&>());
  BG_CHECK(type, kOp, str(where, " has a dtype that the format does not know"), json_excerpt(dtype),
           "F32, BF16, I64, BOOL or another of its types");
  BG_CHECK(shape.size() <= Shape::kMaxRank, kOp, str(where, " has too many dimensions"), str(shape.size()),
           str("at most ", Shape::kMaxRank));

  TensorFileHeader::Entry entry{std::string(type->name), {}, {}, 0, 0};
  if (type->format) entry.dtype = type->format->dtype();
  uint64_t bits = static_cast<uint64_t>(type->bits);
  bool overflow = false, empty = false;
  for (const json& size : shape) {
    const uint64_t n = parse_count(size, str(where, ", size ", entry.shape.rank()));
    entry.shape.push_back(static_cast<int64_t>(n));
    empty = empty || n == 0;
    overflow = overflow || __builtin_mul_overflow(bits, std::max<uint64_t>(n, 1), &bits);
  }
  BG_CHECK(!overflow, kOp, str(where, " is too large"), str(entry.shape), "fewer than 2^64 bits");
  if (empty) bits = 0;
  BG_CHECK(bits % 8 == 0, kOp, str(where, " does not fill whole bytes"),
           str(bits, " bits for ", type->name, " ", entry.shape));
  const uint64_t bytes = bits / 8;
  entry.begin = parse_count(offsets[0], where + ", data_offsets[0]");
  entry.end = parse_count(offsets[1], where + ", data_offsets[1]");
  BG_CHECK(entry.begin <= entry.end && entry.end - entry.begin == bytes, kOp,
           str(where, " has offsets that do not fit its shape"), str("[", entry.begin, ", ", entry.end, ")"),
           str(bytes, " bytes for ", entry.type, " ", entry.shape));
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
             str(source, ": tensor ", in_quotes(*name), " ", entry->begin < at ? "overlaps" : "leaves a gap"),
             str("start ", entry->begin), str(at));
    BG_CHECK(entry->end <= data_bytes, kOp,
             str(source, ": tensor ", in_quotes(*name), " reaches beyond the end of the file"), str("end ", entry->end),
             str("at most ", data_bytes), "fetch the file again: it may be cut off");
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

class ContentChecksum {
 public:
  explicit ContentChecksum(const std::map<std::string, std::string>& metadata) {
    for (const auto& [key, value] : metadata) {
      if (key == kChecksumKey) continue;
      sum_.add(key);
      sum_.add(value);
    }
  }
  // In order of names.
  void add(const std::string& name, std::string_view type, const Shape& shape, const char* data, size_t bytes) {
    const Type* known = find_type(type);
    const bool ours = known && known->is_ours();
    sum_.add(str(name, " ", ours ? name_of(known->format->dtype()) : type, " ", shape));
    sum_.add(data, bytes);
  }
  std::string text() const { return sum_.text(); }

 private:
  Checksum sum_;
};

// Of contiguous tensors.
std::string checksum_of(const TensorFile& file) {
  ContentChecksum sum(file.metadata);
  for (const auto& [name, t] : file.tensors) sum.add(name, format_name(t.dtype()), t.shape(), raw(t), bytes_of(t));
  return sum.text();
}

void verify_checksum(const TensorFileHeader& header, std::string_view data, std::string_view source) {
  const auto stored = header.metadata.find(std::string(kChecksumKey));
  if (stored == header.metadata.end()) return;
  ContentChecksum sum(header.metadata);
  for (const auto& [name, e] : header.tensors) sum.add(name, e.type, e.shape, data.data() + e.begin, e.end - e.begin);
  BG_CHECK(stored->second == sum.text(), kOp, str(source, ": damaged, the checksum is wrong"), sum.text(),
           json_excerpt(stored->second), "an earlier checkpoint");
}

TensorFile read_named(std::string_view bytes, std::string_view source, const std::vector<std::string>* names) {
  TensorFileHeader header = parse_safetensors_header(bytes, source);
  const std::string_view data = bytes.substr(header.data_begin);
  verify_checksum(header, data, source);
  TensorFile file{{}, std::move(header.metadata)};
  file.metadata.erase(std::string(kChecksumKey));
  const auto read = [&](const std::string& name, const TensorFileHeader::Entry& entry) {
    const std::string where = str(source, ": tensor ", in_quotes(name));
    BG_CHECK(entry.dtype, kOp, str(where, " has a dtype that is not supported"), str("'", entry.type, "'"),
             "floats, whole numbers or BOOL", "convert it with the program that wrote it, or read the others by name");
    file.tensors[name] = read_elements(data.substr(entry.begin, entry.end - entry.begin), entry.shape,
                                       *find_type(entry.type)->format, kOp, where);
  };
  if (names) {
    for (const std::string& name : *names) {
      const auto found = header.tensors.find(name);
      BG_CHECK(found != header.tensors.end(), kOp, str(source, ": no tensor ", in_quotes(name)));
      read(name, found->second);
    }
  } else {
    for (const auto& [name, entry] : header.tensors) read(name, entry);
  }
  return file;
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

namespace {

// Of the header, from the first bytes of a file of this size.
size_t header_length(std::string_view begin, size_t size, std::string_view source) {
  BG_CHECK(begin.size() >= kLengthBytes, kOp, str(source, ": too short"), str(size, " bytes"), "8 or more");
  uint64_t length;
  std::memcpy(&length, begin.data(), kLengthBytes);
  BG_CHECK(length <= kMaxHeader && length <= size - kLengthBytes, kOp, str(source, ": bad header length"), str(length),
           str("at most ", std::min<uint64_t>(kMaxHeader, size - kLengthBytes)),
           "fetch the file again: it may be cut off, or of another format");
  return length;
}

// `begin` holds the header, and perhaps more of a file of this size.
TensorFileHeader parse_header(std::string_view begin, size_t size, std::string_view source) {
  const size_t length = header_length(begin, size, source);
  const std::string_view text = begin.substr(kLengthBytes, length);
  BG_CHECK(!text.empty() && text[0] == '{', kOp, str(source, ": the header does not begin with {"), "",
           "a JSON object");
  const json parsed = parse_json(text, kOp, str(source, ": the header"), kMaxDepth);

  TensorFileHeader header;
  header.data_begin = kLengthBytes + length;
  for (const auto& [name, value] : parsed.items()) {
    if (name == kMetadata)
      header.metadata = parse_metadata(value, source);
    else
      header.tensors.emplace(name, parse_entry(value, str(source, ": tensor ", in_quotes(name))));
  }
  check_coverage(header, size - header.data_begin, source);
  return header;
}

}  // namespace

TensorFileHeader parse_safetensors_header(std::string_view bytes, std::string_view source) {
  return parse_header(bytes, bytes.size(), source);
}

TensorFile parse_safetensors(std::string_view bytes, std::string_view source) {
  return read_named(bytes, source, nullptr);
}

TensorFile parse_safetensors(std::string_view bytes, std::string_view source, const std::vector<std::string>& names) {
  return read_named(bytes, source, &names);
}

TensorFile read_safetensors(const std::filesystem::path& path) {
  return parse_safetensors(read_file(path, FileKind::data), path.string());
}

TensorFile read_safetensors(const std::filesystem::path& path, const std::vector<std::string>& names) {
  return parse_safetensors(read_file(path, FileKind::data), path.string(), names);
}

TensorFileHeader read_safetensors_header(const std::filesystem::path& path) {
  FileBegin begin = read_file_begin(path, kLengthBytes);
  begin = read_file_begin(path, kLengthBytes + header_length(begin.bytes, begin.size, path.string()));
  return parse_header(begin.bytes, begin.size, path.string());
}

namespace {

// A file to be: its length and header, and the tensors in the order in which they follow.
struct Layout {
  std::string begin;
  std::vector<std::pair<std::string, Tensor>> order;
};

Layout lay_out(const TensorFile& content, const std::string& target) {
  const TensorFile file = prepared(content, target);
  Layout layout{{}, {file.tensors.begin(), file.tensors.end()}};
  std::stable_sort(layout.order.begin(), layout.order.end(),
                   [](const auto& a, const auto& b) { return size_of(a.second.dtype()) > size_of(b.second.dtype()); });
  nlohmann::ordered_json header;
  header[std::string(kMetadata)] = file.metadata;
  header[std::string(kMetadata)][std::string(kChecksumKey)] = checksum_of(file);
  size_t at = 0;
  for (const auto& [name, t] : layout.order) {
    header[name] = {{"dtype", format_name(t.dtype())},
                    {"shape", std::vector<int64_t>(t.shape().begin(), t.shape().end())},
                    {"data_offsets", {at, at + bytes_of(t)}}};
    at += bytes_of(t);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) {
    fail(kOp, str(target, ": a name or metadata text is not UTF-8"));
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');  // the data begins aligned
  const uint64_t length = text.size();
  BG_CHECK(length <= kMaxHeader, kOp, str(target, ": header too long"), str(length), str("at most ", kMaxHeader));
  layout.begin.append(reinterpret_cast<const char*>(&length), kLengthBytes).append(text);
  return layout;
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const TensorFile& file) {
  const Layout layout = lay_out(file, path.string());
  AtomicFile out(path);
  out.write(layout.begin);
  for (const auto& [name, t] : layout.order) out.write(raw(t), bytes_of(t));
  out.commit();
}

std::string safetensors_bytes(const TensorFile& file) {
  Layout layout = lay_out(file, "a file in memory");
  for (const auto& [name, t] : layout.order) layout.begin.append(raw(t), bytes_of(t));
  return std::move(layout.begin);
}

}  // namespace bg
