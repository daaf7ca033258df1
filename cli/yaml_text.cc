#include "yaml_text.h"

#include <algorithm>
#include <string_view>

#include "errors.h"

namespace qlora {
namespace {

// True for the text behind an opening quote that closes it again.
bool IsClosed(std::string_view text, char quote) {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (quote == '"' && text[i] == '\\') {
      ++i;
    } else if (text[i] == quote) {
      const bool doubled = quote == '\'' && i + 1 < text.size() && text[i + 1] == quote;
      if (!doubled) return true;
      ++i;
    }
  }
  return false;
}

// The text from a place on, columns counted in bytes; "" beyond the end.
std::string_view TextFrom(std::string_view text, const YAML::Mark& mark) {
  for (int line = 0; line < mark.line; ++line) {
    const std::size_t end = text.find('\n');
    if (end == std::string_view::npos) return {};
    text.remove_prefix(end + 1);
  }
  text.remove_prefix(std::min<std::size_t>(mark.column, text.size()));
  return text;
}

// Refuses a quote that is never closed. yaml-cpp takes the end of the file for the closing quote,
// so that all options behind the open quote would silently become part of one text.
void CheckQuotes(const YAML::Node& node, std::string_view text, const std::string& file) {
  if (node.IsScalar()) {
    const std::string_view rest = TextFrom(text, node.Mark());
    const bool quoted = rest.starts_with('"') || rest.starts_with('\'');
    if (quoted && !IsClosed(rest.substr(1), rest.front())) {
      ThrowUsage("{}:{}: not valid YAML: the quote {} is not closed", file, node.Mark().line + 1,
                 rest.front());
    }
  } else if (node.IsSequence()) {
    for (const YAML::Node& item : node) CheckQuotes(item, text, file);
  } else if (node.IsMap()) {
    for (const auto& entry : node) {
      CheckQuotes(entry.first, text, file);
      CheckQuotes(entry.second, text, file);
    }
  }
}

}  // namespace

YAML::Node ParseYaml(const std::string& text, const std::string& file) {
  try {
    const YAML::Node root = YAML::Load(text);
    CheckQuotes(root, text, file);
    return root;
  } catch (const YAML::Exception& error) {
    ThrowUsage(
        "{}:{}: not valid YAML: {}; expected lines of 'key: value', indented by spaces alike", file,
        error.mark.line + 1, error.msg);
  }
}

}  // namespace qlora
