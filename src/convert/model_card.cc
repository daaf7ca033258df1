#include "convert/model_card.h"

#include "base/text.h"

namespace qlora {
namespace {

std::string Unquoted(std::string_view text) {
  text = Trim(text);
  if (text.size() >= 2 && (text.front() == '"' || text.front() == '\'') &&
      text.back() == text.front()) {
    text = text.substr(1, text.size() - 2);
  }
  return std::string(text);
}

// "[en, de]" or "en".
std::vector<std::string> ValuesOf(std::string_view text) {
  text = Trim(text);
  if (text.empty() || text == "null" || text == "|" || text == ">") return {};
  if (text.front() != '[' || text.back() != ']') return {Unquoted(text)};
  std::vector<std::string> values;
  text = text.substr(1, text.size() - 2);
  while (!Trim(text).empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    values.push_back(Unquoted(text.substr(0, comma)));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return values;
}

// Returns the next line, without its end, and removes it.
std::string_view NextLine(std::string_view& text) {
  const std::size_t end = std::min(text.find('\n'), text.size());
  const std::string_view line = TrimEnd(text.substr(0, end));
  text.remove_prefix(std::min(end + 1, text.size()));
  return line;
}

}  // namespace

std::map<std::string, std::vector<std::string>> ReadModelCard(std::string_view text) {
  std::map<std::string, std::vector<std::string>> card;
  if (NextLine(text) != "---") return card;
  std::string key;
  while (!text.empty()) {
    const std::string_view line = NextLine(text);
    if (line == "---") return card;
    const std::string_view item = Trim(line);
    if (item.empty() || item.front() == '#') continue;
    if (item.starts_with("- ")) {
      // An item of a list of the top level, indented by a little or not at all; "- name: x" begins
      // a deeper one.
      const bool is_nested = item.find(": ") != item.npos || item.ends_with(':');
      if (!key.empty() && line.size() - item.size() <= 2 && !is_nested) {
        card[key].push_back(Unquoted(item.substr(2)));
      }
      continue;
    }
    const std::size_t colon = line.find(':');
    if (line.front() == ' ' || colon == line.npos) continue;
    key = Unquoted(line.substr(0, colon));
    card[key] = ValuesOf(line.substr(colon + 1));
  }
  // The part has no end: it is something else.
  return {};
}

}  // namespace qlora
