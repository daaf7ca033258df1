// Texts that end an answer, looked for in an answer that comes in pieces.
#ifndef QLORA_INFERENCE_STOP_TEXTS_H_
#define QLORA_INFERENCE_STOP_TEXTS_H_

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace qlora {

class StopTexts {
 public:
  // None of them is "".
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // Takes the next piece. Returns the text that can be shown: everything before the first stop
  // text, without an end that may begin one. may_end: a stop text may end in this piece, or else
  // counts as text; one that only begins there may end in a later piece.
  std::string Add(std::string_view piece, bool may_end = true);
  // Returns the text that was held back, once no more pieces come; "" after a stop text.
  std::string Finish();
  // The text that was found, or "". Of several that begin at the same place, the one given first.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> texts_;
  std::string held_;        // the end of the answer that was not shown
  std::size_t passed_ = 0;  // bytes of it in which no stop text may end
  std::string found_;
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_STOP_TEXTS_H_
