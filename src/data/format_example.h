// The record of a data file that shows the format of all.
#ifndef QLORA_DATA_FORMAT_EXAMPLE_H_
#define QLORA_DATA_FORMAT_EXAMPLE_H_

#include "io/json.h"
#include "prompt/prompt_layout.h"
#include "prompt/record_format.h"
#include "qlora/data.h"
#include "records/record_file.h"

namespace qlora {

struct FormatExample {
  OrderedJson record;
  DetectedFormat detected;
};

// The first of some records whose fields tell the format, as a table may have null in its first
// rows. format: as the user names it, or kAuto. form: where not kNone, the example is an answer of
// a record of preferences. Errors: InvalidInput when `format` is kAuto and no record tells it; the
// error of the first record when none can be read.
FormatExample FindFormatExample(const RecordFile& records, RecordFormat format,
                                const LayoutRules& rules, PreferenceForm form);

}  // namespace qlora

#endif  // QLORA_DATA_FORMAT_EXAMPLE_H_
