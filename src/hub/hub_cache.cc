#include "hub/hub_cache.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

#include "base/check.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/spelling.h"
#include "base/text.h"
#include "hub/known_models.h"
#include "io/gguf_path.h"
#include "io/safetensors.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

bool IsModelDir(const fs::path& dir) { return Exists(dir / "config.json"); }

bool IsNameCharacter(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
         std::string_view("-_.").find(c) != std::string_view::npos;
}

// True for "org" or "name": of letters, digits and "-_.", as the hub allows them.
bool IsHubName(std::string_view text) {
  constexpr std::size_t kMaxNameCharacters = 96;
  // The rules of huggingface_hub's validate_repo_id. "--" replaces the slash in names of the
  // cache, so a name that holds it could be taken for another repository.
  constexpr std::string_view kInside = "-.";
  return !text.empty() && text.size() <= kMaxNameCharacters &&
         std::ranges::all_of(text, IsNameCharacter) &&
         kInside.find(text.front()) == std::string_view::npos &&
         kInside.find(text.back()) == std::string_view::npos &&
         text.find("..") == std::string_view::npos && text.find("--") == std::string_view::npos;
}

// True for a branch such as "feature/x": names between slashes.
bool IsRevision(std::string_view text) {
  constexpr std::size_t kMaxRevisionBytes = 255;
  if (text.size() > kMaxRevisionBytes) return false;
  while (true) {
    const std::size_t slash = text.find('/');
    const std::string_view name = text.substr(0, slash);
    const bool plain = std::ranges::all_of(
        name, [](unsigned char c) { return c > 0x20 && c < 0x7F && c != '\\' && c != ':'; });
    // A revision becomes part of a path: without the check, "../../x" would leave the cache.
    if (name.empty() || name.front() == '.' || !plain || name.find("..") != name.npos) return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

bool IsHubRepository(std::string_view name) {
  const std::size_t slash = name.find('/');
  if (slash == std::string_view::npos) return IsHubName(name);
  return IsHubName(name.substr(0, slash)) && IsHubName(name.substr(slash + 1));
}

std::string PullCommand(const HubRepository& repository) {
  return fmt::format("qlora pull {}{}{}", repository.type == HubType::kDataset ? "--dataset " : "",
                     repository.name,
                     repository.revision == "main" ? "" : "@" + repository.revision);
}

// Returns the folder of the files of a cached revision, which may not exist.
fs::path SnapshotOf(const HubRepository& repository) {
  const fs::path folder = repository.Folder();
  // models--org--name/refs/main                  the text of a commit
  // models--org--name/snapshots/<commit>/...     links to blobs
  // A revision that is not a ref is a commit itself.
  const fs::path ref = folder / "refs" / repository.revision;
  std::error_code ignored;
  if (!fs::is_regular_file(ref, ignored)) return folder / "snapshots" / repository.revision;
  const std::string commit(TrimEnd(ReadTextFile(ref)));
  // The file of another program decides a path: its text is checked like a user's.
  if (commit.empty() || commit.front() == '.' || commit.find('/') != std::string::npos) {
    ThrowInvalidInput("{}: expected a commit, found '{}'. To download the repository again: {}",
                      ref.string(), commit.substr(0, 80), PullCommand(repository));
  }
  return folder / "snapshots" / commit;
}

// Suggests models for a path without a model: a near name, or the models of its folder.
std::string SuggestModel(const fs::path& path) {
  if (const std::string near = SuggestPath(path); !near.empty()) return near;
  constexpr std::size_t kMost = 4;
  const fs::path folder = path.has_parent_path() ? path.parent_path() : ".";
  std::vector<std::string> models;
  std::error_code ignored;
  for (fs::directory_iterator at(folder, ignored), end; at != end; at.increment(ignored)) {
    if (IsModelDir(at->path())) models.push_back(at->path().filename().string());
  }
  std::ranges::sort(models);
  if (models.size() > kMost) models.resize(kMost);
  return models.empty()
             ? ""
             : fmt::format("; models in {}: {}", folder.string(), fmt::join(models, ", "));
}

// Returns the snapshot of a name that is not a directory.
fs::path FindSnapshot(const std::string& name) {
  const bool is_name = IsHubRepository(name.substr(0, name.find('@')));
  if (!is_name) ThrowInvalidInput("{}: no such model directory{}", name, SuggestModel(name));
  // No repository to download, but a file that is mistyped or not written yet.
  if (name.ends_with(".gguf") && name.find('/') == std::string::npos) {
    ThrowInvalidInput("{}: no such file{}", name, SuggestPath(name));
  }
  const HubRepository repository = ParseHubRepository(name);
  if (const auto snapshot = CachedSnapshot(repository)) return *snapshot;
  const bool has_org = repository.name.find('/') != std::string::npos;
  const std::string advice = SuggestPath(name);  // ends with a question mark
  std::error_code ignored;
  // A name in a folder that is here is a mistyped path, and none is downloaded.
  if (has_org && fs::is_directory(fs::path(name).parent_path(), ignored)) {
    if (const std::string local = SuggestModel(name); !local.empty()) {
      ThrowInvalidInput("{}: no such model directory, nor a repository in the Hugging Face cache{}",
                        name, local);
    }
  }
  // For a name without organisation, the repository of a known model is proposed: Llama-3.1-8B
  // becomes meta-llama/Llama-3.1-8B. Nothing tells the organisation of another one.
  HubRepository download = repository;
  const std::string known = has_org ? "" : KnownRepository(repository.name);
  // A name of a family, or a misspelt one, is that of no repository.
  const std::vector<std::string> near =
      has_org || !known.empty() ? std::vector<std::string>{} : NearKnownModels(repository.name);
  if (!known.empty()) download.name = known;
  if (!near.empty()) download.name = KnownRepository(near.front());
  if (!has_org && known.empty() && near.empty()) download.name = "ORG/" + repository.name;
  ThrowInvalidInput(
      "{}: {} nor in the Hugging Face cache ({}){}{} To download {}: {}", name,
      has_org ? "neither a directory" : "no such model directory, neither here",
      repository.Folder().string(), advice.empty() ? "." : advice,
      near.empty() ? "" : fmt::format(" Models of such names: {}.", fmt::join(near, ", ")),
      near.empty() ? "it" : near.front(), PullCommand(download));
}

// Refuses a folder that may not be read: whether it holds a model cannot be found out.
void CheckMayBeRead(const fs::path& folder) {
  std::error_code error;
  const bool found = fs::exists(folder / "config.json", error);
  if (!found && error == std::errc::permission_denied) {
    ThrowInvalidInput("{}: no permission to read this folder", folder.string());
  }
}

// Refuses a repository of the cache, whose models are in folders of it, with what to write.
void CheckIsNoRepository(const fs::path& folder) {
  constexpr std::string_view kModels = "models--";
  std::error_code ignored;
  std::string name = (folder / "").lexically_normal().parent_path().filename().string();
  if (!name.starts_with(kModels) || !fs::is_directory(folder / "snapshots", ignored)) return;
  name = ReplaceAll(name.substr(kModels.size()), "--", "/");
  ThrowInvalidInput(
      "{}: this is a repository of the Hugging Face cache; write {} (with HF_HUB_CACHE={} where "
      "that is not the cache already), or a folder in {}",
      folder.string(), name, (folder / "").lexically_normal().parent_path().parent_path().string(),
      (folder / "snapshots").string());
}

// Refuses a snapshot of which a cleaning tool removed a blob.
void CheckLinks(const fs::path& snapshot, const std::string& name) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(snapshot, ignored)) {
    // Snapshots are links into blobs/, which cleaning tools remove one by one.
    if (entry.is_symlink(ignored) && !fs::exists(entry.path(), ignored)) {
      ThrowInvalidInput("{}: the file behind the link {} is gone. To download it again: {}", name,
                        entry.path().string(), PullCommand(ParseHubRepository(name)));
    }
  }
}

