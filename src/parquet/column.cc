#include "parquet/column.h"

#include <algorithm>
#include <bit>
#include <optional>

#include "base/check.h"
#include "parquet/codec.h"

namespace qlora::parquet {
namespace {

// A column chunk is a sequence of pages, each of them a header in Thrift and a body:
//
//   dictionary page   compressed( values in PLAIN )                   the first, if there is one
//   data page         compressed( n | repetition levels | n | definition levels | values )
//   data page v2      repetition levels | definition levels | compressed( values )
//
// n, 4 bytes, is the number of bytes of the levels behind n. Levels that can only be 0 are left
// out.
enum PageType : std::int32_t { kDataPage, kIndexPage, kDictionaryPage, kDataPageV2 };

// A header nearly always fits the first; statistics of long texts may make it longer.
constexpr std::uint64_t kFirstHeaderBytes = 4096;
constexpr std::uint64_t kMaxHeaderBytes = std::uint64_t{16} << 20;

constexpr std::int64_t kLevelLengthBytes = 4;  // n

// Writers give a dictionary up at 1 or 2 MiB. Its values take a multiple of it in memory.
constexpr std::int32_t kMaxDictionaryBytes = 1 << 27;
constexpr std::int32_t kMaxDictionaryValues = 1 << 22;

// Bits of a level from 0 to `highest`.
int LevelWidth(int highest) { return std::bit_width(static_cast<unsigned>(highest)); }

// The first `count` bytes of a page, which moves behind them.
std::string_view TakeLevels(std::string_view& page, std::int64_t count) {
  if (count < 0 || count > std::ssize(page))
    ThrowInvalidInput("levels claim {} bytes, the page has {}", count, page.size());
  const std::string_view taken = page.substr(0, count);
  page.remove_prefix(count);
  return taken;
}

}  // namespace

// The fields of both kinds of data pages and of dictionary pages, by their numbers in Parquet's
// parquet.thrift. -1: not said.
struct ColumnReader::PageHeader {
  std::int32_t type = -1;
  std::int32_t size = -1;         // after decompression
  std::int32_t stored_size = -1;  // in the file
  std::optional<std::int32_t> crc;
  std::int32_t values = -1;
  std::int32_t encoding = -1;
  std::int32_t definition_encoding = kRle;
  std::int32_t repetition_encoding = kRle;
  std::int32_t definition_bytes = 0;  // v2
  std::int32_t repetition_bytes = 0;  // v2
  bool compressed = true;             // v2

  void Read(ThriftReader& reader) {
    reader.Struct([&](const ThriftField& field) {
      // A dictionary page (7) has the first two fields of a data page (5).
      if (field.id == 5 || field.id == 7) return ReadPage(reader, field);
      if (field.id == 8) return ReadPageV2(reader, field);
      return reader.Read(field, {{1, &type}, {2, &size}, {3, &stored_size}, {4, &crc}});
    });
  }

 private:
  bool ReadPage(ThriftReader& reader, const ThriftField& page) {
    return reader.Struct(page, [&](const ThriftField& field) {
      return field.type == ThriftType::kI32 && reader.Read(field, {{1, &values},
                                                                   {2, &encoding},
                                                                   {3, &definition_encoding},
                                                                   {4, &repetition_encoding}});
    });
  }

  bool ReadPageV2(ThriftReader& reader, const ThriftField& page) {
    return reader.Struct(page, [&](const ThriftField& field) {
      return reader.Read(field, {{1, &values},
                                 {4, &encoding},
                                 {5, &definition_bytes},
                                 {6, &repetition_bytes},
                                 {7, &compressed}});
    });
  }
};

ColumnReader::ColumnReader(const Source& source, const Node& leaf, const ColumnChunk& chunk,
                           MemoryBudget& budget)
    : source_(source),
      leaf_(leaf),
      chunk_(chunk),
      left_(chunk.values),
      dictionary_share_(budget),
      page_share_(budget) {
  Next();
  if (repetition_ != 0) Throw("the first entry continues a row");
}

void ColumnReader::Throw(std::string_view reason) const {
  ThrowInvalidInput("column '{}', page {}: {}", leaf_.path, page_number_, reason);
}

int ColumnReader::definition() const {
  if (at_end_) Throw("the column has fewer rows than its row group");
  return definition_;
}

void ColumnReader::Next() {
  try {
    Advance();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidInput) throw;
    Throw(error.what());
  }
}

// An entry is a value, a null, or an empty list. Its repetition level is the level of the list that
// the entry continues, 0 at the start of a row. Its definition level is the number of optional and
// repeated nodes on the path that are present; at the highest level there is a value.
void ColumnReader::Advance() {
  while (page_left_ == 0 && left_ > 0) LoadPage();
  if (page_left_ == 0) {
    at_end_ = true;
    repetition_ = 0;
    return;
  }
  --page_left_;
  repetition_ = Level(repetitions_, leaf_.repetition);
  definition_ = Level(definitions_, leaf_.definition);
  if (definition_ == leaf_.definition) value_ = values_->Next();
}

int ColumnReader::Level(RleBitPackedReader& levels, int highest) const {
  if (highest == 0) return 0;
  const std::uint32_t level = levels.Next();
  if (level > static_cast<unsigned>(highest)) {
    ThrowInvalidInput("level {} exceeds the maximum {}", level, highest);
  }
  return static_cast<int>(level);
}

