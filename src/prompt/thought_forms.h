// The texts that enclose the thoughts of families of models, as a table.
#ifndef QLORA_PROMPT_THOUGHT_FORMS_H_
#define QLORA_PROMPT_THOUGHT_FORMS_H_

#include <array>
#include <string_view>

namespace qlora {

// Texts that all are in the chat templates of models of a form.
using TemplateMarks = std::array<std::string_view, 3>;

// Text between `begin` and `end` is a thought.
struct ThoughtForm {
  TemplateMarks in_template = {};
  std::string_view begin = {};
  std::string_view end = {};
};

inline constexpr ThoughtForm kThoughtForms[] = {
    {{"</think>"}, "<think>", "</think>"},
    {{"</thinking>"}, "<thinking>", "</thinking>"},
    {{":opensource", "think{}"}, "<think:opensource>", "</think:opensource>"},
    {{"</seed:think>"}, "<seed:think>", "</seed:think>"},
    {{"<mm:think>"}, "<mm:think>", "</mm:think>"},
    {{"[/THINK]"}, "[THINK]", "[/THINK]"},
    {{"<|START_THINKING|>"}, "<|START_THINKING|>", "<|END_THINKING|>"},
    {{"<|inner_prefix|>"}, "<|inner_prefix|>", "<|inner_suffix|>"},
    {{"<|channel>thought"}, "<|channel>thought\n", "<channel|>"},
    {{"<|open|>", "<|close|>", "<|sep|>"}, "<|open|>think<|sep|>", "<|close|>think<|sep|>"},
    {{"<|think|>", "<|tool_call:begin|>"}, "<|think|>", "<|end|>"},
    {{"[BEGIN FINAL RESPONSE]"}, "Here are my reasoning steps:\n", "[BEGIN FINAL RESPONSE]"},
};

}  // namespace qlora

#endif  // QLORA_PROMPT_THOUGHT_FORMS_H_
