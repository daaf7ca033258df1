#include "export/modelfile.h"

#include <algorithm>

#include "base/check.h"

namespace qlora {
namespace {

// Memory of keys and values grows with the context; Ollama takes it at once.
constexpr std::int64_t kMostContext = 8192;

// Ollama's quotes: three of them may hold single ones and line ends.
std::string Quoted(const std::string& text) {
  const bool is_plain = text.find_first_of("\"\n") == std::string::npos;
  return is_plain ? fmt::format("\"{}\"", text) : fmt::format("\"\"\"{}\"\"\"", text);
}

}  // namespace

std::vector<std::string> StopTexts(const Tokenizer& tokenizer) {
  std::vector<std::string> texts;
  for (const std::int32_t id : tokenizer.eos_ids()) {
    const std::vector<std::string>& pieces = tokenizer.spec().pieces;
    if (id < 0 || id >= std::ssize(pieces) || pieces[id].empty()) continue;
    const auto& added = tokenizer.spec().added_tokens;
    // The spelling of other pieces is not that of their text.
    const bool is_added = std::ranges::any_of(
        added, [&](const AddedToken& token) { return token.content == pieces[id]; });
    if (is_added && std::ranges::count(texts, pieces[id]) == 0) texts.push_back(pieces[id]);
  }
  return texts;
}

std::string Modelfile(const std::filesystem::path& gguf, const std::vector<std::string>& stops,
                      std::int64_t context) {
  std::string text = fmt::format("FROM ./{}\n", gguf.filename().string());
  text += fmt::format("PARAMETER num_ctx {}\n", std::min(context, kMostContext));
  for (const std::string& stop : stops) text += fmt::format("PARAMETER stop {}\n", Quoted(stop));
  return text;
}

}  // namespace qlora
