// Parquet files for the readers of JSON Lines. The rows of a Parquet file can only be read in
// order, and a trainer visits them in any order: so they are written once as lines of JSON.
#ifndef QLORA_RECORDS_PARQUET_TEXT_H_
#define QLORA_RECORDS_PARQUET_TEXT_H_

#include <filesystem>

#include "records/file_bytes.h"
#include "records/reading_limits.h"

namespace qlora {

// Returns the rows as lines, under the name of `file`: line 17 is row 17. `folder`: as MakeText
// (derived_text.h). Pages, dictionaries and a row at a time take limits.memory at most. Errors:
// InvalidInput as parquet.h; Runtime when the lines cannot be written.
FileBytes ParquetAsText(const FileBytes& file, const std::filesystem::path& folder,
                        const ReadingLimits& limits = {});

}  // namespace qlora

#endif  // QLORA_RECORDS_PARQUET_TEXT_H_
