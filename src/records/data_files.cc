#include "records/data_files.h"

#include <fmt/ranges.h>
#include <glob.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/check.h"
#include "hub/hub_cache.h"
#include "records/data_roles.h"
#include "records/file_format.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

bool IsHidden(const fs::path& path) { return path.filename().string().starts_with('.'); }

// Lists the files of a folder and of the folders in it, `depth` levels deep; hidden ones are none.
// Links to folders are not followed: they lead out of the folder that the user named, or into it
// once more. What is not listed for data has a reason.
void ListFiles(const fs::path& root, const fs::path& folder, int depth,
               std::vector<FoundFile>& files) {
  std::error_code error;
  const auto add = [&](const fs::path& path, std::string_view reason) {
    files.push_back({path, path.lexically_relative(root), reason});
  };
  for (const auto& entry : fs::directory_iterator(folder, error)) {
    const fs::path& path = entry.path();
    std::error_code ignored;
    if (IsHidden(path)) continue;
    if (entry.is_directory(ignored)) {
      if (entry.is_symlink(ignored)) {
        add(path, "a link to a folder");
      } else if (depth == 0) {
        add(path, "a folder");
      } else {
        ListFiles(root, path, depth - 1, files);
      }
    } else {
      // A link to nothing is listed: reading it is an error, leaving it out would be silent.
      const bool is_file = entry.is_regular_file(ignored) || !entry.exists(ignored);
      add(path, is_file ? "" : "not a regular file");
    }
  }
  if (error) add(folder, "cannot be opened");
}

// The levels of folders that data sets of the hub have, and a little more.
constexpr int kDepth = 4;

// Folders list files in no order, and samples follow the order of the files.
void Sort(std::vector<FoundFile>& files) {
  std::ranges::sort(files, [](const FoundFile& a, const FoundFile& b) { return a.path < b.path; });
}

bool HasData(const std::vector<FoundFile>& files) {
  return std::ranges::any_of(files, [](const FoundFile& file) {
    return file.reason.empty() && HasDataExtension(file.path);
  });
}

// The files for the purpose, by their roles. pattern: the part of the user's pattern in which names
// of files differ, or "".
DataFiles Divide(std::vector<FoundFile> found, const DataSearch& search, std::string_view pattern) {
  Sort(found);
  FindReasons(found, search.all_as_text);
  std::map<FileRole, std::vector<FoundFile>> of;
  DataFiles result;
  for (FoundFile& file : found) {
    if (file.reason.empty()) {
      of[RoleOf(file.name, pattern)].push_back(std::move(file));
    } else {
      result.left_out.push_back({file.name.string(), file.reason});
    }
  }
  const bool trains = search.purpose == DataPurpose::kTraining;
  FileRole taken = FileRole::kTraining;
  if (!trains && !of[FileRole::kTest].empty()) taken = FileRole::kTest;
  if (!trains && !of[FileRole::kEvaluation].empty()) taken = FileRole::kEvaluation;
  // The pattern matches held-out files alone: they are meant.
  const bool all = trains && !pattern.empty() && of[FileRole::kTraining].empty();
  for (const auto& [role, files] : of) {
    for (const FoundFile& file : files) {
      if (role == taken || all) {
        result.files.push_back(file.path);
        const bool is_held_out = trains && RoleOf(file.name) != FileRole::kTraining;
        if (is_held_out) result.named.push_back(file.name.string());
      } else if (trains && role == FileRole::kEvaluation) {
        result.evaluation.push_back(file.path);
      } else {
        constexpr std::string_view kReasons[] = {"training data", "evaluation data", "test data"};
        result.left_out.push_back({file.name.string(), kReasons[static_cast<int>(role)]});
      }
    }
  }
  return result;
}

// Notes a folder whose own name is the word for held-out data. (A folder "dev" is as often one for
// development.)
void NoteFolder(const fs::path& folder, DataFiles& found) {
  const fs::path path = folder.has_filename() ? folder.filename() : folder.parent_path().filename();
  const std::string name = path.string();
  const bool is_word =
      std::ranges::all_of(name, [](unsigned char c) { return std::isalpha(c) != 0; });
  if (is_word && name != "dev" && RoleOf(path) != FileRole::kTraining) found.named.push_back(name);
}

// Several patterns mean several subsets of the data, or the same data in several formats: only the
// user can choose.
void RefuseSeveralKinds(const fs::path& name, const std::vector<fs::path>& files) {
  std::set<std::string> patterns;
  for (const fs::path& path : files) {
    patterns.insert("'" + (path.parent_path() / ("*" + path.extension().string())).string() + "'");
  }
  if (patterns.size() <= 1) return;
  ThrowInvalidInput("{}: the data set has several kinds of training files; name one: --dataset {}",
                    name.string(), fmt::join(patterns, " or --dataset "));
}

