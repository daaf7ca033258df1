#include "prompt/part_renderings.h"

#include <algorithm>
#include <array>

#include "io/json.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

// Two words that differ in their first and last letters: at each end of a content, at least one of
// the words differs from it.
constexpr std::array<const char*, 2> kWords = {"Xylem", "quartz"};

std::size_t CommonSuffix(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return end - a.rbegin();
}

OrderedJson First(const OrderedJson& messages, std::size_t count) {
  return OrderedJson(OrderedJson::array_t(messages.begin(), messages.begin() + count));
}

bool IsText(const OrderedJson& message, const char* key) {
  const auto field = message.find(key);
  return field != message.end() && field->is_string() &&
         !field->get_ref<const std::string&>().empty();
}

bool HasCalls(const OrderedJson& message) {
  const auto calls = message.find("tool_calls");
  return calls != message.end() && calls->is_array() && !calls->empty();
}

// Returns `message` with other arguments of its calls; with other names too, if `names`.
OrderedJson VaryCalls(OrderedJson message, const char* word, bool names) {
  for (OrderedJson& call : message["tool_calls"]) {
    OrderedJson& function = call.contains("function") ? call["function"] : call;
    if (names) function["name"] = word;
    OrderedJson& arguments = function["arguments"];
    const bool as_text = arguments.is_string();
    arguments = {{word, word}};
    if (as_text) arguments = FormatJson(arguments);
  }
  return message;
}

// Returns `message` with another text of the same kind.
OrderedJson Vary(OrderedJson message, const char* word) {
  const bool has_calls = HasCalls(message);
  if (IsText(message, "content") || !has_calls) message["content"] = word;
  for (const auto& [key, value] : message.items()) {
    if (IsKnownAs(key, FieldMeaning::kThoughts) && IsText(message, key.c_str())) value = word;
  }
  return has_calls ? VaryCalls(std::move(message), word, /*names=*/true) : message;
}

OrderedJson VaryArguments(OrderedJson message, const char* word) {
  return VaryCalls(std::move(message), word, /*names=*/false);
}

}  // namespace

std::size_t CommonTextPrefix(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return end - a.begin();
}

PartRenderings::PartRenderings(const RenderMessages& render, const OrderedJson& messages,
                               const std::string& text)
    : render_(render), messages_(messages), text_(text) {}

ConversationPart PartRenderings::whole() const { return {messages_.size()}; }

const std::optional<std::string>& PartRenderings::Text(const ConversationPart& part) {
  const auto [entry, is_new] = texts_.try_emplace(part);
  if (is_new) {
    entry->second = part == whole() ? text_ : render_(First(messages_, part.count), part.prompt);
  }
  return entry->second;
}

std::optional<TextPlace> PartRenderings::PlaceOf(std::size_t m, const ConversationPart& part) {
  const auto [entry, is_new] = places_.try_emplace({m, part});
  if (is_new) entry->second = FindPlace(m, part);
  return entry->second;
}

// Templates show the name of a called function in its result too, so that the place of calls ends
// with their arguments.
std::optional<TextPlace> PartRenderings::FindPlace(std::size_t m, const ConversationPart& part) {
  const std::optional<std::string>& text = Text(part);
  if (!text) return std::nullopt;
  std::optional<TextPlace> place = Difference(m, part, *text, Vary);
  if (!place || !HasCalls(messages_[m])) return place;
  const std::optional<TextPlace> arguments = Difference(m, part, *text, VaryArguments);
  if (arguments && arguments->end > place->begin) place->end = arguments->end;
  return place;
}

std::optional<std::string_view> PartRenderings::Behind(std::size_t m,
                                                       const ConversationPart& part) {
  const std::optional<TextPlace> place = PlaceOf(m, part);
  if (!place) return std::nullopt;
  return std::string_view(*Text(part)).substr(place->end);
}

void PartRenderings::ForgetTexts() {
  std::erase_if(texts_,
                [this](const auto& entry) { return entry.first.count + 1 < messages_.size(); });
}

// Returns the part of `text` that differs when message m is changed.
//
//   text    ...<assistant>Hello</assistant>...
//   other   ...<assistant>Xylem</assistant>...    with the content of m replaced
//           prefix ------>     <------- suffix
//
// A content that begins or ends as the word does makes the prefix or the suffix too long; then the
// second word shows the rest. It is not needed when the difference in `other` is the word itself.
std::optional<TextPlace> PartRenderings::Difference(std::size_t m, const ConversationPart& part,
                                                    const std::string& text, Change change) const {
  TextPlace place = {text.size(), 0};
  bool shown = false;
  OrderedJson varied = First(messages_, part.count);
  for (const char* word : kWords) {
    varied[m] = change(messages_[m], word);
    const std::optional<std::string> other = render_(varied, part.prompt);
    if (!other) return std::nullopt;
    if (*other == text) continue;
    shown = true;
    const std::size_t begin = CommonTextPrefix(text, *other);
    const std::size_t rest = std::min(text.size(), other->size()) - begin;
    const std::size_t suffix = std::min(rest, CommonSuffix(text, *other));
    place.begin = std::min(place.begin, begin);
    place.end = std::max(place.end, text.size() - suffix);
    const std::string_view changed =
        std::string_view(*other).substr(begin, other->size() - suffix - begin);
    const bool whole = changed.starts_with(word) && changed.ends_with(word);
    if (whole && FormatJson(messages_[m]).find(word) == std::string::npos) break;
  }
  if (!shown) return std::nullopt;
  return place;
}

}  // namespace qlora
