#include "core/io/npy.h"

#include <zip.h>

#include <bit>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "core/atomic_file.h"
#include "core/io/elements.h"
#include "core/io/json.h"
#include "core/machine.h"
#include "core/read_file.h"

namespace bg {
namespace {

constexpr std::string_view kOp = "npy";
constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kAlignment = 64;  // of the data, from the start of the file: as NumPy writes

using Kind = ElementFormat::Kind;
constexpr std::pair<std::string_view, ElementFormat> kFormats[] = {
    {"f2", {Kind::ieee, 2}},         {"f4", {Kind::ieee, 4}},         {"f8", {Kind::ieee, 8}},
    {"b1", {Kind::boolean, 1}},      {"i1", {Kind::signed_int, 1}},   {"i2", {Kind::signed_int, 2}},
    {"i4", {Kind::signed_int, 4}},   {"i8", {Kind::signed_int, 8}},   {"u1", {Kind::unsigned_int, 1}},
    {"u2", {Kind::unsigned_int, 2}}, {"u4", {Kind::unsigned_int, 4}}, {"u8", {Kind::unsigned_int, 8}}};
constexpr std::pair<std::string_view, DType> kWritten[] = {
    {"<f4", DType::f32}, {"<f8", DType::f64}, {"<i4", DType::i32}, {"<i8", DType::i64}};

struct Header {
  ElementFormat format;
  bool fortran_order = false;
  Shape shape;
};

// The header's text: {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }
class HeaderParser {
 public:
  HeaderParser(std::string_view text, std::string_view source) : text_(text), source_(source) {}

  Header parse() {
    std::optional<ElementFormat> format;
    std::optional<bool> fortran_order;
    std::optional<Shape> shape;
    expect('{');
    while (!take('}')) {
      const std::string_view key = quoted_text();
      expect(':');
      if (key == "descr" && !format)
        format = parse_format();
      else if (key == "fortran_order" && !fortran_order)
        fortran_order = parse_bool();
      else if (key == "shape" && !shape)
        shape = parse_shape();
      else
        bad("a second or unknown field");
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    skip_space();
    if (at_ != text_.size()) bad("text after the header");
    if (!format || !fortran_order || !shape) bad("a field missing");
    return {*format, *fortran_order, *shape};
  }

 private:
  [[noreturn]] void bad(std::string_view what) const {
    fail(kOp, str(source_, ": bad header, ", what), str(in_quotes(text_), ", character ", at_),
         "a dictionary of descr, fortran_order and shape");
  }
  void skip_space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (!take(c)) bad(str("no ", c));
  }
  bool take_word(std::string_view word) {
    skip_space();
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }
  std::string_view quoted_text() {
    const char quote = take('"') ? '"' : '\'';
    if (quote == '\'') expect('\'');
    const size_t begin = at_, end = text_.find(quote, begin);
    if (end == std::string_view::npos) bad("a text without end");
    at_ = end + 1;
    return text_.substr(begin, end - begin);
  }
  // A byte order, a kind and the bytes of a number: <f4, >i2, |b1, or f8 without an order, which is ours.
  ElementFormat parse_format() {
    skip_space();
    if (at_ < text_.size() && text_[at_] == '[') bad("a structured dtype, which is not supported");
    const std::string_view descr = quoted_text();
    const bool has_order = !descr.empty() && std::string_view("<>=|").find(descr[0]) != std::string_view::npos;
    const std::string_view type = descr.substr(has_order ? 1 : 0);
    for (const auto& [name, format] : kFormats) {
      if (type != name) continue;
      ElementFormat found = format;
      found.big_endian = descr[0] == '>' && format.bytes > 1;
      return found;
    }
    fail(kOp, str(source_, ": dtype not supported"), in_quotes(descr),
         "floats of 2, 4 or 8 bytes, whole numbers or bool", "astype(numpy.float32) before saving");
  }
  bool parse_bool() {
    if (take_word("True")) return true;
    if (!take_word("False")) bad("fortran_order is not True or False");
    return false;
  }
  Shape parse_shape() {
    Shape shape;
    expect('(');
    bool comma = true;  // before the next size
    while (!take(')')) {
      if (!comma) bad("a shape without commas");
      shape.push_back(parse_size());
      comma = take(',');
    }
    if (shape.rank() == 1 && !comma) bad("a shape that is not a tuple");
    return shape;
  }
  int64_t parse_size() {
    skip_space();
    const size_t begin = at_;
    int64_t n = 0;
    for (; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_)
      if (__builtin_mul_overflow(n, int64_t{10}, &n) || __builtin_add_overflow(n, text_[at_] - '0', &n))
        bad("a size beyond 2^63");
    if (at_ == begin) bad("a size that is not a whole number");
    take('L');  // Python 2 wrote its long integers so
    return n;
  }