DataFiles FilesIn(const fs::path& folder, const DataSearch& search) {
  std::vector<FoundFile> listed;
  ListFiles(folder, folder, 0, listed);
  const bool is_flat = HasData(listed);
  if (!is_flat) {
    listed.clear();
    ListFiles(folder, folder, kDepth, listed);
  }
  if (!HasData(listed)) {
    Sort(listed);
    const auto other =
        std::ranges::find_if(listed, [](const FoundFile& file) { return !file.reason.empty(); });
    ThrowInvalidInput("{}: the folder holds no data file ({}; also .gz and .zst of these){}",
                      folder.string(), fmt::join(kDataExtensions, ", "),
                      other == listed.end() ? ""
                                            : fmt::format("; not read: {} ({})",
                                                          other->name.string(), other->reason));
  }
  DataFiles found = Divide(std::move(listed), search, "");
  if (found.files.empty()) {
    ThrowInvalidInput(
        "{}: the folder holds no training data: the names of its files say that they are held out "
        "for evaluation or tests; to train on them, name the files",
        folder.string());
  }
  if (!is_flat) RefuseSeveralKinds(folder, found.files);
  if (search.purpose == DataPurpose::kTraining) NoteFolder(folder, found);
  return found;
}

// Returns the folders of a pattern before its first part with *, ? or [.
fs::path RootOf(const fs::path& pattern) {
  fs::path root;
  for (const fs::path& part : pattern.parent_path()) {
    if (part.string().find_first_of("*?[") != std::string::npos) break;
    root /= part;
  }
  return root;
}

DataFiles FilesThatMatch(const fs::path& pattern, const DataSearch& search) {
  glob_t matches = {};
  const int result = glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<FoundFile> files;
  const fs::path root = RootOf(pattern);
  for (std::size_t i = 0; result == 0 && i < matches.gl_pathc; ++i) {
    const fs::path path = matches.gl_pathv[i];
    std::error_code ignored;
    if (fs::is_directory(path, ignored)) continue;
    files.push_back({path, root.empty() ? path : path.lexically_relative(root)});
  }
  globfree(&matches);
  if (files.empty()) {
    ThrowInvalidInput("{}: no data file matches this pattern", pattern.string());
  }
  const fs::path rest = root.empty() ? pattern : pattern.lexically_relative(root);
  DataFiles found = Divide(std::move(files), search, rest.string());
  if (search.purpose == DataPurpose::kTraining) NoteFolder(root, found);
  return found;
}

DataFiles FilesOfHub(const HubRepository& repository, const fs::path& name,
                     const DataSearch& search) {
  const std::string command = "qlora pull --dataset " + name.string();
  const std::optional<fs::path> snapshot = CachedSnapshot(repository);
  if (!snapshot) {
    ThrowInvalidInput(
        "{}: neither a file nor a data set in the Hugging Face cache ({}). To download it: {}",
        name.string(), repository.Folder().string(), command);
  }
  std::vector<FoundFile> listed;
  ListFiles(*snapshot, *snapshot, kDepth, listed);
  DataFiles found;
  if (HasData(listed)) found = Divide(std::move(listed), search, "");
  if (found.files.empty()) {
    ThrowInvalidInput("{}: {} has no data files for training. To complete it: {}", name.string(),
                      snapshot->string(), command);
  }
  RefuseSeveralKinds(name, found.files);
  for (const fs::path& file : found.files) {
    if (fs::exists(file)) continue;
    ThrowInvalidInput("{}: the file behind the link {} is gone. To download it again: {}",
                      name.string(), file.string(), command);
  }
  return found;
}

}  // namespace

DataFiles FindDataFiles(const fs::path& name, const DataSearch& search) {
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) return FilesIn(name, search);
  DataFiles file;
  file.files = {name};
  // Before patterns: a file whose name holds * or [ can be named.
  if (fs::exists(name, ignored)) return file;
  if (name == "-") ThrowInvalidInput("standard input is not read; write the data to a file");
  if (name.string().find_first_of("*?[") != std::string::npos) return FilesThatMatch(name, search);
  const std::optional<HubRepository> repository = AsHubDataset(name.string());
  if (repository && !HasDataExtension(name)) return FilesOfHub(*repository, name, search);
  // Nothing was found: opening the name throws the error, with similar names.
  return file;
}

std::string ListOfNames(const std::vector<std::string>& names) {
  constexpr std::size_t kShown = 3;
  const std::size_t shown = names.size() <= kShown + 1 ? names.size() : kShown;
  std::string text = fmt::format("{}", fmt::join(names.begin(), names.begin() + shown, ", "));
  if (shown < names.size()) text += fmt::format(" and {} more", names.size() - shown);
  return text;
}

}  // namespace qlora
