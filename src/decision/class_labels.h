// The names of class labels, which data sets have beside records that hold numbers.
#ifndef QLORA_DECISION_CLASS_LABELS_H_
#define QLORA_DECISION_CLASS_LABELS_H_

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "decision/decision_record.h"

namespace qlora {

// Returns the names of the labels of a column, by their numbers, as Hugging Face data sets describe
// them: in the metadata of a Parquet file, in dataset_info.json or the YAML at the head of
// README.md in its folder or the two above. Empty when none of them has names.
std::vector<std::string> FindClassLabels(const std::filesystem::path& data_file,
                                         const std::string& column);

// Returns the fields with the names that the data set of the file has, unless they have names.
DecisionFields WithClassLabels(DecisionFields fields, const std::filesystem::path& data_file);

// The names in the front matter of a data set card.
std::vector<std::string> ClassLabelsOfCard(std::string_view card, std::string_view column);

}  // namespace qlora

#endif  // QLORA_DECISION_CLASS_LABELS_H_
