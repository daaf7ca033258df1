#include "prompt/assistant_turns.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// Two words that differ in their first and last letters: at each end of a content, at least one of
// the words differs from it.
constexpr std::array<const char*, 2> kWords = {"Xylem", "quartz"};

// How many messages before a turn are tried as the one that the turn follows. The nearest one
// nearly always serves; without a limit, a long conversation of messages that the template hides
// would be rendered for each pair of them.
constexpr int kMostMessagesTried = 8;

std::size_t CommonTextPrefix(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return end - a.begin();
}

std::size_t CommonSuffix(std::string_view a, std::string_view b) {
  const auto [end, ignored] = std::mismatch(a.rbegin(), a.rend(), b.rbegin(), b.rend());
  return end - a.rbegin();
}

// Returns the CommonTextPrefix that does not end within a tag: "<tool_call>" and "<think>" have
// nothing in common.
std::size_t CommonTags(std::string_view a, std::string_view b) {
  const std::size_t length = CommonTextPrefix(a, b);
  if (length == a.size() || length == b.size()) return length;
  const std::string_view common = a.substr(0, length);
  const std::size_t open = common.find_last_of("<[");
  if (open == std::string_view::npos) return length;
  const bool closed = common.find(common[open] == '<' ? '>' : ']', open) != std::string_view::npos;
  return closed ? length : open;
}

// Returns where an ending of `prompt`, from `common` bytes on, stands last in `gap`, and ends, or
// nothing. An ending begins at `common`, at a tag or in a new line, and holds more than blanks.
std::optional<std::size_t> BehindEnding(std::string_view gap, std::string_view prompt,
                                        std::size_t common) {
  for (std::size_t begin = common; begin < prompt.size(); ++begin) {
    const bool starts = begin == common || prompt[begin] == '<' || prompt[begin] == '[' ||
                        prompt[begin - 1] == '\n';
    const std::string_view ending = prompt.substr(begin);
    if (!starts || ending.find_first_not_of(kBlanks) == ending.npos) continue;
    const std::size_t at = gap.substr(common).rfind(ending);
    if (at != gap.npos) return common + at + ending.size();
  }
  return std::nullopt;
}

OrderedJson First(const OrderedJson& messages, std::size_t count) {
  return OrderedJson(OrderedJson::array_t(messages.begin(), messages.begin() + count));
}

bool IsText(const OrderedJson& message, const char* key) {
  const auto field = message.find(key);
  return field != message.end() && field->is_string() &&
         !field->get_ref<const std::string&>().empty();
}

// Returns `message` with another text of the same kind.
OrderedJson Vary(OrderedJson message, const char* word) {
  const auto calls = message.find("tool_calls");
  const bool has_calls = calls != message.end() && calls->is_array() && !calls->empty();
  if (IsText(message, "content") || !has_calls) message["content"] = word;
  for (const auto& [key, value] : message.items()) {
    if (IsKnownAs(key, FieldMeaning::kThoughts) && IsText(message, key.c_str())) value = word;
  }
  if (!has_calls) return message;
  for (OrderedJson& call : message["tool_calls"]) {
    OrderedJson& function = call.contains("function") ? call["function"] : call;
    function["name"] = word;
    OrderedJson& arguments = function["arguments"];
    const bool as_text = arguments.is_string();
    arguments = {{word, word}};
    if (as_text) arguments = FormatJson(arguments);
  }
  return message;
}

struct Region {
  std::size_t begin;
  std::size_t end;
};

// Looks for one turn after the other. A turn is looked for in two ways, and both need the
// conversation up to the turn, with the prompt for it, and up to and with the turn.
class TurnFinder {
 public:
  TurnFinder(const RenderMessages& render, const OrderedJson& messages, const std::string& text,
             const std::vector<std::string>& special_tokens)
      : render_(render), messages_(messages), text_(text), special_tokens_(special_tokens) {}

  // Finds turn `m`; nothing when the text does not show the turn.
  std::optional<Region> Find(std::size_t m) {
    const Part before = Render(m, /*prompt=*/true);
    const Part with = Render(m + 1, /*prompt=*/false);
    std::optional<Region> turn = FindAppended(before, with);
    if (!turn) turn = FindVaried(m, before, with);
    if (!turn) return std::nullopt;
    const std::string_view written =
        TrimEnd(std::string_view(text_).substr(turn->begin, turn->end - turn->begin));
    return Region{turn->begin, turn->begin + written.size()};
  }

