// Log-probabilities in the forms of chat completions and of completions.
#ifndef QLORA_SERVE_ROUTES_LOGPROB_JSON_H_
#define QLORA_SERVE_ROUTES_LOGPROB_JSON_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "io/json_fwd.h"
#include "serve/generation_service.h"
#include "tokenizer/tokenizer.h"

namespace qlora {

// Items of a list: {"token", "logprob", "bytes", "top_logprobs"}.
OrderedJson ChatLogprobs(const std::vector<AnswerToken>& tokens, const Tokenizer& tokenizer);

// {"tokens", "token_logprobs", "top_logprobs", "text_offset"} of a text, in parts.
class CompletionLogprobs {
 public:
  // prompt: its text, where the prompt is shown. It and the tokenizer must outlive this.
  CompletionLogprobs(const Tokenizer& tokenizer, std::string_view prompt)
      : tokenizer_(tokenizer), prompt_(prompt) {}

  // The form of tokens that follow those of all calls before. is_prompt: nothing is known of the
  // first one.
  void Add(const std::vector<AnswerToken>& tokens, bool is_prompt, OrderedJson& json);
  static OrderedJson Empty();

 private:
  std::int64_t TakeOfPrompt(const AnswerToken& token);

  const Tokenizer& tokenizer_;
  std::string_view prompt_;  // that is not taken yet
  std::int64_t offset_ = 0;  // characters
};

}  // namespace qlora

#endif  // QLORA_SERVE_ROUTES_LOGPROB_JSON_H_
