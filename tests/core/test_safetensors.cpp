// Safetensors: round trips, exact bytes, and a corpus of malformed and mutated files. [R38]
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/atomic_file.h"
#include "core/io/safetensors.h"
#include "core/rng.h"
#include "core/tensor_ops.h"
#include "tests/match.h"
#include "tests/support.h"

using namespace bg;
using bg::test::TemporaryPath;

namespace {

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::string file_bytes(std::string_view header, size_t data_bytes) {
  const uint64_t n = header.size();
  std::string out(reinterpret_cast<const char*>(&n), 8);
  return out.append(header).append(data_bytes, '\0');
}

TensorFile example() {
  Rng r(1);
  TensorFile file;
  file.tensors["weight"] = Tensor::randn({3, 5}, r);
  file.tensors["double"] = Tensor::randn({2, 2, 2}, r, DType::f64);
  file.tensors["half"] = Tensor::randn({3}, r).to(DType::bf16);
  file.tensors["ids"] = Tensor::of(std::vector<int64_t>{-1, int64_t{1} << 40}, {2});
  file.tensors["small ids"] = Tensor::of(std::vector<int32_t>{7}, {});
  file.tensors["nothing"] = Tensor::zeros({0, 4});
  file.metadata["step"] = "12";
  file.metadata["text"] = "line\nand \"quotes\" \xc3\xa9";
  return file;
}

void check_equal(const TensorFile& a, const TensorFile& b) {
  CHECK(a.metadata == b.metadata);
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (const auto& [name, t] : a.tensors) {
    INFO(name);
    const auto other = b.tensors.find(name);
    REQUIRE(other != b.tensors.end());
    CHECK(other->second.dtype() == t.dtype());
    CHECK(other->second.shape() == t.shape());
    CHECK(other->second.to_vector<double>() == t.to_vector<double>());
  }
}

}  // namespace

TEST_CASE("safetensors: all dtypes, shapes and metadata survive a round trip, and bytes repeat") {
  const TemporaryPath one("a.safetensors"), two("b.safetensors");
  write_safetensors(one.path, example());
  const TensorFile back = read_safetensors(one.path);
  check_equal(example(), back);
  write_safetensors(two.path, back);
  CHECK(bytes_of(one.path) == bytes_of(two.path));
}

TEST_CASE("safetensors: views are written as what they show") {
  const TemporaryPath f("view.safetensors");
  const Tensor base = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
  write_safetensors(f.path, {{{"t", base.transpose(0, 1)}, {"e", base.slice(0, 0, 1).expand({2, 3})}}, {}});
  const TensorFile back = read_safetensors(f.path);
  CHECK(back.tensors.at("t").to_vector<double>() == std::vector<double>{1, 4, 2, 5, 3, 6});
  CHECK(back.tensors.at("e").to_vector<double>() == std::vector<double>{1, 2, 3, 1, 2, 3});
}

TEST_CASE("safetensors: the exact bytes of a small file") {
  const TemporaryPath f("exact.safetensors");
  write_safetensors(f.path, {{{"b", Tensor::of({1}, {1}, DType::f32)}, {"a", Tensor::of({2}, {}, DType::f64)}}, {}});
  const std::string bytes = bytes_of(f.path);
  uint64_t length;
  std::memcpy(&length, bytes.data(), 8);
  CHECK(length % 8 == 0);
  CHECK_THAT(bytes.substr(8, length),
             Contains(R"("a":{"dtype":"F64","shape":[],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],)"
                      R"("data_offsets":[8,12]}})"));
  REQUIRE(bytes.size() == 8 + length + 12);
  double a;
  float b;
  std::memcpy(&a, bytes.data() + 8 + length, 8);
  std::memcpy(&b, bytes.data() + 16 + length, 4);
  CHECK(a == 2);
  CHECK(b == 1);
}

TEST_CASE("safetensors: the header alone") {
  const TemporaryPath f("header.safetensors");
  write_safetensors(f.path, example());
  const TensorFileHeader header = read_safetensors_header(f.path);
  CHECK(header.tensors.size() == 6);
  CHECK(header.tensors.at("weight").shape == Shape{3, 5});
  CHECK(header.tensors.at("half").dtype == DType::bf16);
  CHECK(header.tensors.at("double").begin % 8 == 0);
  CHECK(header.metadata.at("step") == "12");

  // The data need not be readable: here it is a hole of more bytes than the machine has memory.
  constexpr uint64_t kBytes = uint64_t{1} << 42;
  const std::string text = str(R"({"huge":{"dtype":"U8","shape":[)", kBytes, R"(],"data_offsets":[0,)", kBytes, "]}}");
  write_file_atomically(f.path, file_bytes(text, 0));
  CHECK_THROWS_WITH(read_safetensors_header(f.path), Contains("reaches beyond the end of the file"));
  std::filesystem::resize_file(f.path, 8 + text.size() + kBytes);
  CHECK(read_safetensors_header(f.path).tensors.at("huge").shape == Shape{int64_t{1} << 42});
  write_file_atomically(f.path, "1234567");
  CHECK_THROWS_WITH(read_safetensors_header(f.path), Contains("too short: got 7 bytes"));
  write_file_atomically(f.path, file_bytes(text, 0).substr(0, 20));
  CHECK_THROWS_WITH(read_safetensors_header(f.path), Contains("bad header length"));
}

