// Which chat template renders conversations.
#ifndef QLORA_CHAT_H_
#define QLORA_CHAT_H_

#include <string>

#include "qlora/options.h"

namespace qlora {

struct ChatFields {
  std::string chat_template = {};         // empty: the checkpoint's own
  std::string chat_template_kwargs = {};  // JSON object of variables that the template sees
  std::string chat_template_date = {};    // YYYY-MM-DD; empty: fixed for data, otherwise today

  void Declare(OptionTable& table);
};

}  // namespace qlora

#endif  // QLORA_CHAT_H_
