// NaN and Infinity in JSON, as Python's json.dumps writes and json.loads reads them.
#ifndef QLORA_RECORDS_INFINITE_NUMBERS_H_
#define QLORA_RECORDS_INFINITE_NUMBERS_H_

#include <string>
#include <string_view>

namespace qlora {

// Returns the text with null in place of NaN, Infinity, -Infinity and, with `numbers`, of those
// such as 1e999 that no double holds: they say no more than null, which Parquet has there as well.
// Whole numbers stay.
std::string WithoutInfinities(std::string_view text, bool numbers);

}  // namespace qlora

#endif  // QLORA_RECORDS_INFINITE_NUMBERS_H_
