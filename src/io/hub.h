// Finds a model directory: a path, or org/name in the local Hugging Face cache. Never downloads.
#ifndef QLORA_IO_HUB_H_
#define QLORA_IO_HUB_H_

#include <filesystem>
#include <string>
#include <vector>

namespace qlora {

// The cache of huggingface_hub: HF_HUB_CACHE, else HF_HOME/hub, else XDG_CACHE_HOME (or ~/.cache)
// /huggingface/hub. Layout: https://huggingface.co/docs/hub/local-cache
std::filesystem::path HubCacheDir();

// "org/name" of every model in the cache.
std::vector<std::string> CachedModels();

// name: a directory, or org/name[@revision]. A directory of that name wins. Errors: InvalidInput
// that says what was looked for and how to get it.
std::filesystem::path ResolveModelDir(const std::string& name);

// As ResolveModelDir, but a folder with a tokenizer.json alone will do.
std::filesystem::path ResolveTokenizerDir(const std::string& name);

}  // namespace qlora

#endif  // QLORA_IO_HUB_H_
