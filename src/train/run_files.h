// The folder of a run and its recorded options.
#ifndef QLORA_TRAIN_RUN_FILES_H_
#define QLORA_TRAIN_RUN_FILES_H_

#include <filesystem>

#include "io/json.h"
#include "qlora/train.h"

namespace qlora {

// The options as JSON text values. for_resume: only those that a resumed run must share, which
// leaves out where and how often it writes.
Json OptionsToJson(TrainOptions options, bool for_resume);

// Whether the folder holds a finished adapter.
bool HoldsAdapter(const std::filesystem::path& dir);

// The nearest part of the path that exists.
std::filesystem::path ExistingAncestor(std::filesystem::path path);

// Checks, without writing, that a run may use the folder. Errors: InvalidInput when it cannot be
// written, is no folder, or holds a run and is neither to be overwritten nor resumed.
void CheckRunDir(const std::filesystem::path& dir, bool overwrite, bool resume);
// Makes the folder and, when overwriting, removes the files of the old run; other files stay.
void PrepareRunDir(const std::filesystem::path& dir, bool overwrite);

}  // namespace qlora

#endif  // QLORA_TRAIN_RUN_FILES_H_
