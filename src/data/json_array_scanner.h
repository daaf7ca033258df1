// Finds the elements of a JSON array one byte at a time, so that a file need not be in memory.
#ifndef QLORA_DATA_JSON_ARRAY_SCANNER_H_
#define QLORA_DATA_JSON_ARRAY_SCANNER_H_

#include <cstdint>

namespace qlora {

// White space between the values of JSON.
inline bool IsJsonBlank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

// Tells elements apart by brackets, commas and quotes alone. Whether an element is valid JSON is
// found out when it is parsed.
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

}  // namespace qlora

#endif  // QLORA_DATA_JSON_ARRAY_SCANNER_H_
