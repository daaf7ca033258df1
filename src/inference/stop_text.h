// A text that ends an answer, looked for in an answer that comes in pieces.
#ifndef QLORA_INFERENCE_STOP_TEXT_H_
#define QLORA_INFERENCE_STOP_TEXT_H_

#include <string>
#include <string_view>

namespace qlora {

class StopText {
 public:
  // "": nothing is looked for.
  explicit StopText(std::string text);

  // Takes the next piece. Returns the text that can be shown: everything before the stop text,
  // without an end that may begin the stop text.
  std::string Add(std::string_view piece);
  // Returns the text that was held back, once no more pieces come; "" after the stop text.
  std::string Finish();
  bool found() const { return found_; }

 private:
  std::string text_;
  std::string held_;
  bool found_ = false;
};

}  // namespace qlora

#endif  // QLORA_INFERENCE_STOP_TEXT_H_
