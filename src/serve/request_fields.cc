#include "serve/request_fields.h"

#include <fmt/format.h>

#include <cstdlib>
#include <utility>

#include "base/text.h"
#include "io/json.h"
#include "serve/api_error.h"

namespace qlora {
namespace {

// A value as messages show it.
std::string Shown(const OrderedJson& value) {
  constexpr std::size_t kMostBytes = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  if (const std::string digits = DigitsOf(value); !digits.empty()) {
    return std::string(FirstBytes(digits, kMostBytes));
  }
  const std::string text = FormatJson(value);
  const std::string_view first = FirstBytes(text, kMostBytes);
  return first.size() < text.size() ? std::string(first) + "..." : text;
}

[[noreturn]] void RefuseType(const OrderedJson& value, const std::string& path,
                             std::string_view expected) {
  RefuseField(path, fmt::format("expected {}, found {}", expected, Shown(value)));
}

template <typename T>
std::string RangeText(T least, T most, std::string_view kind) {
  using Limits = std::numeric_limits<T>;
  if (least == Limits::lowest() && most == Limits::max()) return std::string(kind);
  if (most == Limits::max()) return fmt::format("{} of {} or more", kind, least);
  if (least == Limits::lowest()) return fmt::format("{} of at most {}", kind, most);
  return fmt::format("{} from {} to {}", kind, least, most);
}

}  // namespace

std::size_t BytesOfJson(const OrderedJson& value) {
  std::size_t bytes = kJsonValueBytes;
  if (value.is_string()) bytes += value.get_ref<const std::string&>().size();
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) bytes += key.size() + BytesOfJson(item);
  } else if (value.is_array()) {
    for (const OrderedJson& item : value) bytes += BytesOfJson(item);
  }
  return bytes;
}

OrderedJson ParseBody(const HttpRequest& request) {
  const auto type = request.headers.find("content-type");
  if (type != request.headers.end()) {
    const std::string name = LowerCase(Trim(type->second.substr(0, type->second.find(';'))));
    if (name != "application/json" && !name.ends_with("+json")) {
      throw ApiError(415, "the body must be JSON: send Content-Type: application/json, not " +
                              std::string(FirstBytes(name, 60)));
    }
  }
  const auto encoding = request.headers.find("content-encoding");
  if (encoding != request.headers.end() && LowerCase(Trim(encoding->second)) != "identity") {
    throw ApiError(415, "the body must be sent as it is, without Content-Encoding");
  }
  if (Trim(request.body).empty()) {
    throw ApiError(400, "the body is empty: expected a JSON object");
  }
  OrderedJson body;
  if (const std::optional<JsonDefect> defect = TryParseJson(request.body, body, kMostBodyValues)) {
    throw ApiError(400, fmt::format("the body cannot be read as JSON: byte {}: {}", defect->offset,
                                    defect->reason));
  }
  if (!body.is_object()) {
    throw ApiError(400, "the body must be a JSON object, found " + Shown(body));
  }
  return body;
}

void RefuseField(const std::string& path, const std::string& reason) {
  throw ApiError(400, path.empty() ? reason : path + ": " + reason, path);
}

// ---- Values.

std::string ItemPath(const std::string& list, std::int64_t i) {
  return fmt::format("{}[{}]", list, i);
}

const std::string& AsText(const OrderedJson& value, const std::string& path) {
  if (!value.is_string()) RefuseType(value, path, "text");
  return value.get_ref<const std::string&>();
}

std::int64_t AsInteger(const OrderedJson& value, const std::string& path, std::int64_t least,
                       std::int64_t most) {
  // Numbers beyond 64 bits are of no integer type.
  const bool fits =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || std::in_range<std::int64_t>(value.get<std::uint64_t>()));
  const std::int64_t number = fits ? value.get<std::int64_t>() : 0;
  if (!fits || number < least || number > most) {
    RefuseType(value, path, RangeText(least, most, "a whole number"));
  }
  return number;
}

