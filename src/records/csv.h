// Comma-separated values after RFC 4180: fields may be quoted with ", a quote inside is doubled, a
// quoted field may hold line breaks. Lines end in LF or CRLF. The separator is a comma, or what the
// header row shows: spreadsheets write semicolons where the comma marks decimals.
#ifndef QLORA_RECORDS_CSV_H_
#define QLORA_RECORDS_CSV_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

struct CsvDialect {
  std::size_t begin = 0;  // of the header row: behind a line "sep=;", which Excel writes
  char delimiter = ',';   // comma, semicolon, tab, or what "sep=" says
};

// head: the first bytes of a file, without a byte order mark. is_tsv: the name ends in .tsv.
CsvDialect DetectCsvDialect(std::string_view head, bool is_tsv);

// Finds where records end, one byte at a time, so that a file need not be in memory.
class CsvScanner {
 public:
  explicit CsvScanner(char delimiter) : delimiter_(delimiter) {}

  // Takes the next byte of the file; true when it is the line feed that ends a record.
  bool Step(char c);
  // True when the bytes so far end within a quoted field.
  bool in_quotes() const { return state_ == State::kQuoted; }

 private:
  enum class State { kFieldStart, kPlain, kQuoted, kAfterQuote };

  char delimiter_;
  State state_ = State::kFieldStart;
};

// Returns the fields of one record, with or without its line ending. Errors: InvalidInput, without
// a place, when a quoted field is not closed or is followed by anything but a delimiter.
std::vector<std::string> ParseCsvRecord(std::string_view record, char delimiter);

// True for a field that pandas, and so datasets, reads as a missing value: "NaN", "NA", "null" ...
// The empty field is not among them.
bool IsMissingCsvValue(std::string_view field);

}  // namespace qlora

#endif  // QLORA_RECORDS_CSV_H_
