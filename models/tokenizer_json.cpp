// tokenizer.json writes each byte of a token as one printable character: printable bytes as themselves (in Latin-1),
// the others as U+0100, U+0101, ... in the order of their value, so that the space becomes U+0120.
#include "models/tokenizer_json.h"

#include <utf8proc.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/io/json.h"
#include "core/read_file.h"
#include "models/unicode.h"

namespace bg {
namespace {

using nlohmann::json;

constexpr std::size_t kPrintable = 188;  // gpt2_byte_order() starts with that many printable bytes

int32_t character_of_byte(unsigned char byte) {
  const auto rank = gpt2_byte_order().find(static_cast<char>(byte));
  return rank < kPrintable ? byte : static_cast<int32_t>(0x100 + rank - kPrintable);
}

std::string to_alphabet(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) {
    utf8proc_uint8_t out[4];
    const auto n = utf8proc_encode_char(character_of_byte(static_cast<unsigned char>(byte)), out);
    text.append(reinterpret_cast<const char*>(out), static_cast<std::size_t>(n));
  }
  return text;
}

// The largest id that a file may use, so that a small file makes no large table.
constexpr int64_t kMaxId = kMaxVocabulary - 1;

std::string json_string(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

// ---- reading

constexpr std::string_view kHint =
    "a byte-level BPE without normalizer, such as GPT-2's, or train one with --tokenizer bpe:SIZE.";

[[noreturn]] void refuse(std::string_view what, std::string_view got = {}, std::string_view expected = {},
                         std::string_view hint = {}) {
  fail("tokenizer", what, got, expected, hint);
}

// The member, or null where it is missing.
const json& member(const json& object, const char* name) {
  static const json null;
  const auto found = object.find(name);
  return found == object.end() ? null : *found;
}

void require_absent(const json& object, const char* name) {
  const json& value = member(object, name);
  if (value.is_null() || value == "" || value == false || value == 0.0) return;
  refuse(str("'", name, "' is not supported"), json_excerpt(value), "none");
}

void require_type(const json& file, const char* name, std::string_view type) {
  const json& value = member(file, name);
  const json& got = value.is_object() ? member(value, "type") : value;
  if (got != type) refuse(str("this ", name, " is not supported"), json_excerpt(got), json_string(type));
}

void check_supported(const json& file) {
  const JsonFields fields(file, "tokenizer", "the file");
  for (const char* name : {"truncation", "padding", "normalizer"}) require_absent(file, name);
  require_type(file, "model", "BPE");
  require_type(file, "pre_tokenizer", "ByteLevel");
  require_type(file, "decoder", "ByteLevel");
  if (!member(file, "post_processor").is_null()) require_type(file, "post_processor", "ByteLevel");  // keeps the ids
  require_absent(file["pre_tokenizer"], "add_prefix_space");
  if (const json& use_regex = member(file["pre_tokenizer"], "use_regex"); !use_regex.is_null() && use_regex != true) {
    refuse("'use_regex' is not supported", json_excerpt(use_regex), "true, GPT-2's pre-tokenisation");
  }
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"}) {
    require_absent(file["model"], name);
  }
}

std::vector<AddedToken> read_added(const json& file) {
  std::vector<AddedToken> added;
  const json& list = member(file, "added_tokens");
  if (list.is_null()) return added;
  if (!list.is_array()) refuse("bad added_tokens", json_excerpt(list), "an array");
  for (const json& entry : list) {
    const JsonFields fields(entry, "tokenizer", "an added token");
    // the first three take white space away or look at the words around: decoding would not give the text back
    for (const char* name : {"single_word", "lstrip", "rstrip"}) require_absent(entry, name);
    const auto flag = [&](const char* name) { return !fields.find(name).is_null() && fields.flag(name); };
    added.push_back({static_cast<int32_t>(fields.whole("id", 0, kMaxId)), fields.text("content"), flag("special"),
                     flag("normalized")});
    const std::string& content = added.back().content;
    for (std::size_t i = 0; i < content.size(); i += character_at(content, i).bytes) {
      if (character_at(content, i).kind != CharClass::space) continue;
      refuse("an added token with white space is not supported", json_excerpt(content));
    }
  }
  return added;
}

// The bytes that a vocabulary entry stands for.
std::string from_alphabet(std::string_view text) {
  static const std::unordered_map<int32_t, char> byte_of = [] {
    std::unordered_map<int32_t, char> map;
    for (const char byte : gpt2_byte_order()) map[character_of_byte(static_cast<unsigned char>(byte))] = byte;
    return map;
  }();
  std::string bytes;
  for (std::size_t i = 0; i < text.size();) {
    int32_t character = 0;
    i += static_cast<std::size_t>(utf8proc_iterate(reinterpret_cast<const utf8proc_uint8_t*>(text.data() + i),
                                                   static_cast<utf8proc_ssize_t>(text.size() - i), &character));
    const auto found = byte_of.find(character);
    if (found == byte_of.end()) {
      refuse("a token is not written in the byte-level alphabet", json_excerpt(text), "one character for each byte");
    }
    bytes += found->second;
  }
  return bytes;
}

// Both forms in use: "left right" and ["left", "right"].
std::pair<std::string, std::string> read_merge(const json& entry) {
  const auto bad = [&] { refuse("a merge is damaged", json_excerpt(entry), "two tokens with a space between them"); };
  if (entry.is_array()) {
    if (entry.size() != 2 || !entry[0].is_string() || !entry[1].is_string()) bad();
    return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  }
  if (!entry.is_string()) bad();
  const auto text = entry.get<std::string>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) bad();
  return {text.substr(0, space), text.substr(space + 1)};
}

