// JSON Lines that need not be in memory.
#ifndef QLORA_RECORDS_JSON_LINES_H_
#define QLORA_RECORDS_JSON_LINES_H_

#include <cstdint>

namespace qlora {

// Finds the records of JSON Lines one byte at a time, by brackets and quotes alone: what is not
// valid JSON is found when it is parsed. A record ends with its line, or with the line where its
// brackets are closed, as in an object that is indented over several lines. A broken line takes no
// other with it, because a line that begins with '{' begins a record in any case.
class JsonLinesScanner {
 public:
  // Takes the next byte. True when a record begins with it.
  bool Step(char c);

 private:
  void EndLine();
  void StepWithin(char c);

  bool in_record_ = false;
  bool in_string_ = false;
  bool escaped_ = false;       // the byte before was a backslash that escapes
  bool at_line_start_ = true;  // no byte of the line was taken
  std::int64_t depth_ = 0;     // brackets that are open
};

}  // namespace qlora

#endif  // QLORA_RECORDS_JSON_LINES_H_
