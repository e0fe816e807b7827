// tokenizer.json writes each byte of a token as one printable character: printable bytes as themselves (in Latin-1),
// the others as U+0100, U+0101, ... in the order of their value, so that the space becomes U+0120.
#include "models/tokenizer_json.h"

#include <utf8proc.h>

#include <algorithm>
#include <limits>
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

std::string json_string(std::string_view text) { return json(text).dump(); }

// ---- reading

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
  refuse(str("'", name, "' is not supported"), value.dump().substr(0, 80), "none");
}

void require_type(const json& file, const char* name, std::string_view type) {
  const json& value = member(file, name);
  const json& got = value.is_object() ? member(value, "type") : value;
  if (got != type) refuse(str("this ", name, " is not supported"), got.dump().substr(0, 80), json_string(type));
}

void check_supported(const json& file) {
  if (!file.is_object()) refuse("not a tokenizer", file.type_name(), "a JSON object");
  for (const char* name : {"truncation", "padding", "normalizer"}) require_absent(file, name);
  require_type(file, "model", "BPE");
  require_type(file, "pre_tokenizer", "ByteLevel");
  require_type(file, "decoder", "ByteLevel");
  if (!member(file, "post_processor").is_null()) require_type(file, "post_processor", "ByteLevel");  // keeps the ids
  require_absent(file["pre_tokenizer"], "add_prefix_space");
  if (file["pre_tokenizer"].value("use_regex", true) == false) {
    refuse("'use_regex' is not supported", "false", "true, GPT-2's pre-tokenisation");
  }
  for (const char* name : {"dropout", "continuing_subword_prefix", "end_of_word_suffix", "ignore_merges"}) {
    require_absent(file["model"], name);
  }
}

std::vector<AddedToken> read_added(const json& file) {
  std::vector<AddedToken> added;
  const json& list = member(file, "added_tokens");
  if (list.is_null()) return added;
  for (const json& entry : list) {
    for (const char* name : {"single_word", "lstrip", "rstrip"}) require_absent(entry, name);
    added.push_back({entry.at("id").get<int32_t>(), entry.at("content").get<std::string>(),
                     entry.value("special", false), entry.value("normalized", false)});
    const AddedToken& token = added.back();
    for (std::size_t i = 0; i < token.content.size(); i += character_at(token.content, i).bytes) {
      if (character_at(token.content, i).kind != CharClass::space) continue;
      refuse("an added token with white space is not supported", json_string(token.content));
    }
    if (token.normalized != added.front().normalized) {  // they would be looked for in two passes
      refuse("added tokens with different values of 'normalized' are not supported", json_string(token.content));
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
      refuse("a token is not written in the byte-level alphabet", json_string(text), "one character for each byte");
    }
    bytes += found->second;
  }
  return bytes;
}

// Both forms in use: "left right" and ["left", "right"].
std::pair<std::string, std::string> read_merge(const json& entry) {
  if (entry.is_array() && entry.size() == 2) return {entry[0].get<std::string>(), entry[1].get<std::string>()};
  const auto text = entry.get<std::string>();
  const std::size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    refuse("a merge is damaged", json_string(text), "two tokens with a space between them");
  }
  return {text.substr(0, space), text.substr(space + 1)};
}

BpeModel read_model(const json& file, const std::vector<AddedToken>& added) {
  const auto id_of = file["model"].at("vocab").get<std::unordered_map<std::string, int64_t>>();
  std::unordered_map<int64_t, std::string> bytes_of;
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
  BpeModel model;
  for (int64_t id = 0; id < static_cast<int64_t>(bytes_of.size()); ++id) {
    const auto found = bytes_of.find(id);
    if (found == bytes_of.end())
      refuse("an id has no token", str(id), str("ids 0 to ", bytes_of.size() - 1, " in use"));
    model.tokens.push_back(found->second);
  }
  const auto token_id = [&](const std::string& text) {
    const auto found = id_of.find(text);
    if (found == id_of.end()) refuse("a merge names a token that is not in the vocabulary", json_string(text));
    return static_cast<int32_t>(found->second);
  };
  for (const json& entry : file["model"].at("merges")) {
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

std::unique_ptr<Tokenizer> read_tokenizer(std::string_view text) {
  const json file = parse_json(text, "tokenizer", "the file");
  check_supported(file);
  std::vector<AddedToken> added = read_added(file);
  BpeModel model = read_model(file, added);
  if (added.empty() && is_byte_vocabulary(model)) return std::make_unique<ByteTokenizer>();
  return std::make_unique<BpeTokenizer>(std::move(model), std::move(added));
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

std::unique_ptr<Tokenizer> Tokenizer::load(const std::filesystem::path& path) {
  const std::string file = read_file(path, FileKind::vocabulary);
  try {
    return read_tokenizer(file);
  } catch (const json::exception& e) {
    fail("tokenizer", str("cannot read ", path.string(), ": it is not a well-formed tokenizer.json: ", e.what()));
  } catch (const Error& e) {
    throw Error(str(e.what(), " (", path.string(), ")"));
  }
}

}  // namespace bg
