#include "prompt/fit/calls_as_messages.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "prompt/fit/template_names.h"
#include "prompt/known_fields.h"

namespace qlora {

bool ReadsCallsAsMessages(std::string_view source) {
  return NamesField(source, "metadata") && NamesField(source, "observation") &&
         !NamesField(source, "tool_calls");
}

SplitMessages CallsAsMessages(const Conversation& conversation,
                              const std::function<std::string(const OrderedJson&)>& arguments) {
  SplitMessages split{OrderedJson::array(), {}};
  const auto add = [&](OrderedJson message, std::size_t origin) {
    split.messages.push_back(std::move(message));
    split.origins.push_back(origin);
  };
  for (std::size_t m = 0; m < conversation.messages.size(); ++m) {
    const OrderedJson& message = conversation.messages[m];
    const auto calls = message.find("tool_calls");
    if (calls == message.end() || !calls->is_array() || calls->empty()) {
      add(message, m);
      continue;
    }
    OrderedJson part = message;  // with its other fields, such as thoughts
    part.erase("tool_calls");
    if (!SaysNothing(message.at("content"))) {
      add(std::move(part), m);
      part = {{"role", message.at("role")}};
    }
    for (std::size_t c = 0; c < calls->size(); ++c) {
      const OrderedJson& call = (*calls)[c];
      const OrderedJson& function = call.contains("function") ? call["function"] : call;
      const auto name = function.find("name");
      const auto given = function.find("arguments");
      const bool has_text =
          m < conversation.argument_texts.size() && c < conversation.argument_texts[m].size();
      std::string text = has_text ? conversation.argument_texts[m][c] : "";
      if (text.empty() && given != function.end()) {
        text = given->is_string() ? given->get<std::string>() : arguments(*given);
      }
      if (text.empty()) text = "{}";
      part["metadata"] = name == function.end() ? OrderedJson() : *name;
      part["content"] = std::move(text);
      add(std::move(part), m);
      part = {{"role", message.at("role")}};
    }
  }
  return split;
}

void JoinTurns(const std::vector<std::size_t>& origins, std::vector<ChatSpan>& turns) {
  std::vector<ChatSpan> joined;
  for (ChatSpan turn : turns) {
    turn.message = origins.at(turn.message);
    if (!joined.empty() && joined.back().message == turn.message) {
      joined.back().end = turn.end;
      joined.back().open_end = turn.open_end;
    } else {
      joined.push_back(turn);
    }
  }
  turns = std::move(joined);
}

}  // namespace qlora
