#include "records/json_scanners.h"

#include "base/check.h"
#include "records/file_format.h"

namespace qlora {

JsonArrayScanner::Found JsonArrayScanner::Step(char c) {
  if (in_string_) {
    StepInString(c);
    return Found::kNothing;
  }
  if (IsJsonBlank(c)) return Found::kNothing;
  if (at_ == At::kStart) {
    at_ = At::kFirst;
    return Found::kNothing;
  }
  if (at_ == At::kAfterEnd) ThrowInvalidInput("text follows the end of the JSON array");
  if (depth_ == 0 && (c == ',' || c == ']')) return StepBetween(c);

  const bool begins = at_ != At::kElement;
  at_ = At::kElement;
  in_string_ = c == '"';
  if (c == '{' || c == '[') ++depth_;
  if ((c == '}' || c == ']') && --depth_ < 0) {
    ThrowInvalidInput("expected ',' or ']', found '{}'", c);
  }
  return begins ? Found::kElement : Found::kNothing;
}

// A comma or the closing bracket outside of all elements. "[]" is an array, "[,]" and "[{},]" are
// not.
JsonArrayScanner::Found JsonArrayScanner::StepBetween(char c) {
  const bool closes = c == ']';
  if (at_ == At::kAfterComma || (at_ == At::kFirst && !closes)) {
    ThrowInvalidInput("expected an object, found '{}'{}", c,
                      closes ? "; take out the comma before it" : "");
  }
  at_ = closes ? At::kAfterEnd : At::kAfterComma;
  return closes ? Found::kEnd : Found::kNothing;
}

// Brackets and commas in a string mean nothing, and \" does not end it; \\ escapes itself.
void JsonArrayScanner::StepInString(char c) {
  in_string_ = escaped_ || c != '"';
  escaped_ = !escaped_ && c == '\\';
}

bool JsonLinesScanner::Step(char c) {
  if (c == '\n') {
    EndLine();
    return false;
  }
  const bool is_first = at_line_start_;
  at_line_start_ = false;
  if (IsJsonBlank(c)) {
    escaped_ = false;
    return false;
  }
  const bool begins = !in_record_ || (is_first && c == '{');
  if (begins) depth_ = 0;
  in_record_ = true;
  StepWithin(c);
  return begins;
}

// No string goes on in the next line.
void JsonLinesScanner::EndLine() {
  in_string_ = false;
  escaped_ = false;
  at_line_start_ = true;
  in_record_ = in_record_ && depth_ > 0;
}

void JsonLinesScanner::StepWithin(char c) {
  if (in_string_) {
    in_string_ = escaped_ || c != '"';
    escaped_ = !escaped_ && c == '\\';
    return;
  }
  in_string_ = c == '"';
  if (c == '{' || c == '[') ++depth_;
  if (c == '}' || c == ']') --depth_;
}

}  // namespace qlora
