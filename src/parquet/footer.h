// The metadata at the end of a Parquet file: the schema, and where the columns are stored.
#ifndef QLORA_PARQUET_FOOTER_H_
#define QLORA_PARQUET_FOOTER_H_

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "parquet/schema.h"

namespace qlora::parquet {

// A file that is read by position. read(begin, count) returns exactly `count` bytes.
struct Source {
  std::string name;
  std::uint64_t size = 0;
  std::function<std::string(std::uint64_t begin, std::uint64_t count)> read;
};

// The pages of one column in one row group: bytes [begin, end) of the file.
struct ColumnChunk {
  std::int32_t codec = 0;
  std::int64_t values = 0;  // entries, nulls and empty lists included
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct RowGroup {
  std::int64_t rows = 0;
  std::vector<ColumnChunk> columns;  // one for each leaf of the schema
};

struct Footer {
  Node root;
  std::vector<RowGroup> row_groups;
  // What writers add, such as "huggingface": the features of a data set as JSON.
  std::vector<std::pair<std::string, std::string>> metadata;
};

// Errors: InvalidInput, without the file's name, for a file that is not Parquet, is encrypted, or
// claims columns that are not in the file.
Footer ReadFooter(const Source& source);

}  // namespace qlora::parquet

#endif  // QLORA_PARQUET_FOOTER_H_
