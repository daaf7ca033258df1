#include "prompt/assistant_turns.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>

#include "base/check.h"
#include "base/text.h"
#include "io/json.h"
#include "prompt/known_fields.h"

namespace qlora {
namespace {

constexpr std::string_view kBlanks = " \t\r\n";

// How many messages before a turn are tried as the one that the turn follows. The nearest one
// nearly always serves; without a limit, a long conversation of messages that the template hides
// would be rendered for each pair of them.
constexpr int kMostMessagesTried = 8;

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

// Looks for one turn after the other. A turn is looked for in two ways, and both need the
// conversation up to the turn, with the prompt for it, and up to and with the turn.
class TurnFinder {
 public:
  TurnFinder(PartRenderings& parts, const std::vector<std::string>& special_tokens)
      : parts_(parts), text_(parts.text()), special_tokens_(special_tokens) {}

  // Finds turn `m`; nothing when the text does not show the turn.
  std::optional<ChatSpan> Find(std::size_t m) {
    std::optional<ChatSpan> turn = FindAppended(m);
    if (!turn) {
      turn = FindVaried(m);
      if (turn) CutBeforeResults(m, *turn);
      all_appended_ = all_appended_ && !turn;
    }
    parts_.ForgetTexts();
    if (!turn) return std::nullopt;
    turn->message = m;
    turn->end = TrimEnd(text_.substr(0, turn->end)).size();
    if (turn->end <= turn->begin) return std::nullopt;
    return turn;
  }
  // True when the text continues with each turn that was found as the conversation did before it.
  bool all_appended() const { return all_appended_; }

 private:
  // The usual prompt first.
  static constexpr std::array<TurnPrompt, 3> kPrompts = {
      TurnPrompt::kUsual, TurnPrompt::kWithThoughts, TurnPrompt::kWithoutThoughts};

  //   before  <user>Hi</user><assistant>
  //   with    <user>Hi</user><assistant>Hello</assistant>
  //   text_   <user>Hi</user><assistant>Hello</assistant><user> ...
  //                                     |---------------| the turn
  std::optional<ChatSpan> FindAppended(std::size_t m) {
    const std::optional<std::string>& with = parts_.Text({m + 1});
    if (!with || !text_.starts_with(*with)) return std::nullopt;
    for (const TurnPrompt prompt : kPrompts) {
      const std::optional<std::string>& before = parts_.Text({m, prompt});
      if (before && with->starts_with(*before)) return ChatSpan{before->size(), with->size()};
    }
    return std::nullopt;
  }

  std::optional<ChatSpan> FindVaried(std::size_t m) {
    const std::optional<TextPlace> said = parts_.PlaceOf(m, parts_.whole());
    if (!said) return std::nullopt;
    ChatSpan turn = Closing(m, said->end);
    turn.begin = Opening(m, said->begin);
    return turn;
  }

  // Ends a turn before the results of its calls, which a template may show among the calls: behind
  // the special token that begins them.
  void CutBeforeResults(std::size_t m, ChatSpan& turn) {
    const OrderedJson& messages = parts_.messages();
    const auto is_result = [&](std::size_t k) {
      return RoleOfTemplates(messages[k].at("role").get_ref<const std::string&>()) == "tool";
    };
    for (std::size_t k = m + 1; k < messages.size() && is_result(k); ++k) {
      const std::optional<TextPlace> result = parts_.PlaceOf(k, parts_.whole());
      if (!result || result->begin <= turn.begin || result->begin >= turn.end) continue;
      turn.end = result->begin;
      const std::string_view before = text_.substr(0, turn.end);
      std::size_t token_end = turn.begin;
      for (const std::string& token : special_tokens_) {
        const std::size_t at = before.rfind(token);
        if (at != before.npos && at >= turn.begin)
          token_end = std::max(token_end, at + token.size());
      }
      if (token_end > turn.begin) turn.end = token_end;
    }
  }

