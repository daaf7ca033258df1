#include "data/csv.h"

#include <utility>

#include "base/check.h"

namespace qlora {

bool CsvScanner::Step(char c) {
  if (state_ == State::kQuoted) {
    if (c == '"') state_ = State::kAfterQuote;
    return false;
  }
  if (c == '\n' || c == delimiter_) {
    state_ = State::kFieldStart;
    return c == '\n';
  }
  const bool opens = c == '"' && state_ != State::kPlain;  // at a field's start, or a doubled quote
  state_ = opens ? State::kQuoted : State::kPlain;
  return false;
}

std::vector<std::string> ParseCsvRecord(std::string_view record, char delimiter) {
  if (record.ends_with('\n')) record.remove_suffix(1);
  if (record.ends_with('\r')) record.remove_suffix(1);
  std::vector<std::string> fields;
  std::size_t at = 0;
  while (true) {
    std::string field;
    if (at < record.size() && record[at] == '"') {
      ++at;
      while (true) {
        const std::size_t quote = record.find('"', at);
        if (quote == std::string_view::npos) {
          ThrowInvalidInput("the quoted field {} is not closed", fields.size() + 1);
        }
        field += record.substr(at, quote - at);
        at = quote + 1;
        if (at == record.size() || record[at] != '"') break;
        field += '"';
        ++at;
      }
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
    ++at;
  }
}

}  // namespace qlora
