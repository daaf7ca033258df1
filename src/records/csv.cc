#include "records/csv.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace qlora {
namespace {

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
        if (record[at] == ';') ThrowInvalidInput("{}", kSemicolons);
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

}  // namespace qlora
