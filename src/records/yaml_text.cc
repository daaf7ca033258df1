#include "records/yaml_text.h"

#include <yaml-cpp/eventhandler.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "io/json.h"
#include "qlora/options.h"
#include "unicode/text_encoding.h"
#include "unicode/unicode.h"

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

// Walks over a text before anything of it is built. Refuses a text of more values than a
// configuration has, each of which takes 250 bytes, and one that yaml-cpp 0.7 takes for documents
// without end, all of which begin at one place: a comma at the start.
class YamlWalk : public YAML::EventHandler {
 public:
  void OnDocumentStart(const YAML::Mark& mark) override {
    if (mark.pos <= last_) throw YAML::ParserException(mark, "a value cannot begin here");
    last_ = mark.pos;
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override { Count(mark); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { Count(mark); }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string&) override {
    Count(mark);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    Count(mark);
  }
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    Count(mark);
  }
  void OnMapEnd() override {}

 private:
  static constexpr std::int64_t kMostValues = std::int64_t{1} << 17;

  void Count(const YAML::Mark& mark) {
    if (++values_ <= kMostValues) return;
    throw YAML::ParserException(mark, fmt::format("more than {} values", kMostValues));
  }

  int last_ = -1;
  std::int64_t values_ = 0;
};

void WalkOver(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  YamlWalk walk;
  while (parser.HandleNextDocument(walk)) {
  }
}

// Returns the place of the first byte that is not UTF-8; npos when there is none.
std::size_t FindIllFormed(std::string_view text) {
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Step step = StepUtf8(text.substr(at));
    if (!step.valid) return at;
    at += step.length;
  }
  return text.npos;
}

// Refuses a text that is not UTF-8; yaml-cpp itself converts one that begins with the mark of
// UTF-16 or UTF-32.
void CheckUtf8(std::string_view text, const std::string& file) {
  const bool has_mark = text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF") ||
                        text.starts_with(std::string_view("\0\0\xFE\xFF", 4));
  const std::size_t at = has_mark ? text.npos : FindIllFormed(text);
  if (at == text.npos) return;
  const std::string_view before = text.substr(0, at);
  ThrowInvalidInput(
      "{}:{}: the text is not UTF-8 (byte {}); it reads like {}: convert the file with iconv -f "
      "{} -t UTF-8",
      file, std::ranges::count(before, '\n') + 1, at, GuessEncoding(text), GuessEncoding(text));
}

// Returns a scalar in UTF-8: for "\_" and "\N" in quotes, yaml-cpp 0.7 writes the number of the
// character as one byte.
std::string WithWholeCharacters(std::string_view scalar) {
  std::string text;
  for (std::size_t at; (at = FindIllFormed(scalar)) != scalar.npos; scalar.remove_prefix(at + 1)) {
    text.append(scalar.substr(0, at)).append("\xC2").append(scalar.substr(at, 1));
  }
  return text.append(scalar);
}

// Refuses mistakes that yaml-cpp accepts, and mends its own.
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
      if (FindIllFormed(node.Scalar()) != std::string::npos) {
        YAML::Node mended = node;  // the same node
        mended = WithWholeCharacters(node.Scalar());
      }
    } else if (node.IsSequence()) {
      for (const YAML::Node& item : node) Check(item, depth + 1);
    } else if (node.IsMap()) {
      for (const auto& entry : node) {
        Check(entry.first, depth + 1);
        Check(entry.second, depth + 1);
      }
      CheckKeys(node);
    }
  }

 private:
  // Refuses a key that a map has twice. Other readers take the last value without a word.
  void CheckKeys(const YAML::Node& map) const {
    std::map<std::string, int> lines;
    for (const auto& entry : map) {
      // Several merge keys merge several maps.
      if (!entry.first.IsScalar() || entry.first.Scalar() == "<<") continue;
      const int line = entry.first.Mark().line + 1;
      const auto [earlier, is_new] = lines.emplace(entry.first.Scalar(), line);
      if (is_new) continue;
      ThrowInvalidInput("{0}:{1}: {2} is given twice, the first time at {0}:{3}; keep one", file_,
                        line, earlier->first, earlier->second);
    }
  }

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
    ThrowInvalidInput("{}:{}: not valid YAML: {}", file_, node.Mark().line + 1, reason);
  }

  std::string_view text_;
  const std::string& file_;
  std::int64_t visits_left_;
  std::vector<std::size_t> lines_ = {0};  // where each begins
};

constexpr const char* kMergeKey = "<<";

// The maps that a merge key names: one, or a list of them.
std::vector<YAML::Node> MergedMaps(const YAML::Node& value, const std::string& file) {
  std::vector<YAML::Node> maps;
  if (value.IsMap()) maps.push_back(value);
  if (value.IsSequence()) {
    for (const YAML::Node& item : value) maps.push_back(item);
  }
  const bool are_maps =
      !maps.empty() && std::ranges::all_of(maps, [](const YAML::Node& map) { return map.IsMap(); });
  if (are_maps) return maps;
  ThrowInvalidInput("{}:{}: << merges a map or a list of maps", file, value.Mark().line + 1);
}

