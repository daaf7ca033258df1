// Finds the first line of an uploaded file that no job takes, before the job begins.
//
// What is wrong for fine-tuning as OpenAI has it is refused here, though `train` would read some of
// it: roles that are none, a conversation without an answer, content that is no text. Records of
// other formats are left to `train`.
#ifndef QLORA_SERVE_JOBS_TRAINING_FILE_CHECK_H_
#define QLORA_SERVE_JOBS_TRAINING_FILE_CHECK_H_

#include <filesystem>
#include <string>

namespace qlora {

enum class TrainingMethod { kSupervised, kDpo };

// True when the records are conversations. filename: of the client, for errors. Errors:
// InvalidInput, "train.jsonl: line 3: ...".
bool CheckTrainingFile(const std::filesystem::path& path, const std::string& filename,
                       TrainingMethod method);

}  // namespace qlora

#endif  // QLORA_SERVE_JOBS_TRAINING_FILE_CHECK_H_
