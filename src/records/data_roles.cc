#include "records/data_roles.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <string>
#include <system_error>

#include "base/text.h"
#include "io/json.h"
#include "records/file_bytes.h"
#include "records/file_format.h"

namespace qlora {
namespace {

namespace fs = std::filesystem;

template <typename List>
bool IsIn(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

// Returns the words of a text in lower case. All but letters ends a word, digits too: "test-00000"
// has the word "test", "latest" has not.
std::vector<std::string> WordsOf(std::string_view text) {
  std::vector<std::string> words(1);
  for (const char c : text) {
    if (std::isalpha(static_cast<unsigned char>(c)) != 0) {
      words.back() += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    } else if (!words.back().empty()) {
      words.emplace_back();
    }
  }
  return words;
}

// The words of Hugging Face's library `datasets`, and some of other programs.
FileRole RoleOfWord(std::string_view word) {
  constexpr auto kEvaluation =
      std::to_array<std::string_view>({"validation", "valid", "val", "dev", "eval", "evaluation"});
  constexpr auto kTest = std::to_array<std::string_view>({"test", "testing", "holdout", "heldout"});
  if (IsIn(kTest, word)) return FileRole::kTest;
  return IsIn(kEvaluation, word) ? FileRole::kEvaluation : FileRole::kTraining;
}

bool IsText(const fs::path& path) { return DataExtension(path) == ".txt"; }

// A text that comes with data and is none.
bool IsDocument(const fs::path& path) {
  constexpr auto kDocuments =
      std::to_array<std::string_view>({"license", "licence", "readme", "notice", "copying",
                                       "authors", "citation", "changelog", "requirements"});
  return IsText(path) && IsIn(kDocuments, WordsOf(path.filename().string()).front());
}

bool IsDescription(const fs::path& path) {
  constexpr auto kDescriptions = std::to_array<std::string_view>(
      {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"});
  return IsIn(kDescriptions, path.filename().string());
}

bool IsArrow(const fs::path& path) { return DataExtension(path) == ".arrow"; }

// Reports about data are JSON files of one object.
bool IsOneObject(const fs::path& path) {
  constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 20;
  std::error_code error;
  if (DataExtension(path) != ".json" || path.extension() != ".json") return false;
  const std::uintmax_t size = fs::file_size(path, error);
  if (error || size == 0 || size > kMostBytes) return false;
  OrderedJson value;
  return !TryParseJson(FileBytes(path).Read(0, size), value) && value.is_object();
}

bool IsEmptyFile(const fs::path& path) {
  std::error_code error;
  return fs::file_size(path, error) == 0 && !error;
}

// Sets the reason of the files that are data so far and that `is` holds for, unless no data would
// be left.
template <typename Predicate>
void LeaveOut(std::vector<FoundFile>& files, std::string_view reason, const Predicate& is) {
  const bool keeps = std::ranges::any_of(
      files, [&](const FoundFile& file) { return file.reason.empty() && !is(file.path); });
  for (FoundFile& file : files) {
    if (keeps && file.reason.empty() && is(file.path)) file.reason = reason;
  }
}

}  // namespace

FileRole RoleOf(const fs::path& path, std::string_view pattern) {
  const std::vector<std::string> named = WordsOf(pattern);
  for (const std::string& word : WordsOf(path.string())) {
    const FileRole role = RoleOfWord(word);
    if (role != FileRole::kTraining && !IsIn(named, word)) return role;
  }
  return FileRole::kTraining;
}

void FindReasons(std::vector<FoundFile>& files, bool all_as_text) {
  LeaveOut(files, "not data",
           [](const fs::path& path) { return !HasDataExtension(path) && !IsArrow(path); });
  LeaveOut(files, "not data", IsDescription);
  // Alone it is refused, with advice.
  LeaveOut(files, "not data", IsArrow);
  LeaveOut(files, "one object, no records", IsOneObject);
  LeaveOut(files, "not data", IsDocument);
  LeaveOut(files, "empty", IsEmptyFile);
  if (all_as_text) return;
  std::ptrdiff_t texts = 0;
  std::ptrdiff_t records = 0;
  for (const FoundFile& file : files) {
    if (file.reason.empty()) ++(IsText(file.path) ? texts : records);
  }
  // A text beside many files of records is a remark about them, and the other way round.
  if (texts > records) {
    LeaveOut(files, "records beside plain texts",
             [](const fs::path& path) { return !IsText(path); });
  } else if (records > 0) {
    LeaveOut(files, "plain text beside records", IsText);
  }
}

}  // namespace qlora
