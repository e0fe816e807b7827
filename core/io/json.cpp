#include "core/io/json.h"

#include <algorithm>
#include <vector>

#include "core/error.h"

namespace bg {
namespace {

using nlohmann::json;

// Any bytes as printable UTF-8 without quotes around them: JSON's escapes, and U+FFFD for what is not UTF-8.
std::string escaped(std::string_view text) {
  const std::string quoted = json(text).dump(-1, ' ', false, json::error_handler_t::replace);
  return quoted.substr(1, quoted.size() - 2);
}

// At most `most` bytes, and no part of a character.
std::string shortened(std::string text, std::size_t most) {
  if (text.size() <= most) return text;
  while ((static_cast<unsigned char>(text[most]) & 0xC0) == 0x80) --most;
  return text.substr(0, most) + "...";
}

constexpr std::size_t kShown = 80;

std::string in_a_line(std::string_view text) { return shortened(escaped(text.substr(0, 4 * kShown)), kShown); }

// The reason in a message of the library: "[json.exception...] parse error at line 1, column 2: syntax error while
// parsing value - REASON; last read: 'BYTES OF THE FILE'".
std::string reason_in(std::string_view message) {
  message = message.substr(0, message.find("; last read: "));
  for (const std::string_view before : {"] ", "syntax error ", "- "})
    if (const auto at = message.find(before); at != message.npos) message.remove_prefix(at + before.size());
  return in_a_line(message);
}

// Builds the value from the parser's events.
class Builder : public json::json_sax_t {
 public:
  Builder(std::string_view text, std::string_view op, std::string_view source, int max_depth)
      : text_(text), op_(op), source_(source), max_depth_(static_cast<std::size_t>(max_depth)) {}

  json take() { return std::move(root_); }

  bool null() override { return put(nullptr); }
  bool boolean(bool x) override { return put(x); }
  bool number_integer(number_integer_t x) override { return put(x); }
  bool number_unsigned(number_unsigned_t x) override { return put(x); }
  bool number_float(number_float_t x, const string_t&) override { return put(x); }
  bool string(string_t& x) override { return put(std::move(x)); }
  bool binary(binary_t&) override { return false; }  // not in a text
  bool start_object(std::size_t) override { return open(json::object()); }
  bool start_array(std::size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    const auto [member, is_new] = open_.back()->get_ref<json::object_t&>().try_emplace(name);
    BG_CHECK(is_new, op_, str(source_, " holds a name twice in one object"), in_quotes(name), "distinct names");
    member_ = &member->second;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    BG_CHECK(!text_.empty(), op_, str(source_, " is not valid JSON"), "no bytes");
    const std::string_view before = text_.substr(0, std::min(position == 0 ? 0 : position - 1, text_.size()));
    const std::size_t line = 1 + static_cast<std::size_t>(std::count(before.begin(), before.end(), '\n'));
    const std::size_t column = before.size() - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    fail(op_, str(source_, " is not valid JSON"), str(reason_in(e.what()), " at line ", line, ", column ", column));
  }

 private:
  json* place(json value) {
    if (open_.empty()) return &(root_ = std::move(value));
    if (open_.back()->is_object()) return &(*member_ = std::move(value));
    auto& array = open_.back()->get_ref<json::array_t&>();
    array.push_back(std::move(value));
    return &array.back();
  }
  bool put(json value) {
    place(std::move(value));
    return true;
  }
  bool open(json value) {
    BG_CHECK(open_.size() < max_depth_, op_, str(source_, " is nested too deeply"), "",
             str("at most ", max_depth_, " levels"));
    open_.push_back(place(std::move(value)));
    return true;
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_, op_, source_;
  std::size_t max_depth_;
  json root_;
  std::vector<json*> open_;  // objects and arrays; an open one's address stays, since only the innermost one grows
  json* member_ = nullptr;   // of the innermost object, the one that was named last
};

std::string bounds_text(int64_t least, int64_t most) {
  if (most != std::numeric_limits<int64_t>::max()) return str(" from ", least, " to ", most);
  return least == std::numeric_limits<int64_t>::min() ? " below 2^63" : str(", at least ", least);
}

bool is_whole(const json& value, int64_t least, int64_t most) {
  if (!value.is_number_integer()) return false;
  if (value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) return false;
  return value.get<int64_t>() >= least && value.get<int64_t>() <= most;
}

}  // namespace

json parse_json(std::string_view text, std::string_view op, std::string_view source, int max_depth) {
  Builder builder(text, op, source, max_depth);
  json::sax_parse(text.begin(), text.end(), &builder);
  return builder.take();
}

json parse_json_or_null(std::string_view text) {
  try {
    return parse_json(text, "json", "a text");
  } catch (const Error&) {
    return nullptr;
  }
}

std::string json_excerpt(const json& value) {
  return shortened(value.dump(-1, ' ', false, json::error_handler_t::replace), kShown);
}

std::string in_quotes(std::string_view text) { return str("'", in_a_line(text), "'"); }

int64_t json_whole(const json& value, std::string_view op, std::string_view what, int64_t least, int64_t most) {
  BG_CHECK(is_whole(value, least, most), op, what, json_excerpt(value), "a whole number" + bounds_text(least, most));
  return value.get<int64_t>();
}

JsonFields::JsonFields(const json& object, std::string_view op, std::string_view what) : object_(object), op_(op) {
  BG_CHECK(object.is_object(), op, str(what, " is not an object"), json_excerpt(object), "members with names");
}

void JsonFields::refuse(const char* name, std::string_view expected) const {
  fail(op_, str("bad ", name), json_excerpt(at(name)), expected);
}

const json& JsonFields::find(const char* name) const {
  static const json null;
  const auto found = object_.find(name);
  return found == object_.end() ? null : *found;
}

const json& JsonFields::at(const char* name) const {
  const auto found = object_.find(name);
  BG_CHECK(found != object_.end(), op_, str("'", name, "' is missing"));
  return *found;
}

int64_t JsonFields::whole(const char* name, int64_t least, int64_t most) const {
  return json_whole(at(name), op_, str("bad ", name), least, most);
}

uint64_t JsonFields::whole_unsigned(const char* name) const {
  const json& value = at(name);
  const bool good = value.is_number_unsigned() || is_whole(value, 0, std::numeric_limits<int64_t>::max());
  if (!good) refuse(name, "a whole number from 0 to 2^64 - 1");
  return value.get<uint64_t>();
}

double JsonFields::number(const char* name, double least) const {
  const json& value = at(name);
  if (!value.is_number() || !(value.get<double>() >= least))
    refuse(name, least == std::numeric_limits<double>::lowest() ? "a number" : str("a number, at least ", least));
  return value.get<double>();
}

bool JsonFields::flag(const char* name) const {
  if (!at(name).is_boolean()) refuse(name, "true or false");
  return at(name).get<bool>();
}

const std::string& JsonFields::text(const char* name) const {
  if (!at(name).is_string()) refuse(name, "a string");
  return at(name).get_ref<const std::string&>();
}

std::string JsonFields::word(const char* name) const { return in_a_line(text(name)); }

}  // namespace bg
