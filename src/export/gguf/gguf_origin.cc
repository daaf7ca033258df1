#include "export/gguf/gguf_origin.h"

#include "base/check.h"
#include "base/file.h"
#include "convert/model_card.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

constexpr const char* kHub = "https://huggingface.co/";

// Copies what a GGUF file says of itself.
void CopyOrigin(const fs::path& model, bool with_bases, GgufMetadata& out) {
  const GgufMetadata source = ReadGgufMetadata(model);
  for (const GgufEntry& entry : source.entries()) {
    const std::string_view key = entry.key;
    if (key.starts_with("general.license") ||
        (with_bases && key.starts_with("general.base_model.")) || key == "general.tags" ||
        key == "general.languages" || key == "general.author" || key == "general.organization") {
      out.Add(entry.key, entry.value);
    }
  }
}

std::string CardOf(const fs::path& model) {
  try {
    return ReadTextFile(model / "README.md");
  } catch (const Error&) {  // there is none
    return "";
  }
}

// Adds base model i by "org/name" or a name.
void AddBase(int i, const std::string& name, GgufMetadata& out) {
  const std::string prefix = fmt::format("general.base_model.{}.", i);
  const std::size_t slash = name.find('/');
  out.Add(prefix + "name", name.substr(slash == name.npos ? 0 : slash + 1));
  if (slash == name.npos) return;
  out.Add(prefix + "organization", name.substr(0, slash));
  out.Add(prefix + "repo_url", kHub + name);
}

}  // namespace

void AddOrigin(const fs::path& model, bool with_bases, GgufMetadata& out) {
  if (!fs::is_directory(model)) return CopyOrigin(model, with_bases, out);
  const auto card = ReadModelCard(CardOf(model));
  const auto values = [&](const char* key) {
    const auto found = card.find(key);
    return found == card.end() ? std::vector<std::string>{} : found->second;
  };
  const auto text = [&](const char* key, const char* gguf) {
    const std::vector<std::string> found = values(key);
    if (!found.empty()) out.Add(gguf, found.front());
  };
  text("license", "general.license");
  text("license_name", "general.license.name");
  text("license_link", "general.license.link");
  const auto list = [&](const char* key, const char* gguf) {
    const std::vector<std::string> found = values(key);
    if (!found.empty()) out.Add(gguf, GgufArray(found));
  };
  list("tags", "general.tags");
  list("language", "general.languages");
  const std::vector<std::string> bases = values("base_model");
  if (bases.empty() || !with_bases) return;
  out.Add("general.base_model.count", static_cast<std::uint32_t>(bases.size()));
  for (std::size_t i = 0; i < bases.size(); ++i) AddBase(static_cast<int>(i), bases[i], out);
}

void AddBaseModel(const std::string& name, const std::string& repository, GgufMetadata& out) {
  out.Add("general.base_model.count", std::uint32_t{1});
  out.Add("general.base_model.0.name", name);
  const std::size_t slash = repository.find('/');
  if (slash == std::string::npos) return;
  out.Add("general.base_model.0.organization", repository.substr(0, slash));
  out.Add("general.base_model.0.repo_url", kHub + repository);
}

void AddQuantizer(const GgufFileType& file, const ImportanceMatrix* importance,
                  const std::string& importance_file, GgufMetadata& out) {
  if (!file.base.is_blocks()) return;
  out.Add("general.quantized_by", std::string("qlora.cpp"));
  if (importance != nullptr) AddImportance(*importance, importance_file, out);
}

void AddImportance(const ImportanceMatrix& importance, const std::string& file, GgufMetadata& out) {
  const std::string prefix = kImportanceKeys;
  // Names alone: folders of the machine are private.
  out.Add(prefix + "file", fs::path(file).filename().string());
  out.Add(prefix + "dataset", importance.dataset);
  out.Add(prefix + "entries_count", static_cast<std::uint32_t>(importance.entries.size()));
  if (importance.chunks > 0) {
    out.Add(prefix + "chunks_count", static_cast<std::uint32_t>(importance.chunks));
  }
}

}  // namespace qlora
