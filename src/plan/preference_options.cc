#include "plan/preference_options.h"

#include "base/check.h"

namespace qlora {
namespace {

// Options of ordinary training: noise would make the model differ from its reference.
void CheckOthers(const TrainOptions& o) {
  const auto refuse = [](bool given, const char* option, const char* why) {
    if (given) ThrowInvalidInput("{}: {}; leave it out", option, why);
  };
  constexpr const char* kNoise = "passes of preferences have no noise, so that rewards begin at 0";
  refuse(o.lora_dropout > 0, "lora_dropout", kNoise);
  refuse(o.neftune_noise_alpha > 0, "neftune_noise_alpha", kNoise);
  CheckPreferenceReading(o.data.reading);
  refuse(o.objective != "auto", "objective", "preference_loss says what is trained");
}

}  // namespace

PreferenceLossOptions PreferenceLossOf(const TrainOptions& options) {
  const PreferenceLossOptions loss =
      PreferenceLossOf(options.preference, options.label_smoothing_factor);
  CheckOthers(options);
  return loss;
}

std::optional<TrainOptions> OptionsOfReference(const TrainOptions& options) {
  const std::string& name = options.preference.reference;
  const bool is_folder = name != "start" && name != "base" && name != "none";
  if (!TrainsPreferences(options) || !is_folder) return {};
  TrainOptions of_reference = options;
  of_reference.adapter = name;
  // It is only read.
  of_reference.init_lora_weights = TrainOptions().init_lora_weights;
  of_reference.embedding_learning_rate = TrainOptions().embedding_learning_rate;
  return of_reference;
}

PreferenceReading PreferenceReadingOf(const TrainOptions& options) {
  if (!TrainsPreferences(options)) return {};
  return ReadingFor(PreferenceLossOf(options));
}

}  // namespace qlora
