// Tokenizers: GPT-2's words, merges worked out by hand, round trips on difficult text, files, errors, threads.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "core/atomic_file.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/read_file.h"
#include "core/rng.h"
#include "models/pretokenizer.h"
#include "models/tokenizer.h"
#include "models/unicode.h"
#include "tests/support.h"

namespace fs = std::filesystem;
using bg::BpeTokenizer;
using bg::ByteTokenizer;
using bg::Tokenizer;
using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;

namespace {

Words words_of(std::string_view text) {
  Words words;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t end = bg::word_end(text, i);
    words.emplace_back(text.substr(i, end - i));
    i = end;
  }
  return words;
}

template <class E = bg::Error, class F>
std::string message_of(F&& f) {
  try {
    f();
  } catch (const E& e) {
    return e.what();
  }
  return "no error";
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct File : bg::test::TemporaryPath {
  explicit File(std::string_view content) : TemporaryPath("tokenizer.json") {
    bg::write_file_atomically(path, content);
  }
};

const std::vector<std::string> kDifficult = {
    "",
    " ",
    "\n\n\n",
    "Hello, world! It's 10:45; we'll see, they've said 'no'.",
    "line one\r\nline two\r\n\r\n\tindented   text   \r\n",
    std::string(1000, ' ') + "x" + std::string(1000, '\n') + " ",
    "1234567890 3.14159 1,000,000 \xc2\xbd \xe2\x85\xa8 \xd9\xa3\xd9\xa4",
    "caf\xc3\xa9 cafe\xcc\x81 na\xc3\xafve \xe0\xa4\xa8\xe0\xa4\xae\xe0\xa4\xb8\xe0\xa5\x8d\xe0\xa4\xa4\xe0\xa5\x87",
    "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x92\xbb \xf0\x9f\x87\xa8\xf0\x9f\x87\xad \xf0\x9f\x98\x80\xf0\x9f\x98\x80!",
    "\xe6\x97\xa5\xe6\x9c\xac\xe8\xaa\x9e\xe3\x80\x80\xe3\x83\x86\xe3\x82\xad\xe3\x82\xb9\xe3\x83\x88\xe3\x80\x82",
    std::string("\0\x01\x1c\x7f", 4) + "\xef\xbb\xbf\xe2\x80\x8b\xc2\x85\xc2\xa0",
    "don't DON'T ''s 'sss 'tis rock'n'roll's",
};

// Text of some size from a fixed seed: words of a few letters, with signs, numbers, runs of spaces and other scripts.
std::string made_up_text(std::size_t bytes) {
  bg::Rng rng(7);
  std::string text;
  while (text.size() < bytes) {
    const uint64_t kind = rng.below(20);
    if (kind == 0) text += kDifficult[rng.below(kDifficult.size())];
    if (kind == 1) text += bg::str(" ", rng.below(100000));
    if (kind == 2) text += rng.below(2) ? ",\n" : ".  ";
    text += ' ';
    for (uint64_t n = 1 + rng.below(7); n > 0; --n) text += "etaoinshrdlu"[std::min(rng.below(12), rng.below(12))];
  }
  return text;
}

// The definition, word by word and merge by merge: the pair of lowest rank, leftmost first.
Ids reference_encode(const BpeTokenizer& tokenizer, std::string_view text) {
  std::map<std::string, int32_t> id_of;
  for (const std::string& token : tokenizer.model().tokens) {
    const auto id = static_cast<int32_t>(id_of.size());
    id_of.emplace(token, id);
  }
  std::map<std::pair<int32_t, int32_t>, std::size_t> rank_of;
  for (const auto& [left, right] : tokenizer.model().merges) {
    const std::size_t rank = rank_of.size();
    rank_of.emplace(std::pair(left, right), rank);
  }
  Ids all;
  for (const std::string& word : words_of(text)) {
    Ids ids;
    for (const char byte : word) ids.push_back(id_of.at(std::string(1, byte)));
    for (;;) {
      std::size_t best = rank_of.size(), where = 0;
      for (std::size_t i = 0; i + 1 < ids.size(); ++i) {
        const auto found = rank_of.find({ids[i], ids[i + 1]});
        if (found != rank_of.end() && found->second < best) best = found->second, where = i;
      }
      if (best == rank_of.size()) break;
      const auto& tokens = tokenizer.model().tokens;
      ids[where] = id_of.at(tokens[ids[where]] + tokens[ids[where + 1]]);
      ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(where) + 1);
    }
    all.insert(all.end(), ids.begin(), ids.end());
  }
  return all;
}

