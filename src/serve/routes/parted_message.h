// The parts of an answer as one message of chat completions.
#ifndef QLORA_SERVE_ROUTES_PARTED_MESSAGE_H_
#define QLORA_SERVE_ROUTES_PARTED_MESSAGE_H_

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "io/json_fwd.h"
#include "serve/answer_parts.h"

namespace qlora {

class PartedMessage {
 public:
  // call_ids: ids of calls are this and their numbers.
  explicit PartedMessage(std::string call_ids) : call_ids_(std::move(call_ids)) {}

  void Add(const AnswerPart& part);

  // {"role", "content"} and, where there are such, "reasoning_content" and "tool_calls". The
  // content is null beside calls alone.
  OrderedJson json() const;
  const OrderedJson& calls() const { return calls_; }
  // True where the answer ended within its last call.
  bool is_cut() const { return is_cut_; }

 private:
  std::string call_ids_;
  std::string text_;
  std::string thought_;
  OrderedJson calls_ = OrderedJson::array();
  bool is_cut_ = false;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_PARTED_MESSAGE_H_
