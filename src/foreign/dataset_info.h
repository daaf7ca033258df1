// LLaMA-Factory's list of data sets, dataset_info.json: the files and fields behind a name.
#ifndef QLORA_FOREIGN_DATASET_INFO_H_
#define QLORA_FOREIGN_DATASET_INFO_H_

#include <filesystem>
#include <optional>
#include <string>

namespace qlora {

struct NamedDataset {
  std::string path;  // a file, a folder, or a data set of the hub
  // Of records whose fields have names of their own; "" where `train` knows the names.
  std::string prompt_template = {};
  std::string completion_template = {};
  bool prefers = false;    // pairs, or answers with labels
  std::string fault = {};  // why it cannot be read here; "": it can
};

bool HasDatasetInfo(const std::filesystem::path& folder);

// The data set of that name in folder/dataset_info.json; nothing where the list does not have it,
// or there is no list. A list that cannot be read is a fault.
std::optional<NamedDataset> FindNamedDataset(const std::filesystem::path& folder,
                                             const std::string& name);

}  // namespace qlora

#endif  // QLORA_FOREIGN_DATASET_INFO_H_