std::vector<std::pair<int32_t, int32_t>> merges_of(const BpeTokenizer& tokenizer) {
  std::vector<std::pair<int32_t, int32_t>> merges;
  for (const auto& [left, right] : tokenizer.model().merges) merges.emplace_back(left, right);
  return merges;
}

}  // namespace

TEST_CASE("words follow GPT-2's pattern") {
  CHECK(words_of("Hello world") == Words{"Hello", " world"});
  CHECK(words_of("I'm sure they'll say don't") == Words{"I", "'m", " sure", " they", "'ll", " say", " don", "'t"});
  CHECK(words_of("'S DON'T") == Words{"'", "S", " DON", "'", "T"});  // contractions are lower case
  CHECK(words_of("say '!'s") == Words{"say", " '!'", "s"});          // signs take the apostrophe along
  CHECK(words_of("x 's") == Words{"x", " '", "s"});
  CHECK(words_of("ab12 34cd") == Words{"ab", "12", " 34", "cd"});
  CHECK(words_of("a   b") == Words{"a", "  ", " b"});          // the last space leads the next word
  CHECK(words_of("a \n b") == Words{"a", " \n", " b"});        //
  CHECK(words_of("a \n\nb") == Words{"a", " \n", "\n", "b"});  // only U+0020 leads a word
  CHECK(words_of("a\tb") == Words{"a", "\t", "b"});
  CHECK(words_of("end  \n") == Words{"end", "  \n"});  // all of the white space at the end
  CHECK(words_of("a\xc2\xa0\xc2\xa0x") == Words{"a", "\xc2\xa0", "\xc2\xa0", "x"});
  CHECK(words_of("e\xcc\x81t") == Words{"e", "\xcc\x81", "t"});  // a combining mark is no letter
  CHECK(words_of("\xe6\x97\xa5\xe6\x9c\xac 1\xc2\xbd") == Words{"\xe6\x97\xa5\xe6\x9c\xac", " 1\xc2\xbd"});
  CHECK(words_of(std::string("\0a", 2)) == Words{std::string(1, '\0'), "a"});
}

TEST_CASE("pieces of a text have the words of the whole text") {
  const std::string text = made_up_text(20000);
  const Words whole = words_of(text);
  for (const std::size_t bytes : {1, 7, 100, 5000, 100000}) {
    const auto pieces = bg::split_at_words(text, bytes);
    CHECK(pieces.size() >= text.size() / (bytes + 4000) / 2 + 1);
    Words words;
    for (const auto piece : pieces) {
      for (std::string& word : words_of(piece)) words.push_back(std::move(word));
    }
    CHECK(words == whole);
  }
}

TEST_CASE("words have a longest length, and a text without spaces is cut into pieces all the same") {
  bg::Rng rng(5);
  const auto repeated = [&](std::vector<std::string> characters, std::size_t bytes) {
    std::string text;
    while (text.size() < bytes) text += characters[rng.below(characters.size())];
    return text;
  };
  const std::size_t longest = bg::kLongestWord;
  for (const std::string& text :
       {repeated({"a", "b"}, 5 * longest), repeated({"\xc3\xa9", "e", "\xe6\x97\xa5"}, 5 * longest),
        std::string(5 * longest, ' ') + "x", repeated({"1", "2"}, 5 * longest) + " a",
        std::string(longest - 1, 'a') + "\xc3\xa9" + std::string(longest, 'a'), " " + std::string(2 * longest, 'a')}) {
    const Words whole = words_of(text);
    std::string joined;
    for (const std::string& word : whole) {
      CHECK((word.size() <= longest && (word.size() > longest - 4 || word == whole.back() || word[0] == ' ')));
      CHECK(bg::find_invalid_utf8(word) == std::string_view::npos);
      joined += word;
    }
    CHECK(joined == text);
    CHECK(whole.size() >= text.size() / longest);
    for (const std::size_t bytes : {std::size_t{1}, longest / 2, 2 * longest}) {
      Words words;
      for (const auto piece : bg::split_at_words(text, bytes)) {
        CHECK(piece.size() <= bytes + 2 * longest);
        for (std::string& word : words_of(piece)) words.push_back(std::move(word));
      }
      CHECK(words == whole);
    }
  }
  // shorter words are never cut
  const std::string word(longest, 'a');
  CHECK(words_of(word + " b") == Words{word, " b"});
}

