// Parquet files for the readers of JSON Lines. The rows of a Parquet file can only be read in
// order, and a trainer visits them in any order: so they are written once as lines of JSON.
#ifndef QLORA_RECORDS_PARQUET_TEXT_H_
#define QLORA_RECORDS_PARQUET_TEXT_H_

#include <filesystem>
#include <string>

#include "records/file_bytes.h"

namespace qlora {

// Returns the rows as lines, under the name of `file`: line 17 is row 17. In `folder` under a name
// made of `key`, where a later call finds them again; if `folder` is empty, in a file without a
// name in the system's folder for temporary files (TMPDIR, or /tmp), which disappears with the last
// reader. Errors: InvalidInput as parquet.h; Runtime when the lines cannot be written.
FileBytes ParquetAsText(const FileBytes& file, const std::filesystem::path& folder,
                        const std::string& key);

}  // namespace qlora

#endif  // QLORA_RECORDS_PARQUET_TEXT_H_
