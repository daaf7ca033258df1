// The format of a data file: JSON Lines, a JSON array, CSV, Parquet, or one plain text.
#ifndef QLORA_RECORDS_FILE_FORMAT_H_
#define QLORA_RECORDS_FILE_FORMAT_H_

#include <array>
#include <filesystem>
#include <string>
#include <string_view>

#include "records/file_bytes.h"

namespace qlora {

enum class FileFormat { kJsonLines, kJsonArray, kCsv, kParquet, kPlainText };
std::string_view FileFormatName(FileFormat format);

// Returns the extension in lower case, with the dot; of a compressed file (compressed_file.h) the
// one before .gz, .zst or .zstd.
std::string DataExtension(const std::filesystem::path& path);

// The extensions of data files.
inline constexpr std::array<std::string_view, 7> kDataExtensions = {
    ".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".txt"};
bool HasDataExtension(const std::filesystem::path& path);

inline constexpr std::string_view kEmptyFile =
    "the data file is empty; expected records or text: name a file that has some";

// Decides by the first bytes and the extension (.jsonl, .ndjson, .json, .csv, .tsv,
// .parquet, .txt, each also before .gz and .zst).
// Errors: InvalidInput naming the conversion for Arrow, compressed, UTF-16 and Excel files.
FileFormat DetectFileFormat(const FileBytes& file);

// True for white space between the values of JSON.
inline bool IsJsonBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace qlora

#endif  // QLORA_RECORDS_FILE_FORMAT_H_
