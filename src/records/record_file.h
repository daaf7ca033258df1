// Records of a data file: JSON Lines (also objects over several lines each), a JSON array of
// objects, CSV with a header row, or Parquet.
//
//   data_files.h    the files that --dataset names: paths, patterns, folders, org/name in the cache
//   file_format.h   tells the format of a file
//   file_bytes.h    reads a file by position; gives the line and column of a byte
//   reading_limits.h
//                   the memory that a record, a page of Parquet or a window of zstd may take
//   csv.h           splits rows of CSV
//   json_scanners.h finds the elements of a JSON array, and the records of JSON Lines
//   data_roles.h    which of them are for training, by their names
//   compressed_file.h
//                   writes what gzip and zstd hold as text once, in front of this walk, as is done
//                   with rows of Parquet (derived_text.h)
//   number_spelling.h
//                   numbers that are texts; NaN and Infinity, as Python writes them
//   index_array.h   8 bytes a record, in memory or in a mapped file
//   record_error.h  errors that begin with the file and the line
//
// A record is parsed each time it is asked for, so that files may be larger than memory.
// data/dataset.h draws the rest of the walk, from a record to a batch.
#ifndef QLORA_RECORDS_RECORD_FILE_H_
#define QLORA_RECORDS_RECORD_FILE_H_

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "io/json_fwd.h"
#include "records/csv.h"
#include "records/file_bytes.h"
#include "records/file_format.h"
#include "records/index_array.h"
#include "records/reading_limits.h"

namespace qlora {

// The records of one file. Opening reads the file once and keeps 8 bytes a record, in a file of
// index_folder unless that is empty; each record is parsed when it is asked for. An index that an
// earlier run left there for the same file is used again. Blank lines are skipped; a UTF-8 byte
// order mark is tolerated. Keys keep the order of the file, since a chat template may print them.
class RecordFile {
 public:
  // Errors: InvalidInput with file, line and column when the records cannot be told apart; Runtime
  // when the index cannot be written.
  explicit RecordFile(FileBytes file, const std::filesystem::path& index_folder = {},
                      const ReadingLimits& limits = {});

  const FileBytes& file() const { return file_; }
  const ReadingLimits& limits() const { return limits_; }
  FileFormat file_format() const { return file_format_; }
  // Names the records: path, size and time of the last change of the file when it was opened, and
  // for CSV how its rows are found.
  std::string key() const;
  std::int64_t size() const { return std::ssize(begins_.values()) - 1 - has_header(); }

  // The columns of a CSV file without a name in the header row: records do not have them.
  std::int64_t unnamed_columns() const { return unnamed_columns_; }

  // Reads records from now on as if they did not have these fields.
  void Ignore(std::vector<std::string> fields) { ignored_ = std::move(fields); }
  // Refuses from now on numbers that no double holds, of which null is read otherwise: where a
  // record is shown as JSON, it would show another value.
  void RefuseWideNumbers() { refuses_wide_ = true; }

  // Returns the byte where record i begins; for i == size(), the end of the last.
  std::uint64_t Begin(std::int64_t i) const;
  // Reads record i as an object; for CSV, column name -> string. May be called by several threads.
  // Errors: InvalidInput with file, line and column when the record is malformed, not an object, or
  // beyond the limits.
  OrderedJson Read(std::int64_t i) const;

  // Returns "data.jsonl:17" for the line where record i begins. Reads the file up to there.
  std::string Where(std::int64_t i) const;

 private:
  bool has_header() const { return file_format_ == FileFormat::kCsv; }
  bool has_lines() const {
    return file_format_ == FileFormat::kJsonLines || file_format_ == FileFormat::kParquet;
  }
  void MakeIndex();
  bool IndexIsSound() const;
  void IndexLines(std::uint64_t begin);
  void IndexElements(std::uint64_t begin);
  void IndexRows(std::uint64_t begin);
  void ReadColumns();
  void FindDialect();
  std::uint64_t EndOf(std::uint64_t begin, std::uint64_t end) const;
  std::string ReadBytes(std::uint64_t begin, std::uint64_t end) const;
  OrderedJson ReadObject(std::uint64_t begin, std::uint64_t end, bool last) const;
  OrderedJson ReadRow(std::uint64_t begin, std::uint64_t end) const;
  std::vector<std::string> ParseFields(std::uint64_t begin, std::uint64_t end) const;

  FileBytes file_;  // of a Parquet file its rows as JSON Lines
  ReadingLimits limits_;
  FileFormat file_format_;
  CsvDialect dialect_;
  // Byte offsets: the header row of CSV, every record, the end of the last record. Ascending.
  IndexArray<std::uint64_t> begins_;
  std::vector<std::string> columns_;  // names from the header row of a CSV file, or ""
  std::int64_t unnamed_columns_ = 0;
  std::vector<std::string> ignored_;
  bool refuses_wide_ = false;
};

}  // namespace qlora

#endif  // QLORA_RECORDS_RECORD_FILE_H_
