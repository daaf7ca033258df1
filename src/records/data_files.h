// Finds the data files of a name: of a file, folder, pattern or downloaded data set.
#ifndef QLORA_RECORDS_DATA_FILES_H_
#define QLORA_RECORDS_DATA_FILES_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

enum class DataPurpose : std::uint8_t { kTraining, kEvaluation };

// A file that was found and is not read.
struct LeftOut {
  std::string name;         // relative to the folder
  std::string_view reason;  // "test data"
};

struct DataFiles {
  std::vector<std::filesystem::path> files;  // to read, in the order of their names
  // For training: files that are held out for evaluation by their names.
  std::vector<std::filesystem::path> evaluation;
  std::vector<LeftOut> left_out;
  // For training: files that are read because the user's pattern or folder names them, although
  // their names say that they are held out.
  std::vector<std::string> named;
};

struct DataSearch {
  DataPurpose purpose = DataPurpose::kTraining;
  bool all_as_text = false;  // records are wanted as plain text, too
};

// Returns one file, which need not exist; the data files of a folder; the files that match a
// pattern with *, ? or [...]; or, for org/name[@revision], the files of a data set in the Hugging
// Face cache. A file or folder of exactly that name wins. Folders inside a folder are searched when
// it has no data files itself; links to folders are not followed.
//
// Files are divided by the words of their names (data_roles.h): for training, those for evaluation
// and for tests are not read; for evaluation, those for evaluation are read, else those for tests,
// else all. A pattern that names such files, or matches no others, is taken as it is.
//
// Errors: InvalidInput when there are no data files, or for training none but held-out files, or
// files of several kinds in several folders; when the cache does not have the data set.
DataFiles FindDataFiles(const std::filesystem::path& name, const DataSearch& search = {});

// Returns "a.png, b.png and 7 more": the names of files for a line.
std::string ListOfNames(const std::vector<std::string>& names);

}  // namespace qlora

#endif  // QLORA_RECORDS_DATA_FILES_H_
