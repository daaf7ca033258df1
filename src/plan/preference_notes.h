// What the data of preferences are like, before a run begins.
#ifndef QLORA_PLAN_PREFERENCE_NOTES_H_
#define QLORA_PLAN_PREFERENCE_NOTES_H_

#include <string>

#include "data/dataset.h"
#include "qlora/train_options.h"

namespace qlora {

// Returns a warning about labels out of balance, or about pairs whose answers differ in length, or
// "". Errors: InvalidInput for labels that are all the same.
std::string NoteOfPreferences(const TrainOptions& options, const Dataset& train);

// Returns a remark about a reference that is the adapter which training continues, or "".
std::string NoteOfReference(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_PLAN_PREFERENCE_NOTES_H_
