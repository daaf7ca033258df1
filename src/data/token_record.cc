#include "data/token_record.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/check.h"
#include "data/sample_check.h"
#include "io/json.h"
#include "prompt/record_format.h"

namespace qlora {
namespace {

using Ids = std::vector<std::int32_t>;

// A field that lists token ids, labels or a mask.
Ids Integers(const OrderedJson& record, const char* key) {
  const OrderedJson& field = RequiredField(record, key);
  if (!field.is_array()) {
    ThrowInvalidInput("field '{}': expected a list of integers, found {}", key, field.type_name());
  }
  Ids values;
  values.reserve(field.size());
  for (const OrderedJson& value : field) {
    const bool fits = value.is_number_integer() && value >= INT32_MIN && value <= INT32_MAX;
    if (!fits) {
      ThrowInvalidInput("{}[{}]: expected an integer of 32 bits, found {}", key, values.size(),
                        FormatJson(value));
    }
    values.push_back(value.get<std::int32_t>());
  }
  return values;
}

}  // namespace

Sample ReadTokenRecord(const OrderedJson& record) {
  Sample sample;
  sample.ids = Integers(record, "input_ids");
  sample.labels = HasField(record, "labels") ? Integers(record, "labels") : sample.ids;
  if (sample.labels.size() != sample.ids.size()) {
    ThrowInvalidInput("{} input_ids but {} labels; expected as many labels as input_ids",
                      sample.ids.size(), sample.labels.size());
  }
  if (HasField(record, "attention_mask")) {
    const Ids mask = Integers(record, "attention_mask");
    if (mask.size() != sample.ids.size() || std::ranges::count(mask, 1) != std::ssize(mask)) {
      ThrowInvalidInput("attention_mask hides tokens; write the sample without padding");
    }
  }
  CheckNotShifted(sample);
  // Masks of TRL beside the labels: 0 takes a token out.
  for (const char* key : {"completion_mask", "assistant_masks", "loss_mask"}) {
    if (!HasField(record, key)) continue;
    const Ids mask = Integers(record, key);
    const bool valid = mask.size() == sample.ids.size() &&
                       std::ranges::all_of(mask, [](auto bit) { return bit == 0 || bit == 1; });
    if (!valid) {
      ThrowInvalidInput("{}: expected {} numbers, each 0 or 1, found {}", key, sample.ids.size(),
                        mask.size());
    }
    for (std::size_t t = 0; t < mask.size(); ++t) {
      if (mask[t] == 0) sample.labels[t] = kIgnoreLabel;
    }
  }
  return sample;
}

}  // namespace qlora