TEST_CASE("long work says where it is, and can be ended") {
  const std::string text = made_up_text(200000);
  std::map<std::string, double> last;
  const auto watched = [&](std::string_view what, double share) {
    CHECK((share >= last[std::string(what)] && share <= 1));
    last[std::string(what)] = share;
  };
  const auto tokenizer = BpeTokenizer::train(text, 400, watched);
  CHECK(tokenizer.to_json() == BpeTokenizer::train(text, 400).to_json());
  for (const char* phase : {"counting words", "counting pairs", "learning merges"}) CHECK(last.count(phase) == 1);
  CHECK(last["learning merges"] > 0.9);
  struct Ended {};
  CHECK_THROWS_AS(BpeTokenizer::train(text, 400, [](std::string_view, double) { throw Ended(); }), Ended);
}

TEST_CASE("training: merges of small texts worked out by hand") {
  // In GPT-2's order 'a' is 64, 'b' 65, 'c' 66, 'd' 67 and the space 220.
  SECTION("most frequent first") {  // ab: 3, " a": 2, bc: 1; then " ab": 2, abc: 1; then nothing occurs twice
    const auto tokenizer = BpeTokenizer::train("ab ab abc", 1000);
    CHECK(merges_of(tokenizer) == std::vector<std::pair<int32_t, int32_t>>{{64, 65}, {220, 256}});
    CHECK(tokenizer.vocab_size() == 258);
    CHECK(tokenizer.encode("ab abc") == Ids{256, 257, 66});
    CHECK(tokenizer.token_text(257) == " ab");
  }
  SECTION("equal counts: smallest left id, then smallest right id") {  // ab: 2, cd: 2, " c": 2, " a": 1
    const auto tokenizer = BpeTokenizer::train("ab cd ab cd", 1000);
    CHECK(merges_of(tokenizer) == std::vector<std::pair<int32_t, int32_t>>{{64, 65}, {66, 67}, {220, 257}});
    const auto right = BpeTokenizer::train("ac\nab\nac\nab", 257);
    CHECK(merges_of(right) == std::vector<std::pair<int32_t, int32_t>>{{64, 65}});
  }
  SECTION("overlapping pairs merge from the left") {  // aa: 6, then (aa)(aa): 2
    const auto tokenizer = BpeTokenizer::train("aaaa\naaaa", 1000);
    CHECK(merges_of(tokenizer) == std::vector<std::pair<int32_t, int32_t>>{{64, 64}, {256, 256}});
    CHECK(tokenizer.encode("aaa") == Ids{256, 64});
    CHECK(tokenizer.encode("aaaaa") == Ids{257, 64});
  }
  SECTION("the asked size is kept, and no merge crosses words") {
    const auto tokenizer = BpeTokenizer::train("ab ab abc", 257);
    CHECK(tokenizer.vocab_size() == 257);
    CHECK(BpeTokenizer::train("a1a1a1 !!a", 1000).vocab_size() == 256);
  }
}

TEST_CASE("training and encoding do not depend on the number of threads, and encoding follows the definition") {
  const std::string text = made_up_text(1500000);
  std::string json;
  Ids ids;
  for (const int threads : {1, 2, 4}) {
    bg::set_num_threads(threads);
    bg::reset_distinct_workers();
    const auto tokenizer = BpeTokenizer::train(text, 700);
    if (threads == 1) {
      json = tokenizer.to_json();
      ids = tokenizer.encode(text);
      CHECK(tokenizer.vocab_size() == 700);
      CHECK(tokenizer.decode(ids) == text);
      const std::string_view start = std::string_view(text).substr(0, text.find(' ', 60000));
      const Ids expected = reference_encode(tokenizer, start);
      CHECK(std::equal(expected.begin(), expected.end(), ids.begin()));
    } else {
      CHECK(tokenizer.to_json() == json);
      CHECK(tokenizer.encode(text) == ids);
      for (int i = 0; i < 200 && bg::distinct_workers() < threads; ++i) tokenizer.encode(text);  // on a busy machine
      CHECK(bg::distinct_workers() == threads);
    }
  }
}