TEST_CASE("safetensors: files of other tools - any order, padding, no checksum, no metadata, nothing at all") {
  const TensorFile file = parse_safetensors(
      file_bytes(R"({"z":{"data_offsets":[0,4],"dtype":"F32","shape":[1]},"a":{"shape":[2],"dtype":"I32",)"
                 R"("data_offsets":[4,12]},"e":{"shape":[0],"dtype":"F64","data_offsets":[4,4]}}    )",
                 12),
      "x");
  CHECK(file.tensors.size() == 3);
  CHECK(file.tensors.at("a").dtype() == DType::i32);
  CHECK(parse_safetensors(file_bytes("{}", 0), "x").tensors.empty());
  // a bf16 of odd length moves the next tensor to an odd address
  CHECK(parse_safetensors(file_bytes(R"({"h":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]},)"
                                     R"("f":{"dtype":"F64","shape":[1],"data_offsets":[2,10]}})",
                                     10),
                          "x")
            .tensors.at("f")
            .item() == 0);
}

TEST_CASE("safetensors: types beside ours open, are listed, and convert where that is exact") {
  struct Case {
    std::string type, data;
    DType dtype;
    std::vector<double> values;
  };
  using S = std::string;
  const std::vector<Case> cases{
      {"F16", S("\x00\x3c\x01\x80\xff\x7b", 6), DType::f32, {1, -0x1p-24, 65504}},
      {"F8_E5M2", S("\x3c\x01\xc0", 3), DType::f32, {1, 0x1p-16, -2}},
      {"F8_E4M3", S("\x38\x01\x7e\xc0", 4), DType::f32, {1, 0x1p-9, 448, -2}},
      {"BOOL", S("\0\1", 2), DType::i32, {0, 1}},
      {"U8", S("\xff", 1), DType::i32, {255}},
      {"I8", S("\xff", 1), DType::i32, {-1}},
      {"U16", S("\xff\xff", 2), DType::i32, {65535}},
      {"I16", S("\xff\xff", 2), DType::i32, {-1}},
      {"U32", S("\xff\xff\xff\xff", 4), DType::i64, {4294967295}},
      {"U64", S("\2\0\0\0\0\0\0\0", 8), DType::i64, {2}},
  };
  for (const Case& c : cases) {
    INFO(c.type);
    const std::string entry = str(R"({"t":{"dtype":")", c.type, R"(","shape":[)", c.values.size(),
                                  R"(],"data_offsets":[0,)", c.data.size(), "]}}");
    std::string bytes = file_bytes(entry, 0) + c.data;
    CHECK(parse_safetensors_header(bytes, "x").tensors.at("t").type == c.type);
    CHECK(parse_safetensors_header(bytes, "x").tensors.at("t").dtype == c.dtype);
    const Tensor t = parse_safetensors(bytes, "x").tensors.at("t");
    CHECK(t.dtype() == c.dtype);
    CHECK(t.to_vector<double>() == c.values);
  }

  const std::string mixed = file_bytes(R"({"f":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                       R"("c":{"dtype":"C64","shape":[1],"data_offsets":[4,12]},)"
                                       R"("u":{"dtype":"U64","shape":[1],"data_offsets":[12,20]},)"
                                       R"("q":{"dtype":"F4","shape":[4],"data_offsets":[20,22]}})",
                                       0) +
                            S("\0\0\x80\x3f", 4) + S(8, '\0') + S(8, '\xff') + "ab";
  const TensorFileHeader header = parse_safetensors_header(mixed, "x");
  CHECK(header.tensors.size() == 4);
  CHECK(header.tensors.at("c").type == "C64");
  CHECK(!header.tensors.at("c").dtype);
  CHECK(!header.tensors.at("q").dtype);
  const TensorFile part = parse_safetensors(mixed, "x", {"f"});
  CHECK(part.tensors.size() == 1);
  CHECK(part.tensors.at("f").item() == 1);
  CHECK_THROWS_WITH(
      parse_safetensors(mixed, "x"),
      Contains("x: tensor 'c' has a dtype that is not supported: got 'C64'") && Contains("read the others by name"));
  CHECK_THROWS_WITH(parse_safetensors(mixed, "x", {"q"}), Contains("got 'F4'"));
  CHECK_THROWS_WITH(parse_safetensors(mixed, "x", {"u"}),
                    Contains("tensor 'u' holds an unsigned number") && Contains("18446744073709551615"));
  CHECK_THROWS_WITH(parse_safetensors(mixed, "x", {"f", "g"}), Contains("no tensor 'g'"));
}

