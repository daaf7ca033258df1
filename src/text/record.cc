#include "text/record.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "text/csv.h"

namespace qlora {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;
constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Calls visit(c, offset) for every byte from `begin` on, until it returns false.
template <typename Visit>
void ForEachByte(const DataFile& file, std::uint64_t begin, const Visit& visit) {
  for (std::uint64_t at = begin; at < file.size(); at += kChunk) {
    const std::string chunk = file.Read(at, kChunk);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      if (!visit(chunk[i], at + i)) return;
    }
  }
}

std::string Extension(const DataFile& file) {
  std::string extension = std::filesystem::path(file.name()).extension().string();
  std::transform(extension.begin(), extension.end(), extension.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return extension;
}

struct Foreign {
  std::string_view extension;
  std::string_view magic;
  std::string_view advice;
};
constexpr std::string_view kDecompress = "decompress it first";
constexpr std::array<Foreign, 8> kForeign = {{
    {".parquet", "PAR1",
     "Parquet is not read here; convert it, for example with DuckDB: duckdb -c \"COPY (FROM "
     "'data.parquet') TO 'data.jsonl' (FORMAT json)\", or with pandas: "
     "read_parquet(...).to_json('data.jsonl', orient='records', lines=True)"},
    {".arrow", "ARROW1",
     "Arrow files are not read here; convert it with datasets: load_from_disk(...).to_json()"},
    {".gz", "\x1F\x8B", kDecompress},
    {".zst", "\x28\xB5\x2F\xFD", kDecompress},
    {".xz", "\xFD\x37zXZ", kDecompress},
    {".zip", "PK\x03\x04", kDecompress},
    {"", "\xFF\xFE", "the text is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"},
    {"", "\xFE\xFF", "the text is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"},
}};

// The reason in a message of nlohmann's parser, without its own idea of line and column.
std::string_view Reason(std::string_view what) {
  const std::size_t column = what.find("column ");
  const std::size_t colon = what.find(": ", column == std::string_view::npos ? 0 : column);
  return colon == std::string_view::npos ? what : what.substr(colon + 2);
}

}  // namespace

std::string_view ContainerName(Container container) {
  switch (container) {
    case Container::kJsonLines:
      return "JSON Lines";
    case Container::kJsonArray:
      return "JSON array";
    case Container::kCsv:
      return "CSV";
    case Container::kPlainText:
      return "plain text";
  }
  return "";
}

Container DetectContainer(const DataFile& file) {
  const std::string head = file.Read(0, 4096);
  const std::string extension = Extension(file);
  for (const Foreign& foreign : kForeign) {
    if ((!foreign.extension.empty() && extension == foreign.extension) ||
        head.starts_with(foreign.magic)) {
      ThrowInvalidInput("{}: {}", file.name(), foreign.advice);
    }
  }
  if (extension == ".csv" || extension == ".tsv") return Container::kCsv;
  if (extension == ".txt") return Container::kPlainText;

  std::string_view text = head;
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  const auto first = std::find_if_not(text.begin(), text.end(), IsBlank);
  if (first == text.end()) {
    ThrowInvalidInput("{}: the data file is empty", file.name());
  }
  if (*first == '[') return Container::kJsonArray;
  if (*first == '{' || extension == ".jsonl" || extension == ".ndjson") {
    return Container::kJsonLines;
  }
  ThrowInvalidInput(
      "{}: expected JSON Lines, a JSON array, CSV (.csv, .tsv) or plain text (.txt), found a file "
      "that begins with '{}'",
      file.name(), std::string_view(&*first, 1));
}

RecordFile::RecordFile(DataFile file) : file_(std::move(file)), container_(DetectContainer(file_)) {
  const bool marked = file_.Read(0, kByteOrderMark.size()) == kByteOrderMark;
  const std::uint64_t begin = marked ? kByteOrderMark.size() : 0;
  switch (container_) {
    case Container::kJsonLines:
      IndexLines(begin);
      break;
    case Container::kJsonArray:
      IndexArray(begin);
      break;
    case Container::kCsv:
      delimiter_ = Extension(file_) == ".tsv" ? '\t' : ',';
      IndexCsv(begin);
      break;
    case Container::kPlainText:
      ThrowInvalidInput("{}: plain text holds no records", file_.name());
  }
  if (begins_.empty()) ThrowInvalidInput("{}: the data file holds no records", file_.name());
  begins_.shrink_to_fit();
}

void RecordFile::IndexLines(std::uint64_t begin) {
  bool in_record = false;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    if (c == '\n') {
      in_record = false;
    } else if (!in_record && !IsBlank(c)) {
      in_record = true;
      begins_.push_back(offset);
    }
    return true;
  });
  end_ = file_.size();
}

