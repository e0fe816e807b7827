// NumPy files: round trips, exact bytes, Fortran order, and a corpus of malformed and mutated files.
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/io/npy.h"
#include "core/rng.h"
#include "tests/match.h"
#include "tests/support.h"

using namespace bg;
using bg::test::TemporaryPath;

namespace {

std::string file_content(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A .npy file of the given version around a header and data.
std::string npy(const std::string& header, const std::string& data, int version = 1) {
  std::string out = "\x93NUMPY";
  out += static_cast<char>(version);
  out += '\0';
  const uint32_t n = static_cast<uint32_t>(header.size());
  out.append(reinterpret_cast<const char*>(&n), version == 1 ? 2 : 4);
  return out + header + data;
}

std::string raw(const std::vector<float>& v) {
  return std::string(reinterpret_cast<const char*>(v.data()), v.size() * sizeof(float));
}

std::string header(const std::string& descr, const std::string& fortran, const std::string& shape) {
  return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n";
}

}  // namespace

TEST_CASE("npy: dtypes and shapes survive a round trip") {
  Rng r(1);
  const TemporaryPath f("a.npy");
  for (const DType t : {DType::f32, DType::f64, DType::i32, DType::i64})
    for (const Shape& s : {Shape{}, Shape{1}, Shape{3}, Shape{2, 3}, Shape{0, 4}, Shape{2, 1, 1, 2, 1, 1, 1, 3}}) {
      const Tensor x = Tensor::rand(s, r, -100, 100, DType::f64).to(t);
      write_npy(f.path, x);
      const Tensor y = read_npy(f.path);
      CHECK(y.dtype() == t);
      CHECK(y.shape() == s);
      CHECK(y.to_vector<double>() == x.to_vector<double>());
    }
  const Tensor x = Tensor::of({1, 2, 3, 4, 5, 6}, {2, 3});
  write_npy(f.path, x.transpose(0, 1));
  CHECK(read_npy(f.path).to_vector<double>() == std::vector<double>{1, 4, 2, 5, 3, 6});
}

TEST_CASE("npy: the bytes are those that NumPy writes") {
  const std::string bytes = npy_bytes(Tensor::of({1, 2, 3}, {3}, DType::f32));
  std::string expected("\x93NUMPY\x01\x00\x76\x00", 10);
  expected += "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }";
  expected.resize(127, ' ');
  CHECK(bytes == expected + '\n' + raw({1, 2, 3}));
  CHECK_THAT(npy_bytes(Tensor::of({1}, {})), Contains("'shape': (), }"));
}

TEST_CASE("npy: versions, key order, quotes and Fortran order of other writers") {
  const std::string data = raw({1, 2, 3, 4, 5, 6});
  for (const int version : {1, 2, 3})
    CHECK(parse_npy(npy(header("'<f4'", "False", "(6,)"), data, version), "x").size(0) == 6);
  CHECK(parse_npy(npy(R"({"shape":(2,3),"fortran_order":False,"descr":"<f4"})", data), "x").at({1, 0}) == 4);
  const Tensor f = parse_npy(npy(header("'<f4'", "True", "(2, 3)"), data), "x");
  CHECK(f.shape() == Shape{2, 3});
  CHECK(f.to_vector<double>() == std::vector<double>{1, 3, 5, 2, 4, 6});
}

TEST_CASE("npy: shapes as Python 2 wrote them") {
  const std::string data = raw({1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12});
  const Tensor t = parse_npy(npy(header("'<f4'", "False", "(3L, 4L)"), data), "x");
  CHECK(t.shape() == Shape{3, 4});
  CHECK(t.at({2, 0}) == 9);
  CHECK(parse_npy(npy(header("'<f4'", "False", "(12L,)"), data), "x").shape() == Shape{12});
}

TEST_CASE("npy: every number that a dtype here holds exactly is read, in either byte order") {
  struct Case {
    std::string descr, data;
    DType dtype;
    std::vector<double> values;
  };
  using S = std::string;
  const std::vector<Case> cases{
      {"<f2", S("\x00\x3c\x01\x00\xff\x7b\x00\xc0", 8), DType::f32, {1, 0x1p-24, 65504, -2}},
      {">f2", S("\x3c\x00\x03\xff\x00\x00\xfc\x00", 8), DType::f32, {1, 1023 * 0x1p-24, 0, -INFINITY}},
      {">f4", S("\x3f\x80\x00\x00\xc0\x00\x00\x00", 8), DType::f32, {1, -2}},
      {"=f4", S("\x00\x00\x80\x3f", 4), DType::f32, {1}},
      {"f8", S("\0\0\0\0\0\0\xf0\x3f", 8), DType::f64, {1}},
      {">f8", S("\x3f\xf0\0\0\0\0\0\1", 8), DType::f64, {1 + 0x1p-52}},
      {"|b1", S("\0\1\2", 3), DType::i32, {0, 1, 1}},
      {"|i1", S("\x7f\x80\xff", 3), DType::i32, {127, -128, -1}},
      {"|u1", S("\x7f\x80\xff", 3), DType::i32, {127, 128, 255}},
      {"<i2", S("\xff\x7f\0\x80", 4), DType::i32, {32767, -32768}},
      {">i2", S("\x7f\xff\x80\0", 4), DType::i32, {32767, -32768}},
      {"<u2", S("\xff\xff", 2), DType::i32, {65535}},
      {">i4", S("\x80\0\0\1", 4), DType::i32, {-2147483647}},
      {"<u4", S("\xff\xff\xff\xff", 4), DType::i64, {4294967295}},
      {">u4", S("\x80\0\0\0", 4), DType::i64, {2147483648}},
      {">i8", S("\xff\xff\xff\xff\xff\xff\xff\xfe", 8), DType::i64, {-2}},
      {"<u8", S("\1\0\0\0\0\0\0\x20", 8), DType::i64, {2305843009213693953.}},
  };
  for (const Case& c : cases) {
    INFO(c.descr);
    const std::string shape = str("(", c.values.size(), ",)");
    const Tensor t = parse_npy(npy(header("'" + c.descr + "'", "False", shape), c.data), "x");
    CHECK(t.dtype() == c.dtype);
    CHECK(t.to_vector<double>() == c.values);
  }
  const Tensor nan = parse_npy(npy(header("'<f2'", "False", "(2,)"), S("\x00\x7e\x01\xfc", 4)), "x");
  for (const double x : nan.to_vector<double>()) CHECK(std::isnan(x));
  const Tensor f = parse_npy(npy(header("'>i2'", "True", "(2, 3)"), S("\0\1\0\2\0\3\0\4\0\5\0\6", 12)), "x");
  CHECK(f.to_vector<double>() == std::vector<double>{1, 3, 5, 2, 4, 6});
}

TEST_CASE("[R38] npy: malformed files are refused with a reason") {
  const std::string data = raw({1, 2});
  struct Case {
    std::string bytes, reason;
  };
  const std::vector<Case> corpus{
      {"", "not a .npy file"},
      {"\x93NUMPZ\x01\x00\x00\x00", "not a .npy file"},
      {npy(header("'<f4'", "False", "(2,)"), data, 4), "unknown version: got 4.0"},
      {npy("", data, 2).substr(0, 10), "cut off"},
      {npy(header("'<f4'", "False", "(2,)"), data).substr(0, 40), "header reaches beyond the end"},
      {npy(header("'<f4'", "False", "(2,)"), data.substr(1)), "data of a wrong size: got 7 bytes, expected 8"},
      {npy(header("'<f4'", "False", "(2,)"), data + "x"), "data of a wrong size"},
      {npy(header("'<f4'", "False", "(3,)"), data), "expected 12 for 4-byte numbers (3,)"},
      {npy(header("'|O'", "False", "(1,)"), data), "dtype not supported: got '|O'"},
      {npy(header("'<c8'", "False", "(1,)"), data), "dtype not supported: got '<c8'"},
      {npy(header("'<f16'", "False", "(1,)"), data), "dtype not supported"},
      {npy(header("'|S8'", "False", "(1,)"), data), "dtype not supported"},
      {npy(header("'<U2'", "False", "(1,)"), data), "dtype not supported"},
      {npy(header("'<M8[ns]'", "False", "(1,)"), data), "dtype not supported"},
      {npy(header("''", "False", "(1,)"), data), "dtype not supported"},
      {npy(header("'\xff\n'", "False", "(1,)"), data), "dtype not supported: got '\xEF\xBF\xBD\\n'"},
      {npy(header("'<u8'", "False", "(1,)"), std::string(8, '\xff')),
       "got 18446744073709551615, expected at most 2^63"},
      {npy(header("'<f4'", "False", "(L,)"), data), "not a whole number"},
      {npy(header("'<f4'", "False", "(2LL,)"), data), "without commas"},
      {npy(header("[('a', '<f4')]", "False", "(2,)"), data), "structured dtype"},
      {npy(header("'<f4'", "0", "(2,)"), data), "not True or False"},
      {npy(header("'<f4'", "False", "2"), data), "bad header, no ("},
      {npy(header("'<f4'", "False", "(2)"), data), "not a tuple"},
      {npy(header("'<f4'", "False", "(-2,)"), data), "not a whole number"},
      {npy(header("'<f4'", "False", "(1 2)"), data), "without commas"},
      {npy(header("'<f4'", "False", "(2,,)"), data), "not a whole number"},
      {npy(header("'<f4'", "False", "(2,"), data), "not a whole number"},
      {npy(header("'<f4'", "False", "(99999999999999999999,)"), data), "beyond 2^63"},
      {npy(header("'<f4'", "False", "(4294967296, 4294967296)"), data), "too large"},
      {npy(header("'<f4'", "False", "(9223372036854775807, 0, 9223372036854775807)"), ""), "too large"},
      {npy(header("'<f4'", "False", "(1, 1, 1, 1, 1, 1, 1, 1, 2)"), data), "too many dimensions"},
      {npy("{'descr': '<f4', 'shape': (2,)}", data), "a field missing"},
      {npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", data), "second or unknown"},
      {npy("{'other': '<f4', 'fortran_order': False, 'shape': (2,)}", data), "second or unknown"},
      {npy("{'descr': '<f4' 'fortran_order': False, 'shape': (2,)}", data), "no }"},
      {npy("{'descr': '<f4", data), "a text without end"},
      {npy("{'descr': __import__('os')}", data), "bad header"},
      {npy(header("'<f4'", "False", "(2,)") + "x", data), "text after the header"},
      {npy("", data), "bad header, no {"},
  };
  for (const Case& c : corpus) {
    INFO(c.bytes.substr(std::min<size_t>(10, c.bytes.size()), 120));
    CHECK_THROWS_WITH(parse_npy(c.bytes, "x"), Contains(c.reason));
  }
  CHECK_THROWS_WITH(npy_bytes(Tensor::zeros({1}, DType::bf16)), Contains("bf16") && Contains("to(DType::f32)"));
  CHECK_THROWS_WITH(npy_bytes(Tensor()), Contains("undefined tensor"));
}

TEST_CASE("[R38] npy: truncations and 20000 random mutations are read or refused, never worse") {
  Rng r(3);
  const std::string good = npy_bytes(Tensor::randn({3, 4}, r));
  int refused = 0;
  auto attempt = [&](const std::string& bytes) {
    try {
      parse_npy(bytes, "x");
    } catch (const Error&) {
      ++refused;
    }
  };
  for (size_t n = 0; n < good.size(); ++n) attempt(good.substr(0, n));
  CHECK(refused == static_cast<int>(good.size()));
  refused = 0;
  const std::string alphabet = "{}[]()'\",:0123456789-<>fiTrueFalse \xff";
  for (int i = 0; i < 20000; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 1 + i % 3; ++k)
      bytes[static_cast<size_t>(r.uniform() * 75)] =
          alphabet[static_cast<size_t>(r.uniform() * static_cast<double>(alphabet.size()))];
    attempt(bytes);
  }
  CHECK(refused > 15000);
}

TEST_CASE("npz: named arrays survive a round trip, and bytes repeat") {
  Rng r(4);
  const TemporaryPath one("a.npz"), two("b.npz");
  const std::map<std::string, Tensor> arrays{{"w", Tensor::randn({30, 40}, r)},
                                             {"ids", Tensor::arange(5)},
                                             {"blocks.0.\xc3\xa9", Tensor::randn({}, r, DType::f64)},
                                             {"none", Tensor::zeros({0})}};
  write_npz(one.path, arrays);
  const auto back = read_npz(one.path);
  REQUIRE(back.size() == 4);
  for (const auto& [name, t] : arrays) {
    INFO(name);
    REQUIRE(back.count(name) == 1);
    CHECK(back.at(name).dtype() == t.dtype());
    CHECK(back.at(name).shape() == t.shape());
    CHECK(back.at(name).to_vector<double>() == t.to_vector<double>());
  }
  write_npz(two.path, back);
  CHECK(file_content(one.path) == file_content(two.path));
}

TEST_CASE("[R38] npz: damage is found") {
  const TemporaryPath f("damaged.npz");
  write_npz(f.path, {{"w", Tensor::full({100}, 1.5)}});
  const std::string good = file_content(f.path);
  auto attempt = [&](const std::string& bytes) {
    std::ofstream(f.path, std::ios::binary) << bytes;
    return read_npz(f.path);
  };
  std::string changed = good;
  changed[good.size() / 2] ^= 1;  // within the array: the zip's own checksum
  CHECK_THROWS_WITH(attempt(changed), Contains("entry 'w.npy' is damaged"));
  CHECK_THROWS_WITH(attempt(good.substr(0, good.size() - 10)), Contains("cannot read"));
  CHECK_THROWS_WITH(attempt(""), Contains("cannot read"));
  CHECK_THROWS_WITH(attempt("no zip at all, just some text of some length"), Contains("cannot read"));
  std::string renamed = good;
  for (size_t at = renamed.find("w.npy"); at != std::string::npos; at = renamed.find("w.npy", at))
    renamed[at + 2] = 'x';
  CHECK_THROWS_WITH(attempt(renamed), Contains("entry 'w.xpy' is no array"));
  CHECK_THROWS_WITH(read_npz("no such file"), Contains("no such file"));

  Rng r(5);
  int survived = 0;
  for (int i = 0; i < 500; ++i) {
    std::string bytes = good;
    for (int k = 0; k < 3; ++k)
      bytes[static_cast<size_t>(r.uniform() * static_cast<double>(bytes.size()))] =
          static_cast<char>(r.uniform() * 256);
    try {
      attempt(bytes);
      ++survived;
    } catch (const Error&) {
    }
  }
  CHECK(survived < 100);  // changed dates and flags
}

TEST_CASE("npz: what an archive states is within a limit, and true") {
  const std::map<std::string, Tensor> arrays{{"a", Tensor::zeros({100})}, {"b", Tensor::zeros({50})}};
  const size_t all = npy_bytes(arrays.at("a")).size() + npy_bytes(arrays.at("b")).size();
  std::string bytes = npz_bytes(arrays, "x");
  CHECK(parse_npz(bytes, "x", all).size() == 2);
  CHECK_THROWS_WITH(parse_npz(bytes, "x", all - 1), Contains("x, entry 'b.npy' is too large unpacked: got 328 bytes") &&
                                                        Contains(str("at most ", all - 1, " in all")));
  CHECK_THROWS_WITH(parse_npz(bytes, "x", 10), Contains("entry 'a.npy' is too large unpacked"));

  // both places where a.npy's unpacked size stands: 22 bytes into its local header, 24 into that of the directory
  const uint32_t size = static_cast<uint32_t>(npy_bytes(arrays.at("a")).size()), other = uint32_t{1} << 31;
  int changed = 0;
  for (const auto& [mark, offset] : {std::pair(std::string("PK\3\4"), 22), {"PK\1\2", 24}}) {
    const size_t at = bytes.find(mark) + static_cast<size_t>(offset);
    if (std::memcmp(bytes.data() + at, &size, 4) != 0) continue;
    std::memcpy(bytes.data() + at, &other, 4);
    ++changed;
  }
  REQUIRE(changed == 2);
  CHECK_THROWS_AS(parse_npz(bytes, "x"), Error);
  CHECK_THROWS_WITH(parse_npz(bytes, "x", 1 << 20), !Contains("bad_alloc"));
}

TEST_CASE("npz: what cannot be written leaves the old file alone") {
  const TemporaryPath f("keep.npz");
  write_npz(f.path, {{"w", Tensor::zeros({2})}});
  const std::string before = file_content(f.path);
  CHECK_THROWS_WITH(write_npz(f.path, {{"w", Tensor::zeros({2}, DType::bf16)}}), Contains("bf16"));
  CHECK_THROWS_WITH(write_npz(f.path, {}), Contains("no arrays"));
  CHECK(file_content(f.path) == before);
}