  std::string_view text_, source_;
  size_t at_ = 0;
};

size_t data_bytes(const Header& header, std::string_view source) {
  size_t bytes = static_cast<size_t>(header.format.bytes);
  for (const int64_t n : header.shape)
    BG_CHECK(!__builtin_mul_overflow(bytes, static_cast<size_t>(std::max<int64_t>(n, 1)), &bytes), kOp,
             str(source, ": too large"), str(header.shape), "fewer than 2^64 bytes");
  return header.shape.numel() == 0 ? 0 : bytes;
}

std::string_view descr_of(DType t) {
  for (const auto& [name, dtype] : kWritten)
    if (dtype == t) return name;
  fail(kOp, "dtype has no NumPy form", name_of(t), "f32, f64, i32 or i64", "to(DType::f32)");
}

// -- Zip, through libzip ----------------------------------------------------------------------------------------------

using Archive = std::unique_ptr<zip_t, decltype(&zip_discard)>;
using Entry = std::unique_ptr<zip_file_t, decltype(&zip_fclose)>;
using Source = std::unique_ptr<zip_source_t, decltype(&zip_source_free)>;

// The bytes of an entry, as the archive states them.
size_t stated_size(zip_t* archive, zip_uint64_t index, const std::string& where) {
  zip_stat_t stat;
  BG_CHECK(zip_stat_index(archive, index, 0, &stat) == 0 && (stat.valid & ZIP_STAT_SIZE), kOp,
           str(where, " has no size"), zip_strerror(archive));
  return stat.size;
}

// Grows with the bytes that really arrive, so that a size made up in the archive reserves nothing.
std::string read_entry(zip_t* archive, zip_uint64_t index, size_t size, const std::string& where) {
  const Entry entry(zip_fopen_index(archive, index, 0), &zip_fclose);
  BG_CHECK(entry, kOp, str(where, " cannot be opened"), zip_strerror(archive));
  std::string bytes;
  std::vector<char> block(1 << 20);
  for (;;) {
    const zip_int64_t n = zip_fread(entry.get(), block.data(), block.size());
    BG_CHECK(n >= 0, kOp, str(where, " is damaged"), zip_file_strerror(entry.get()));
    if (n == 0) return bytes;
    bytes.append(block.data(), static_cast<size_t>(n));
    BG_CHECK(bytes.size() <= size, kOp, str(where, " is damaged"), str(bytes.size(), " bytes or more"),
             str(size, ", as the archive states"));
  }
}

}  // namespace

Tensor parse_npy(std::string_view bytes, std::string_view source) {
  constexpr size_t kVersionAt = kMagic.size(), kLengthAt = kVersionAt + 2;
  BG_CHECK(bytes.size() >= kLengthAt + 2 && bytes.substr(0, kMagic.size()) == kMagic, kOp,
           str(source, ": not a .npy file"), "", "\\x93NUMPY, a version and a header");
  const int major = static_cast<unsigned char>(bytes[kVersionAt]), minor = bytes[kVersionAt + 1];
  BG_CHECK(major >= 1 && major <= 3 && minor == 0, kOp, str(source, ": unknown version"), str(major, ".", minor),
           "1.0, 2.0 or 3.0");
  const size_t length_bytes = major == 1 ? 2 : 4, header_at = kLengthAt + length_bytes;
  uint32_t length = 0;
  BG_CHECK(bytes.size() >= header_at, kOp, str(source, ": cut off"), str(bytes.size(), " bytes"),
           str(header_at, " or more"));
  std::memcpy(&length, bytes.data() + kLengthAt, length_bytes);
  BG_CHECK(length <= bytes.size() - header_at, kOp, str(source, ": header reaches beyond the end"), str(length),
           str("at most ", bytes.size() - header_at));
  const Header header = HeaderParser(bytes.substr(header_at, length), source).parse();
  const std::string_view data = bytes.substr(header_at + length);
  const size_t expected = data_bytes(header, source);
  BG_CHECK(data.size() == expected, kOp, str(source, ": data of a wrong size"), str(data.size(), " bytes"),
           str(expected, " for ", header.format.bytes, "-byte numbers ", header.shape));

  Shape stored = header.shape;  // Fortran order is the row-major order of the reversed shape
  if (header.fortran_order) std::reverse(&stored[0], &stored[0] + stored.rank());
  Tensor t = read_elements(data, stored, header.format, kOp, source);
  if (!header.fortran_order) return t;
  std::vector<int> reversed;
  for (int d = stored.rank() - 1; d >= 0; --d) reversed.push_back(d);
  return t.permute(reversed).contiguous();
}

std::string npy_bytes(const Tensor& tensor) {
  BG_CHECK(tensor.defined(), kOp, "undefined tensor", "no data", "a tensor with values");
  const Tensor t = tensor.contiguous();
  std::string header =
      str("{'descr': '", descr_of(t.dtype()), "', 'fortran_order': False, 'shape': ", t.shape(), ", }");
  const size_t before = kMagic.size() + 4;
  const size_t total = (before + header.size() + 1 + kAlignment - 1) / kAlignment * kAlignment;
  header.resize(total - before - 1, ' ');
  header += '\n';
  const uint16_t length = static_cast<uint16_t>(header.size());  // eight sizes fit by far
  std::string bytes(kMagic);
  bytes.append({'\x01', '\x00'});
  bytes.append(reinterpret_cast<const char*>(&length), sizeof length).append(header);
  dispatch_any(t.dtype(), [&]<class T>() {
    bytes.append(reinterpret_cast<const char*>(t.data<T>()), static_cast<size_t>(t.numel()) * sizeof(T));
  });
  return bytes;
}

Tensor read_npy(const std::filesystem::path& path) { return parse_npy(read_file(path, FileKind::data), path.string()); }

void write_npy(const std::filesystem::path& path, const Tensor& tensor) {
  write_file_atomically(path, npy_bytes(tensor));
}

std::map<std::string, Tensor> read_npz(const std::filesystem::path& path) {
  return parse_npz(read_file(path, FileKind::data), path.string());
}

std::map<std::string, Tensor> parse_npz(std::string_view bytes, std::string_view where_from) {
  return parse_npz(bytes, where_from, machine_bytes() / 2);  // each array is twice in memory while it is read
}

std::map<std::string, Tensor> parse_npz(std::string_view bytes, std::string_view where_from, size_t most_bytes) {
  BG_CHECK(!bytes.empty(), kOp, str("cannot read ", where_from), "an empty file", "a .npz file");
  zip_error_t error;
  zip_error_init(&error);
  zip_source_t* source = zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error);
  const Archive archive(source ? zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, &error) : nullptr,
                        &zip_discard);
  if (!archive && source) zip_source_free(source);
  const std::string reason = archive ? "" : zip_error_strerror(&error);
  zip_error_fini(&error);
  BG_CHECK(archive, kOp, str("cannot read ", where_from), reason, "a .npz file");
  constexpr std::string_view kSuffix = ".npy";
  std::map<std::string, Tensor> tensors;
  const zip_int64_t count = zip_get_num_entries(archive.get(), 0);
  size_t unpacked = 0;
  for (zip_uint64_t i = 0; i < static_cast<zip_uint64_t>(count); ++i) {
    const char* raw_name = zip_get_name(archive.get(), i, 0);
    const std::string name = raw_name ? raw_name : "";
    const std::string where = str(where_from, ", entry ", in_quotes(name));
    BG_CHECK(name.ends_with(kSuffix), kOp, str(where, " is no array"), "", "names that end in .npy");
    const size_t size = stated_size(archive.get(), i, where);
    BG_CHECK(size <= most_bytes - unpacked, kOp, str(where, " is too large unpacked"), str(size, " bytes"),
             str("at most ", most_bytes, " in all"), "fewer arrays in a file, or a machine with more memory");
    unpacked += size;
    const bool fresh = tensors
                           .emplace(name.substr(0, name.size() - kSuffix.size()),
                                    parse_npy(read_entry(archive.get(), i, size, where), where))
                           .second;
    BG_CHECK(fresh, kOp, str(where, " occurs twice"), "", "distinct names");
  }
  return tensors;
}

