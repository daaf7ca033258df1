// What the files of a data set are for, told by their names.
#ifndef QLORA_RECORDS_DATA_ROLES_H_
#define QLORA_RECORDS_DATA_ROLES_H_

#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

namespace qlora {

enum class FileRole : std::uint8_t { kTraining, kEvaluation, kTest };

// Returns the role that a word of the path names, as in "data/test-00000-of-00001.parquet";
// kTraining without such a word. Words are whole: "latest" names nothing. Words that `pattern` has
// too do not count: the user has written them.
FileRole RoleOf(const std::filesystem::path& path, std::string_view pattern = {});

// A file of a folder: its path, and the path relative to the folder.
struct FoundFile {
  std::filesystem::path path;
  std::filesystem::path name;
  std::string_view reason = {};  // why it is not read; "": it is data
};

// Sets the reason of each file that is not data: another extension, a description of the data set,
// a report of one JSON object, a licence or the like, an empty file, and files of a kind that is
// not that of most (plain text beside records) unless `all_as_text`.
void FindReasons(std::vector<FoundFile>& files, bool all_as_text);

}  // namespace qlora

#endif  // QLORA_RECORDS_DATA_ROLES_H_
