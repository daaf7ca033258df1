#include "data/format_example.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "base/check.h"
#include "decision/decision_record.h"
#include "preference/preference_record.h"
#include "prompt/field_template.h"
#include "records/record_error.h"

namespace qlora {
namespace {

// True when a template lays out this record: the user's, or one that an adapter was trained with.
bool HasTemplateFor(const OrderedJson& record, const LayoutRules& rules) {
  if (!rules.prompt_template.empty()) return true;
  if (!rules.recorded || rules.recorded->format != RecordFormat::kTemplate) return false;
  const FieldTemplate recorded(rules.recorded->prompt_template, "prompt_template");
  return record.contains(recorded.main_field());
}

OrderedJson Read(const RecordFile& records, std::int64_t i, PreferenceForm form) {
  OrderedJson record = records.Read(i);
  if (form == PreferenceForm::kNone) return record;
  return NamePlace([&] { return records.Where(i); },
                   [&] { return std::move(ReadPreferenceRecord(record).answers.front()); });
}

// Returns record i, or nothing when it cannot be read: AddRecords counts such records.
std::optional<OrderedJson> TryRead(const RecordFile& records, std::int64_t i, PreferenceForm form) {
  try {
    return Read(records, i, form);
  } catch (const Error&) {
    records.file().CheckUnchanged();
    return std::nullopt;
  }
}

}  // namespace

FormatExample FindFormatExample(const RecordFile& records, RecordFormat format,
                                const LayoutRules& rules, PreferenceForm form) {
  constexpr std::int64_t kRecordsTried = 64;
  const bool detects = format == RecordFormat::kAuto;
  std::optional<std::int64_t> first;  // that can be read
  std::int64_t tried = 0;
  for (std::int64_t i = 0; tried < kRecordsTried && i < records.size(); ++i) {
    std::optional<OrderedJson> record = TryRead(records, i, form);
    if (!record) continue;
    if (!first) first = i;
    ++tried;
    const bool asks = form != PreferenceForm::kNone ? false
                      : detects ? rules.prompt_template.empty() && LooksLikeDecision(*record)
                                : format == RecordFormat::kDecision;
    if (asks) return {std::move(*record), {RecordFormat::kDecision, {}}};
    auto detected =
        NamePlace([&] { return records.Where(i); },
                  [&] {
                    return detects ? DetectRecordFormat(*record, HasTemplateFor(*record, rules))
                                   : DetectFieldNames(*record, format);
                  });
    if (detected) return {std::move(*record), std::move(*detected)};
  }
  // Without a record that can be read, the error is that of the first.
  OrderedJson record = Read(records, first.value_or(0), form);
  if (detects)
    NamePlace([&] { return records.Where(*first); }, [&] { ThrowUnknownFormat(record); });
  return {std::move(record), {format, {}}};
}

}  // namespace qlora