using IdOfText = std::unordered_map<std::string, int32_t>;

IdOfText read_vocabulary(const JsonFields& model) {
  const json& vocabulary = model.at("vocab");
  if (!vocabulary.is_object()) refuse("bad vocab", json_excerpt(vocabulary), "an object of ids by token");
  IdOfText id_of;
  for (const auto& [text, id] : vocabulary.get_ref<const json::object_t&>()) {
    if (text.empty()) refuse("a token of no bytes is not supported", json_excerpt(id));
    const int64_t whole = json_whole(id, "tokenizer", str("bad id of ", in_quotes(text)), 0, kMaxId);
    id_of.emplace(text, static_cast<int32_t>(whole));
  }
  return id_of;
}

// The library gives an added token that the vocabulary does not list the next id after all others, whatever the file
// says; where the two differ, no ids would be right for everyone.
void check_added_ids(const IdOfText& id_of, const std::vector<AddedToken>& added) {
  int64_t next = static_cast<int64_t>(id_of.size());
  for (const AddedToken& token : added) {
    const auto listed = id_of.find(token.content);
    const int64_t id = listed == id_of.end() ? next : listed->second;
    if (token.id != id)
      refuse(str("the tokenizers library would not use the id of the added token ", in_quotes(token.content)),
             str(token.id), str(id), "list the token in the model's vocab, too");
    next = std::max(next, id + 1);
  }
}

BpeModel read_model(const json& file, const std::vector<AddedToken>& added) {
  const JsonFields fields(file["model"], "tokenizer", "the model");
  const IdOfText id_of = read_vocabulary(fields);
  std::unordered_map<int32_t, std::string> bytes_of;
  for (const AddedToken& token : added) {
    if (!bytes_of.emplace(token.id, token.content).second) refuse("two added tokens have one id", str(token.id));
  }
  for (const auto& [text, id] : id_of) {
    const auto found = bytes_of.find(id);
    if (found == bytes_of.end()) {
      bytes_of.emplace(id, from_alphabet(text));
    } else if (found->second != text) {  // an added token may be listed again, as its plain text
      refuse("two tokens have one id", str(id));
    }
  }
  check_added_ids(id_of, added);
  BpeModel model;
  for (auto& [id, bytes] : bytes_of) {
    const auto place = static_cast<std::size_t>(id);
    if (place >= model.tokens.size()) model.tokens.resize(place + 1);  // unused ids stay empty
    model.tokens[place] = std::move(bytes);
  }
  const auto token_id = [&](const std::string& text) {
    const auto found = id_of.find(text);
    if (found == id_of.end()) refuse("a merge names a token that is not in the vocabulary", json_excerpt(text));
    return found->second;
  };
  const json& merges = fields.at("merges");
  if (!merges.is_array()) refuse("bad merges", json_excerpt(merges), "an array");
  for (const json& entry : merges) {
    const auto [left, right] = read_merge(entry);
    model.merges.push_back({token_id(left), token_id(right)});
  }
  return model;
}