// Reads the next page of any type. The checksum is of the body as it is stored, before
// decompression, so that damage is found before a decompressor sees the bytes.
void ColumnReader::LoadPage() {
  ++page_number_;
  const PageHeader header = ReadHeader();
  if (header.stored_size < 0 || header.size < 0 ||
      std::uint64_t(header.stored_size) > chunk_.end - chunk_.begin) {
    ThrowInvalidInput("a page of {} bytes exceeds its column", header.stored_size);
  }
  // A dictionary stays. Of a page, levels and values do until the next one; no two pages are in
  // memory.
  page_.clear();
  page_.shrink_to_fit();
  page_share_.Resize(std::int64_t{header.stored_size} +
                     (header.type == kDictionaryPage ? 0 : header.size));
  const std::string body = source_.read(chunk_.begin, header.stored_size);
  chunk_.begin += header.stored_size;
  if (header.crc && Crc32(body) != static_cast<std::uint32_t>(*header.crc)) {
    ThrowInvalidInput("the checksum is wrong; the file is damaged");
  }
  switch (header.type) {
    case kDataPage:
      return LoadData(header, body);
    case kDataPageV2:
      return LoadDataV2(header, body);
    case kDictionaryPage:
      return LoadDictionary(header, body);
    case kIndexPage:
      return;
    default:
      ThrowInvalidInput("a page of unknown type {}", header.type);
  }
}

// Nothing tells how long a header is: more bytes are read until the header can be parsed.
ColumnReader::PageHeader ColumnReader::ReadHeader() {
  const std::uint64_t most = std::min(chunk_.end - chunk_.begin, kMaxHeaderBytes);
  for (std::uint64_t count = kFirstHeaderBytes;; count *= 16) {
    count = std::min(count, most);
    const std::string bytes = source_.read(chunk_.begin, count);
    try {
      ThriftReader reader(bytes);
      PageHeader header;
      header.Read(reader);
      chunk_.begin += reader.position();
      return header;
    } catch (const Error&) {
      if (count == most) throw;  // otherwise the header may continue behind these bytes
    }
  }
}

// The values of the dictionary are views of its page, which therefore stays in memory.
void ColumnReader::LoadDictionary(const PageHeader& header, std::string_view body) {
  if (has_dictionary_) ThrowInvalidInput("a column chunk has two dictionaries");
  if (values_ != nullptr) ThrowInvalidInput("a dictionary follows the data of its column chunk");
  if (header.encoding != kPlain && header.encoding != kPlainDictionary) {
    ThrowInvalidInput("dictionaries in encoding {} are not supported", header.encoding);
  }
  if (header.size > kMaxDictionaryBytes)
    ThrowInvalidInput("a dictionary of {} bytes exceeds the limit of {}", header.size,
                      kMaxDictionaryBytes);
  // A value takes 1 byte at least, but for booleans, which nobody puts into a dictionary.
  if (header.values < 0 || header.values > std::min(header.size, kMaxDictionaryValues)) {
    ThrowInvalidInput("a dictionary claims {} values in {} bytes; the limit is {} values",
                      header.values, header.size, kMaxDictionaryValues);
  }
  dictionary_share_.Resize(header.size + std::int64_t{header.values} * std::int64_t{sizeof(Value)});
  dictionary_page_ = Decompress(chunk_.codec, body, header.size);
  dictionary_.reserve(header.values);
  const auto values = MakeValueReader(kPlain, leaf_, dictionary_page_, header.values, nullptr);
  for (std::int32_t i = 0; i < header.values; ++i) dictionary_.push_back(values->Next());
  has_dictionary_ = true;
}

void ColumnReader::LoadData(const PageHeader& header, std::string_view body) {
  page_ = Decompress(chunk_.codec, body, header.size);
  std::string_view rest = page_;
  const auto levels = [&rest](int highest, std::int32_t encoding) -> RleBitPackedReader {
    if (highest == 0) return {};
    if (encoding != kRle) ThrowInvalidInput("levels in encoding {} are not supported", encoding);
    const auto length = BitsAt(TakeLevels(rest, kLevelLengthBytes), 0, 32);
    return RleBitPackedReader(TakeLevels(rest, static_cast<std::int64_t>(length)),
                              LevelWidth(highest));
  };
  repetitions_ = levels(leaf_.repetition, header.repetition_encoding);
  definitions_ = levels(leaf_.definition, header.definition_encoding);
  StartValues(header, rest);
}

// Levels come first and are never compressed.
void ColumnReader::LoadDataV2(const PageHeader& header, std::string_view body) {
  std::string_view rest = body;
  TakeLevels(rest, header.repetition_bytes);
  TakeLevels(rest, header.definition_bytes);
  levels_page_ = body.substr(0, body.size() - rest.size());
  const std::string_view levels = levels_page_;
  repetitions_ =
      RleBitPackedReader(levels.substr(0, header.repetition_bytes), LevelWidth(leaf_.repetition));
  definitions_ =
      RleBitPackedReader(levels.substr(header.repetition_bytes), LevelWidth(leaf_.definition));
  const std::int64_t size = header.size - std::ssize(levels_page_);
  page_ = Decompress(header.compressed ? chunk_.codec : 0, rest, size);
  StartValues(header, page_);
}

// A page stores no values for nulls and empty lists: there is one value for each entry at the
// highest definition level, which a copy of the levels counts.
void ColumnReader::StartValues(const PageHeader& header, std::string_view values) {
  if (header.values < 0 || header.values > left_) {
    ThrowInvalidInput("a page has {} entries, but only {} are left in its column", header.values,
                      left_);
  }
  left_ -= header.values;
  page_left_ = header.values;
  std::int64_t present = header.values;
  if (leaf_.definition > 0) {
    RleBitPackedReader copy = definitions_;
    present = copy.Count(header.values, static_cast<std::uint32_t>(leaf_.definition));
  }
  values_ = MakeValueReader(header.encoding, leaf_, values, present,
                            has_dictionary_ ? &dictionary_ : nullptr);
}

}  // namespace qlora::parquet
