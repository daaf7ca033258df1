// Finds the data files of a name: of a file, folder, pattern or downloaded data set.
#ifndef QLORA_RECORDS_DATA_FILES_H_
#define QLORA_RECORDS_DATA_FILES_H_

#include <filesystem>
#include <vector>

namespace qlora {

// Returns one file, which need not exist; the data files of a folder in the order of their names;
// the files that match a pattern with *, ? or [...]; or, for org/name[@revision], the training
// files of a data set in the Hugging Face cache. A file or folder of exactly that name wins.
// Errors: InvalidInput when a folder or a pattern has no data files, when the cache does not have
// the data set, or when the data set has several kinds of training files.
std::vector<std::filesystem::path> FindDataFiles(const std::filesystem::path& name);

}  // namespace qlora

#endif  // QLORA_RECORDS_DATA_FILES_H_
