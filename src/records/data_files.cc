#include "records/data_files.h"

#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "hub/hub_cache.h"
#include "records/file_format.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

template <typename List>
bool IsIn(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

bool IsDataFile(const fs::path& path) {
  return HasDataExtension(path) && !path.filename().string().starts_with('.');  // hidden
}

std::vector<fs::path> DataFilesIn(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    if (IsDataFile(entry.path()) && entry.is_regular_file(error)) files.push_back(entry.path());
  }
  // Folders list files in no order, and samples follow the order of the files.
  std::sort(files.begin(), files.end());
  if (files.empty()) {
    ThrowInvalidInput("{}: the folder holds no data file ({}); folders inside it are not searched",
                      folder.string(), fmt::join(kDataExtensions, ", "));
  }
  return files;
}

std::vector<fs::path> FilesThatMatch(const fs::path& pattern) {
  glob_t found = {};
  // glob sorts its matches.
  const int result = glob(pattern.c_str(), 0, nullptr, &found);
  std::vector<fs::path> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
  if (result != 0 || files.empty()) {
    ThrowInvalidInput("{}: no data file matches this pattern", pattern.string());
  }
  return files;
}

// True when a word of the path names a part of a data set that is not for training, such as
// "data/test-00000-of-00001.parquet". The words come from Hugging Face's library `datasets`.
bool IsHeldOut(const fs::path& path) {
  constexpr auto kHeldOut = std::to_array<std::string_view>(
      {"test", "testing", "eval", "evaluation", "validation", "valid", "dev", "val"});
  std::string word;
  // The slash ends the last word. Digits end words too: "test-00000" is held out, "latest" is not.
  for (const char c : path.string() + "/") {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (IsIn(kHeldOut, std::exchange(word, ""))) {
      return true;
    }
  }
  return false;
}

// Returns the data files of a snapshot that are for training, by the pattern that finds them: the
// folder and the extension. Descriptions of the data set are not data.
std::map<std::string, std::vector<fs::path>> TrainingFiles(const fs::path& snapshot) {
  constexpr auto kDescriptions =
      std::to_array<std::string_view>({"dataset_info.json", "dataset_infos.json"});
  std::map<std::string, std::vector<fs::path>> files;
  for (const auto& entry : fs::recursive_directory_iterator(snapshot)) {
    const fs::path& path = entry.path();
    if (entry.is_directory() || !IsDataFile(path)) continue;
    if (IsIn(kDescriptions, path.filename().string())) continue;
    if (IsHeldOut(path.lexically_relative(snapshot))) continue;
    files[(path.parent_path() / ("*" + path.extension().string())).string()].push_back(path);
  }
  return files;
}

// Several patterns mean several subsets of the data, or the same data in several formats: only the
// user can choose.
std::vector<fs::path> FilesOfHub(const HubRepository& repository, const fs::path& name) {
  const std::string command = "qlora pull --dataset " + name.string();
  const std::optional<fs::path> snapshot = CachedSnapshot(repository);
  if (!snapshot) {
    ThrowInvalidInput(
        "{}: neither a file nor a data set in the Hugging Face cache ({}). To download it: {}",
        name.string(), repository.Folder().string(), command);
  }
  std::map<std::string, std::vector<fs::path>> found = TrainingFiles(*snapshot);
  if (found.empty()) {
    ThrowInvalidInput("{}: {} has no data files for training. To complete it: {}", name.string(),
                      snapshot->string(), command);
  }
  if (found.size() > 1) {
    std::vector<std::string> patterns;
    for (const auto& [pattern, files] : found) patterns.push_back("'" + pattern + "'");
    ThrowInvalidInput(
        "{}: the data set has several kinds of training files; name one: --dataset {}",
        name.string(), fmt::join(patterns, " or --dataset "));
  }
  std::vector<fs::path>& files = found.begin()->second;
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    if (fs::exists(file)) continue;
    ThrowInvalidInput("{}: the file behind the link {} is gone. To download it again: {}",
                      name.string(), file.string(), command);
  }
  return std::move(files);
}

}  // namespace

std::vector<fs::path> FindDataFiles(const fs::path& name) {
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) return DataFilesIn(name);
  // Before patterns: a file whose name holds * or [ can be named.
  if (fs::exists(name, ignored)) return {name};
  if (name.string().find_first_of("*?[") != std::string::npos) return FilesThatMatch(name);
  const std::optional<HubRepository> repository = AsHubDataset(name.string());
  if (repository && !IsDataFile(name)) return FilesOfHub(*repository, name);
  // Nothing was found: opening the name throws the error, with similar names.
  return {name};
}

}  // namespace qlora
