#include "io/hub.h"

#include <algorithm>
#include <cstdlib>

#include "base/check.h"
#include "base/file.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool IsModelDir(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(dir / "config.json", ignored);
}

// "org/name" -> "models--org--name".
std::string CacheFolder(const std::string& repo) {
  std::string folder = "models--" + repo;
  const std::size_t slash = folder.find('/');
  return folder.replace(slash, 1, "--");
}

std::string Trim(std::string text) {
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back()))) text.pop_back();
  return text;
}

}  // namespace

fs::path HubCacheDir() {
  if (const std::string cache = Environment("HF_HUB_CACHE"); !cache.empty()) return cache;
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return fs::path(home) / "hub";
  std::string cache = Environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = Environment("HOME") + "/.cache";
  return fs::path(cache) / "huggingface" / "hub";
}

std::vector<std::string> CachedModels() {
  std::vector<std::string> models;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(HubCacheDir(), ignored)) {
    std::string name = entry.path().filename().string();
    if (name.rfind("models--", 0) != 0) continue;
    name.erase(0, 8);
    const std::size_t dashes = name.find("--");
    if (dashes != std::string::npos) name.replace(dashes, 2, "/");
    models.push_back(name);
  }
  std::sort(models.begin(), models.end());
  return models;
}

fs::path ResolveModelDir(const std::string& name) {
  std::error_code ignored;
  if (name.empty()) {
    ThrowInvalidInput("no model given: set model_name_or_path to a Hugging Face directory");
  }
  if (fs::is_directory(name, ignored)) {
    if (IsModelDir(name)) return name;
    ThrowInvalidInput("{}: no config.json in this directory; expected a Hugging Face model", name);
  }
  if (fs::exists(name, ignored)) {
    const bool gguf = fs::path(name).extension() == ".gguf";
    ThrowInvalidInput("{}: expected a Hugging Face model directory, found a file{}", name,
                      gguf
                          ? "; GGUF files are written, not read: give the checkpoint that the file "
                            "was made from"
                          : "");
  }
  const std::size_t at = name.find('@');
  const std::string repo = name.substr(0, at);
  const std::string revision =
      at == std::string::npos || at + 1 == name.size() ? "main" : name.substr(at + 1);
  const bool is_repo = std::count(repo.begin(), repo.end(), '/') == 1 && repo.front() != '/' &&
                       repo.front() != '.' && repo.back() != '/';
  if (!is_repo) ThrowInvalidInput("{}: no such model directory", name);

  const fs::path folder = HubCacheDir() / CacheFolder(repo);
  std::string commit = revision;
  if (const fs::path ref = folder / "refs" / revision; fs::is_regular_file(ref, ignored)) {
    commit = Trim(ReadTextFile(ref));
    if (commit.empty() || commit.front() == '.' || commit.find('/') != std::string::npos) {
      ThrowInvalidInput("{}: expected a commit, found '{}'; download the model again", ref.string(),
                        commit.substr(0, 80));
    }
  }
  const fs::path snapshot = folder / "snapshots" / commit;
  if (IsModelDir(snapshot)) return snapshot;
  ThrowInvalidInput(
      "{}: neither a directory nor in the Hugging Face cache ({}). To download it: "
      "hf download {} --revision {}",
      name, folder.string(), repo, revision);
}

fs::path ResolveTokenizerDir(const std::string& name) {
  std::error_code ignored;
  return fs::exists(fs::path(name) / "tokenizer.json", ignored) ? fs::path(name)
                                                                : ResolveModelDir(name);
}

}  // namespace qlora
