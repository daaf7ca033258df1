#include "export/modelfile.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "io/json.h"

namespace qlora {
namespace {

// Memory of keys and values grows with the context; Ollama takes it at once.
constexpr std::int64_t kMostContext = 8192;

constexpr std::string_view kFrom = "FROM ";
constexpr std::string_view kAdapter = "ADAPTER ";
constexpr std::string_view kContext = "PARAMETER num_ctx ";
constexpr std::string_view kStop = "PARAMETER stop ";
constexpr std::string_view kTemplate = "TEMPLATE \"\"\"";
constexpr std::string_view kTemplateEnd = "\"\"\"\n";
// In each TEMPLATE that is written (GoTemplate).
constexpr std::string_view kOwnTemplate = "{{ range $i, $m := .Messages }}{{ $last := ";

// "./a.gguf" in `folder`, "../b/a.gguf" elsewhere.
std::string PathFrom(const std::filesystem::path& folder, const std::filesystem::path& file) {
  const auto normal = [](const std::filesystem::path& path) {
    return std::filesystem::absolute(path).lexically_normal();
  };
  const std::string path = normal(file).lexically_relative(normal(folder)).generic_string();
  if (!FitsModelfile(path)) {
    ThrowInvalidInput("{}: a Modelfile cannot name it; choose a name without quotes",
                      file.string());
  }
  return path.starts_with("../") ? path : "./" + path;
}

// Takes a line off the front.
std::string_view TakeLine(std::string_view& text) {
  const std::size_t size = std::min(text.find('\n'), text.size() - 1) + 1;
  const std::string_view line = text.substr(0, size);
  text.remove_prefix(size);
  return line;
}

}  // namespace

bool FitsModelfile(std::string_view text) {
  return std::ranges::none_of(text,
                              [](unsigned char c) { return c < ' ' || c == '"' || c == 127; });
}

std::vector<std::string> StopTexts(const Tokenizer& tokenizer) {
  std::set<std::string_view> added;
  for (const AddedToken& token : tokenizer.spec().added_tokens) added.insert(token.content);
  std::vector<std::string> texts;
  for (const std::int32_t id : tokenizer.eos_ids()) {
    const std::vector<std::string>& pieces = tokenizer.spec().pieces;
    if (id < 0 || id >= std::ssize(pieces) || pieces[id].empty()) continue;
    // The spelling of other pieces is not that of their text. Each is taken once.
    if (added.erase(pieces[id]) > 0) texts.push_back(pieces[id]);
  }
  return texts;
}

std::string Modelfile(const OllamaModel& model, const std::filesystem::path& folder,
                      std::vector<std::string>& notes) {
  std::string text = fmt::format("{}{}\n", kFrom, PathFrom(folder, model.gguf));
  if (!model.adapter.empty()) {
    text += fmt::format("{}{}\n", kAdapter, PathFrom(folder, model.adapter));
  }
  text += fmt::format("{}{}\n", kContext, std::min(model.context, kMostContext));
  for (const std::string& stop : model.stops) {
    if (FitsModelfile(stop)) {
      text += fmt::format("{}\"{}\"\n", kStop, stop);
    } else {
      notes.push_back(fmt::format(
          "the Modelfile leaves out the stop {}: its quotes or line ends would end the line",
          FormatJson(Json(stop))));
    }
  }
  if (!model.chat_template.empty()) {
    text += fmt::format("{}{}{}", kTemplate, model.chat_template, kTemplateEnd);
  }
  return text;
}

bool IsModelfileOf(std::string_view text, const std::filesystem::path& gguf) {
  const std::string name = fmt::format("./{}\n", gguf.filename().string());
  if (!text.starts_with(kFrom)) return false;
  bool names_it = TakeLine(text).substr(kFrom.size()) == name;
  if (text.starts_with(kAdapter)) {
    names_it = TakeLine(text).substr(kAdapter.size()) == name;
  }
  while (!text.empty()) {
    if (text.starts_with(kTemplate)) {
      const std::size_t end = text.find(kTemplateEnd, kTemplate.size());
      if (end == text.npos || text.find(kOwnTemplate) > end) return false;
      text.remove_prefix(end + kTemplateEnd.size());
      continue;
    }
    if (!text.starts_with(kContext) && !text.starts_with(kStop)) return false;
    TakeLine(text);
  }
  return names_it;
}

}  // namespace qlora
