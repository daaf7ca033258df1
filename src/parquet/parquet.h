// Parquet files as JSON Lines, in the form in which data sets are published: flat columns and
// nested lists and structs, in all encodings that writers use, compressed with Snappy, zstd or
// gzip. The files need not be trusted.
//
//   bytes      thrift_reader.h  metadata: structs of numbered fields
//     |        footer.h         schema, row groups, where each column is stored
//     |        schema.h         the tree of columns and its levels
//   pages      column.h         one column of a row group: dictionary, levels, values
//     |        codec.h          decompression
//     |        values.h         encodings; rle_bit_packed.h and delta.h have their integers
//   rows       row_writer.h     levels and values of all columns put together, as JSON
//
// Format: https://parquet.apache.org/docs/file-format/
#ifndef QLORA_PARQUET_PARQUET_H_
#define QLORA_PARQUET_PARQUET_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "parquet/footer.h"

namespace qlora::parquet {

// The limit of a file's rows as JSON: `bytes` in any case, or `growth` times the bytes of the file
// where that is more. A file of 150 bytes can claim 10^8 rows.
struct TextLimits {
  std::int64_t bytes = std::int64_t{1} << 30;
  std::int64_t growth = 1000;
  // Of the pages, the dictionaries and the row that are in memory at one time.
  std::int64_t memory = std::int64_t{1} << 30;
};

// Calls write(line) for every row, in order: one JSON object, its keys in the order of the columns,
// and a line feed. Columns without a counterpart in JSON (binary, times, decimals, FLOAT16,
// VARIANT) are left out; a column that the format marks as JSON is parsed. One page of each column
// is in memory at a time, also of columns that no sample uses: which fields count is decided for
// whole records. What they take is within the limits. Errors: InvalidInput that names file, row
// group, row, column and page.
void WriteJsonLines(const Source& source, const std::function<void(std::string_view)>& write,
                    const TextLimits& limits = {});

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_PARQUET_H_
