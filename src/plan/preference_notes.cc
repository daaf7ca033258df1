#include "plan/preference_notes.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "plan/preference_options.h"

namespace qlora {
namespace {

// The authors of KTO weigh labels so that the sums of desirable and undesirable answers are in a
// ratio from 1 to 4/3.
std::string NoteOfLabels(const PreferenceLossOptions& loss, const Dataset& train) {
  std::int64_t good = 0;
  for (std::int64_t i = 0; i < train.size(); ++i) good += train.chosen(i) > 0;
  const std::int64_t bad = train.size() - good;
  if (good == 0 || bad == 0) {
    ThrowInvalidInput(
        "all {} answers have the label {}; preference_loss {} needs desirable and undesirable ones",
        train.size(), good > 0, NameOf(loss.terms.front().loss));
  }
  const double ratio = loss.desirable_weight * static_cast<double>(good) /
                       (loss.undesirable_weight * static_cast<double>(bad));
  if (ratio >= 0.9 && ratio <= 1.5) return "";
  return fmt::format(
      "{} desirable and {} undesirable answers: weighed they are as {:.2f} to 1, and 1 to 4/3 is "
      "advised; desirable_weight {:.3g} makes it 1",
      good, bad, ratio,
      loss.undesirable_weight * static_cast<double>(bad) / static_cast<double>(good));
}

// A loss of sums is easily lowered by length alone.
std::string NoteOfLengths(const PreferenceLossOptions& loss, const Dataset& train) {
  const auto takes_means = [](const PreferenceTerm& term) { return TakesMeans(term.loss); };
  if (std::ranges::all_of(loss.terms, takes_means)) return "";
  double chosen = 0;
  double rejected = 0;
  for (std::int64_t i = 0; i < train.size(); ++i) {
    chosen += train.chosen(i);
    rejected += train.supervised(i) - train.chosen(i);
  }
  const double n = static_cast<double>(train.size());
  const bool similar = chosen < 1.5 * rejected && rejected < 1.5 * chosen;
  if (similar) return "";
  return fmt::format(
      "chosen answers have {:.0f} tokens on average and rejected ones {:.0f}: the model may learn "
      "their length; {}",
      chosen / n, rejected / n,
      loss.needs_reference() ? "ld_alpha weighs the tokens beyond the shorter answer"
                             : "preference_loss simpo compares means over the tokens");
}

}  // namespace

std::string NoteOfPreferences(const TrainOptions& options, const Dataset& train) {
  if (!TrainsPreferences(options)) return "";
  const PreferenceLossOptions loss = PreferenceLossOf(options);
  if (loss.family() == LossFamily::kLabels) return NoteOfLabels(loss, train);
  // Of the chosen answers the tokens of prompts would be counted, too.
  return PreferenceReadingOf(options).trains_text ? "" : NoteOfLengths(loss, train);
}

std::string NoteOfReference(const TrainOptions& options) {
  const auto reference = OptionsOfReference(options);
  std::error_code ignored;
  const bool is_start =
      reference && (reference->adapter == options.adapter ||
                    std::filesystem::equivalent(reference->adapter, options.adapter, ignored));
  if (!is_start) return "";
  return fmt::format(
      "reference {} is the adapter that training continues, which is loaded a second time for it; "
      "reference start measures the same without that",
      options.preference.reference);
}

}  // namespace qlora