double AsNumber(const OrderedJson& value, const std::string& path, double least, double most) {
  const std::string digits = DigitsOf(value);  // of an integer beyond 64 bits
  const bool is_number = value.is_number() || !digits.empty();
  const double number =
      value.is_number() ? value.get<double>() : std::strtod(digits.c_str(), nullptr);
  if (!is_number || !(number >= least && number <= most)) {
    RefuseType(value, path, RangeText(least, most, "a number"));
  }
  return number;
}

std::vector<std::int32_t> AsTokenIds(const OrderedJson& list, const std::string& path,
                                     std::int64_t vocabulary) {
  if (!list.is_array()) RefuseType(list, path, "a list of token ids");
  std::vector<std::int32_t> ids;
  ids.reserve(list.size());
  for (const OrderedJson& item : list) {
    ids.push_back(static_cast<std::int32_t>(
        AsInteger(item, ItemPath(path, std::ssize(ids)), 0, vocabulary - 1)));
  }
  return ids;
}

// ---- Fields of an object.

RequestFields::RequestFields(const OrderedJson& object, std::string path)
    : object_(&object), path_(std::move(path)) {
  if (!object.is_object()) RefuseType(object, path_, "an object");
}

std::string RequestFields::PathOf(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

void RequestFields::Refuse(std::string_view name, const std::string& reason) const {
  RefuseField(PathOf(name), reason);
}

const OrderedJson* RequestFields::Find(std::string_view name) const {
  const auto at = object_->find(std::string(name));
  return at == object_->end() || at->is_null() ? nullptr : &*at;
}

std::optional<bool> RequestFields::Bool(std::string_view name) const {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) RefuseType(*value, PathOf(name), "true or false");
  return value->get<bool>();
}

std::optional<std::int64_t> RequestFields::Integer(std::string_view name, std::int64_t least,
                                                   std::int64_t most) const {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return AsInteger(*value, PathOf(name), least, most);
}

std::optional<double> RequestFields::Number(std::string_view name, double least,
                                            double most) const {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return AsNumber(*value, PathOf(name), least, most);
}

std::optional<std::string> RequestFields::Text(std::string_view name) const {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return AsText(*value, PathOf(name));
}

std::optional<RequestFields> RequestFields::Object(std::string_view name) const {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return std::nullopt;
  return RequestFields(*value, PathOf(name));
}

const OrderedJson* RequestFields::List(std::string_view name, std::int64_t least,
                                       std::int64_t most) const {
  const OrderedJson* value = Find(name);
  if (value == nullptr) return nullptr;
  if (!value->is_array()) RefuseType(*value, PathOf(name), "a list");
  const std::int64_t items = std::ssize(*value);
  if (items < least)
    Refuse(name, fmt::format("expected at least {} items, found {}", least, items));
  if (items > most) Refuse(name, fmt::format("expected at most {} items, found {}", most, items));
  return value;
}

const OrderedJson& RequestFields::Need(std::string_view name) const {
  const OrderedJson* value = Find(name);
  if (value == nullptr) Refuse(name, "is missing");
  return *value;
}

std::string RequestFields::NeedText(std::string_view name) const {
  return AsText(Need(name), PathOf(name));
}

RequestFields RequestFields::NeedObject(std::string_view name) const {
  return RequestFields(Need(name), PathOf(name));
}

const OrderedJson& RequestFields::NeedList(std::string_view name, std::int64_t least,
                                           std::int64_t most) const {
  Need(name);
  return *List(name, least, most);
}

void CheckMetadata(const RequestFields& body) {
  constexpr std::size_t kMostPairs = 16;
  constexpr std::int64_t kMostKey = 64;
  constexpr std::int64_t kMostValue = 512;
  const auto metadata = body.Object("metadata");
  if (!metadata) return;
  if (metadata->json().size() > kMostPairs) {
    body.Refuse("metadata", fmt::format("expected at most {} pairs", kMostPairs));
  }
  for (const auto& [key, value] : metadata->json().items()) {
    const std::string& text = AsText(value, metadata->PathOf(key));
    if (CountCharacters(key) > kMostKey || CountCharacters(text) > kMostValue) {
      body.Refuse("metadata", fmt::format("expected keys of at most {} characters and values of at "
                                          "most {}",
                                          kMostKey, kMostValue));
    }
  }
}

}  // namespace qlora
