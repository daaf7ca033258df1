// Records of preferences: pairs of answers, and answers with a label, as ordinary records.
//
//   preference_record.h   what a record prefers, in all forms that people have
//   preference_pair.h     two encoded answers as one sample
//   preference_loss.h     what training minimizes
//   reference_table.h     log-probabilities under the reference, kept on disk
//
// An answer becomes a record of prompt and completion, of texts or of messages, so that prompts,
// masks, templates and their checks are those of ordinary training.
#ifndef QLORA_PREFERENCE_PREFERENCE_RECORD_H_
#define QLORA_PREFERENCE_PREFERENCE_RECORD_H_

#include <optional>
#include <string_view>
#include <vector>

#include "io/json.h"

namespace qlora {

// What a record has that its author may not know of; notices are counted by their texts.
inline constexpr std::string_view kNoticeLabel =
    "label: numbers and texts are read as true (1) and false (0): whether the answer is good";
inline constexpr std::string_view kNoticeScores =
    "the score of the chosen answer is not above that of the rejected one: the pair is trained as "
    "chosen and rejected say";

struct PreferenceRecord {
  // Of a pair the chosen answer, then the rejected one; else one answer.
  std::vector<OrderedJson> answers;
  std::optional<bool> label;  // of one answer: true when it is desirable
  // Whole texts, whose prompt is what both begin with.
  bool implicit = false;
  std::vector<std::string_view> notices;

  bool is_pair() const { return answers.size() == 2; }
};

// No field is dropped but what repeats another one; those that are no part of the preference stay
// in each answer. Errors: InvalidInput, without a place in the data, that names the field.
PreferenceRecord ReadPreferenceRecord(const OrderedJson& record);

// True for a record with a chosen and a rejected answer, or with an answer and a label, by the
// names of its fields.
bool LooksLikePreference(const OrderedJson& record);
// True for a field that says of an answer whether it is good.
bool IsVerdict(std::string_view name, const OrderedJson& value);

}  // namespace qlora

#endif  // QLORA_PREFERENCE_PREFERENCE_RECORD_H_
