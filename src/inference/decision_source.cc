#include "inference/decision_source.h"

#include <utility>

#include "base/check.h"
#include "base/text.h"
#include "io/gguf_path.h"

namespace qlora {
namespace {

// llama.cpp reads a number, or the text of one.
std::optional<double> NumberOf(const GgufValue& value) {
  if (const auto* number = std::get_if<float>(&value)) return *number;
  if (const auto* number = std::get_if<double>(&value)) return *number;
  const auto* text = std::get_if<std::string>(&value);
  return text == nullptr ? std::nullopt : ParseNumber<double>(*text);
}

}  // namespace

PromptLayout DecisionSource::layout() const {
  return {.kind = PromptLayout::Kind::kDecision,
          .format = RecordFormat::kDecision,
          .prompt_template = file.decision_template};
}

std::optional<DecisionSource> DecisionOfGguf(const GgufMetadata& metadata,
                                             const std::string& name) {
  const auto* architecture = GetGguf<std::string>(metadata, kGgufArchitecture, name);
  if (architecture == nullptr) return std::nullopt;
  const std::string type_key = *architecture + kDecisionTypeKey;
  const auto* type = GetGguf<std::string>(metadata, type_key, name);
  if (type == nullptr) return std::nullopt;
  if (*type != kDecisionType) {
    ThrowInvalidInput("{}: {}: expected {}, the kind of decision model that is supported, found {}",
                      name, type_key, kDecisionType, *type);
  }
  const auto* text = GetGguf<std::string>(metadata, kDecisionTemplateKey, name);
  if (text == nullptr) {
    ThrowInvalidInput("{}: {} is missing, the template of decision prompts", name,
                      kDecisionTemplateKey);
  }
  DecisionSource source;
  source.file.decision_template = *text;
  source.space = PromptSpace::kOfTokenizer;
  source.name = name;
  const std::string prefix = *architecture + kDecisionTemperatureKey;
  for (const GgufEntry& entry : metadata.entries()) {
    if (!entry.key.starts_with(prefix)) continue;
    const std::string key = entry.key.substr(prefix.size());
    const auto number = NumberOf(entry.value);
    // Names that llama.cpp does not read either are passed over.
    if (!IsTemperatureName(key) || !number) continue;
    source.file.temperatures.Set(key, *number, name);
  }
  return source;
}

std::optional<DecisionSource> FindDecisionSource(const std::filesystem::path& adapter,
                                                 const std::filesystem::path& model_dir) {
  for (const std::filesystem::path& folder : {adapter, model_dir}) {
    if (folder.empty() || !std::filesystem::is_directory(folder)) continue;
    if (auto file = ReadDecisionFile(folder)) {
      return DecisionSource{.file = *std::move(file), .name = (folder / kDecisionFile).string()};
    }
  }
  const auto gguf = FindGguf(model_dir);
  return gguf ? DecisionOfGguf(ReadGgufMetadata(*gguf), gguf->string()) : std::nullopt;
}

std::optional<DecisionSource> LoadDecisionSource(const std::filesystem::path& adapter,
                                                 const std::filesystem::path& model_dir,
                                                 const Tokenizer& tokenizer) {
  auto source = FindDecisionSource(adapter, model_dir);
  if (source && !source->file.labels.empty()) {
    CheckDecisionFile(source->file, DecisionTokenizer(tokenizer), source->name);
  }
  return source;
}

}  // namespace qlora
