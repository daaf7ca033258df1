#include "command/yaml_text.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "command/errors.h"

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

// Refuses mistakes that yaml-cpp accepts.
class YamlChecker {
 public:
  YamlChecker(std::string_view text, const std::string& file)
      : text_(text), file_(file), visits_left_(2 * std::ssize(text) + 2) {
    for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n', end + 1)) {
      lines_.push_back(end + 1);
    }
  }

  // An alias (*name) may repeat a value, or hold itself, so that a short text stands for a value
  // without end: no value may be deep, nor may all values be more than the text has characters.
  void Check(const YAML::Node& node, int depth = 0) {
    if (depth > kMaxDepth) Fail(node, fmt::format("nested more than {} levels deep", kMaxDepth));
    if (--visits_left_ < 0) Fail(node, "aliases (*name) repeat too much");
    if (node.IsScalar()) {
      CheckQuote(node);
    } else if (node.IsSequence()) {
      for (const YAML::Node& item : node) Check(item, depth + 1);
    } else if (node.IsMap()) {
      for (const auto& entry : node) {
        Check(entry.first, depth + 1);
        Check(entry.second, depth + 1);
      }
    }
  }

 private:
  static constexpr int kMaxDepth = 64;  // as of JSON (io/json.h)

  // Refuses a quote that is never closed. yaml-cpp takes the end of the file for the closing quote,
  // so that all options behind the open quote would silently become part of one text.
  void CheckQuote(const YAML::Node& node) const {
    const std::string_view rest = TextFrom(node.Mark());
    const bool quoted = rest.starts_with('"') || rest.starts_with('\'');
    if (quoted && !IsClosed(rest.substr(1), rest.front())) {
      Fail(node, fmt::format("the quote {} is not closed", rest.front()));
    }
  }

  // Returns the text from a place on, columns counted in bytes; "" beyond the end.
  std::string_view TextFrom(const YAML::Mark& mark) const {
    if (mark.line < 0 || mark.line >= std::ssize(lines_)) return {};
    const std::string_view rest = text_.substr(lines_[mark.line]);
    return rest.substr(std::min<std::size_t>(mark.column, rest.size()));
  }

  [[noreturn]] void Fail(const YAML::Node& node, std::string_view reason) const {
    ThrowUsage("{}:{}: not valid YAML: {}", file_, node.Mark().line + 1, reason);
  }

  std::string_view text_;
  const std::string& file_;
  std::int64_t visits_left_;
  std::vector<std::size_t> lines_ = {0};  // where each begins
};

}  // namespace

YAML::Node ParseYaml(const std::string& text, const std::string& file) {
  try {
    const YAML::Node root = YAML::Load(text);
    YamlChecker(text, file).Check(root);
    return root;
  } catch (const YAML::Exception& error) {
    ThrowUsage(
        "{}:{}: not valid YAML: {}; expected lines of 'key: value', indented by spaces alike", file,
        error.mark.line + 1, error.msg);
  }
}

}  // namespace qlora
