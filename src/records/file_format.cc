#include "records/file_format.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <string>

#include "base/check.h"
#include "base/text.h"

namespace qlora {
namespace {

constexpr std::uint64_t kHeadBytes = 4096;  // read to tell files of other programs

// A file of another program, known by its extension or its first bytes.
struct Foreign {
  std::string_view extension;
  std::string_view magic;
  std::string_view advice;
};
// Every one of them is refused with the command that makes a file which can be read.
constexpr std::string_view kParquetMagic = "PAR1";
constexpr std::string_view kGunzip = "the file is compressed; decompress it with gunzip";
constexpr std::string_view kUnxz = "the file is compressed; decompress it with unxz";
constexpr std::string_view kUnzstd = "the file is compressed; decompress it with unzstd";
constexpr std::string_view kBunzip2 = "the file is compressed; decompress it with bunzip2";
constexpr std::string_view kUnzip = "the file is a zip archive; extract its files with unzip";
constexpr std::string_view kSheet = "the file is a spreadsheet; save it as CSV";
// First bytes go before extensions: an extension may be wrong.
constexpr auto kForeign = std::to_array<Foreign>({
    {".arrow", "ARROW1",
     "Arrow files are not read here; convert it with datasets: load_from_disk(...).to_json()"},
    {".gz", "\x1F\x8B", kGunzip},
    {".zst", "\x28\xB5\x2F\xFD", kUnzstd},
    {".xz", "\xFD\x37zXZ", kUnxz},
    {".bz2", "BZh", kBunzip2},
    {".zip", "PK\x03\x04", kUnzip},
    {"", "\xFF\xFE", "the text is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"},
    {"", "\xFE\xFF", "the text is UTF-16; convert it with iconv -f UTF-16 -t UTF-8"},
});

// Returns the advice for a file of another program; "" for a file that is read here.
std::string_view AdviceFor(std::string_view head, std::string_view extension) {
  for (const Foreign& foreign : kForeign) {
    if (!head.starts_with(foreign.magic)) continue;
    // Spreadsheets of Excel are zip archives that begin with one of these names.
    const bool sheet = foreign.advice == kUnzip &&
                       (extension == ".xlsx" || head.find("[Content_Types].xml") != head.npos ||
                        head.find("xl/") != head.npos);
    return sheet ? kSheet : foreign.advice;
  }
  for (const Foreign& foreign : kForeign) {
    if (!foreign.extension.empty() && extension == foreign.extension) return foreign.advice;
  }
  return "";
}

}  // namespace

std::string DataExtension(const std::filesystem::path& path) {
  std::string extension = LowerCase(path.extension().string());
  const bool compressed = extension == ".gz" || extension == ".zst" || extension == ".zstd";
  return compressed && path.stem().has_extension() ? DataExtension(path.stem()) : extension;
}

bool HasDataExtension(const std::filesystem::path& path) {
  return std::ranges::find(kDataExtensions, DataExtension(path)) != kDataExtensions.end();
}

std::string_view FileFormatName(FileFormat format) {
  constexpr std::string_view kNames[] = {"JSON Lines", "JSON array", "CSV", "Parquet",
                                         "plain text"};
  static_assert(std::size(kNames) == static_cast<int>(FileFormat::kPlainText) + 1);
  return kNames[static_cast<int>(format)];
}

// Looks for foreign files first, because a wrong extension must not hide them; then the extension,
// for formats whose first bytes tell nothing; then the first character of a text.
FileFormat DetectFileFormat(const FileBytes& file) {
  const std::string head = file.Read(0, kHeadBytes);
  const std::string extension = DataExtension(file.name());
  if (const std::string_view advice = AdviceFor(head, extension); !advice.empty()) {
    ThrowInvalidInput("{}: {}", file.name(), advice);
  }
  if (extension == ".parquet" || head.starts_with(kParquetMagic)) return FileFormat::kParquet;
  if (extension == ".csv" || extension == ".tsv") return FileFormat::kCsv;
  if (extension == ".txt") return FileFormat::kPlainText;

  const std::string first = file.Read(file.FirstNotOf(" \t\r\n"), 1);
  if (first.empty()) ThrowInvalidInput("{}: {}", file.name(), kEmptyFile);
  if (first == "[") return FileFormat::kJsonArray;
  // A .jsonl file whose first line is not an object is still read as lines: the error then names
  // the line.
  if (first == "{" || extension == ".jsonl" || extension == ".ndjson") {
    return FileFormat::kJsonLines;
  }
  ThrowInvalidInput(
      "{}: expected JSON Lines, a JSON array, CSV (.csv, .tsv), Parquet or plain text (.txt), "
      "found a file that begins with '{}'",
      file.name(), first);
}

}  // namespace qlora