TEST_CASE("a very long word is encoded by the same definition, and quickly") {
  const auto tokenizer = BpeTokenizer::train(made_up_text(50000), 600);
  bg::Rng rng(3);
  std::string word;
  for (int i = 0; i < 2000; ++i) word += "etaoin"[rng.below(6)];
  CHECK(tokenizer.encode(word) == reference_encode(tokenizer, word));
  const std::string huge(1000000, 'e');
  CHECK(tokenizer.decode(tokenizer.encode(huge)) == huge);
  CHECK(BpeTokenizer::train(huge, 300).decode(Ids{256, 256}) == "eeee");
}

TEST_CASE("difficult text survives encoding, decoding, saving and loading") {
  const auto bpe = BpeTokenizer::train(made_up_text(100000), 900);
  const ByteTokenizer byte;
  for (const Tokenizer* tokenizer : {static_cast<const Tokenizer*>(&bpe), static_cast<const Tokenizer*>(&byte)}) {
    const File file("");
    tokenizer->save(file.path);
    const auto loaded = Tokenizer::load(file.path);
    CHECK(loaded->describe() == tokenizer->describe());
    CHECK(loaded->vocab_size() == tokenizer->vocab_size());
    CHECK(loaded->to_json() == tokenizer->to_json());
    CHECK(loaded->fingerprint() == tokenizer->fingerprint());
    for (const std::string& text : kDifficult) {
      INFO(bg::printable(text));
      const Ids ids = tokenizer->encode(text);
      CHECK(tokenizer->decode(ids) == text);
      CHECK(loaded->encode(text) == ids);
    }
  }
  for (const std::string& text : kDifficult) CHECK(bpe.encode(text) == reference_encode(bpe, text));
  CHECK(byte.encode("\xc3\xa9!") == Ids{0xc3, 0xa9, '!'});
  CHECK(byte.fingerprint() != bpe.fingerprint());
}

TEST_CASE("token texts are one printable line of UTF-8") {
  const ByteTokenizer byte;
  CHECK(byte.token_text('a') == "a");
  CHECK(byte.token_text(' ') == " ");
  CHECK(byte.token_text('\n') == "\\n");
  CHECK(byte.token_text(0x1b) == "\\x1b");
  CHECK(byte.token_text(0xe2) == "\\xe2");
  CHECK(bg::printable("\xc3\xa9\xc3") == "\xc3\xa9\\xc3");
  CHECK(bg::printable("a\xe2\x80\xa8z") == "a\\xe2\\x80\\xa8z");  // U+2028, a line separator
}

TEST_CASE("bytes that come in pieces give valid UTF-8: split characters whole, others replaced") {
  const std::string text = "a\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80.", lost = "\xef\xbf\xbd";
  for (size_t size = 1; size <= text.size(); ++size) {
    bg::Utf8Stream stream;
    std::string out;
    for (size_t at = 0; at < text.size(); at += size) {
      out += stream.feed(std::string_view(text).substr(at, size));
      CHECK(bg::find_invalid_utf8(out) == std::string::npos);
    }
    CHECK(out + stream.finish() == text);
  }
  auto whole = [](std::string_view bytes) {
    bg::Utf8Stream stream;
    std::string out = stream.feed(bytes);
    return out += stream.finish();
  };
  CHECK(whole("x\x9dy") == "x" + lost + "y");                     // goes on from nothing
  CHECK(whole("\xe2\x82z") == lost + lost + "z");                 // broken off
  CHECK(whole("\xf0\x9f") == lost + lost);                        // ends too early
  CHECK(whole("\xc0\xaf \xff") == lost + lost + " " + lost);      // never valid
  CHECK(whole("\xed\xa0\x80") == lost + lost + lost);             // a surrogate
  CHECK(whole("\xf4\x90\x80\x80") == lost + lost + lost + lost);  // beyond Unicode
}