void RecordFile::IndexArray(std::uint64_t begin) {
  enum class At { kStart, kElement, kAfterComma, kAfterEnd };
  At at = At::kStart;
  std::int64_t depth = 0;
  bool in_element = false;
  bool in_string = false;
  bool escaped = false;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
      return true;
    }
    if (IsBlank(c)) return true;
    if (at == At::kStart) {  // DetectContainer saw that this is '['
      at = At::kElement;
      return true;
    }
    if (at == At::kAfterEnd) {
      ThrowInvalidInput("{}: text follows the end of the JSON array", Position(offset));
    }
    if (depth == 0 && (c == ',' || c == ']')) {
      if (!in_element && (c == ',' || at == At::kAfterComma)) {
        ThrowInvalidInput("{}: expected an object, found '{}'", Position(offset), c);
      }
      if (in_element) end_ = offset;
      in_element = false;
      at = c == ',' ? At::kAfterComma : At::kAfterEnd;
      return true;
    }
    if (!in_element) begins_.push_back(offset);
    in_element = true;
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth < 0) {
      ThrowInvalidInput("{}: expected ',' or ']', found '{}'", Position(offset), c);
    }
    return true;
  });
  if (at != At::kAfterEnd) {
    ThrowInvalidInput(
        "{}: the JSON array is not closed; its last element begins at {} (is the file complete?)",
        file_.name(), Position(begins_.empty() ? begin : begins_.back()));
  }
}

void RecordFile::IndexCsv(std::uint64_t begin) {
  CsvScanner scanner(delimiter_);
  std::uint64_t record = begin;
  bool blank = true;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    blank = blank && (c == '\r' || c == '\n');
    if (scanner.Step(c)) {
      if (!blank) begins_.push_back(record);
      record = offset + 1;
      blank = true;
    }
    return true;
  });
  if (scanner.in_quotes()) {
    ThrowInvalidInput("{}:{}: a quoted field that begins in this record is not closed",
                      file_.name(), file_.LineAt(record));
  }
  if (!blank) begins_.push_back(record);
  end_ = file_.size();
  if (begins_.empty()) return;

  const std::uint64_t header_end = begins_.size() > 1 ? begins_[1] : end_;
  std::string header = file_.Read(begins_[0], header_end - begins_[0]);
  while (header.ends_with('\n') || header.ends_with('\r')) header.pop_back();
  columns_ = ParseFields(begins_[0], header);
  for (auto name = columns_.begin(); name != columns_.end(); ++name) {
    if (name->empty() || std::find(columns_.begin(), name, *name) != name) {
      ThrowInvalidInput("{}: the header row {} column '{}'; every column needs its own name",
                        Where(0), name->empty() ? "has an unnamed" : "repeats", *name);
    }
  }
  begins_.erase(begins_.begin());
}

OrderedJson RecordFile::Read(std::int64_t i) const {
  QLORA_DCHECK(i >= 0 && i < size());
  const auto n = static_cast<std::size_t>(i);
  const std::uint64_t begin = begins_[n];
  const bool last = n + 1 == begins_.size();
  const std::uint64_t end = last ? end_ : begins_[n + 1];
  std::string bytes = file_.Read(begin, end - begin);
  std::string_view text = bytes;
  const auto trim = [&text] {
    while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  };
  switch (container_) {
    case Container::kJsonArray:
      trim();
      if (!last) text.remove_suffix(1);  // the comma
      trim();
      return ParseObject(begin, text);
    case Container::kJsonLines:
      text = text.substr(0, text.find('\n'));
      trim();
      return ParseObject(begin, text);
    default:
      break;
  }
  while (text.ends_with('\n') || text.ends_with('\r')) text.remove_suffix(1);
  std::vector<std::string> fields = ParseFields(begin, text);
  if (fields.size() != columns_.size()) {
    ThrowInvalidInput("{}: expected {} fields as in the header row, found {}", Where(i),
                      columns_.size(), fields.size());
  }
  OrderedJson record = OrderedJson::object();
  for (std::size_t c = 0; c < fields.size(); ++c) record[columns_[c]] = std::move(fields[c]);
  return record;
}

std::string RecordFile::Where(std::int64_t i) const {
  return fmt::format("{}:{}", file_.name(), file_.LineAt(begins_[static_cast<std::size_t>(i)]));
}

std::string RecordFile::Position(std::uint64_t offset) const {
  return fmt::format("{}:{}:{}", file_.name(), file_.LineAt(offset), file_.ColumnAt(offset));
}

std::vector<std::string> RecordFile::ParseFields(std::uint64_t begin, std::string_view text) const {
  file_.CheckUtf8(begin, text);
  try {
    return ParseCsvRecord(text, delimiter_);
  } catch (const Error& error) {
    ThrowInvalidInput("{}:{}: {}", file_.name(), file_.LineAt(begin), error.what());
  }
}

OrderedJson RecordFile::ParseObject(std::uint64_t begin, std::string_view text) const {
  OrderedJson record;
  try {
    record = OrderedJson::parse(text);
  } catch (const OrderedJson::parse_error& error) {
    const std::uint64_t offset = begin + (error.byte > 0 ? error.byte - 1 : 0);
    ThrowInvalidInput(
        "{}: malformed JSON: {}{}", Position(offset), Reason(error.what()),
        container_ == Container::kJsonLines ? "; each line must hold one whole JSON object" : "");
  }
  if (!record.is_object()) {
    ThrowInvalidInput("{}: expected a JSON object, found {} {}", Position(begin),
                      record.is_array() ? "an" : "a", record.type_name());
  }
  return record;
}

}  // namespace qlora
