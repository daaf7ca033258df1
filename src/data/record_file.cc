#include "data/record_file.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/check.h"
#include "data/csv.h"

namespace qlora {
namespace {

constexpr std::uint64_t kChunk = std::uint64_t{1} << 20;

bool IsBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Calls visit(c, offset) for every byte from `begin` on.
template <typename Visit>
void ForEachByte(const FileBytes& file, std::uint64_t begin, const Visit& visit) {
  for (std::uint64_t at = begin; at < file.size(); at += kChunk) {
    const std::string chunk = file.Read(at, kChunk);
    for (std::size_t i = 0; i < chunk.size(); ++i) {
      visit(chunk[i], at + i);
    }
  }
}

std::string Extension(const FileBytes& file) {
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

Container DetectContainer(const FileBytes& file) {
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

RecordFile::RecordFile(FileBytes file, const std::filesystem::path& index_folder)
    : file_(std::move(file)), container_(DetectContainer(file_)) {
  if (container_ == Container::kPlainText) {
    ThrowInvalidInput("{}: plain text holds no records", file_.name());
  }
  if (Extension(file_) == ".tsv") delimiter_ = '\t';
  const std::string name = std::filesystem::path(file_.name()).filename().string();
  const IndexPlace place = IndexPlace::In(index_folder, name, key());
  if (auto found = IndexArray<std::uint64_t>::Find(place)) {
    begins_ = std::move(*found);
  } else {
    begins_ = IndexArray<std::uint64_t>(place);
    const bool marked = file_.Read(0, kByteOrderMark.size()) == kByteOrderMark;
    const std::uint64_t begin = marked ? kByteOrderMark.size() : 0;
    if (container_ == Container::kJsonLines) IndexLines(begin);
    if (container_ == Container::kJsonArray) IndexElements(begin);
    if (container_ == Container::kCsv) IndexCsv(begin);
    begins_.Finish();
  }
  if (size() <= 0) ThrowInvalidInput("{}: the data file holds no records", file_.name());
  if (has_header()) ReadColumns();
}

std::string RecordFile::key() const {
  return fmt::format("records of {}, {} bytes of {}\n",
                     std::filesystem::absolute(file_.name()).string(), file_.size(),
                     file_.modified());
}

void RecordFile::IndexLines(std::uint64_t begin) {
  bool in_record = false;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    if (!in_record && !IsBlank(c)) begins_.Add(offset);
    in_record = c != '\n' && (in_record || !IsBlank(c));
  });
  begins_.Add(file_.size());
}

void RecordFile::IndexElements(std::uint64_t begin) {
  enum class At { kStart, kElement, kAfterComma, kAfterEnd };
  At at = At::kStart;
  std::int64_t depth = 0;
  std::uint64_t element = begin;
  bool in_element = false;
  bool in_string = false;
  bool escaped = false;
  const auto step = [&](char c, std::uint64_t offset) {
    if (at == At::kStart) {  // DetectContainer saw that this is '['
      at = At::kElement;
      return;
    }
    if (at == At::kAfterEnd) {
      ThrowInvalidInput("{}: text follows the end of the JSON array", Position(offset));
    }
    if (depth == 0 && (c == ',' || c == ']')) {
      if (!in_element && (c == ',' || at == At::kAfterComma)) {
        ThrowInvalidInput("{}: expected an object, found '{}'", Position(offset), c);
      }
      in_element = false;
      at = c == ',' ? At::kAfterComma : At::kAfterEnd;
      if (at == At::kAfterEnd) begins_.Add(offset);
      return;
    }
    if (!in_element) {
      begins_.Add(offset);
      element = offset;
      in_element = true;
    }
    if (c == '"') in_string = true;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth < 0) {
      ThrowInvalidInput("{}: expected ',' or ']', found '{}'", Position(offset), c);
    }
  };
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    if (in_string) {
      in_string = escaped || c != '"';
      escaped = !escaped && c == '\\';
    } else if (!IsBlank(c)) {
      step(c, offset);
    }
  });
  if (at != At::kAfterEnd) {
    ThrowInvalidInput(
        "{}: the JSON array is not closed; its last element begins at {} (is the file complete?)",
        file_.name(), Position(element));
  }
}

