// Corpora, the token cache and batches: contents by hand, damage, errors, and what resuming relies on.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <numeric>
#include <set>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/temporary_folder.h"
#include "models/batches.h"
#include "models/corpus.h"
#include "models/token_stream.h"
#include "tests/catch.h"

namespace fs = std::filesystem;
using bg::Batches;
using bg::Order;
using bg::TokenStream;
using bg::Window;
using Longs = std::vector<int64_t>;

namespace {

struct Folder {
  fs::path file(const std::string& name, std::string_view content) const {
    bg::write_file_atomically(path / name, content);
    return path / name;
  }
  bg::TemporaryFolder own;
  fs::path path = own.path();
};

template <class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const bg::Error& e) {
    return e.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

Longs all_of(const TokenStream& stream) {
  Longs ids(stream.size());
  stream.read(0, ids);
  return ids;
}

// Tokens 0, 1, 2, ...: an id is its position.
TokenStream counting(int n) {
  std::string text;
  for (int i = 0; i < n; ++i) text += static_cast<char>(i);
  return TokenStream(text, bg::ByteTokenizer());
}

}  // namespace

TEST_CASE("corpus: a folder with train.txt, valid.txt and perhaps test.txt") {
  Folder folder;
  folder.file("train.txt", "train text");
  CHECK(contains(message_of([&] { bg::load_corpus(folder.path); }), "has no valid.txt"));
  folder.file("valid.txt", "valid text");
  CHECK(bg::load_corpus(folder.path).test.empty());
  folder.file("test.txt", "test text");
  bg::Corpus first = bg::load_corpus(folder.path);
  const bg::Corpus corpus = std::move(first);
  CHECK(corpus.train == "train text");
  CHECK(corpus.valid == "valid text");
  CHECK(corpus.test == "test text");
  folder.file("valid.txt", "");
  CHECK(contains(message_of([&] { bg::load_corpus(folder.path); }), "valid.txt is empty"));
  folder.file("valid.txt", "abc\xff");
  CHECK(contains(message_of([&] { bg::load_corpus(folder.path); }),
                 "valid.txt is not UTF-8: got byte \\xff at position 3"));
  fs::remove(folder.path / "train.txt");
  CHECK(contains(message_of([&] { bg::load_corpus(folder.path); }), "has no train.txt"));
}

TEST_CASE("corpus: one file is divided at 90 % of its bytes, at the start of a character") {
  Folder folder;
  const auto divide = [&](const std::string& text) {
    const bg::Corpus corpus = bg::load_corpus(folder.file("text.txt", text));
    CHECK(std::string(corpus.train) + std::string(corpus.valid) == text);
    CHECK(corpus.test.empty());
    return corpus.train.size();
  };
  CHECK(divide("0123456789") == 9);
  CHECK(divide("0123456789abcdefghijklm") == 20);
  CHECK(divide("ab") == 1);
  CHECK(divide("01234567\xc3\xa9") == 8);        // byte 9 is inside the character
  CHECK(divide("012345\xf0\x9f\x98\x80") == 6);  // so it is here, by three bytes
  CHECK(divide(std::string(88, 'x') + "\xe6\x97\xa5" + std::string(9, 'y')) == 88);
  CHECK(contains(message_of([&] { divide("x"); }), "too short to divide"));
  CHECK(contains(message_of([&] { divide("\xc3\xa9"); }), "too short to divide"));
  CHECK(contains(message_of([&] { divide(""); }), "is empty"));
  CHECK(contains(message_of([&] { divide("a\x80"); }), "position 1"));
  CHECK(contains(message_of([&] { bg::load_corpus(folder.path / "none"); }), "none: No such file"));
}

TEST_CASE("tokens: the cache file is reused while it fits and rebuilt when it does not") {
  Folder folder;
  const fs::path path = folder.path / "train.tokens";
  const bg::ByteTokenizer byte;
  const auto bpe = bg::BpeTokenizer::train("the cat and the dog", 260);
  const std::string text = "the cat, the dog and the others";
  const Longs ids = all_of(TokenStream(text, byte));
  CHECK(ids == Longs(text.begin(), text.end()));

  CHECK_FALSE(TokenStream::cached(path, text, byte).reused());
  const TokenStream second = TokenStream::cached(path, text, byte);
  CHECK(second.reused());
  CHECK(second.size() == text.size());
  CHECK(second.vocab_size() == 256);
  CHECK(second[4] == 'c');
  CHECK(all_of(second) == ids);

  CHECK_FALSE(TokenStream::cached(path, text + "!", byte).reused());
  CHECK_FALSE(TokenStream::cached(path, text, bpe).reused());
  CHECK(all_of(TokenStream::cached(path, text, bpe)) == all_of(TokenStream(text, bpe)));
  CHECK(all_of(second) == ids);  // the file was replaced, not changed: earlier streams live on
  CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator{}) == 1);
}

