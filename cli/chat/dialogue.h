// The conversation of `qlora chat` with a model: its turns, as a prompt and as a record of data.
#ifndef QLORA_CLI_CHAT_DIALOGUE_H_
#define QLORA_CLI_CHAT_DIALOGUE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/json_fwd.h"

namespace qlora {

class Dialogue {
 public:
  std::string system;  // system message; "": none

  bool empty() const { return turns_.empty(); }
  void Ask(std::string question);
  // Answers the last question.
  void Answer(std::string text);
  // Removes the last question, and shows the model all turns again.
  void TakeBack();
  void Reset();

  // Leaves the oldest turn out of the prompts that follow. Returns false when only the last turn is
  // left.
  bool LeaveOutOldest();

  // The turns that the model is shown: as messages of roles, and as plain text in which each
  // question and answer ends with a line break.
  OrderedJson Messages() const;
  std::string Text() const;
  // All turns as a record that `train` reads: {"messages": [...]}, or {"text": ...} when plain.
  OrderedJson Record(bool plain) const;

 private:
  struct Turn {
    std::string question;
    std::optional<std::string> answer;
  };

  OrderedJson MessagesFrom(std::int64_t first) const;
  std::string TextFrom(std::int64_t first) const;

  std::vector<Turn> turns_;
  std::int64_t shown_ = 0;  // number of the first turn that the model is shown
};

}  // namespace qlora

#endif  // QLORA_CLI_CHAT_DIALOGUE_H_
