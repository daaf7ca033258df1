#include "export/modelfile.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/check.h"
#include "export/ollama_template.h"
#include "io/json.h"
#include "tokenizer/lookup_tables.h"

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

// The first line. A text that a person has changed has another hash.
std::string MarkOf(std::string_view lines) {
  return fmt::format("# By qlora export, which replaces it unless you change it: {:016x}\n",
                     HashBytes(lines));
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

std::string PathInModelfile(const std::filesystem::path& folder,
                            const std::filesystem::path& file) {
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

OllamaModel OllamaModelOf(const Tokenizer& tokenizer, std::vector<std::string>& notes) {
  OllamaTemplate chat = OllamaTemplateOf(tokenizer);
  notes.insert(notes.end(), chat.notes.begin(), chat.notes.end());
  OllamaModel model{.gguf = {}, .stops = StopTexts(tokenizer)};
  // A stop ends the turn already where a BOS follows it.
  const bool stops = std::ranges::any_of(
      model.stops, [&](const std::string& stop) { return chat.turn_end.starts_with(stop); });
  if (!chat.turn_end.empty() && !stops) model.stops.push_back(chat.turn_end);
  model.chat_template = std::move(chat.text);
  return model;
}

std::string Modelfile(const OllamaModel& model, const std::filesystem::path& folder,
                      std::vector<std::string>& notes) {
  std::string text = fmt::format("{}{}\n", kFrom, PathInModelfile(folder, model.gguf));
  if (!model.adapter.empty()) {
    text += fmt::format("{}{}\n", kAdapter, PathInModelfile(folder, model.adapter));
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
  return MarkOf(text) + text;
}

bool IsModelfileOf(std::string_view text, const std::filesystem::path& gguf) {
  if (text.empty()) return false;
  const std::string_view mark = TakeLine(text);
  if (mark != MarkOf(text)) return false;
  const std::string name = fmt::format("./{}\n", gguf.filename().string());
  const std::string_view from = TakeLine(text).substr(kFrom.size());
  return text.starts_with(kAdapter) ? TakeLine(text).substr(kAdapter.size()) == name : from == name;
}

}  // namespace qlora
