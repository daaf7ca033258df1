// How a data file holds its records: JSON Lines, a JSON array, CSV, Parquet, or one plain text.
#ifndef QLORA_DATA_CONTAINER_H_
#define QLORA_DATA_CONTAINER_H_

#include <array>
#include <filesystem>
#include <string_view>

#include "data/file_bytes.h"

namespace qlora {

enum class Container { kJsonLines, kJsonArray, kCsv, kParquet, kPlainText };
std::string_view ContainerName(Container container);

// The extensions of data files, in lower case, and whether a file has one of them in any case.
inline constexpr std::array<std::string_view, 7> kDataExtensions = {
    ".jsonl", ".json", ".ndjson", ".csv", ".tsv", ".parquet", ".txt"};
bool HasDataExtension(const std::filesystem::path& path);

// Decides by the first bytes and the extension (.jsonl, .ndjson, .json, .csv, .tsv,
// .parquet, .txt).
// Errors: InvalidInput naming the conversion for Arrow, compressed and UTF-16 files.
Container DetectContainer(const FileBytes& file);

// The separator of the fields of a CSV file: a tab in .tsv, else a comma.
char DelimiterOf(const FileBytes& file);

// White space between the values of JSON.
inline bool IsJsonBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

}  // namespace qlora

#endif  // QLORA_DATA_CONTAINER_H_
