#include "prompt/missing_prompt.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <string_view>

#include "base/text.h"

namespace qlora {
namespace {

bool IsTagEnd(char c) { return c == '>' || c == ']'; }

// Returns the tag that a text begins with, or all of a text without tags.
std::string_view FirstTag(std::string_view text) {
  const auto end = std::find_if(text.begin(), text.end(), IsTagEnd);
  return end == text.end() ? text : text.substr(0, end - text.begin() + 1);
}

// The letters and digits of a tag: "think" of <think> and of </think>, "channel" of <|channel> and
// <channel|>.
std::string NameOf(std::string_view tag) {
  std::string name;
  std::copy_if(tag.begin(), tag.end(), std::back_inserter(name),
               [](unsigned char c) { return std::isalnum(c) != 0; });
  return name;
}

// True for a text that begins with a tag and ends with the tag that closes it.
bool IsClosed(std::string_view text) {
  const std::string_view first = FirstTag(text);
  if (first.size() == text.size() || !IsTagEnd(text.back())) return false;
  const std::size_t last = text.find_last_of("<[");
  return last != std::string_view::npos && NameOf(first) == NameOf(text.substr(last));
}

}  // namespace

std::string CompletePrompt(const std::optional<std::string>& prompt, std::string& text,
                           ChatSpan& turn) {
  if (!prompt || !prompt->starts_with(std::string_view(text).substr(0, turn.begin))) return {};
  const std::string missing = prompt->substr(turn.begin);
  const std::string_view said = Trim(missing);
  const std::string_view written = std::string_view(text).substr(turn.begin);
  if (said.empty() || Trim(written).starts_with(FirstTag(said))) return {};
  if (!IsClosed(said)) {
    return fmt::format("answers that do not begin with {}, as the chat template's prompt does",
                       said);
  }
  text.insert(turn.begin, missing);
  turn.begin += missing.size();
  turn.end += missing.size();
  return {};
}

}  // namespace qlora