TEST_CASE("text that is not UTF-8 is refused with the position of its first bad byte") {
  const auto bpe = BpeTokenizer::train("some text", 257);
  const std::vector<std::pair<std::string, std::string>> bad = {
      {"abc\xff", "\\xff at position 3"},           // never a byte of UTF-8
      {"\xc3\xa9\xa9", "\\xa9 at position 2"},      // continues nothing
      {"ab\xc3", "\\xc3 at position 2"},            // cut off
      {"\xc0\xaf", "\\xc0 at position 0"},          // longer than needed
      {"x\xed\xa0\x80", "\\xed at position 1"},     // half of a surrogate pair
      {"\xf4\x90\x80\x80", "\\xf4 at position 0"},  // beyond Unicode
      {std::string(70, 'x') + "\xe2\x82", "position 70"},
  };
  for (const auto& [text, expected] : bad) {
    INFO(bg::printable(text));
    const std::string encoding = message_of([&] { bpe.encode(text); });
    CHECK(contains(encoding, expected));
    CHECK(contains(encoding, "not UTF-8"));
    CHECK(contains(message_of([&] { ByteTokenizer().encode(text); }), expected));
    CHECK(contains(message_of([&] { BpeTokenizer::train(text, 300); }), expected));
  }
  CHECK(contains(message_of([&] { bpe.decode(Ids{0, 1, 256}); }), "256 at position 2, expected 0 to 255"));
  CHECK(contains(message_of([&] { bpe.decode(Ids{-1}); }), "-1 at position 0"));
}

TEST_CASE("added tokens are found before words are, the longest first") {
  std::string json = BpeTokenizer::train("ab ab abc", 258).to_json();
  const std::string none = "\"added_tokens\": []";
  const auto added = [](int id, const std::string& content) {
    return bg::str("{\"id\": ", id, ", \"content\": \"", content,
                   "\", \"single_word\": false, \"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                   "\"special\": true}");
  };
  json.replace(json.find(none), none.size(),
               "\"added_tokens\": [" + added(258, "<end>") + "," + added(259, "<end>>") + "]");
  const File file(json);
  const auto tokenizer = Tokenizer::load(file.path);
  CHECK(tokenizer->vocab_size() == 260);
  CHECK(contains(tokenizer->describe(), "2 added tokens"));
  const std::string text = "<end>ab  <end>> ab<en";
  const Ids ids = tokenizer->encode(text);
  CHECK(Ids(ids.begin(), ids.begin() + 6) == Ids{258, 256, 220, 220, 259, 257});  // white space before it stays whole
  CHECK(tokenizer->decode(ids) == text);
  CHECK(tokenizer->encode("<<end>>>ab") == Ids{27, 259, 29, 256});  // '<' is 27 and '>' 29
  const File again(tokenizer->to_json());
  CHECK(Tokenizer::load(again.path)->encode(text) == ids);
}

TEST_CASE("a vocabulary with unused ids keeps them, as the library does") {
  std::string json = BpeTokenizer::train("ab ab abc", 258).to_json();
  const auto replace = [&](const std::string& from, const std::string& to) {
    REQUIRE(json.find(from) != std::string::npos);
    json.replace(json.find(from), from.size(), to);
  };
  replace("\"ab\": 256", "\"ab\": 777, \"<x>\": 300");
  replace("\"added_tokens\": []", "\"added_tokens\": [{\"id\": 300, \"content\": \"<x>\"}]");
  const auto tokenizer = Tokenizer::parse(json);
  CHECK(tokenizer->vocab_size() == 778);
  CHECK(contains(tokenizer->describe(), "259 tokens, 2 merges, 519 unused ids"));
  CHECK(tokenizer->encode("ab<x>ab abc") == Ids{777, 300, 777, 257, 66});
  CHECK(tokenizer->decode(Ids{777, 500, 300}) == "ab<x>");
  CHECK(tokenizer->token_text(500).empty());
  const auto again = Tokenizer::parse(tokenizer->to_json());
  CHECK(again->to_json() == tokenizer->to_json());
  CHECK(again->encode("ab<x>ab abc") == Ids{777, 300, 777, 257, 66});
}

TEST_CASE("added tokens that are normalized are looked for after those that are not") {
  const std::string none = "\"added_tokens\": []";
  const auto ids_of = [&](bool first, bool second, const std::string& text) {
    std::string json = BpeTokenizer::train("ab ab abc", 258).to_json();
    const auto added = [](int id, const std::string& content, bool normalized) {
      return bg::str("{\"id\": ", id, ", \"content\": \"", content,
                     "\", \"normalized\": ", normalized ? "true" : "false", "}");
    };
    json.replace(json.find(none), none.size(),
                 "\"added_tokens\": [" + added(258, "<x>", first) + "," + added(259, "x><", second) + "]");
    const auto tokenizer = Tokenizer::parse(json);
    CHECK(Tokenizer::parse(tokenizer->to_json())->encode(text) == tokenizer->encode(text));
    CHECK(tokenizer->decode(tokenizer->encode(text)) == text);
    return tokenizer->encode(text);
  };
  // a is 64, < is 27, y is 88; the ids are those that the tokenizers library gives
  CHECK(ids_of(false, false, "a<x><y") == Ids{64, 258, 27, 88});
  CHECK(ids_of(true, true, "a<x><y") == Ids{64, 258, 27, 88});
  CHECK(ids_of(true, false, "a<x><y") == Ids{64, 27, 259, 88});
  CHECK(ids_of(false, true, "a<x><y") == Ids{64, 258, 27, 88});
  CHECK(ids_of(true, false, "<x>") == Ids{258});
}

