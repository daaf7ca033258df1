#include "records/json_lines.h"

#include "records/file_format.h"

namespace qlora {

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
