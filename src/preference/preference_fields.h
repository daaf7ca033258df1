// What the options of preferences ask for.
#ifndef QLORA_PREFERENCE_PREFERENCE_FIELDS_H_
#define QLORA_PREFERENCE_PREFERENCE_FIELDS_H_

#include <vector>

#include "preference/preference_loss.h"
#include "qlora/data.h"
#include "qlora/options.h"
#include "qlora/preference_options.h"

namespace qlora {

// label_smoothing, here and below: label_smoothing_factor. Errors: InvalidInput for an unknown
// loss, losses that do not go together, and values out of range.
PreferenceLossOptions PreferenceLossOf(const PreferenceFields& fields, double label_smoothing);

// How records are read for a loss.
PreferenceReading ReadingFor(const PreferenceLossOptions& loss);
// Errors: InvalidInput for options of reading that preferences cannot have.
void CheckPreferenceReading(const ReadingFields& reading);

// Options of preferences that the loss does not use.
std::vector<IdleOption> IdlePreferenceFields(const PreferenceFields& fields,
                                             double label_smoothing);

}  // namespace qlora

#endif  // QLORA_PREFERENCE_PREFERENCE_FIELDS_H_
