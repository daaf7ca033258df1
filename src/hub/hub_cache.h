// The Hugging Face cache on this machine: its place and its content. All verbs read the cache; only
// `qlora pull` (pull/pull.h) downloads into it. known_models.h is a table of shapes and
// repositories, so that runs can be planned before anything is downloaded. Layout of the cache:
// https://huggingface.co/docs/hub/local-cache
#ifndef QLORA_HUB_HUB_CACHE_H_
#define QLORA_HUB_HUB_CACHE_H_

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace qlora {

enum class HubType : std::uint8_t { kModel, kDataset };

// A repository of a hub at one revision.
struct HubRepository {
  HubType type = HubType::kModel;
  std::string name;               // "org/name", or "name" alone for some old ones
  std::string revision = "main";  // a branch, a tag, a commit, "refs/pr/1"

  // Returns the folder in the cache, which holds blobs, refs and snapshots.
  std::filesystem::path Folder() const;
};

// Parses "org/name[@revision]". Errors: InvalidInput for a name or revision that no repository has,
// such as one with "..".
HubRepository ParseHubRepository(const std::string& text, HubType type = HubType::kModel);

// Returns the data set that `text` names if it is org/name[@revision]; nothing for other texts.
std::optional<HubRepository> AsHubDataset(const std::string& text);

// Returns the files of a repository in the cache; nothing where the cache does not have them.
// Errors: InvalidInput for a damaged cache.
std::optional<std::filesystem::path> CachedSnapshot(const HubRepository& repository);

// Returns HF_HOME, or XDG_CACHE_HOME (or ~/.cache) /huggingface.
std::filesystem::path HubHome();
// Returns HF_HUB_CACHE, or HUGGINGFACE_HUB_CACHE, or HubHome()/hub.
std::filesystem::path HubCacheDir();
// Replaces "~" at the beginning and "$NAME", as Python expands the variables that name folders.
std::filesystem::path ExpandPath(const std::string& text);

// Returns "org/name" of every model in the cache that has a snapshot.
std::vector<std::string> CachedModels();

// Returns the folder of a model, or its GGUF file. name: a directory, a GGUF file, or
// org/name[@revision] in the cache; a directory may hold one GGUF model in the place of a Hugging
// Face one (FindGguf). A directory of that name wins. Errors: InvalidInput that names the search,
// the missing files, and the command that gets them.
std::filesystem::path ResolveModelDir(const std::string& name);

// Resolves as ResolveModelDir, but accepts a folder with a tokenizer.json alone, and a GGUF file.
std::filesystem::path ResolveTokenizerDir(const std::string& name);

}  // namespace qlora

#endif  // QLORA_HUB_HUB_CACHE_H_
