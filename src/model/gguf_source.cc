#include "model/gguf_source.h"

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "gguf/gguf.h"
#include "io/gguf_path.h"

namespace qlora {
namespace {

std::string TextOf(const GgufReader& file, std::string_view key) {
  // A key of another type says nothing here, and is no reason to refuse the file.
  const GgufValue* value = file.values().Find(key);
  const auto* text = value == nullptr ? nullptr : std::get_if<std::string>(value);
  return text == nullptr ? "" : *text;
}

// "org/name" of "https://huggingface.co/org/name/" or of itself; "" for other texts, and for
// repositories of GGUF files, which hold no checkpoint.
std::string RepositoryIn(std::string text) {
  for (const std::string_view start : {"https://huggingface.co/", "https://hf.co/"}) {
    if (text.starts_with(start)) text.erase(0, start.size());
  }
  while (text.ends_with('/')) text.pop_back();
  const bool has_two_parts = std::ranges::count(text, '/') == 1 && !text.starts_with('/');
  const bool is_name = text.find_first_of(": \t\n") == std::string::npos;
  return has_two_parts && is_name && !LowerCase(text).ends_with("gguf") ? text : "";
}

}  // namespace

GgufSource GgufSourceOf(const GgufReader& file) {
  GgufSource source{TextOf(file, kGgufName), ""};
  for (const char* key : {"general.source.huggingface.repository", "general.source.repo_url",
                          "general.source.url", "general.repo_url"}) {
    source.repository = RepositoryIn(TextOf(file, key));
    if (!source.repository.empty()) return source;
  }
  // The base of a fine-tuned model is another model; of a model that was only converted, it is the
  // model itself, by the same name.
  if (TextOf(file, "general.base_model.0.name") == source.name && !source.name.empty()) {
    source.repository = RepositoryIn(TextOf(file, "general.base_model.0.repo_url"));
  }
  return source;
}

GgufSource AdapterBaseOf(const GgufReader& file) {
  return {TextOf(file, "general.base_model.0.name"),
          RepositoryIn(TextOf(file, "general.base_model.0.repo_url"))};
}

GgufSource AdapterBaseOf(const std::filesystem::path& file) {
  return AdapterBaseOf(*OpenGguf(file));
}

std::string BaseNameOf(const std::string& model_name_or_path) {
  const auto path = FindGguf(model_name_or_path);
  if (!path) return model_name_or_path;
  const std::string repository = GgufSourceOf(*OpenGguf(*path)).repository;
  return repository.empty() ? model_name_or_path : repository;
}

}  // namespace qlora