  // Returns the start of turn m, whose content begins at `said`: behind the text that a prompt puts
  // between the content of the message before and the turn. If no prompt is there as a whole, that
  // is the usual prompt as far as text_ has it. The message before may end in another way when a
  // turn follows; then text_ has that text's end.
  //
  //   prompt  <out>4 m</out></s>\nBot:\n
  //   text_   <out>4 m</out>\n</s>\nBot:\nFour metres.
  //                   common|      ending|
  std::size_t Opening(std::size_t m, std::size_t said) {
    if (m == 0 || !parts_.Text({m, TurnPrompt::kUsual})) return said;
    const std::size_t last = m - std::min<std::size_t>(m, kMostMessagesTried);
    for (std::size_t k = m; k-- > last;) {
      const std::optional<TextPlace> here = parts_.PlaceOf(k, parts_.whole());
      if (!here || here->end > said) continue;
      const std::string_view gap = text_.substr(here->end, said - here->end);
      const std::optional<std::string_view> usual = parts_.Behind(k, {m, TurnPrompt::kUsual});
      if (!usual) continue;
      for (const TurnPrompt prompt : kPrompts) {
        const std::optional<std::string_view> asked = parts_.Behind(k, {m, prompt});
        if (asked && gap.starts_with(*asked)) return here->end + asked->size();
      }
      const std::size_t common = CommonTags(gap, *usual);
      return here->end + BehindEnding(gap, *usual, common).value_or(common);
    }
    return said;
  }

  // Returns the end of turn m, whose content ends at `said`: behind the text that closes it when it
  // is the last message, as far as that text follows here too. A special token that follows belongs
  // to the turn, unless the last message is closed by another in its place.
  ChatSpan Closing(std::size_t m, std::size_t said) {
    const std::string_view rest = text_.substr(said);
    const std::optional<std::string_view> behind = parts_.Behind(m, {m + 1});
    const std::string_view closing = TrimEnd(behind.value_or(std::string_view()));
    if (behind && rest.starts_with(closing)) return {0, said + closing.size()};
    const std::size_t common = CommonTags(rest, closing);
    const std::string_view missing = closing.substr(common);
    const std::size_t next = std::min(rest.find_first_not_of(kBlanks, common), rest.size());
    const std::string_view token = SpecialTokenAt(rest.substr(next));
    const ChatSpan with_token = {0, said + next + token.size()};
    if (!token.empty() && missing.find(token) != missing.npos) return with_token;
    // Templates may write more of a call, such as its id, once others follow.
    const std::size_t at = BeforeNext(m, said + common).find(Trim(missing));
    if (Trim(missing).size() > 1 && at != missing.npos) {
      return {0, said + common + at + Trim(missing).size()};
    }
    if (!TrimEnd(rest.substr(0, common)).empty()) return {0, said + common};
    const bool replaced = !token.empty() && !SpecialTokenAt(missing).empty();
    if (token.empty() || replaced) return {0, said, m, /*open_end=*/replaced};
    return with_token;
  }

  // Returns the text from `said` to the content of the next message that is shown.
  std::string_view BeforeNext(std::size_t m, std::size_t said) {
    for (std::size_t k = m + 1; k < parts_.messages().size(); ++k) {
      const std::optional<TextPlace> next = parts_.PlaceOf(k, parts_.whole());
      if (next && next->begin >= said) return text_.substr(said, next->begin - said);
    }
    return text_.substr(said);
  }

  // Returns the special token that `text` begins with, or "".
  std::string_view SpecialTokenAt(std::string_view text) const {
    for (const std::string& token : special_tokens_) {
      if (text.starts_with(token)) return text.substr(0, token.size());
    }
    return {};
  }

  PartRenderings& parts_;
  const std::string_view text_;
  const std::vector<std::string>& special_tokens_;
  bool all_appended_ = true;
};

}  // namespace

std::vector<ChatSpan> FindAssistantTurns(PartRenderings& parts, const std::vector<bool>& trained,
                                         const std::vector<std::string>& special_tokens) {
  const OrderedJson& messages = parts.messages();
  TurnFinder finder(parts, special_tokens);
  std::vector<ChatSpan> turns;
  const auto find = [&](const auto& is_asked) {
    for (std::size_t m = 0; m < messages.size(); ++m) {
      if (messages[m].at("role") != "assistant" || !is_asked(m)) continue;
      if (const std::optional<ChatSpan> turn = finder.Find(m)) turns.push_back(*turn);
    }
  };
  find([&](std::size_t m) { return trained[m]; });
  const bool all_appended = finder.all_appended();
  find([&](std::size_t m) { return !trained[m] && (!all_appended || m + 1 == messages.size()); });
  std::ranges::sort(turns, {}, &ChatSpan::message);
  for (std::size_t t = 1; t < turns.size(); ++t) {
    if (turns[t].begin >= turns[t - 1].end) continue;
    ThrowInvalidInput(
        "messages[{}]: cannot tell what the assistant wrote here from what it wrote before; mark "
        "it in the chat template with {{% generation %}} ... {{% endgeneration %}}",
        turns[t].message);
  }
  return turns;
}

}  // namespace qlora
