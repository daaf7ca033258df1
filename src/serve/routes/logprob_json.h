// Log-probabilities in the forms of chat completions and of completions.
#ifndef QLORA_SERVE_ROUTES_LOGPROB_JSON_H_
#define QLORA_SERVE_ROUTES_LOGPROB_JSON_H_

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "serve/generation_service.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Items of a list: {"token", "logprob", "bytes", "top_logprobs"}.
OrderedJson ChatLogprobs(const std::vector<AnswerToken>& tokens, const Tokenizer& tokenizer);

// What to do where an answer that is sent as a whole would hold too many.
inline constexpr const char* kFewerLogprobs =
    "ask for fewer log-probabilities, tokens or answers, or stream them";

// Adds the items of a list to a text of items, and a field to the text of an object; json: text,
// too. Trees of JSON would take several times the memory, of answers that are sent as a whole.
void AppendItems(const OrderedJson& list, std::string& items);
void AppendField(std::string& object, std::string_view name, std::string_view json);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of a text, in parts.
class CompletionLogprobs {
 public:
  // prompt: its text, where the prompt is shown. It and the tokenizer must outlive this.
  CompletionLogprobs(const Tokenizer& tokenizer, std::string_view prompt)
      : tokenizer_(tokenizer), prompt_(prompt) {}

  // The form of tokens that follow those of all calls before. is_prompt: nothing is known of the
  // first one of all.
  void Add(std::span<const AnswerToken> tokens, bool is_prompt, OrderedJson& json);
  static OrderedJson Empty();
  static constexpr std::array<const char*, 4> kLists = {"tokens", "token_logprobs", "top_logprobs",
                                                        "text_offset"};

 private:
  std::int64_t TakeOfPrompt(const AnswerToken& token);

  const Tokenizer& tokenizer_;
  std::string_view prompt_;  // that is not taken yet
  std::int64_t offset_ = 0;  // characters
  bool has_prompt_ = false;
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_LOGPROB_JSON_H_
