#include "hub/hub_adapter.h"

#include <fmt/ranges.h>

#include <filesystem>

#include "base/check.h"
#include "base/spelling.h"
#include "hub/hub_cache.h"

namespace qlora {

namespace fs = std::filesystem;

std::string ResolveAdapterDir(const std::string& name) {
  std::error_code ignored;
  if (name.empty() || fs::exists(name, ignored)) return name;
  // Of the form org/name; other texts are paths, whose reader says what is missing.
  if (!AsHubDataset(name)) return name;
  const HubRepository repository = ParseHubRepository(name);
  const std::string revision = repository.revision == "main" ? "" : "@" + repository.revision;
  const auto snapshot = CachedSnapshot(repository);
  if (!snapshot) {
    ThrowInvalidInput(
        "{}: neither an adapter folder nor in the Hugging Face cache ({}){} To download it: qlora "
        "pull {}{}",
        name, repository.Folder().string(), SuggestPath(name).empty() ? "." : SuggestPath(name),
        repository.name, revision);
  }
  if (!fs::exists(*snapshot / "adapter_config.json", ignored)) {
    ThrowInvalidInput(
        "{}: {} has no adapter_config.json; it is not an adapter of PEFT, or its download is not "
        "complete: qlora pull {}{}",
        name, snapshot->string(), repository.name, revision);
  }
  return snapshot->string();
}

AdapterSet ResolveAdapters(const std::vector<std::string>& names, std::int64_t rank) {
  if (rank < 0) ThrowInvalidInput("adapter_rank must not be negative, found {}", rank);
  AdapterSet adapters;
  adapters.rank = rank;
  for (const std::string& name : names) {
    if (name.empty()) continue;
    AdapterSource source = ParseAdapterSource(name);
    source.path = ResolveAdapterDir(source.path);
    // A word behind the list of a command line is of the list, too.
    std::error_code ignored;
    if (names.size() > 1 && !fs::exists(source.path, ignored)) {
      ThrowInvalidInput("{}: there is no such adapter folder{}; the adapters were given as: {}",
                        source.path, SuggestPath(source.path), fmt::join(names, ", "));
    }
    adapters.sources.push_back(std::move(source));
  }
  if (rank > 0 && adapters.empty()) ThrowInvalidInput("adapter_rank needs an adapter");
  return adapters;
}

}  // namespace qlora
