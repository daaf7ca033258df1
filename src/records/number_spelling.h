// Numbers as they are written: those of a record that are texts to the trainer, an answer 2.50, and
// NaN and Infinity, as Python's json.dumps writes and json.loads reads them.
#ifndef QLORA_RECORDS_NUMBER_SPELLING_H_
#define QLORA_RECORDS_NUMBER_SPELLING_H_

#include <string>
#include <string_view>

#include "io/json_fwd.h"

namespace qlora {

// Replaces numbers by their own text where a field of the record, or `content` or `value` of a
// message, is a number that is written otherwise than the program would write it: 2.50, 1e3.
// text: the JSON that the record was parsed from.
void KeepSpelling(std::string_view text, OrderedJson& record);

// Returns the text with null in place of NaN, Infinity, -Infinity and, with `numbers`, of those
// such as 1e999 that no double holds: they say no more than null, which Parquet has there as well.
// Whole numbers stay.
std::string WithoutInfinities(std::string_view text, bool numbers);

}  // namespace qlora

#endif  // QLORA_RECORDS_NUMBER_SPELLING_H_
