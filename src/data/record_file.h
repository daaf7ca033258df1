// Records of a data file: JSON Lines, a JSON array of objects, or CSV with a header row.
#ifndef QLORA_DATA_RECORD_FILE_H_
#define QLORA_DATA_RECORD_FILE_H_

#include <cstdint>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "data/file_bytes.h"
#include "data/index_array.h"

namespace qlora {

// Keys keep the order of the file: a chat template may print a record's tools.
using OrderedJson = nlohmann::ordered_json;

enum class Container { kJsonLines, kJsonArray, kCsv, kPlainText };
std::string_view ContainerName(Container container);

// What a file is, by its first bytes and its extension (.jsonl, .ndjson, .json, .csv, .tsv, .txt).
// Errors: InvalidInput naming the conversion for Parquet, Arrow, compressed and UTF-16 files.
Container DetectContainer(const FileBytes& file);

// The records of one file. Opening reads the file once and keeps 8 bytes a record, in a file of
// index_folder unless that is empty; each record is parsed when it is asked for. An index that an
// earlier run left there for the same file is used again. Blank lines are skipped; a UTF-8 byte
// order mark is tolerated.
class RecordFile {
 public:
  // Errors: InvalidInput with file, line and column when the records cannot be told apart; Runtime
  // when the index cannot be written.
  explicit RecordFile(FileBytes file, const std::filesystem::path& index_folder = {});

  const FileBytes& file() const { return file_; }
  Container container() const { return container_; }
  // Names the file as it was when it was opened: path, size, time of the last change.
  std::string key() const;
  std::int64_t size() const { return std::ssize(begins_.values()) - 1 - has_header(); }

  // Record i as an object; for CSV, column name -> string. May be called by several threads.
  // Errors: InvalidInput with file, line and column when it is malformed or not an object.
  OrderedJson Read(std::int64_t i) const;

  // "data.jsonl:17" for the line where record i begins. Reads the file up to there.
  std::string Where(std::int64_t i) const;

 private:
  bool has_header() const { return container_ == Container::kCsv; }
  std::uint64_t Begin(std::int64_t i) const;  // of record i; for i == size() the end of the last
  void IndexLines(std::uint64_t begin);
  void IndexElements(std::uint64_t begin);
  void IndexCsv(std::uint64_t begin);
  void ReadColumns();
  OrderedJson ReadObject(std::uint64_t begin, std::uint64_t end, bool last) const;
  OrderedJson ReadRow(std::uint64_t begin, std::uint64_t end) const;
  std::vector<std::string> ParseFields(std::uint64_t begin, std::uint64_t end) const;
  std::string Position(std::uint64_t offset) const;  // "data.json:17:5", line and column

  FileBytes file_;
  Container container_;
  IndexArray<std::uint64_t>
      begins_;  // byte offsets: header row (CSV), records, end of the last one
  std::vector<std::string> columns_;  // names from the header row of a CSV file
  char delimiter_ = ',';
};

}  // namespace qlora

#endif  // QLORA_DATA_RECORD_FILE_H_
