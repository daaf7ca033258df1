#include "parquet/footer.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "base/check.h"

namespace qlora::parquet {
namespace {

// A file from its first byte to its last; the lengths below are in bytes:
//
//   "PAR1" | pages of the columns of row group 1 | of row group 2 | ... | footer | n | "PAR1"
//      4                                                                  n       4     4
//
// The footer is Thrift's FileMetaData. Fields have the numbers of Parquet's parquet.thrift.
constexpr std::uint64_t kTailBytes = 8;  // n and the magic number
constexpr std::uint64_t kMinFileBytes = 12;
constexpr std::uint64_t kMaxFooterBytes = std::uint64_t{64} << 20;
constexpr std::int64_t kMaxValues = std::int64_t{1} << 31;  // entries of a column chunk

// Fields of a column chunk; -1: absent.
struct ChunkFields {
  std::int32_t codec = -1;
  std::int32_t type = -1;
  std::int64_t values = -1;
  std::int64_t bytes = -1;
  std::int64_t data_offset = -1;
  std::int64_t dictionary_offset = -1;
};

// A ColumnMetaData.
ChunkFields ReadChunkFields(ThriftReader& reader, const ThriftField& metadata) {
  ChunkFields chunk;
  reader.Struct(metadata, [&](const ThriftField& field) {
    return reader.Read(field, {{1, &chunk.type},
                               {4, &chunk.codec},
                               {5, &chunk.values},
                               {7, &chunk.bytes},
                               {9, &chunk.data_offset},
                               {11, &chunk.dictionary_offset}});
  });
  return chunk;
}

// `data_end`: where the footer begins.
ColumnChunk PlaceChunk(const ChunkFields& fields, std::uint64_t data_end) {
  if (fields.type < 0 || fields.codec < 0 || fields.values < 0 || fields.bytes < 0 ||
      fields.values > kMaxValues) {
    ThrowInvalidInput("the metadata of a column are incomplete or wrong");
  }
  ColumnChunk chunk{.codec = fields.codec, .values = fields.values};
  if (fields.values == 0) return chunk;  // offsets mean nothing then
  // A dictionary whose offset is not given is the first page, at the offset of the data.
  const bool has_dictionary =
      fields.dictionary_offset > 0 && fields.dictionary_offset < fields.data_offset;
  const std::int64_t offset = has_dictionary ? fields.dictionary_offset : fields.data_offset;
  if (offset < 0 || std::uint64_t(offset) > data_end ||
      std::uint64_t(fields.bytes) > data_end - std::uint64_t(offset)) {
    ThrowInvalidInput("a column claims bytes that are not in the file (is the file complete?)");
  }
  chunk.begin = static_cast<std::uint64_t>(offset);
  chunk.end = chunk.begin + static_cast<std::uint64_t>(fields.bytes);
  return chunk;
}

// A ColumnChunk of parquet.thrift: 1 the path of another file, 3 the metadata, 8 the keys of
// encryption.
ColumnChunk ReadChunk(ThriftReader& reader, std::uint64_t data_end) {
  std::optional<ChunkFields> fields;
  reader.Struct([&](const ThriftField& field) {
    if (field.id == 1) ThrowInvalidInput("a column is stored in another file");
    if (field.id == 8) ThrowInvalidInput("a column is encrypted");
    if (field.id != 3) return false;
    fields = ReadChunkFields(reader, field);
    return true;
  });
  if (!fields) ThrowInvalidInput("a column has no metadata");
  return PlaceChunk(*fields, data_end);
}

// 1: the columns, as many as the schema has leaves; 3: the number of rows.
RowGroup ReadRowGroup(ThriftReader& reader, std::int64_t leaves, std::uint64_t data_end) {
  RowGroup group;
  group.rows = -1;
  reader.Struct([&](const ThriftField& field) {
    if (field.id == 1) {
      reader.ListOfStructs(field, [&] {
        if (std::ssize(group.columns) == leaves)
          ThrowInvalidInput("a row group has too many columns");
        group.columns.push_back(ReadChunk(reader, data_end));
      });
      return true;
    }
    return reader.Read(field, {{3, &group.rows}});
  });
  if (group.rows < 0 || std::ssize(group.columns) != leaves) {
    ThrowInvalidInput("a row group has {} rows and {} of {} columns", group.rows,
                      group.columns.size(), leaves);
  }
  return group;
}

// Refuses columns that share bytes. A page that many columns claim would be decompressed for each:
// a file of 10 KB would take all memory.
void CheckApart(const std::vector<RowGroup>& groups) {
  std::vector<std::pair<std::uint64_t, std::uint64_t>> places;
  for (const RowGroup& group : groups) {
    for (const ColumnChunk& chunk : group.columns) {
      if (chunk.begin < chunk.end) places.emplace_back(chunk.begin, chunk.end);
    }
  }
  std::sort(places.begin(), places.end());
  for (std::size_t i = 1; i < places.size(); ++i) {
    if (places[i].first >= places[i - 1].second) continue;
    ThrowInvalidInput("two columns claim the same bytes of the file, from {} on", places[i].first);
  }
}

Footer ParseFooter(std::string_view bytes, std::uint64_t data_end) {
  ThriftReader reader(bytes);
  Footer footer;
  bool has_groups = false;
  reader.Struct([&](const ThriftField& field) {
    switch (field.id) {
      case 2:
        footer.root = ReadSchema(reader, field);
        return true;
      case 3:  // the number of rows, which some writers leave at 0: the row groups have it
        reader.I64(field);
        return true;
      case 4:  // behind the schema, since writers keep the order of the numbers
        if (footer.root.leaves == 0) ThrowInvalidInput("the file has no schema");
        has_groups = true;
        reader.ListOfStructs(field, [&] {
          footer.row_groups.push_back(ReadRowGroup(reader, footer.root.leaves, data_end));
        });
        return true;
      case 5:
        reader.ListOfStructs(field, [&] {
          auto& pair = footer.metadata.emplace_back();
          reader.Struct([&](const ThriftField& part) {
            return reader.Read(part, {{1, &pair.first}, {2, &pair.second}});
          });
        });
        return true;
      case 8:
        ThrowInvalidInput("the file is encrypted");
      default:
        return false;
    }
  });
  if (footer.root.leaves == 0 || !has_groups)
    ThrowInvalidInput("the file has no schema or no rows");
  CheckApart(footer.row_groups);
  return footer;
}

}  // namespace

// The end is read first, then the footer, and nothing else. "PARE" ends a file whose footer is
// encrypted; field 8 marks a plain footer of encrypted columns.
Footer ReadFooter(const Source& source) {
  if (source.size < kMinFileBytes) ThrowInvalidInput("the file is too short for Parquet");
  const std::string tail = source.read(source.size - kTailBytes, kTailBytes);
  const std::string_view magic = std::string_view(tail).substr(4);
  if (magic == "PARE") ThrowInvalidInput("the file is encrypted");
  if (magic != "PAR1") {
    ThrowInvalidInput("the file does not end as Parquet files do (is the file complete?)");
  }
  std::uint32_t length = 0;
  std::memcpy(&length, tail.data(), sizeof(length));
  if (length > source.size - kMinFileBytes || length > kMaxFooterBytes) {
    ThrowInvalidInput("the metadata of {} bytes exceed the file", length);
  }
  const std::uint64_t begin = source.size - kTailBytes - length;
  return ParseFooter(source.read(begin, length), begin);
}

}  // namespace qlora::parquet
