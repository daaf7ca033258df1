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

struct Region {
  std::size_t begin;
  std::size_t end;
  bool open_end = false;
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
    const Part with = Render(m + 1, TurnPrompt::kNone);
    std::vector<Part> before;  // the usual prompt first
    std::optional<Region> turn;
    for (const TurnPrompt prompt : kPrompts) {
      before.push_back(Render(m, prompt));
      if ((turn = FindAppended(before.back(), with))) break;
    }
    if (!turn) turn = FindVaried(m, before, with);
    if (!turn) return std::nullopt;
    const std::string_view written =
        TrimEnd(std::string_view(text_).substr(turn->begin, turn->end - turn->begin));
    return Region{turn->begin, turn->begin + written.size(), turn->open_end};
  }

 private:
  static constexpr std::array<TurnPrompt, 3> kPrompts = {
      TurnPrompt::kUsual, TurnPrompt::kWithThoughts, TurnPrompt::kWithoutThoughts};

  // The first messages of the conversation and their rendering, which the template may refuse.
  struct Part {
    OrderedJson messages;
    TurnPrompt prompt;
    std::optional<std::string> text;
  };

  Part Render(std::size_t count, TurnPrompt prompt) const {
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

  std::optional<Region> FindVaried(std::size_t m, const std::vector<Part>& before,
                                   const Part& with) const {
    const std::optional<Region> said = PlaceOf(m, messages_, text_, TurnPrompt::kNone);
    if (!said) return std::nullopt;
    Region turn = Closing(m, said->end, with);
    turn.begin = Opening(m, said->begin, before);
    return turn;
  }

  // Returns the part of `text`, the rendering of `messages`, that depends on what message m says.
  // Templates show the name of a called function in its result too, so that the part of calls ends
  // with their arguments.
  std::optional<Region> PlaceOf(std::size_t m, const OrderedJson& messages, const std::string& text,
                                TurnPrompt prompt) const {
    std::optional<Region> place = Difference(m, messages, text, prompt, Vary);
    if (!place || !HasCalls(messages[m])) return place;
    const std::optional<Region> arguments = Difference(m, messages, text, prompt, VaryArguments);
    if (arguments && arguments->end > place->begin) place->end = arguments->end;
    return place;
  }

  // Returns the part of `text` that differs when `vary` changes message m.
  //
  //   text    ...<assistant>Hello</assistant>...
  //   other   ...<assistant>Xylem</assistant>...    with the content of m replaced
  //           prefix ------>     <------- suffix
  //
  // A content that begins or ends as the word does makes the prefix or the suffix too long; then
  // the second word shows the rest. It is not needed when the difference in `other` is the word
  // itself.
  std::optional<Region> Difference(std::size_t m, const OrderedJson& messages,
                                   const std::string& text, TurnPrompt prompt,
                                   OrderedJson (*vary)(OrderedJson, const char*)) const {
    Region place = {text.size(), 0};
    bool shown = false;
    OrderedJson varied = messages;
    for (const char* word : kWords) {
      varied[m] = vary(messages[m], word);
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

  // Returns the start of turn m, whose content begins at `said`: behind the text that a prompt puts
  // between the content of the message before and the turn. If no prompt is there as a whole, that
  // is the usual prompt as far as text_ has it. The message before may end in another way when a
  // turn follows; then text_ has that text's end.
  //
  //   prompt  <out>4 m</out></s>\nBot:\n
  //   text_   <out>4 m</out>\n</s>\nBot:\nFour metres.
  //                   common|      ending|
  std::size_t Opening(std::size_t m, std::size_t said, const std::vector<Part>& before) const {
    if (m == 0 || !before.front().text) return said;
    const std::size_t last = m - std::min<std::size_t>(m, kMostMessagesTried);
    for (std::size_t k = m; k-- > last;) {
      const std::optional<Region> here = PlaceOf(k, messages_, text_, TurnPrompt::kNone);
      if (!here || here->end > said) continue;
      const std::string_view gap = std::string_view(text_).substr(here->end, said - here->end);
      const std::optional<std::string_view> usual = Behind(k, before.front());
      if (!usual) continue;
      for (const Part& part : before) {
        const auto asked = &part == &before.front() ? usual : Behind(k, part);
        if (asked && gap.starts_with(*asked)) return here->end + asked->size();
      }
      const std::size_t common = CommonTags(gap, *usual);
      return here->end + BehindEnding(gap, *usual, common).value_or(common);
    }
    return said;
  }

  // Returns the text of a part behind what message k says.
  std::optional<std::string_view> Behind(std::size_t k, const Part& part) const {
    if (!part.text) return std::nullopt;
    const std::optional<Region> place = PlaceOf(k, part.messages, *part.text, part.prompt);
    if (!place) return std::nullopt;
    return std::string_view(*part.text).substr(place->end);
  }

  // Returns the end of turn m, whose content ends at `said`: behind the text that closes it when it
  // is the last message, as far as that text follows here too. A special token that follows belongs
  // to the turn, unless the last message is closed by another in its place.
  Region Closing(std::size_t m, std::size_t said, const Part& with) const {
    const std::string_view rest = std::string_view(text_).substr(said);
    const std::optional<std::string_view> behind = Behind(m, with);
    const std::string_view closing = TrimEnd(behind.value_or(std::string_view()));
    if (behind && rest.starts_with(closing)) return {0, said + closing.size()};
    const std::size_t common = CommonTags(rest, closing);
    const std::string_view missing = closing.substr(common);
    const std::size_t next = std::min(rest.find_first_not_of(kBlanks, common), rest.size());
    const std::string_view token = SpecialTokenAt(rest.substr(next));
    const Region with_token = {0, said + next + token.size()};
    if (!token.empty() && missing.find(token) != missing.npos) return with_token;
    if (!TrimEnd(rest.substr(0, common)).empty()) return {0, said + common};
    const bool replaced = !token.empty() && !SpecialTokenAt(missing).empty();
    if (token.empty() || replaced) return {0, said, /*open_end=*/replaced};
    return with_token;
  }

  // Returns the special token that `text` begins with, or "".
  std::string_view SpecialTokenAt(std::string_view text) const {
    for (const std::string& token : special_tokens_) {
      if (text.starts_with(token)) return text.substr(0, token.size());
    }
    return {};
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
    spans.push_back({turn->begin, turn->end, m, turn->open_end});
  }
  return spans;
}

}  // namespace qlora
