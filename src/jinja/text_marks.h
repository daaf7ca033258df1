// Follows the text that {% generation %} wrote through the texts that a template keeps before it
// puts them out: those of macros, {% set %} blocks, {% filter %} and {% call %}.
#ifndef QLORA_JINJA_TEXT_MARKS_H_
#define QLORA_JINJA_TEXT_MARKS_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "jinja/jinja.h"

namespace qlora::jinja {

// The marked parts of one text.
struct Marks {
  std::vector<JinjaSpan> spans;  // ascending, disjoint
  bool lost = false;             // a part is marked whose place is not known

  bool empty() const { return spans.empty() && !lost; }
  // Adds the marks of a text that was written from byte `offset` on.
  void Append(const Marks& marks, std::size_t offset);
};

// The marks of all texts of a rendering. A text is known by its address, which all copies of a
// value share, since nothing changes a text once it is made; most renderings mark no text.
class TextMarks {
 public:
  using SharedText = std::shared_ptr<const std::string>;
  // Nothing for a part that the function refuses.
  using Apply = std::function<std::optional<std::string>(std::string_view)>;

  bool empty() const { return known_.empty(); }
  // null: nothing of the text is marked.
  const Marks* Of(const SharedText& text) const;
  void Set(const SharedText& text, Marks marks);
  // `result` was made of `text` by `apply`, a function of any text, which may be null. The marks
  // follow where applying it to the parts one by one gives the result, or where the result is the
  // text without its ends; else they are lost.
  void Follow(const SharedText& text, const SharedText& result, const Apply& apply);

 private:
  struct Known {
    SharedText text;  // keeps the address
    Marks marks;
  };
  std::unordered_map<const std::string*, Known> known_;
};

}  // namespace qlora::jinja

#endif  // QLORA_JINJA_TEXT_MARKS_H_
