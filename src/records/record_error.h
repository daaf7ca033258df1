// Errors about data begin with file and line, whoever throws them.
#ifndef QLORA_RECORDS_RECORD_ERROR_H_
#define QLORA_RECORDS_RECORD_ERROR_H_

#include <string_view>

namespace qlora {

// Call in a catch block. Throws the exception in flight again, as an Error whose message begins
// with `place`. An Error keeps its code; an exception of the JSON library, the standard library or
// any other becomes InvalidInput, because only the record in hand can have caused it.
// std::bad_alloc passes unchanged.
[[noreturn]] void RethrowAt(std::string_view place);

// Runs `body`. An exception that leaves `body` is thrown again at place(), which returns a text
// such as "data.jsonl:17" and is called only then, since counting lines reads the file.
template <typename Place, typename Body>
decltype(auto) NamePlace(const Place& place, const Body& body) {
  try {
    return body();
  } catch (...) {
    RethrowAt(place());
  }
}

}  // namespace qlora

#endif  // QLORA_RECORDS_RECORD_ERROR_H_