TEST_CASE("tokens: damage anywhere in the cache file is found") {
  Folder folder;
  const fs::path path = folder.path / "tokens";
  const std::string text = "some text to keep";
  const bg::ByteTokenizer byte;
  TokenStream::cached(path, text, byte);
  std::ifstream in(path, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  CHECK(good.size() == 2 * text.size() + 56);
  std::vector<std::string> damaged = {"",         "x",           good.substr(1), good.substr(0, good.size() - 1),
                                      good + "x", good.substr(2)};
  for (std::size_t i = 0; i < good.size(); ++i) {
    damaged.push_back(good);
    damaged.back()[i] = static_cast<char>(damaged.back()[i] ^ 0x10);
  }
  for (const std::string& content : damaged) {
    bg::write_file_atomically(path, content);
    const TokenStream rebuilt = TokenStream::cached(path, text, byte);
    CHECK_FALSE(rebuilt.reused());
    CHECK(all_of(rebuilt) == Longs(text.begin(), text.end()));
    CHECK(TokenStream::cached(path, text, byte).reused());
  }
  CHECK(contains(message_of([&] { TokenStream::cached(folder.path / "none" / "tokens", text, byte); }), "none/tokens"));
  CHECK(contains(message_of([&] { TokenStream::cached(folder.path, text, byte); }), "not a regular file"));
}

TEST_CASE("tokens: a vocabulary of more than 65,536 uses 32 bits") {
  bg::BpeModel model;
  for (const char byte : bg::gpt2_byte_order()) model.tokens.emplace_back(1, byte);
  for (int i = 0; model.tokens.size() < 70000; ++i) model.tokens.push_back(bg::str("filler ", i));
  model.tokens.emplace_back("ab");
  model.merges.push_back({64, 65});
  const bg::BpeTokenizer tokenizer(model);
  Folder folder;
  for (const auto& stream : {TokenStream("ab a", tokenizer), TokenStream::cached(folder.path / "t", "ab a", tokenizer),
                             TokenStream::cached(folder.path / "t", "ab a", tokenizer)}) {
    CHECK(all_of(stream) == Longs{70000, 220, 64});
    CHECK(stream[0] == 70000);
  }
  CHECK(fs::file_size(folder.path / "t") == 3 * 4 + 56);
  Longs two(2);
  TokenStream stream("ab a", tokenizer);
  stream.read(1, two);
  CHECK(two == Longs{220, 64});
  CHECK(contains(message_of([&] { stream.read(2, two); }), "got 2 to 4, expected at most 3"));
  CHECK(contains(message_of([&] { stream.read(~std::size_t{0}, two); }), "past the end"));
}

TEST_CASE("batches in order: each token but the first is a target once, and the rest comes last") {
  // 12 tokens, T = 4: windows 0-4 and 4-8, and 3 predictions in the rest.
  const Batches batches(counting(12), {.batch_size = 2, .seq_len = 4, .order = Order::in_order});
  CHECK(batches.sequences() == 2);
  REQUIRE(batches.per_epoch() == 2);
  const bg::Batch first = batches.get(0), rest = batches.get(1);
  CHECK(first.rows == 2);
  CHECK(first.cols == 4);
  CHECK(first.inputs == Longs{0, 1, 2, 3, 4, 5, 6, 7});
  CHECK(first.targets == Longs{1, 2, 3, 4, 5, 6, 7, 8});
  CHECK(rest.rows == 1);
  CHECK(rest.cols == 3);
  CHECK(rest.inputs == Longs{8, 9, 10});
  CHECK(rest.targets == Longs{9, 10, 11});
  CHECK(contains(message_of([&] { batches.get(2); }), "got 2, expected 0 to 1"));
  CHECK(contains(message_of([&] { batches.get(-1); }), "bad batch number"));
  for (const int tokens : {2, 3, 5, 17, 64, 65, 66, 100}) {
    const Batches all(counting(tokens), {.batch_size = 3, .seq_len = 8, .order = Order::in_order});
    Longs targets;
    for (int64_t i = 0; i < all.per_epoch(); ++i) {
      const Longs part = all.get(i).targets;
      targets.insert(targets.end(), part.begin(), part.end());
    }
    Longs expected(static_cast<std::size_t>(tokens) - 1);
    std::iota(expected.begin(), expected.end(), 1);
    CHECK(targets == expected);
  }
}

TEST_CASE("batches in order as in the paper: T tokens give T - 1 predictions, windows share nothing") {
  const Batches batches(counting(14), {.batch_size = 2, .seq_len = 4, .window = Window::t, .order = Order::in_order});
  CHECK(batches.sequences() == 3);
  REQUIRE(batches.per_epoch() == 2);
  CHECK(batches.get(0).inputs == Longs{0, 1, 2, 4, 5, 6});
  CHECK(batches.get(0).targets == Longs{1, 2, 3, 5, 6, 7});
  CHECK(batches.get(1).rows == 1);
  CHECK(batches.get(1).cols == 3);
  CHECK(batches.get(1).inputs == Longs{8, 9, 10});
}

TEST_CASE("batches shuffled: each window once an epoch, another order in each, the same from any starting point") {
  const bg::BatchOptions options{.batch_size = 3, .seq_len = 5, .seed = 42};
  const Batches batches(counting(101), options);  // 20 windows
  CHECK(batches.sequences() == 20);
  CHECK(batches.per_epoch() == 6);  // two windows are left out
  Longs orders[2];
  for (int64_t i = 0; i < 12; ++i) {
    const bg::Batch batch = batches.get(i);
    CHECK(batch.rows == 3);
    CHECK(batch.cols == 5);
    for (std::size_t row = 0; row < 3; ++row) {
      orders[i / 6].push_back(batch.inputs[row * 5]);
      CHECK(batch.inputs[row * 5] % 5 == 0);
      CHECK(batch.targets[row * 5 + 4] == batch.inputs[row * 5] + 5);
    }
  }
  for (const Longs& order : orders) CHECK(std::set<int64_t>(order.begin(), order.end()).size() == 18);
  CHECK(orders[0] != orders[1]);
  CHECK_FALSE(std::is_sorted(orders[0].begin(), orders[0].end()));
  const Batches resumed(counting(101), options);
  CHECK(resumed.get(8).inputs == batches.get(8).inputs);
  CHECK(resumed.get(2).inputs == batches.get(2).inputs);
  const Batches other(counting(101), {.batch_size = 3, .seq_len = 5, .seed = 43});
  CHECK(other.get(0).inputs != batches.get(0).inputs);
}

TEST_CASE("batches at random places: every place is reached, and a batch depends on its number alone") {
  const bg::BatchOptions options{.batch_size = 8, .seq_len = 4, .order = Order::random, .seed = 1};
  const Batches batches(counting(20), options);
  std::set<int64_t> starts;
  for (int64_t i = 0; i < 50; ++i) {
    const bg::Batch batch = batches.get(i);
    CHECK(batch.rows == 8);
    CHECK(batch.cols == 4);
    for (std::size_t k = 0; k < batch.inputs.size(); ++k) CHECK(batch.targets[k] == batch.inputs[k] + 1);
    for (std::size_t row = 0; row < 8; ++row) starts.insert(batch.inputs[row * 4]);
  }
  CHECK(starts.size() == 16);  // 0 to 15: the last window holds the last token
  CHECK(*starts.rbegin() == 15);
  CHECK(Batches(counting(20), options).get(37).inputs == batches.get(37).inputs);
  CHECK(batches.get(0).inputs != batches.get(1).inputs);
}

TEST_CASE("batches: texts that are too short and options out of range are refused") {
  const auto message = [](int tokens, bg::BatchOptions options) {
    return message_of([&] { Batches batches(counting(tokens), options); });
  };
  const std::string expected = "the text is too short: got 8 tokens, expected at least 9";
  CHECK(contains(message(8, {.seq_len = 8}), expected));
  CHECK(contains(message(8, {.seq_len = 8, .order = Order::random}), expected));
  CHECK(message(9, {.seq_len = 8}) == "no error");
  CHECK(message(8, {.seq_len = 8, .window = Window::t}) == "no error");
  CHECK(contains(message(7, {.seq_len = 8, .window = Window::t, .order = Order::in_order}), "at least 8"));
  CHECK(contains(message(1, {.seq_len = 8, .order = Order::in_order}), "got 1 token, expected at least 2"));
  CHECK(contains(message(20, {.batch_size = 3, .seq_len = 8}),
                 "fewer sequences than one batch: got 2, expected at least 3"));
  CHECK(contains(message(20, {.batch_size = 0, .seq_len = 8}), "bad batch size: got 0"));
  CHECK(contains(message(20, {.seq_len = 0}), "bad sequence length: got 0"));
  CHECK(contains(message(20, {.seq_len = 1, .window = Window::t}), "expected 2 to"));
  CHECK(contains(message(20, {.seq_len = INT64_MAX}), "bad sequence length"));
}

TEST_CASE("batches: what an in-order pass predicts, token by token") {
  for (const Window window : {Window::t_plus_1, Window::t})
    for (const int64_t batch_size : {1, 3})
      for (int size = 5; size <= 40; ++size) {
        const Batches batches(counting(size), {batch_size, 5, window, Order::in_order});
        std::vector<int> predicted(static_cast<std::size_t>(size));  // how often
        for (int64_t i = 0; i < batches.per_epoch(); ++i)
          for (const int64_t target : batches.get(i).targets) ++predicted[static_cast<std::size_t>(target)];
        INFO(size << " tokens");
        for (int i = 0; i < size; ++i) CHECK(predicted[static_cast<std::size_t>(i)] == int{batches.predicts(i)});
      }
}
