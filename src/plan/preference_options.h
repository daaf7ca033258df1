// What the options of preferences ask of a run (preference/preference_fields.h).
#ifndef QLORA_PLAN_PREFERENCE_OPTIONS_H_
#define QLORA_PLAN_PREFERENCE_OPTIONS_H_

#include <optional>

#include "preference/preference_fields.h"
#include "qlora/train_options.h"

namespace qlora {

// True for a run that trains on preferences.
inline bool TrainsPreferences(const TrainOptions& options) {
  return !options.preference.preference_loss.empty();
}

// Errors: InvalidInput as for the fields, and for options of ordinary training that preferences
// cannot have.
PreferenceLossOptions PreferenceLossOf(const TrainOptions& options);

// The options of a run that goes on from the adapter in `reference`, for that adapter; nothing
// where the reference is the start or the base.
std::optional<TrainOptions> OptionsOfReference(const TrainOptions& options);

// How records are read.
PreferenceReading PreferenceReadingOf(const TrainOptions& options);

}  // namespace qlora

#endif  // QLORA_PLAN_PREFERENCE_OPTIONS_H_