// Refuses a snapshot that a broken download left without its files.
void CheckSnapshot(const fs::path& snapshot, const std::string& name) {
  if (!IsModelDir(snapshot) && Exists(snapshot / "adapter_config.json")) {
    ThrowInvalidInput("{0}: is an adapter, not a model: give its model here, and {0} as --adapter",
                      name);
  }
  // A snapshot of single files (a tokenizer alone, say) is a directory, but not a model.
  if (!HoldsModel(snapshot)) {
    ThrowInvalidInput("{}: {} has no config.json or no safetensors weights. To complete it: {}",
                      name, snapshot.string(), PullCommand(ParseHubRepository(name)));
  }
}

}  // namespace

fs::path HubRepository::Folder() const {
  std::string folder = type == HubType::kModel ? "models--" : "datasets--";
  for (const char c : name) folder += c == '/' ? std::string("--") : std::string(1, c);
  return HubCacheDir() / folder;
}

HubRepository ParseHubRepository(const std::string& text, HubType type) {
  const std::size_t at = text.find('@');
  HubRepository repository{.type = type, .name = text.substr(0, at)};
  if (at != std::string::npos && at + 1 < text.size()) repository.revision = text.substr(at + 1);
  if (!IsHubRepository(repository.name)) {
    ThrowInvalidInput("'{}': expected the name of a repository, org/name or org/name@revision",
                      text);
  }
  if (!IsRevision(repository.revision)) {
    ThrowInvalidInput("'{}': no branch, tag or commit has such a name", text);
  }
  return repository;
}

