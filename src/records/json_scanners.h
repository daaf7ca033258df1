// Arrays and lines of JSON that need not be in memory.
#ifndef QLORA_RECORDS_JSON_SCANNERS_H_
#define QLORA_RECORDS_JSON_SCANNERS_H_

#include <cstdint>

namespace qlora {

// Finds the elements of an array one byte at a time. Tells elements apart by brackets, commas and
// quotes alone: one that is not valid JSON is found when it is parsed.
class JsonArrayScanner {
 public:
  enum class Found { kNothing, kElement, kEnd };

  // Takes the next byte, the first one being the bracket that opens the array. kElement: an element
  // begins with this byte. kEnd: this byte closes the array.
  // Errors: InvalidInput, without a place, when the byte cannot come here.
  Found Step(char c);
  bool ended() const { return at_ == At::kAfterEnd; }

 private:
  enum class At { kStart, kFirst, kElement, kAfterComma, kAfterEnd };

  Found StepBetween(char c);
  void StepInString(char c);

  At at_ = At::kStart;
  std::int64_t depth_ = 0;  // brackets that are open within the element
  bool in_string_ = false;
  bool escaped_ = false;  // the byte before was a backslash that escapes
};

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

#endif  // QLORA_RECORDS_JSON_SCANNERS_H_