 private:
  // The first messages of the conversation and their rendering, which the template may refuse.
  struct Part {
    OrderedJson messages;
    bool prompt;
    std::optional<std::string> text;
  };

  Part Render(std::size_t count, bool prompt) const {
    Part part = {First(messages_, count), prompt, std::nullopt};
    part.text = render_(part.messages, prompt);
    return part;
  }

  //   before  <user>Hi</user><assistant>
  //   with    <user>Hi</user><assistant>Hello</assistant>
  //   text_   <user>Hi</user><assistant>Hello</assistant><user> ...
  //                                     |---------------| the turn
  std::optional<Region> FindAppended(const Part& before, const Part& with) const {
    if (!before.text || !with.text || !with.text->starts_with(*before.text) ||
        !text_.starts_with(*with.text)) {
      return std::nullopt;
    }
    return Region{before.text->size(), with.text->size()};
  }

  std::optional<Region> FindVaried(std::size_t m, const Part& before, const Part& with) const {
    const std::optional<Region> said = PlaceOf(m, messages_, text_, false);
    if (!said) return std::nullopt;
    return Region{Opening(m, said->begin, before), Closing(m, said->end, with)};
  }

  // Returns the part of `text`, the rendering of `messages`, that depends on the content of message
  // m.
  //
  //   text    ...<assistant>Hello</assistant>...
  //   other   ...<assistant>Xylem</assistant>...    with the content of m replaced
  //           prefix ------>     <------- suffix
  //
  // A content that begins or ends as the word does makes the prefix or the suffix too long; then
  // the second word shows the rest. It is not needed when the difference in `other` is the word
  // itself.
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
      const std::size_t begin = CommonTextPrefix(text, *other);
      const std::size_t rest = std::min(text.size(), other->size()) - begin;
      const std::size_t suffix = std::min(rest, CommonSuffix(text, *other));
      place.begin = std::min(place.begin, begin);
      place.end = std::max(place.end, text.size() - suffix);
      const std::string_view changed =
          std::string_view(*other).substr(begin, other->size() - suffix - begin);
      const bool whole = changed.starts_with(word) && changed.ends_with(word);
      if (whole && FormatJson(messages[m]).find(word) == std::string::npos) break;
    }
    if (!shown) return std::nullopt;
    return place;
  }

  // Returns the start of turn m, whose content begins at `said`: behind the text that the prompt
  // puts between the content of the message before and the turn, as far as text_ has it. The
  // message before may end in another way when a turn follows; then text_ has that text's end.
  //
  //   prompt  <out>4 m</out></s>\nBot:\n
  //   text_   <out>4 m</out>\n</s>\nBot:\nFour metres.
  //                   common|      ending|
  std::size_t Opening(std::size_t m, std::size_t said, const Part& before) const {
    if (m == 0 || !before.text) return said;
    const std::size_t last = m - std::min<std::size_t>(m, kMostMessagesTried);
    for (std::size_t k = m; k-- > last;) {
      const std::optional<Region> here = PlaceOf(k, messages_, text_, false);
      if (!here || here->end > said) continue;
      const std::optional<Region> there = PlaceOf(k, before.messages, *before.text, before.prompt);
      if (!there) continue;
      const std::string_view gap = std::string_view(text_).substr(here->end, said - here->end);
      const std::string_view asked = std::string_view(*before.text).substr(there->end);
      const std::size_t common = CommonTags(gap, asked);
      return here->end + BehindEnding(gap, asked, common).value_or(common);
    }
    return said;
  }

  // Returns the end of turn m, whose content ends at `said`: behind the text that closes it when it
  // is the last message, if that text follows here too.
  std::size_t Closing(std::size_t m, std::size_t said, const Part& with) const {
    const std::string_view rest = std::string_view(text_).substr(said);
    if (with.text) {
      if (const auto place = PlaceOf(m, with.messages, *with.text, with.prompt)) {
        const std::string_view closing = TrimEnd(std::string_view(*with.text).substr(place->end));
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
