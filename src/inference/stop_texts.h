// Texts that end an answer, looked for in an answer that comes in pieces.
#ifndef QLORA_INFERENCE_STOP_TEXTS_H_
#define QLORA_INFERENCE_STOP_TEXTS_H_

#include <string>
#include <string_view>
#include <vector>

namespace qlora {

class StopTexts {
 public:
  // None of them is "".
  explicit StopTexts(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  // Takes the next piece. Returns the text that can be shown: everything before the first stop
  // text, without an end that may begin one.
  std::string Add(std::string_view piece);
  // Returns the text that was held back, once no more pieces come; "" after a stop text.
  std::string Finish();
  // The text that was found, or "". Of several that begin at the same place, the one given first.
  const std::string& found() const { return found_; }

 private:
  std::vector<std::string> texts_;
  std::string held_;  // the end of the answer that was not shown
  std::string found_;
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_STOP_TEXTS_H_
