#include "records/number_spelling.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "io/json.h"

namespace qlora {
namespace {

bool IsContent(std::string_view key) { return key == "content" || key == "value"; }

// Walks through the text beside the record that was parsed from it.
class Speller : public OrderedJson::json_sax_t {
 public:
  explicit Speller(OrderedJson& record) : record_(record) {}

  bool null() override { return Skip(); }
  bool boolean(bool) override { return Skip(); }
  bool number_integer(number_integer_t) override { return Skip(); }
  bool number_unsigned(number_unsigned_t) override { return Skip(); }
  bool number_float(number_float_t number, const string_t& text) override {
    OrderedJson* place = Place();
    // The last of two fields of one name is in the record; the first may have another value.
    if (place == nullptr) return Skip();
    const bool is_this = place->is_number_float() ? *place == number : DigitsOf(*place) == text;
    if (is_this && (place->is_binary() || FormatJson(*place) != text)) *place = text;
    return Skip();
  }
  bool string(string_t&) override { return Skip(); }
  bool binary(binary_t&) override { return Skip(); }
  bool start_object(std::size_t) override { return Open(); }
  bool key(string_t& key) override {
    open_.back().key = key;
    return true;
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool parse_error(std::size_t, const std::string&, const OrderedJson::exception&) override {
    return false;
  }

 private:
  struct Level {
    std::string key;        // of an object
    std::size_t index = 0;  // of a list
  };

  bool Open() {
    open_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    return Skip();
  }
  bool Skip() {
    if (!open_.empty()) ++open_.back().index;
    return true;
  }
  // Returns the value in hand where a text may be: record[key], or record[key][index].content.
  OrderedJson* Place() {
    if (open_.size() == 1) return Find(record_, open_[0].key);
    if (open_.size() != 3 || !IsContent(open_[2].key)) return nullptr;
    OrderedJson* list = Find(record_, open_[0].key);
    const std::size_t index = open_[1].index;
    if (list == nullptr || !list->is_array() || index >= list->size()) return nullptr;
    return Find((*list)[index], open_[2].key);
  }
  static OrderedJson* Find(OrderedJson& object, const std::string& key) {
    if (!object.is_object()) return nullptr;
    const auto field = object.find(key);
    return field == object.end() ? nullptr : &*field;
  }

  OrderedJson& record_;
  std::vector<Level> open_;
};

bool IsReplaced(const OrderedJson& value) { return value.is_number_float() || value.is_binary(); }

bool HasNumber(const OrderedJson& message) {
  if (!message.is_object()) return false;
  for (const auto& [key, value] : message.items()) {
    if (IsContent(key) && IsReplaced(value)) return true;
  }
  return false;
}

// True for a record with a number that KeepSpelling may replace.
bool MayReplace(const OrderedJson& record) {
  return std::any_of(record.begin(), record.end(), [](const OrderedJson& field) {
    if (!field.is_array()) return IsReplaced(field);
    return std::any_of(field.begin(), field.end(), HasNumber);
  });
}

constexpr std::string_view kEndOfWord = " \t\r\n,:[]{}\"";

bool IsInfiniteWord(std::string_view word) {
  return word == "NaN" || word == "Infinity" || word == "-Infinity";
}

bool IsInfiniteNumber(std::string_view word) {
  const bool is_number = !word.empty() && (word[0] == '-' || (word[0] >= '0' && word[0] <= '9'));
  if (!is_number || word.find_first_of(".eE") == word.npos) return false;
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  // Too small a number has the same error, and is not infinite.
  const std::size_t exponent = word.find_first_of("eE");
  return error == std::errc::result_out_of_range && end == word.data() + word.size() &&
         (exponent == word.npos || word[exponent + 1] != '-');
}

}  // namespace

// Such numbers are rare, so that a second walk through their records costs nothing that counts.
void KeepSpelling(std::string_view text, OrderedJson& record) {
  if (!MayReplace(record)) return;
  Speller speller(record);
  OrderedJson::sax_parse(text, &speller);
}

std::string WithoutInfinities(std::string_view text, bool numbers) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = at + 1;
    if (text[at] == '"') {
      while (end < text.size() && text[end] != '"') end += text[end] == '\\' ? 2 : 1;
      end = std::min(end + 1, text.size());
    } else if (kEndOfWord.find(text[at]) == kEndOfWord.npos) {
      end = std::min(text.find_first_of(kEndOfWord, at), text.size());
      const std::string_view word = text.substr(at, end - at);
      if (IsInfiniteWord(word) || (numbers && IsInfiniteNumber(word))) {
        out += "null";
        at = end;
        continue;
      }
    }
    out += text.substr(at, end - at);
    at = end;
  }
  return out;
}

}  // namespace qlora
