#include "records/record_file.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "base/check.h"
#include "io/json.h"
#include "parquet/parquet.h"
#include "records/csv.h"
#include "records/derived_text.h"
#include "records/json_scanners.h"
#include "records/number_spelling.h"
#include "records/record_error.h"

namespace qlora {
namespace {

constexpr std::uint64_t kReadBytes = std::uint64_t{1} << 20;
// Raised whenever rows of CSV, or records of JSON Lines, are found in another way, so that an index
// on disk is not taken for that of an earlier version.
constexpr int kCsvVersion = 1;
constexpr int kLinesVersion = 1;
// Read to tell how a CSV file is written.
constexpr std::uint64_t kHeadBytes = std::uint64_t{1} << 16;

// Calls visit(c, offset) for every byte from `begin` on.
template <typename Visit>
void ForEachByte(const FileBytes& file, std::uint64_t begin, const Visit& visit) {
  for (std::uint64_t at = begin; at < file.size(); at += kReadBytes) {
    const std::string chunk = file.Read(at, kReadBytes);
    for (std::size_t i = 0; i < chunk.size(); ++i) visit(chunk[i], at + i);
  }
}

// Drops JSON's blanks at the end of a text.
void DropBlanksAtEnd(std::string_view& text) {
  while (!text.empty() && IsJsonBlank(text.back())) text.remove_suffix(1);
}

// Returns the rows of a Parquet file, which can only be read in order, as lines of JSON, under the
// name of `file`: line 17 is row 17. `folder`: as MakeText. Pages, dictionaries and a row at a time
// take limits.memory at most. Errors: InvalidInput as parquet.h; Runtime when the lines cannot be
// written.
FileBytes ParquetAsText(const FileBytes& file, const std::filesystem::path& folder,
                        const ReadingLimits& limits) {
  const parquet::Source source = {
      .name = file.name(), .size = file.size(), .read = [&file](auto begin, auto count) {
        return file.Read(begin, count);
      }};
  return MakeText(file, "rows as lines", folder, [&](const TextSink& write) {
    parquet::WriteJsonLines(source, write, {.memory = limits.memory});
  });
}

}  // namespace

RecordFile::RecordFile(FileBytes file, const std::filesystem::path& index_folder,
                       const ReadingLimits& limits)
    : file_(std::move(file)), limits_(limits), file_format_(DetectFileFormat(file_)) {
  if (file_format_ == FileFormat::kPlainText) {
    ThrowInvalidInput(
        "{}: expected records, found plain text, which is trained as one text; leave "
        "dataset_format out or set it to raw, or write each text as a line {{\"text\": ...}} of a "
        ".jsonl file",
        file_.name());
  }
  if (file_format_ == FileFormat::kParquet) file_ = ParquetAsText(file_, index_folder, limits);
  if (has_header()) FindDialect();
  const std::string name = std::filesystem::path(file_.name()).filename().string();
  const IndexPlace place = IndexPlace::In(index_folder, name, key());
  if (auto found = IndexArray<std::uint64_t>::Find(place)) begins_ = std::move(*found);
  if (!IndexIsSound()) {
    begins_ = IndexArray<std::uint64_t>(place);
    MakeIndex();
  }
  if (size() <= 0) {
    const bool one_line = has_header() && file_.Read(0, kHeadBytes).find_last_not_of("\r\n") >
                                              file_.Read(0, kHeadBytes).find('\r');
    ThrowInvalidInput("{}: the data file holds no records{}", file_.name(),
                      one_line ? " behind its header row; its lines end in CR alone: convert it "
                                 "with tr '\\r' '\\n'"
                               : "");
  }
  if (has_header()) ReadColumns();
}

std::string RecordFile::key() const {
  if (has_lines()) return fmt::format("{}lines {}\n", file_.key(), kLinesVersion);
  if (!has_header()) return file_.key();
  return fmt::format("{}CSV {}, byte {} at {}\n", file_.key(), kCsvVersion,
                     static_cast<int>(static_cast<unsigned char>(dialect_.delimiter)),
                     dialect_.begin);
}

void RecordFile::FindDialect() {
  const std::uint64_t begin = file_.FirstNotOf("\r\n");
  dialect_ = DetectCsvDialect(file_.Read(begin, kHeadBytes), DataExtension(file_.name()) == ".tsv");
  dialect_.begin += begin;
}

// Reads the file once from end to end.
void RecordFile::MakeIndex() {
  const bool marked = file_.Read(0, kByteOrderMark.size()) == kByteOrderMark;
  const std::uint64_t begin = marked ? kByteOrderMark.size() : 0;
  if (has_lines()) IndexLines(begin);
  if (file_format_ == FileFormat::kJsonArray) IndexElements(begin);
  if (file_format_ == FileFormat::kCsv) IndexRows(dialect_.begin);
  begins_.Finish();
}

// An index of an earlier run may have been damaged since: its offsets must ascend within the file.
bool RecordFile::IndexIsSound() const {
  const auto begins = begins_.values();
  const auto falls = std::adjacent_find(begins.begin(), begins.end(), std::greater_equal<>());
  return begins.size() > 1 && falls == begins.end() && begins.back() <= file_.size();
}

void RecordFile::IndexLines(std::uint64_t begin) {
  JsonLinesScanner scanner;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    if (scanner.Step(c)) begins_.Add(offset);
  });
  begins_.Add(file_.size());
}

