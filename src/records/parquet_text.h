// Parquet files for the readers of JSON Lines. The rows of a Parquet file can only be read in
// order, and a trainer visits them in any order: so they are written once as lines of JSON.
#ifndef QLORA_RECORDS_PARQUET_TEXT_H_
#define QLORA_RECORDS_PARQUET_TEXT_H_

#include <cstdint>
#include <filesystem>

#include "records/file_bytes.h"

namespace qlora {

// The most bytes that the reader of a Parquet file holds, unless less is allowed.
inline constexpr std::int64_t kMaxReadingMemory = std::int64_t{1} << 30;

// Returns the rows as lines, under the name of `file`: line 17 is row 17. `folder`: as MakeText
// (derived_text.h). memory: the most bytes of pages, dictionaries and a row at a time. Errors:
// InvalidInput as parquet.h; Runtime when the lines cannot be written.
FileBytes ParquetAsText(const FileBytes& file, const std::filesystem::path& folder,
                        std::int64_t memory);

}  // namespace qlora

#endif  // QLORA_RECORDS_PARQUET_TEXT_H_
