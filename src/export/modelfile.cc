#include "export/modelfile.h"

#include <algorithm>
#include <set>

#include "base/check.h"
#include "io/json.h"

namespace qlora {
namespace {

// Memory of keys and values grows with the context; Ollama takes it at once.
constexpr std::int64_t kMostContext = 8192;

constexpr std::string_view kFrom = "FROM ./";
constexpr std::string_view kContext = "PARAMETER num_ctx ";
constexpr std::string_view kStop = "PARAMETER stop ";

}  // namespace

bool FitsModelfile(std::string_view text) {
  return std::ranges::none_of(text, [](unsigned char c) { return c < ' ' || c == '"' || c == 127; });
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

std::string Modelfile(const std::filesystem::path& gguf, const std::vector<std::string>& stops,
                      std::int64_t context, std::vector<std::string>& notes) {
  std::string text = fmt::format("{}{}\n", kFrom, gguf.filename().string());
  text += fmt::format("{}{}\n", kContext, std::min(context, kMostContext));
  for (const std::string& stop : stops) {
    if (FitsModelfile(stop)) {
      text += fmt::format("{}\"{}\"\n", kStop, stop);
    } else {
      notes.push_back(fmt::format(
          "the Modelfile leaves out the stop {}: its quotes or line ends would end the line",
          FormatJson(Json(stop))));
    }
  }
  return text;
}

bool IsModelfileOf(std::string_view text, const std::filesystem::path& gguf) {
  const std::string from = fmt::format("{}{}\n", kFrom, gguf.filename().string());
  if (!text.starts_with(from)) return false;
  text.remove_prefix(from.size());
  while (!text.empty()) {
    if (!text.starts_with(kContext) && !text.starts_with(kStop)) return false;
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  return true;
}

}  // namespace qlora