// The end of the last record is the bracket that closes the array.
void RecordFile::IndexElements(std::uint64_t begin) {
  using Found = JsonArrayScanner::Found;
  JsonArrayScanner scanner;
  std::uint64_t element = begin;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    const Found found = NamePlace([&] { return file_.PositionOf(offset); },  //
                                  [&] { return scanner.Step(c); });
    if (found != Found::kNothing) begins_.Add(offset);
    if (found == Found::kElement) element = offset;
  });
  if (!scanner.ended()) {
    ThrowInvalidInput(
        "{}: the JSON array is not closed; its last element begins here (is the file complete?)",
        file_.PositionOf(element));
  }
}

// A record may hold line breaks, in quotes. Blank lines between records are skipped, and rows of
// separators alone, which spreadsheets write below a table.
void RecordFile::IndexRows(std::uint64_t begin) {
  CsvScanner scanner(dialect_.delimiter);
  std::uint64_t record = begin;
  bool blank = true;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    blank = blank && (c == '\r' || c == '\n' || c == dialect_.delimiter);
    if (scanner.Step(c)) {
      if (!blank) begins_.Add(record);
      record = offset + 1;
      blank = true;
    }
  });
  if (scanner.in_quotes()) {
    ThrowInvalidInput("{}: a quoted field that begins in this record is not closed",
                      file_.LineOf(record));
  }
  if (!blank) begins_.Add(record);
  begins_.Add(file_.size());
}

// A column without a name is left out: pandas writes the number of each row so. Two columns of one
// name would leave one value of each record unread.
void RecordFile::ReadColumns() {
  const std::uint64_t begin = begins_.values()[0];
  columns_ = ParseFields(begin, Begin(0));
  std::unordered_set<std::string_view> seen;
  for (std::string& name : columns_) {
    name.erase(0, name.find_first_not_of(' '));
    name.erase(name.find_last_not_of(' ') + 1);
    if (name.empty()) {
      ++unnamed_columns_;
    } else if (!seen.insert(name).second) {
      ThrowInvalidInput("{}: the header row repeats column '{}'; every column needs a unique name",
                        file_.LineOf(begin), name);
    }
  }
  if (seen.empty()) ThrowInvalidInput("{}: the header row names no column", file_.LineOf(begin));
}

std::uint64_t RecordFile::Begin(std::int64_t i) const { return begins_.values()[i + has_header()]; }

OrderedJson RecordFile::Read(std::int64_t i) const {
  QLORA_DCHECK(i >= 0 && i < size());
  OrderedJson record = has_header() ? ReadRow(Begin(i), Begin(i + 1))
                                    : ReadObject(Begin(i), Begin(i + 1), /*last=*/i + 1 == size());
  for (const std::string& field : ignored_) record.erase(field);
  return record;
}

// The bytes up to the next record hold more than the record: blank lines, which may be many, or the
// comma of an array.
std::uint64_t RecordFile::EndOf(std::uint64_t begin, std::uint64_t end) const {
  constexpr std::uint64_t kPiece = std::uint64_t{1} << 16;
  while (end > begin) {
    const std::uint64_t from = end - std::min(end - begin, kPiece);
    const std::string piece = file_.Read(from, end - from);
    const std::size_t last = piece.find_last_not_of(has_lines() ? " \t\r\n" : " \t\r\n,");
    if (last != piece.npos) return from + last + 1;
    end = from;
  }
  return begin;
}