TEST_CASE("safetensors: bytes in memory are those of the file, and one of several tensors is read alone") {
  const TemporaryPath f("alone.safetensors");
  write_safetensors(f.path, example());
  CHECK(safetensors_bytes(example()) == bytes_of(f.path));
  const TensorFile part = read_safetensors(f.path, {"weight"});
  CHECK(part.tensors.size() == 1);
  CHECK(part.metadata == example().metadata);
}

TEST_CASE("[R38] safetensors: malformed files are refused with a reason") {
  auto entry = [](const std::string& rest) { return R"({"t":{"dtype":"F32",)" + rest + "}}"; };
  struct Case {
    std::string bytes, reason;
  };
  const std::vector<Case> corpus{
      {"", "too short"},
      {"1234567", "too short"},
      {std::string(8, '\xff'), "bad header length"},
      {std::string("\x09\0\0\0\0\0\0\0", 8) + "{}", "bad header length"},
      {std::string("\0\0\0\0\0\0\0\0", 8), "does not begin with {"},
      {file_bytes(" {}", 0), "does not begin with {"},
      {file_bytes("[]", 0), "does not begin with {"},
      {file_bytes("{", 0), "not valid JSON"},
      {file_bytes("{} x", 0), "not valid JSON"},
      {file_bytes("{\"\xff\":1}", 0), "not valid JSON"},
      {file_bytes(R"({"t":1})", 0), "tensor 't' is badly described"},
      {file_bytes(R"({"t":{}})", 0), "badly described"},
      {file_bytes(R"({"t":{"dtype":"F32","shape":[1]}})", 4), "badly described"},
      {file_bytes(entry(R"("shape":[1],"data_offsets":[0,4],"extra":1)"), 4), "badly described"},
      {file_bytes(entry(R"("shape":1,"data_offsets":[0,4])"), 4), "badly described"},
      {file_bytes(entry(R"("shape":[1],"data_offsets":[0,4,4])"), 4), "badly described"},
      {file_bytes(entry(R"("shape":[1],"data_offsets":[0])"), 4), "badly described"},
      {file_bytes(R"({"t":{"dtype":1,"shape":[1],"data_offsets":[0,4]}})", 4), "badly described"},
      {file_bytes(entry(R"("shape":[-1],"data_offsets":[0,4])"), 4), "size 0 is not a count: got -1"},
      {file_bytes(entry(R"("shape":[1.0],"data_offsets":[0,4])"), 4), "not a count"},
      {file_bytes(entry(R"("shape":["1"],"data_offsets":[0,4])"), 4), "not a count"},
      {file_bytes(entry(R"("shape":[18446744073709551615],"data_offsets":[0,4])"), 4), "not a count"},
      {file_bytes(entry(R"("shape":[4294967296,4294967296],"data_offsets":[0,0])"), 0), "too large"},
      {file_bytes(entry(R"("shape":[4611686018427387903,0,4611686018427387903],"data_offsets":[0,0])"), 0),
       "too large"},
      {file_bytes(entry(R"("shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])"), 4), "too many dimensions"},
      {file_bytes(entry(R"("shape":[2],"data_offsets":[0,4])"), 4), "do not fit its shape"},
      {file_bytes(entry(R"("shape":[1],"data_offsets":[4,0])"), 4), "do not fit its shape"},
      {file_bytes(entry(R"("shape":[1],"data_offsets":[-4,0])"), 4), "not a count"},
      {file_bytes(entry(R"("shape":[1],"data_offsets":[4,8])"), 8), "leaves a gap"},
      {file_bytes(entry(R"("shape":[2],"data_offsets":[0,8])"), 4), "beyond the end"},
      {file_bytes(entry(R"("shape":[1],"data_offsets":[0,4])"), 5), "belong to no tensor"},
      {file_bytes("{}", 1), "belong to no tensor"},
      {file_bytes(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  8),
       "tensor 'b' overlaps"},
      {file_bytes(R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                  R"("a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  8),
       "name twice in one object: got 'a'"},
      {file_bytes(entry(R"("shape":[1],"shape":[1],"data_offsets":[0,4])"), 4), "name twice in one object"},
      {file_bytes(R"({"__metadata__":{"a":"1","a":"2"}})", 0), "name twice in one object"},
      {file_bytes(R"({"__metadata__":{"a":1}})", 0), "metadata 'a' is not a text"},
      {file_bytes(R"({"__metadata__":[]})", 0), "bad __metadata__"},
      {file_bytes(R"({"__metadata__":{"boostgrad.crc32":"00000001"}})", 0), "checksum is wrong"},
      {file_bytes(entry(R"("shape":[[1]],"data_offsets":[0,4])"), 4), "nested too deeply"},
      {file_bytes("{\"t\":" + std::string(100000, '['), 0), "nested too deeply"},
  };
  for (const Case& c : corpus) {
    INFO(c.bytes.substr(std::min<size_t>(8, c.bytes.size()), 120));
    CHECK_THROWS_WITH(parse_safetensors(c.bytes, "x"), Contains("[safetensors] x: ") && Contains(c.reason));
  }
  for (const std::string dtype : {"F128", "I4", "f32", "", "\\n"}) {
    INFO(dtype);
    CHECK_THROWS_WITH(
        parse_safetensors(file_bytes(R"({"w":{"dtype":")" + dtype + R"(","shape":[0],"data_offsets":[0,0]}})", 0), "x"),
        Contains("tensor 'w' has a dtype that the format does not know: got \"" + dtype + "\""));
  }
  CHECK_THROWS_WITH(parse_safetensors(file_bytes(R"({"w":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2), "x"),
                    Contains("tensor 'w' does not fill whole bytes: got 12 bits for F4 (3,)"));
  CHECK_THROWS_WITH(parse_safetensors(file_bytes(R"({"a\nb":1})", 0), "x"), Contains(R"(tensor 'a\nb' is badly)"));
}

TEST_CASE("[R38] safetensors: every truncation and 20000 random mutations are read or refused, never worse") {
  const TemporaryPath f("fuzz.safetensors");
  write_safetensors(f.path, example());
  const std::string good = bytes_of(f.path);
  uint64_t length;
  std::memcpy(&length, good.data(), 8);
  int refused = 0;
  for (size_t n = 0; n < good.size(); ++n) {
    const std::string cut = good.substr(0, n);
    try {
      parse_safetensors(cut, "x");
    } catch (const Error&) {
      ++refused;
    }
  }
  CHECK(refused == static_cast<int>(good.size()));

  Rng r(2);
  const std::string alphabet = "{}[]\",:0123456789-eE.ntf\\u\x80\xff FIB_";
  int damaged = 0, found = 0;
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    const int changes = 1 + static_cast<int>(r.uniform() * 4);
    for (int k = 0; k < changes; ++k) {
      const size_t at = static_cast<size_t>(r.uniform() * static_cast<double>(8 + length));
      bytes[at] = alphabet[static_cast<size_t>(r.uniform() * static_cast<double>(alphabet.size()))];
    }
    if (bytes == good) continue;
    ++damaged;
    try {
      parse_safetensors(bytes, "x");
    } catch (const Error&) {
      ++found;
    }
  }
  // a change of the padding or of the checksum's own key may pass; hardly anything else does
  CHECK(found > damaged * 99 / 100);
}

TEST_CASE("safetensors: the checksum finds a changed bit of data, a changed name and changed metadata") {
  const TemporaryPath f("crc.safetensors");
  write_safetensors(f.path, example());
  const std::string good = bytes_of(f.path);
  auto changed = [&](size_t at, char to) {
    std::string bytes = good;
    bytes[at] = to;
    return bytes;
  };
  CHECK_THROWS_WITH(parse_safetensors(changed(good.size() - 1, static_cast<char>(good.back() ^ 1)), "x"),
                    Contains("checksum is wrong") && Contains("earlier checkpoint"));
  CHECK_THROWS_WITH(parse_safetensors(changed(good.find("weight"), 'v'), "x"), Contains("checksum is wrong"));
  CHECK_THROWS_WITH(parse_safetensors(changed(good.find("\"12\"") + 1, '2'), "x"), Contains("checksum is wrong"));
}

TEST_CASE("safetensors: what cannot be written is refused and leaves the old file alone") {
  const TemporaryPath f("keep.safetensors");
  write_safetensors(f.path, example());
  const std::string before = bytes_of(f.path);
  CHECK_THROWS_WITH(write_safetensors(f.path, {{{"t", Tensor()}}, {}}), Contains("tensor 't' is undefined"));
  CHECK_THROWS_WITH(write_safetensors(f.path, {{{"__metadata__", Tensor::zeros({1})}}, {}}), Contains("reserved"));
  CHECK_THROWS_WITH(write_safetensors(f.path, {{}, {{std::string(kChecksumKey), "0"}}}), Contains("reserved"));
  CHECK_THROWS_WITH(write_safetensors(f.path, {{{"\xff", Tensor::zeros({1})}}, {}}), Contains("not UTF-8"));
  CHECK(bytes_of(f.path) == before);
  CHECK_THROWS_WITH(read_safetensors("no such file"), Contains("no such file"));
}
