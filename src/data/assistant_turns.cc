#include "data/assistant_turns.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"

namespace qlora {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Two words that differ in their first and last letters: whatever a content begins and ends with,
// one of them differs from it there.
constexpr std::array<const char*, 2> kWords = {"Xylem", "quartz"};

std::size_t CommonPrefix(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(end - a.begin());
}

std::size_t CommonSuffix(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return static_cast<std::size_t>(end - a.rbegin());
}

std::string_view TrimEnd(std::string_view text) {
  return text.substr(0, text.find_last_not_of(kBlanks) + 1);
}

OrderedJson First(const OrderedJson& messages, std::size_t count) {
  OrderedJson first = OrderedJson::array();
  for (std::size_t m = 0; m < count; ++m) first.push_back(messages[m]);
  return first;
}

bool IsText(const OrderedJson& message, const char* key) {
  const auto field = message.find(key);
  return field != message.end() && field->is_string() &&
         !field->get_ref<const std::string&>().empty();
}

// `message` saying something else: the same in kind, another word.
OrderedJson Vary(OrderedJson message, const char* word) {
  const auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && calls->is_array() && !calls->empty();
  if (IsText(message, "content") || !has_calls) message["content"] = word;
  for (const char* key : {"reasoning_content", "thinking"}) {
    if (IsText(message, key)) message[key] = word;
  }
  if (!has_calls) return message;
  for (OrderedJson& call : message["tool_calls"]) {
    OrderedJson& function = call.contains("function") ? call["function"] : call;
    function["name"] = word;
    function["arguments"] = {{word, word}};
  }
  return message;
}

struct Region {
  std::size_t begin;
  std::size_t end;
};

class TurnFinder {
 public:
  TurnFinder(const RenderMessages& render, const OrderedJson& messages, const std::string& text,
             const std::vector<std::string>& special_tokens)
      : render_(render), messages_(messages), text_(text), special_tokens_(special_tokens) {}

  // Turn `m`; nothing when the text does not show it.
  std::optional<Region> Find(std::size_t m) {
    std::optional<Region> turn = FindAppended(m);
    if (!turn) turn = FindVaried(m);
    if (!turn) return std::nullopt;
    const std::string_view written =
        TrimEnd(std::string_view(text_).substr(turn->begin, turn->end - turn->begin));
    return Region{turn->begin, turn->begin + written.size()};
  }

 private:
  std::optional<Region> FindAppended(std::size_t m) {
    const auto before = render_(First(messages_, m), true);
    const auto with = render_(First(messages_, m + 1), false);
    if (!before || !with || !with->starts_with(*before) || !text_.starts_with(*with)) {
      return std::nullopt;
    }
    return Region{before->size(), with->size()};
  }

  std::optional<Region> FindVaried(std::size_t m) {
    const std::optional<Region> said = PlaceOf(m, messages_, text_, false);
    if (!said) return std::nullopt;
    return Region{Opening(m, said->begin), Closing(m, said->end)};
  }

  // What in `text`, the rendering of `messages`, depends on what message m says.
  std::optional<Region> PlaceOf(std::size_t m, const OrderedJson& messages, const std::string& text,
                                bool prompt) const {
    Region place = {text.size(), 0};
    bool shown = false;
    OrderedJson varied = messages;
    for (const char* word : kWords) {
      varied[m] = Vary(messages[m], word);
      const std::optional<std::string> other = render_(varied, prompt);
      if (!other) return std::nullopt;
      if (*other == text) continue;
      shown = true;
      const std::size_t begin = CommonPrefix(text, *other);
      const std::size_t rest = std::min(text.size(), other->size()) - begin;
      place.begin = std::min(place.begin, begin);
      place.end = std::max(place.end, text.size() - std::min(rest, CommonSuffix(text, *other)));
    }
    if (!shown) return std::nullopt;
    return place;
  }

  // Where turn m begins, whose content stands at `said`: behind what the prompt puts between the
  // content of the message before and the turn, as far as it stands in the text.
  std::size_t Opening(std::size_t m, std::size_t said) const {
    const OrderedJson before = First(messages_, m);
    const std::optional<std::string> prompt = m == 0 ? std::nullopt : render_(before, true);
    if (!prompt) return said;
    for (std::size_t k = m; k-- > 0;) {
      const std::optional<Region> here = PlaceOf(k, messages_, text_, false);
      const std::optional<Region> there = PlaceOf(k, before, *prompt, true);
      if (!here || !there || here->end > said) continue;
      const std::string_view gap = std::string_view(text_).substr(here->end, said - here->end);
      return here->end + CommonPrefix(gap, std::string_view(*prompt).substr(there->end));
    }
    return said;
  }

  // Where turn m ends, whose content ends at `said`.
  std::size_t Closing(std::size_t m, std::size_t said) const {
    const std::string_view rest = std::string_view(text_).substr(said);
    const OrderedJson with = First(messages_, m + 1);
    if (const std::optional<std::string> last = render_(with, false)) {
      if (const std::optional<Region> place = PlaceOf(m, with, *last, false)) {
        const std::string_view closing = TrimEnd(std::string_view(*last).substr(place->end));
        if (rest.starts_with(closing)) return said + closing.size();
      }
    }
    const std::size_t space = std::min(rest.find_first_not_of(kBlanks), rest.size());
    for (const std::string& token : special_tokens_) {
      if (rest.substr(space).starts_with(token)) return said + space + token.size();
    }
    return said;
  }

  const RenderMessages& render_;
  const OrderedJson& messages_;
  const std::string& text_;
  const std::vector<std::string>& special_tokens_;
};

}  // namespace

std::vector<ChatSpan> FindAssistantTurns(const RenderMessages& render, const OrderedJson& messages,
                                         const std::string& text,
                                         const std::vector<std::string>& special_tokens) {
  TurnFinder finder(render, messages, text, special_tokens);
  std::vector<ChatSpan> spans;
  for (std::size_t m = 0; m < messages.size(); ++m) {
    if (messages[m].at("role") != "assistant") continue;
    const std::optional<Region> turn = finder.Find(m);
    if (!turn || turn->begin >= turn->end) continue;
    if (!spans.empty() && turn->begin < spans.back().end) {
      ThrowInvalidInput(
          "messages[{}]: cannot tell what the assistant wrote here from what it wrote before; mark "
          "it in the chat template with {{% generation %}} ... {{% endgeneration %}}",
          m);
    }
    spans.push_back({turn->begin, turn->end, m});
  }
  return spans;
}

}  // namespace qlora