std::optional<HubRepository> AsHubDataset(const std::string& text) {
  const std::size_t at = text.find('@');
  const std::string name = text.substr(0, at);
  // Names without an organisation are too likely to be a mistyped file.
  const bool has_org = name.find('/') != std::string::npos;
  const bool has_revision = at == std::string::npos || IsRevision(text.substr(at + 1));
  if (!has_org || !has_revision || !IsHubRepository(name)) return {};
  return ParseHubRepository(text, HubType::kDataset);
}

fs::path ExpandPath(const std::string& text) {
  // huggingface_hub expands ~ and variables in these paths, so the same happens here.
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '~' && i == 0 && (text.size() == 1 || text[1] == '/')) {
      // Variables are expanded here because configuration files reach the program without a shell.
      out += Environment("HOME");
    } else if (text[i] == '$') {
      const bool braced = i + 1 < text.size() && text[i + 1] == '{';
      const std::size_t begin = i + 1 + braced;
      const auto end =
          std::find_if_not(text.begin() + static_cast<std::ptrdiff_t>(begin), text.end(),
                           [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; });
      const std::string name(text.begin() + static_cast<std::ptrdiff_t>(begin), end);
      out += Environment(name.c_str());
      i = begin + name.size() - 1 + braced;
    } else {
      out += text[i];
    }
  }
  return out;
}

fs::path HubHome() {
  // The order of huggingface_hub, so that both find the same downloads.
  if (const std::string home = Environment("HF_HOME"); !home.empty()) return ExpandPath(home);
  const std::string cache = Environment("XDG_CACHE_HOME");
  return ExpandPath(cache.empty() ? "~/.cache" : cache) / "huggingface";
}

fs::path HubCacheDir() {
  // The second is the former name, which huggingface_hub still reads.
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"}) {
    if (const std::string cache = Environment(name); !cache.empty()) return ExpandPath(cache);
  }
  return HubHome() / "hub";
}

std::optional<fs::path> CachedSnapshot(const HubRepository& repository) {
  const fs::path snapshot = SnapshotOf(repository);
  std::error_code ignored;
  if (!fs::is_directory(snapshot, ignored)) return {};
  return snapshot;
}

std::vector<std::string> CachedModels() {
  std::vector<std::string> models;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(HubCacheDir(), ignored)) {
    std::string name = entry.path().filename().string();
    if (name.rfind("models--", 0) != 0) continue;
    const fs::directory_iterator snapshots(entry.path() / "snapshots", ignored);
    // A pull that was stopped leaves a repository whose snapshots lack config.json.
    if (std::none_of(begin(snapshots), end(snapshots),
                     [](const auto& snapshot) { return IsModelDir(snapshot.path()); })) {
      continue;
    }
    name.erase(0, 8);
    const std::size_t dashes = name.find("--");
    if (dashes != std::string::npos) name.replace(dashes, 2, "/");
    models.push_back(name);
  }
  std::ranges::sort(models);
  return models;
}

fs::path ResolveModelDir(const std::string& name) {
  std::error_code ignored;
  if (name.empty()) {
    ThrowInvalidInput("no model given: set model_name_or_path to a Hugging Face directory");
  }
  // A folder wins over a repository of the same name, as in transformers.
  CheckMayBeRead(name);
  if (fs::is_directory(name, ignored)) {
    if (IsModelDir(name)) return name;
    if (const std::optional<fs::path> gguf = FindGguf(name)) return *gguf;
    CheckIsNoRepository(name);
    ThrowInvalidInput(
        "{}: no config.json in this directory, and no GGUF file; expected a Hugging Face model{}",
        name,
        fs::exists(fs::path(name) / "adapter_config.json", ignored)
            ? ", found an adapter: give its model here, and the folder as --adapter"
            : "");
  }
  if (fs::exists(name, ignored)) {
    if (const std::optional<fs::path> gguf = FindGguf(name)) return *gguf;
    ThrowInvalidInput("{}: expected a Hugging Face model directory or a GGUF file, found a file",
                      name);
  }
  const fs::path snapshot = FindSnapshot(name);
  CheckLinks(snapshot, name);
  if (const std::optional<fs::path> gguf = FindGguf(snapshot)) return *gguf;
  CheckSnapshot(snapshot, name);
  return snapshot;
}

fs::path ResolveTokenizerDir(const std::string& name) {
  std::error_code ignored;
  // A folder with a tokenizer alone is enough here; a model is not asked for.
  if (fs::exists(fs::path(name) / "tokenizer.json", ignored)) return name;
  // A GGUF file holds its tokenizer.
  if (fs::path(name).extension() == ".gguf" && fs::is_regular_file(name, ignored)) return name;
  if (!name.empty() && !fs::exists(name, ignored)) {
    const fs::path snapshot = FindSnapshot(name);
    if (fs::exists(snapshot / "tokenizer.json", ignored)) return snapshot;
  }
  return ResolveModelDir(name);
}

}  // namespace qlora