bool HasMergeKey(const YAML::Node& map) {
  return std::ranges::any_of(map, [](const auto& entry) {
    return entry.first.IsScalar() && entry.first.Scalar() == kMergeKey;
  });
}

// Puts the keys of the maps behind << into the map, as PyYAML and OmegaConf do: a key that the map
// has itself wins, then the first of several maps. yaml-cpp leaves << as a key.
YAML::Node Merged(const YAML::Node& node, const std::string& file) {
  if (node.IsSequence()) {
    for (std::size_t i = 0; i < node.size(); ++i) {
      YAML::Node item = node[i];
      if (const YAML::Node merged = Merged(item, file); !merged.is(item)) item = merged;
    }
  }
  if (!node.IsMap()) return node;
  if (!HasMergeKey(node)) {
    for (const auto& entry : node) {
      YAML::Node value = entry.second;
      if (const YAML::Node merged = Merged(value, file); !merged.is(value)) value = merged;
    }
    return node;
  }
  std::set<std::string> seen;
  std::vector<std::pair<YAML::Node, YAML::Node>> entries;
  const auto take = [&](const YAML::Node& map) {
    for (const auto& entry : map) {
      const bool is_merge = entry.first.IsScalar() && entry.first.Scalar() == kMergeKey;
      const bool is_new = !entry.first.IsScalar() || seen.insert(entry.first.Scalar()).second;
      if (!is_merge && is_new) entries.emplace_back(entry.first, Merged(entry.second, file));
    }
  };
  take(node);
  for (const auto& entry : node) {
    if (!entry.first.IsScalar() || entry.first.Scalar() != kMergeKey) continue;
    for (const YAML::Node& map : MergedMaps(entry.second, file)) take(Merged(map, file));
  }
  YAML::Node merged(YAML::NodeType::Map);
  for (auto& [key, value] : entries) merged.force_insert(key, value);
  return merged;
}

// The columns before the first word of a line, counted from 0.
std::size_t IndentOf(std::string_view text, int line) {
  for (; line > 0; --line) text.remove_prefix(std::min(text.find('\n') + 1, text.size()));
  return std::min(text.find_first_not_of(' '), text.size());
}

// yaml-cpp's reason, in words that name what is seen in the line.
std::string Explained(const YAML::Exception& error, std::string_view text) {
  const int line = error.mark.line;
  if (error.msg != "illegal map value" || line < 0) return error.msg;
  return line > 0 && IndentOf(text, line) > IndentOf(text, line - 1)
             ? "this line is indented more than the one above"
             : "a value that holds ': ' needs quotes";
}

}  // namespace

YAML::Node ParseYaml(const std::string& text, const std::string& file) {
  constexpr std::size_t kMostBytes = std::size_t{1} << 24;
  if (text.size() > kMostBytes) {
    ThrowInvalidInput("{}: expected a configuration of at most {} bytes, found {}", file,
                      kMostBytes, text.size());
  }
  CheckUtf8(text, file);
  try {
    WalkOver(text);
    YAML::Node root;
    for (const YAML::Node& document : YAML::LoadAll(text)) {
      // "---" at the end of a file begins a document without content.
      if (document.IsNull()) continue;
      if (!root.IsNull()) {
        ThrowInvalidInput(
            "{}:{}: a second document begins behind '---'; a file holds one configuration", file,
            document.Mark().line + 1);
      }
      root.reset(document);
    }
    YamlChecker(text, file).Check(root);
    return Merged(root, file);
  } catch (const YAML::Exception& error) {
    ThrowInvalidInput(
        "{}:{}: not valid YAML: {}; expected lines of 'key: value', indented by spaces alike", file,
        error.mark.line + 1, Explained(error, text));
  }
}

namespace {

// true, false, null, a number, or a text; {"!function": name} for a function of Python.
OrderedJson ScalarToJson(const YAML::Node& scalar) {
  const std::string& text = scalar.Scalar();
  if (scalar.Tag() == "!function") return {{"!function", text}};
  if (scalar.Tag() == "!") return text;  // in quotes
  // The words of YAML 1.1 for true and false, but not 0 and 1.
  const bool is_digit = text == "0" || text == "1";
  if (const std::optional<bool> flag = ParseBool(text); flag && !is_digit) return *flag;
  Json number;
  const bool is_json = !TryParseJson(text, number).has_value();
  return is_json && number.is_number() ? OrderedJson(number) : OrderedJson(text);
}

OrderedJson ToJson(const YAML::Node& value) {
  if (value.IsScalar()) return ScalarToJson(value);
  if (value.IsSequence()) {
    OrderedJson list = OrderedJson::array();
    for (const YAML::Node& item : value) list.push_back(ToJson(item));
    return list;
  }
  if (!value.IsMap()) return nullptr;
  OrderedJson map = OrderedJson::object();
  for (const auto& entry : value) {
    map[entry.first.IsScalar() ? entry.first.Scalar() : ""] = ToJson(entry.second);
  }
  return map;
}

}  // namespace

std::string JsonText(const YAML::Node& value) { return FormatJson(ToJson(value)); }

}  // namespace qlora
