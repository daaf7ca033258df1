#include "records/csv.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/text.h"

namespace qlora {
namespace {

constexpr std::string_view kDelimiters = ",;\t";

// Counts a delimiter in the first row of `text`, outside of quotes.
std::ptrdiff_t CountInRow(std::string_view text, char delimiter) {
  std::ptrdiff_t count = 0;
  bool in_quotes = false;
  char before = '\n';
  for (const char c : text) {
    if (!in_quotes && c == '\n') break;
    // A quote opens at the start of a field, or is doubled.
    const bool may_open =
        before == '\n' || before == '"' || kDelimiters.find(before) != kDelimiters.npos;
    if (c == '"' && (in_quotes || may_open)) in_quotes = !in_quotes;
    count += !in_quotes && c == delimiter;
    before = c;
  }
  return count;
}

// Moves the text of the quoted field that begins at record[at], a quote, into `field`, and returns
// where the field ends. `number` of the field is for errors.
std::size_t TakeQuoted(std::string_view record, std::size_t at, std::size_t number,
                       std::string& field) {
  while (true) {
    const std::size_t begin = at + 1;
    at = record.find('"', begin);
    if (at == std::string_view::npos)
      ThrowInvalidInput("the quoted field {} is not closed", number);
    field += record.substr(begin, at - begin);
    ++at;
    if (at == record.size() || record[at] != '"') return at;
    field += '"';  // doubled: the field holds one quote and continues
  }
}

}  // namespace

CsvDialect DetectCsvDialect(std::string_view head, bool is_tsv) {
  constexpr std::string_view kSep = "sep=";
  CsvDialect dialect;
  const std::size_t line = head.find('\n');
  if (line != head.npos && LowerCase(head.substr(0, kSep.size())) == kSep) {
    std::string_view rest = head.substr(kSep.size(), line - kSep.size());
    if (rest.ends_with('\r')) rest.remove_suffix(1);
    // Any other line is a header row.
    if (rest.size() == 1 && rest != "\"") return {line + 1, rest[0]};
  }
  dialect.delimiter = is_tsv ? '\t' : ',';
  std::ptrdiff_t most = CountInRow(head, dialect.delimiter);
  if (is_tsv && most > 0) return dialect;
  for (const char other : kDelimiters) {
    const std::ptrdiff_t count = CountInRow(head, other);
    if (count > most) dialect.delimiter = other;
    most = std::max(most, count);
  }
  return dialect;
}

// A quote opens a quoted field only at the start of a field; right after a closing quote it counts
// as itself, and the field continues.
bool CsvScanner::Step(char c) {
  if (state_ == State::kQuoted) {
    if (c == '"') state_ = State::kAfterQuote;
    return false;
  }
  if (c == '\n' || c == delimiter_) {
    state_ = State::kFieldStart;
    return c == '\n';
  }
  // A quote within a plain field is text: 6" x 4" has no quoted field.
  const bool opens = c == '"' && state_ != State::kPlain;
  state_ = opens ? State::kQuoted : State::kPlain;
  return false;
}

std::vector<std::string> ParseCsvRecord(std::string_view record, char delimiter) {
  if (record.ends_with('\n')) record.remove_suffix(1);
  // RFC 4180 ends lines in CR LF, Unix in LF; both are read.
  if (record.ends_with('\r')) record.remove_suffix(1);
  std::vector<std::string> fields;
  for (std::size_t at = 0;; ++at) {  // behind a delimiter
    std::string field;
    if (at < record.size() && record[at] == '"') {
      at = TakeQuoted(record, at, fields.size() + 1, field);
      if (at < record.size() && record[at] != delimiter) {
        ThrowInvalidInput(
            "text follows the closing quote of field {}; a quote inside a quoted field must be "
            "doubled",
            fields.size() + 1);
      }
    } else {
      const std::size_t end = std::min(record.find(delimiter, at), record.size());
      field = record.substr(at, end - at);
      at = end;
    }
    fields.push_back(std::move(field));
    if (at == record.size()) return fields;
  }
}

bool IsMissingCsvValue(std::string_view field) {
  // na_values of pandas.read_csv.
  static constexpr std::string_view kMissing[] = {
      "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
      "<NA>", "N/A",      "NA",  "NULL",    "NaN",      "None", "n/a",  "nan",    "null"};
  return std::ranges::find(kMissing, field) != std::end(kMissing);
}

}  // namespace qlora