TEST_CASE("merges in the form of pairs are read, too") {
  std::string json = BpeTokenizer::train("ab ab abc", 258).to_json();
  const std::string text = "\"a b\"";
  json.replace(json.find(text), text.size(), "[\"a\", \"b\"]");
  const File file(json);
  CHECK(Tokenizer::load(file.path)->encode("ab abc") == Ids{256, 257, 66});
}

TEST_CASE("tokenizer files that are damaged or not supported are refused with the reason") {
  const std::string good = BpeTokenizer::train("ab ab abc", 258).to_json();
  struct Change {
    std::string from, to, reason;
  };
  const std::vector<Change> changes = {
      {"\"normalizer\": null", "\"normalizer\": {\"type\": \"NFC\"}", "'normalizer' is not supported"},
      {"\"truncation\": null", "\"truncation\": {\"max_length\": 8}", "'truncation' is not supported"},
      {"{\"type\": \"ByteLevel\", \"add_prefix_space\": false", "{\"type\": \"Whitespace\"",
       "pre_tokenizer is not supported"},
      {"\"add_prefix_space\": false", "\"add_prefix_space\": true", "'add_prefix_space' is not supported"},
      {"\"use_regex\": true", "\"use_regex\": false", "'use_regex' is not supported"},
      {"\"post_processor\": null", "\"post_processor\": {\"type\": \"TemplateProcessing\"}",
       "post_processor is not supported"},
      {"\"decoder\": {\"type\": \"ByteLevel\"", "\"decoder\": {\"type\": \"Metaspace\"", "decoder is not supported"},
      {"\"type\": \"BPE\"", "\"type\": \"WordPiece\"", "model is not supported"},
      {"\"dropout\": null", "\"dropout\": 0.1", "'dropout' is not supported"},
      {"\"ignore_merges\": false", "\"ignore_merges\": true", "'ignore_merges' is not supported"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 258, \"content\": \"a b\"}]", "white space"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 300, \"content\": \"<x>\"}]",
       "would not use the id of the added token '<x>': got 300, expected 258"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 259, \"content\": \"<x>\"}]", "got 259, expected 258"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 258, \"content\": \"\"}]", "under its id"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 97.5, \"content\": \"<x>\"}]",
       "bad id: got 97.5, expected a whole number from 0 to 1048575"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 1e20, \"content\": \"<x>\"}]", "bad id: got 1e+20"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 4294967554, \"content\": \"<x>\"}]",
       "bad id: got 4294967554"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"content\": \"<x>\"}]", "'id' is missing"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 258, \"content\": 7}]", "bad content: got 7"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 258, \"content\": \"<x>\", \"special\": 1}]",
       "bad special: got 1"},
      {"\"added_tokens\": []", "\"added_tokens\": 5", "bad added_tokens: got 5"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 258, \"content\": \"<x>\", \"rstrip\": true}]", "'rstrip'"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 258, \"content\": \"<x>\", \"single_word\": true}]",
       "'single_word'"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 64, \"content\": \"<x>\"}]", "two tokens have one id"},
      {"\"added_tokens\": []", "\"added_tokens\": [{\"id\": 258, \"content\": \"<x>\", \"lstrip\": true}]", "'lstrip'"},
      {"\"!\": 0", "\"!\": 1", "two tokens have one id: got 1"},
      {"\"!\": 0", "\"!\": 1e20", "bad id of '!': got 1e+20, expected a whole number from 0 to 1048575"},
      {"\"!\": 0", "\"!\": 97.5", "bad id of '!': got 97.5"},
      {"\"!\": 0", "\"!\": 4294967296", "bad id of '!': got 4294967296"},
      {"\"!\": 0", "\"!\": -1", "bad id of '!': got -1"},
      {"\"!\": 0", "\"!\": 1048576", "bad id of '!': got 1048576"},
      {"\"!\": 0", "\"\": 0", "a token of no bytes"},
      {"\"!\": 0", "\"!!\": 0", "no token for the byte 33"},
      {"\"!\": 0", "\"\xe6\x97\xa5\": 0", "byte-level alphabet"},
      {"\"!\": 0", "\"!\": \"0\"", "bad id of '!': got \"0\""},
      {"\"a b\"", "\"a bb\"", "not in the vocabulary: got \"bb\""},
      {"\"a b\"", "\"a c\"", "merge 0 makes a token that is not in the vocabulary: got ac"},
      {"\"a b\"", "\"ab\"", "a merge is damaged"},
      {"\"a b\"", "17", "a merge is damaged: got 17"},
      {"\"a b\"", "[\"a\", 98]", "a merge is damaged: got [\"a\",98]"},
      {"\"merges\"", "\"mergers\"", "'merges' is missing"},
      {"\"merges\"", "\"merges\": 5, \"x\"", "bad merges: got 5"},
      {"\"vocab\"", "\"vocab\": 5, \"x\"", "bad vocab: got 5"},
      {"\"use_regex\": true", "\"use_regex\": 0", "'use_regex' is not supported: got 0"},
      {"\"model\": {", "\"model\": \"BPE\", \"x\": {", "the model is not an object: got \"BPE\""},
      {"\"model\": {", "\"version\": 1, \"model\": {", "a name twice in one object: got 'version'"},
      {"\n}", "\n", "not valid JSON: got unexpected end of input"},
  };
  for (const Change& change : changes) {
    INFO(change.from << " -> " << change.to);
    std::string json = good;
    REQUIRE(json.find(change.from) != std::string::npos);
    json.replace(json.find(change.from), change.from.size(), change.to);
    const File file(json);
    const std::string message = message_of([&] { Tokenizer::load(file.path); });
    INFO(message);
    CHECK(contains(message, change.reason));
    CHECK(message.starts_with("[tokenizer] " + file.path.string() + ": "));
    CHECK(contains(message, ". Try: "));
  }
  const std::string deep(100'000, '[');
  for (const std::string& json : std::vector<std::string>{"", "[]", "17", "{}", "\xff", deep, "{\"model\": " + deep}) {
    const File file(json);
    CHECK(contains(message_of([&] { Tokenizer::load(file.path); }), file.path.string()));
  }
}

TEST_CASE("the option --tokenizer: byte, bpe:SIZE or a file, and a usage error for anything else") {
  CHECK(bg::make_tokenizer("byte", "")->vocab_size() == 256);
  const auto bpe = bg::make_tokenizer("bpe:257", "ab ab abc");
  CHECK(bpe->vocab_size() == 257);
  const File file(bpe->to_json());
  CHECK(bg::make_tokenizer(file.path.string(), "")->fingerprint() == bpe->fingerprint());
  for (const std::string spec :
       {"bpe:256", "bpe:", "bpe:-5", "bpe:1k", "bpe:4096 ", "bpe:99999999999999999999", "bpe:2000000"}) {
    INFO(spec);
    const std::string message = message_of<bg::UsageError>([&] { bg::make_tokenizer(spec, "text"); });
    CHECK(contains(message, "got " + spec));
    CHECK(contains(message, "257 to 1048576"));
  }
  for (const std::string spec : {"", "bpe", "bytes", "/nowhere/tokenizer.json"}) {
    CHECK(contains(message_of<bg::UsageError>([&] { bg::make_tokenizer(spec, "text"); }), "byte, bpe:SIZE"));
  }
}

TEST_CASE("a real text survives the round trip") {
  const char* path = std::getenv("BOOSTGRAD_TEST_TEXT");
  if (path == nullptr) {
    WARN("skipped: set BOOSTGRAD_TEST_TEXT to the path of a text file to run it");
    return;
  }
  const std::string text = bg::read_file(path, bg::FileKind::text);
  const auto tokenizer = BpeTokenizer::train(text, 2000);
  const Ids ids = tokenizer.encode(text);
  CHECK(tokenizer.decode(ids) == text);
  CHECK(ids.size() < text.size() / 2);
}