void RecordFile::IndexCsv(std::uint64_t begin) {
  CsvScanner scanner(delimiter_);
  std::uint64_t record = begin;
  bool blank = true;
  ForEachByte(file_, begin, [&](char c, std::uint64_t offset) {
    blank = blank && (c == '\r' || c == '\n');
    if (scanner.Step(c)) {
      if (!blank) begins_.Add(record);
      record = offset + 1;
      blank = true;
    }
  });
  if (scanner.in_quotes()) {
    ThrowInvalidInput("{}:{}: a quoted field that begins in this record is not closed",
                      file_.name(), file_.LineAt(record));
  }
  if (!blank) begins_.Add(record);
  begins_.Add(file_.size());
}

void RecordFile::ReadColumns() {
  const std::uint64_t begin = begins_.values()[0];
  columns_ = ParseFields(begin, Begin(0));
  for (auto name = columns_.begin(); name != columns_.end(); ++name) {
    if (name->empty() || std::find(columns_.begin(), name, *name) != name) {
      ThrowInvalidInput("{}:{}: the header row {} column '{}'; every column needs its own name",
                        file_.name(), file_.LineAt(begin),
                        name->empty() ? "has an unnamed" : "repeats", *name);
    }
  }
}

std::uint64_t RecordFile::Begin(std::int64_t i) const {
  return begins_.values()[static_cast<std::size_t>(i) + (has_header() ? 1 : 0)];
}

OrderedJson RecordFile::Read(std::int64_t i) const {
  QLORA_DCHECK(i >= 0 && i < size());
  return has_header() ? ReadRow(Begin(i), Begin(i + 1))
                      : ReadObject(Begin(i), Begin(i + 1), /*last=*/i + 1 == size());
}

OrderedJson RecordFile::ReadObject(std::uint64_t begin, std::uint64_t end, bool last) const {
  const std::string bytes = file_.Read(begin, end - begin);
  std::string_view text = bytes;
  const auto trim = [&text] {
    while (!text.empty() && IsBlank(text.back())) text.remove_suffix(1);
  };
  if (container_ == Container::kJsonLines) {
    text = text.substr(0, text.find('\n'));
  } else if (!last) {
    trim();
    text.remove_suffix(1);  // the comma
  }
  trim();
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

OrderedJson RecordFile::ReadRow(std::uint64_t begin, std::uint64_t end) const {
  std::vector<std::string> fields = ParseFields(begin, end);
  if (fields.size() != columns_.size()) {
    ThrowInvalidInput("{}:{}: expected {} fields as in the header row, found {}", file_.name(),
                      file_.LineAt(begin), columns_.size(), fields.size());
  }
  OrderedJson record = OrderedJson::object();
  for (std::size_t c = 0; c < fields.size(); ++c) record[columns_[c]] = std::move(fields[c]);
  return record;
}

std::vector<std::string> RecordFile::ParseFields(std::uint64_t begin, std::uint64_t end) const {
  std::string text = file_.Read(begin, end - begin);
  while (text.ends_with('\n') || text.ends_with('\r')) text.pop_back();
  file_.CheckUtf8(begin, text);
  try {
    return ParseCsvRecord(text, delimiter_);
  } catch (const Error& error) {
    ThrowInvalidInput("{}:{}: {}", file_.name(), file_.LineAt(begin), error.what());
  }
}

std::string RecordFile::Where(std::int64_t i) const {
  return fmt::format("{}:{}", file_.name(), file_.LineAt(Begin(i)));
}

std::string RecordFile::Position(std::uint64_t offset) const {
  return fmt::format("{}:{}:{}", file_.name(), file_.LineAt(offset), file_.ColumnAt(offset));
}

}  // namespace qlora
