#include "tokenizer/tokenizer_json.h"

#include <fmt/format.h>

#include <functional>
#include <limits>

#include "base/check.h"
#include "base/file.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

using nlohmann::json;
using Event = json::parse_event_t;

// Nothing in these files is nested deeply; the limit keeps recursions over them small.
constexpr int kMaxJsonDepth = 64;

void CheckDepth(int depth, const std::string& file) {
  if (depth > kMaxJsonDepth)
    ThrowInvalidInput("{}: nested more than {} levels", file, kMaxJsonDepth);
}

// Takes model.vocab and model.merges out of the stream of parse events. A JSON tree of half a
// million small values would need ten times the memory of the vocabulary itself.
class LargeParts {
 public:
  explicit LargeParts(TokenizerJson* out) : out_(out) {}

  // Whether the tree keeps the value.
  bool operator()(int depth, Event event, json& value) {
    CheckDepth(depth, out_->file);
    if (event == Event::key && depth == 1) section_ = value.get<std::string>();
    if (event == Event::key && depth == 2) part_ = value.get<std::string>();
    if (section_ != "model" || depth < 2) return true;
    if (part_ != "vocab" && part_ != "merges") return true;
    if (event == Event::key && depth == 2) {
      (part_ == "vocab" ? out_->has_vocab : out_->has_merges) = true;
      return true;
    }
    if (part_ == "vocab") {
      Vocab(depth, event, value);
    } else {
      Merges(depth, event, value);
    }
    // Containers must be kept while they are open, or their contents are not reported.
    return event == Event::object_start || event == Event::array_start || depth == 2;
  }

 private:
  [[noreturn]] void Fail(std::size_t index, std::string_view expected) const {
    ThrowInvalidInput("{}: model.{}: entry {} is malformed; expected {}", out_->file, part_, index,
                      expected);
  }

  void Vocab(int depth, Event event, const json& value) {
    if (depth == 2) {
      if (event == Event::value) Fail(0, "an object or an array");
      array_ = array_ || event == Event::array_start;
      return;
    }
    if (array_) {
      Entry(depth, event, value);
      if (depth != 3 || event != Event::array_end) return;
      if (entry_.size() != 2 || !entry_[0].is_string() || !entry_[1].is_number()) {
        Fail(out_->scored_vocab.size(), "[piece, score]");
      }
      out_->scored_vocab.emplace_back(entry_[0].get<std::string>(), entry_[1].get<double>());
    } else if (event == Event::key && depth == 3) {
      out_->vocab.emplace_back(value.get<std::string>(), -1);
    } else {
      const bool fits = event == Event::value && value.is_number_unsigned() &&
                        value.get<std::uint64_t>() < std::numeric_limits<std::int32_t>::max();
      if (!fits) Fail(out_->vocab.size() - 1, "\"piece\": id");
      out_->vocab.back().second = value.get<std::int32_t>();
    }
  }

  void Merges(int depth, Event event, const json& value) {
    if (depth == 2) {
      if (event != Event::array_start && event != Event::array_end) Fail(0, "an array");
      return;
    }
    if (depth == 3 && event == Event::value) {
      static constexpr std::string_view kExpected = "\"left right\"";
      if (!value.is_string()) Fail(out_->merges.size(), kExpected);
      const auto& text = value.get_ref<const std::string&>();
      const std::size_t space = text.find(' ');
      if (text.rfind("#version", 0) == 0) return;
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        Fail(out_->merges.size(), kExpected);
      }
      out_->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
      return;
    }
    Entry(depth, event, value);
    if (depth != 3 || event != Event::array_end) return;
    if (entry_.size() != 2 || !entry_[0].is_string() || !entry_[1].is_string()) {
      Fail(out_->merges.size(), "[\"left\", \"right\"]");
    }
    out_->merges.emplace_back(entry_[0].get<std::string>(), entry_[1].get<std::string>());
  }

  // Collects a small array at depth 3.
  void Entry(int depth, Event event, const json& value) {
    if (depth == 3 && event == Event::array_start) {
      entry_.clear();
    } else if (depth == 4 && event == Event::value && entry_.size() < 2) {
      entry_.push_back(value);
    } else if (depth != 3 || event != Event::array_end) {
      Fail(out_->merges.size() + out_->scored_vocab.size(), "an array of two values");
    }
  }

  TokenizerJson* out_;
  std::string section_;
  std::string part_;
  bool array_ = false;
  std::vector<json> entry_;
};

}  // namespace

JsonValue JsonValue::operator[](std::string_view key) const {
  if (!IsObject()) Fail("an object");
  const auto member = value_->find(key);
  const bool root = where_.ends_with(": ");
  return {member == value_->end() ? nullptr : &*member,
          fmt::format("{}{}{}", where_, root ? "" : ".", key)};
}

bool JsonValue::Has(std::string_view key) const { return IsObject() && value_->contains(key); }

std::vector<JsonValue> JsonValue::Array() const {
  if (!IsArray()) Fail("an array");
  std::vector<JsonValue> items;
  for (const json& item : *value_) {
    items.emplace_back(&item, fmt::format("{}[{}]", where_, items.size()));
  }
  return items;
}

std::vector<std::pair<std::string, JsonValue>> JsonValue::Members() const {
  if (!IsObject()) Fail("an object");
  std::vector<std::pair<std::string, JsonValue>> members;
  for (const auto& [key, value] : value_->items()) members.emplace_back(key, (*this)[key]);
  return members;
}

std::string JsonValue::String() const {
  if (!IsString()) Fail("a string");
  return value_->get<std::string>();
}

bool JsonValue::Bool() const {
  if (value_ == nullptr || !value_->is_boolean()) Fail("true or false");
  return value_->get<bool>();
}

double JsonValue::Number() const {
  if (value_ == nullptr || !value_->is_number()) Fail("a number");
  return value_->get<double>();
}

std::int32_t JsonValue::Id() const {
  if (value_ == nullptr || !value_->is_number_unsigned() ||
      value_->get<std::uint64_t>() >= std::numeric_limits<std::int32_t>::max()) {
    Fail("a token id");
  }
  return value_->get<std::int32_t>();
}

char32_t JsonValue::Character() const {
  const std::string text = String();
  if (text.empty() || static_cast<std::size_t>(Utf8Length(text[0])) != text.size()) {
    Fail("one character");
  }
  const char* p = text.data();
  return NextCharacter(p);
}

std::string JsonValue::Dump() const { return value_ == nullptr ? "null" : value_->dump(); }

void JsonValue::Fail(std::string_view expected) const {
  std::string found = Dump();
  if (value_ == nullptr) found = "no such key";
  if (found.size() > 80) found = found.substr(0, 77) + "...";
  ThrowInvalidInput("{}: expected {}, found {}", where_, expected, found);
}

json ParseJsonFile(const std::filesystem::path& path) {
  try {
    const std::string file = path.string();
    return json::parse(ReadTextFile(path), [&file](int depth, Event, json&) {
      CheckDepth(depth, file);
      return true;
    });
  } catch (const json::exception& e) {
    ThrowInvalidInput("{}: expected JSON: {}", path.string(), e.what());
  }
}

TokenizerJson ParseTokenizerJson(const std::string& text, const std::string& file) {
  TokenizerJson result;
  result.file = file;
  try {
    LargeParts parts(&result);
    result.rest = json::parse(text, std::ref(parts));
  } catch (const json::exception& e) {
    ThrowInvalidInput("{}: expected JSON: {}", file, e.what());
  }
  if (!result.rest.is_object()) ThrowInvalidInput("{}: expected a JSON object", file);
  return result;
}

}  // namespace qlora
