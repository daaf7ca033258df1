// decision.json, beside an adapter: all that a program needs to decide with it as it was trained.
#ifndef QLORA_DECISION_DECISION_FILE_H_
#define QLORA_DECISION_DECISION_FILE_H_

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "decision/decision_labels.h"
#include "decision/decision_temperature.h"

namespace qlora {

inline constexpr const char* kDecisionFile = "decision.json";
inline constexpr const char* kDecisionType = "nimble";  // llama.cpp's name of this kind

struct DecisionFile {
  std::string decision_template = {};    // Jinja
  Temperatures temperatures = {};        // of the types that were fitted
  std::vector<std::string> labels = {};  // of the tokenizer, in order
  std::string fitted_on = {};            // the data of the temperatures; "": none were fitted
};

// {"type", "template", "temperature": {"noul": 1.2}, "labels": ["A", ...], "fitted_on": null}
void WriteDecisionFile(const std::filesystem::path& folder, const DecisionFile& file);
// Returns nothing when the folder has no such file. Errors: InvalidInput that names the file and
// the key.
std::optional<DecisionFile> ReadDecisionFile(const std::filesystem::path& folder);

// Refuses a file whose labels are not those of the tokenizer: of another model. name: of the file.
// Errors: InvalidInput.
void CheckDecisionFile(const DecisionFile& file, const DecisionTokenizer& tokenizer,
                       const std::string& name);

}  // namespace qlora

#endif  // QLORA_DECISION_DECISION_FILE_H_