// Behind a row of CSV there may be blank rows as well.
std::string RecordFile::ReadBytes(std::uint64_t begin, std::uint64_t end) const {
  const auto most = static_cast<std::uint64_t>(limits_.record_bytes());
  if (!has_header() && end - begin > most) end = EndOf(begin, end);
  std::string bytes = file_.Read(begin, std::min(end - begin, most + 1));
  if (has_header()) {
    CsvScanner scanner(dialect_.delimiter);
    std::size_t length = 0;
    while (length < bytes.size() && !scanner.Step(bytes[length])) ++length;
    bytes.resize(length);
  }
  if (bytes.size() > most) {
    ThrowInvalidInput(
        "{}: the record has more than {} bytes, the most that one may have here; split it into "
        "several{}",
        file_.LineOf(begin), most,
        limits_.memory < kMaxReadingMemory ? ", or raise max_memory, of which it is a 64th" : "");
  }
  return bytes;
}

OrderedJson RecordFile::ReadObject(std::uint64_t begin, std::uint64_t end, bool last) const {
  const std::string bytes = ReadBytes(begin, end);
  std::string_view text = bytes;
  DropBlanksAtEnd(text);
  if (!has_lines() && !last && text.ends_with(',')) {
    text.remove_suffix(1);
    DropBlanksAtEnd(text);
  }
  OrderedJson record;
  std::optional<JsonDefect> defect = TryParseJson(text, record, limits_.record_values());
  std::string finite;
  if (defect) {
    finite = WithoutInfinities(text, /*numbers=*/!refuses_wide_);
    if (finite != text && !TryParseJson(finite, record, limits_.record_values())) {
      defect.reset();
      text = finite;
    }
  }
  if (defect) {
    // The parser's words for it show the bytes.
    file_.CheckUtf8(begin, bytes);
    ThrowInvalidInput(
        "{}: malformed JSON: {}{}", file_.PositionOf(begin + defect->offset), defect->reason,
        has_lines() ? "; each line must hold one whole JSON object, or the file must be "
                      "an array of objects"
                    : "");
  }
  if (!record.is_object()) {
    const bool has_messages = record.is_array() && !record.empty() && record[0].is_object();
    ThrowInvalidInput("{}: expected a JSON object, found {} {}{}", file_.PositionOf(begin),
                      record.is_array() ? "an" : "a", record.type_name(),
                      has_messages ? "; a list of messages is a record when it is wrapped: "
                                     "{\"messages\": [...]}"
                                   : "");
  }
  if (const auto key = FindDuplicateKey(text, record)) {
    ThrowInvalidInput(
        "{}: key '{}' appears twice in one object, and only one of its values would be read",
        file_.LineOf(begin), *key);
  }
  KeepSpelling(text, record);
  return record;
}

// Values are text, as the file does not declare types, or null.
OrderedJson RecordFile::ReadRow(std::uint64_t begin, std::uint64_t end) const {
  std::vector<std::string> fields = ParseFields(begin, end);
  if (fields.size() != columns_.size()) {
    ThrowInvalidInput("{}: expected {} fields as in the header row, found {}", file_.LineOf(begin),
                      columns_.size(), fields.size());
  }
  // The names are known to differ. record[name] would compare each with all before it.
  OrderedJson::object_t record;
  record.reserve(fields.size());
  for (std::size_t c = 0; c < fields.size(); ++c) {
    if (columns_[c].empty()) continue;
    OrderedJson& value = record.emplace_back(columns_[c], nullptr).second;
    if (!IsMissingCsvValue(fields[c])) value = std::move(fields[c]);
  }
  return OrderedJson(std::move(record));
}

std::vector<std::string> RecordFile::ParseFields(std::uint64_t begin, std::uint64_t end) const {
  const std::string text = ReadBytes(begin, end);
  file_.CheckUtf8(begin, text);
  return NamePlace([&] { return file_.LineOf(begin); },
                   [&] { return ParseCsvRecord(text, dialect_.delimiter); });
}

std::string RecordFile::Where(std::int64_t i) const { return file_.LineOf(Begin(i)); }

}  // namespace qlora