void write_npz(const std::filesystem::path& path, const std::map<std::string, Tensor>& tensors) {
  write_file_atomically(path, npz_bytes(tensors, path.string()));
}

std::string npz_bytes(const std::map<std::string, Tensor>& tensors, std::string_view target) {
  auto check = [&](bool good, std::string_view what) { BG_CHECK(good, kOp, str("cannot write ", target), what); };
  check(!tensors.empty(), "no arrays");
  std::vector<std::string> contents;  // alive until the archive is complete
  for (const auto& [name, t] : tensors) contents.push_back(npy_bytes(t));

  // Built in memory, so that it can be written all or nothing.
  const Source buffer(zip_source_buffer_create(nullptr, 0, 0, nullptr), &zip_source_free);
  check(buffer != nullptr, "no memory");
  zip_source_keep(buffer.get());  // zip_close gives up one of the two
  Archive archive(zip_open_from_source(buffer.get(), ZIP_TRUNCATE, nullptr), &zip_discard);
  if (!archive) zip_source_free(buffer.get());
  check(archive != nullptr, "no archive in memory");
  size_t k = 0;
  for (const auto& [name, t] : tensors) {
    const std::string& content = contents[k++];
    zip_source_t* source = zip_source_buffer(archive.get(), content.data(), content.size(), 0);
    const zip_int64_t index = zip_file_add(archive.get(), (name + ".npy").c_str(), source, ZIP_FL_ENC_UTF_8);
    if (index < 0) zip_source_free(source);
    check(index >= 0, zip_strerror(archive.get()));
    zip_set_file_compression(archive.get(), static_cast<zip_uint64_t>(index), ZIP_CM_STORE, 0);
    constexpr zip_uint16_t kFirstDay = 1 << 5 | 1;  // 1 January 1980, so that bytes do not depend on the clock
    zip_file_set_dostime(archive.get(), static_cast<zip_uint64_t>(index), 0, kFirstDay, 0);
  }
  check(zip_close(archive.get()) == 0, zip_strerror(archive.get()));
  archive.release();

  zip_stat_t stat;
  check(zip_source_stat(buffer.get(), &stat) == 0 && zip_source_open(buffer.get()) == 0, "no archive in memory");
  std::string bytes(stat.size, '\0');
  const zip_int64_t n = zip_source_read(buffer.get(), bytes.data(), bytes.size());
  zip_source_close(buffer.get());
  check(n == static_cast<zip_int64_t>(bytes.size()), "the archive in memory is cut off");
  return bytes;
}

}  // namespace bg