bool is_byte_vocabulary(const BpeModel& model) {
  if (!model.merges.empty() || model.tokens.size() != 256) return false;
  for (int b = 0; b < 256; ++b) {
    if (model.tokens[static_cast<std::size_t>(b)] != std::string(1, static_cast<char>(b))) return false;
  }
  return true;
}

}  // namespace

std::string tokenizer_json(const BpeModel& model, const std::vector<AddedToken>& added) {
  const auto is_added = [&](std::size_t id) {
    return std::any_of(added.begin(), added.end(),
                       [&](const AddedToken& t) { return t.id == static_cast<int32_t>(id); });
  };
  std::vector<std::string> names;
  for (std::size_t id = 0; id < model.tokens.size(); ++id) {
    names.push_back(is_added(id) ? model.tokens[id] : to_alphabet(model.tokens[id]));
  }

  // Written by hand to keep the order of the library's own files: vocabulary by id, merges by rank.
  std::string out = R"({
  "version": "1.0",
  "truncation": null,
  "padding": null,
  "added_tokens": [)";
  const char* separator = "\n";
  for (const AddedToken& t : added) {
    out += str(separator, R"(    {"id": )", t.id, R"(, "content": )", json_string(t.content),
               R"(, "single_word": false, "lstrip": false, "rstrip": false, "normalized": )",
               t.normalized ? "true" : "false", R"(, "special": )", t.special ? "true" : "false", "}");
    separator = ",\n";
  }
  out += R"(],
  "normalizer": null,
  "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "post_processor": null,
  "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
  "model": {
    "type": "BPE",
    "dropout": null,
    "unk_token": null,
    "continuing_subword_prefix": null,
    "end_of_word_suffix": null,
    "fuse_unk": false,
    "byte_fallback": false,
    "ignore_merges": false,
    "vocab": {)";
  separator = "\n";
  for (std::size_t id = 0; id < names.size(); ++id) {
    if (names[id].empty()) continue;  // unused
    out += str(separator, "      ", json_string(names[id]), ": ", id);
    separator = ",\n";
  }
  out += "\n    },\n    \"merges\": [";
  separator = "\n";
  for (const auto& [left, right] : model.merges) {
    out += str(separator, "      ",
               json_string(names[static_cast<std::size_t>(left)] + " " + names[static_cast<std::size_t>(right)]));
    separator = ",\n";
  }
  out += model.merges.empty() ? "]\n  }\n}\n" : "\n    ]\n  }\n}\n";
  return out;
}

std::unique_ptr<Tokenizer> Tokenizer::parse(std::string_view text) {
  const json file = parse_json(text, "tokenizer", "the file");
  check_supported(file);
  std::vector<AddedToken> added = read_added(file);
  BpeModel model = read_model(file, added);
  if (added.empty() && is_byte_vocabulary(model)) return std::make_unique<ByteTokenizer>();
  return std::make_unique<BpeTokenizer>(std::move(model), std::move(added));
}

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  const std::string text = read_file(path, FileKind::vocabulary);
  try {
    return parse(text);
  } catch (const Error& e) {  // the same sentence about this file
    constexpr std::string_view kOp = "[tokenizer] ", kTry = " Try: ";
    std::string_view what = e.what();
    if (what.starts_with(kOp)) what.remove_prefix(kOp.size());
    const bool has_hint = what.find(kTry) != what.npos;
    throw Error(str(kOp, path.string(), ": ", what, has_hint ? "" : kTry, has_hint ? "" : kHint));
  }
}

}  // namespace bg
