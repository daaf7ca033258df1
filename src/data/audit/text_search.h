// Looks for the texts of a record in the text that is trained.
#ifndef QLORA_DATA_AUDIT_TEXT_SEARCH_H_
#define QLORA_DATA_AUDIT_TEXT_SEARCH_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "prompt/part_renderings.h"

namespace qlora {

// Finds each text at a place of its own: what a conversation says twice must be there twice. The
// text and the turns must outlive it.
class TextSearch {
 public:
  // turns: what the assistant wrote and is trained, ascending and disjoint. Texts of others are
  // looked for outside of them.
  TextSearch(std::string_view text, std::span<const TextPlace> turns);

  // Takes the next place that is free and outside of the turns, or nothing. White space around a
  // text does not count, and a short text must stand between other characters than letters.
  std::optional<TextPlace> TakeOutside(std::string_view part);
  // Takes a free place in a turn, which the prompt may have begun.
  std::optional<TextPlace> TakeWithin(std::string_view part, std::size_t turn);
  // True when the text, outside of the turns or in one of them, has the part in another writing:
  // with other white space, in other capitals, escaped as JSON and Python do. Places are not taken,
  // but outside there must be as many as there are texts.
  bool HasOutside(std::string_view part);
  bool HasWithin(std::string_view part, std::size_t turn) const;
  // True when the part is anywhere, whether taken or not.
  bool HasAnywhere(std::string_view part);

 private:
  std::optional<TextPlace> Take(std::string_view part, TextPlace area, std::size_t from,
                                bool outside);
  TextPlace AreaOf(std::size_t turn) const;

  const std::string_view text_;
  const std::span<const TextPlace> turns_;
  std::vector<char> state_;             // per byte: free, of a turn, taken
  std::size_t next_ = 0;                // behind the last place outside of the turns
  std::optional<std::string> outside_;  // EssenceOf the text outside of the turns
  std::optional<std::string> all_;
  std::map<std::string, std::int64_t> uses_;  // by EssenceOf: texts that are outside of the turns
};

// Returns a text without white space, quotes and escapes, in lower case: what its writings share.
std::string EssenceOf(std::string_view text);

}  // namespace qlora

#endif  // QLORA_DATA_AUDIT_TEXT_SEARCH_H_
