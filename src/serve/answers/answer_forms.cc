#include "serve/answers/answer_forms.h"

#include <algorithm>
#include <memory>

#include "base/text.h"
#include "prompt/fit/calls_as_messages.h"
#include "serve/answer_parts.h"

namespace qlora {
namespace {

// A kTagged form with attributes behind names and keys, which stand in quotes; end: of both.
constexpr CallForm WithAttributes(std::string_view end, CallForm form) {
  form.kind = CallKind::kTagged;
  form.name_end = form.key_end = "\"";
  form.attributes_end = form.key_attributes_end = end;
  return form;
}

constexpr CallForm Dsml(std::string_view in_template, std::string_view open,
                        std::string_view close) {
  return WithAttributes(">", {.in_template = {"｜DSML｜", in_template},
                              .open = open,
                              .close = close,
                              .name_begin = "<｜DSML｜invoke name=\"",
                              .key_begin = "<｜DSML｜parameter name=\"",
                              .value_end = "</｜DSML｜parameter>",
                              .call_end = "</｜DSML｜invoke>"});
}

// Some of its templates have tools alone, and no calls.
bool IsLfm(std::string_view template_text) {
  return template_text.find("<|tool_call_start|>") != template_text.npos ||
         template_text.find("List of tools: [") != template_text.npos;
}

// Of forms with the same beginning the first is tried first.
constexpr CallForm kCallForms[] = {
    // Qwen3-Coder, Qwen3.5, StepFun.
    {.kind = CallKind::kTagged,
     .in_template = {"<tool_call>", "<function=", "<parameter="},
     .open = "<tool_call>",
     .close = "</tool_call>",
     .name_begin = "<function=",
     .name_end = ">",
     .key_begin = "<parameter=",
     .key_end = ">",
     .value_end = "</parameter>",
     .call_end = "</function>",
     .trims_lines = true},
    // GLM-4.5 and later, Ling, Laguna, Spark.
    {.kind = CallKind::kTagged,
     .in_template = {"<tool_call>", "<arg_key>", "<arg_value>"},
     .open = "<tool_call>",
     .key_begin = "<arg_key>",
     .key_end = "</arg_key>",
     .value_begin = "<arg_value>",
     .value_end = "</arg_value>",
     .call_end = "</tool_call>"},
    // Hermes, Qwen2.5, Qwen3, Granite 4, SmolLM3, Falcon3, Bielik, MiMo, Reka.
    {.in_template = {"<tool_call>"}, .open = "<tool_call>", .close = "</tool_call>"},
    // Hunyuan 3.
    {.kind = CallKind::kTagged,
     .in_template = {":opensource", "<arg_key"},
     .open = "<tool_calls:opensource>",
     .close = "</tool_calls:opensource>",
     .name_begin = "<tool_call:opensource>",
     .attributes_end = "<tool_sep:opensource>",
     .key_begin = "<arg_key:opensource>",
     .key_end = "</arg_key:opensource>",
     .value_begin = "<arg_value:opensource>",
     .value_end = "</arg_value:opensource>",
     .call_end = "</tool_call:opensource>"},
    // MiniMax-M2.
    WithAttributes(">", {.in_template = {"<minimax:tool_call>", "<invoke name="},
                         .open = "<minimax:tool_call>",
                         .close = "</minimax:tool_call>",
                         .name_begin = "<invoke name=\"",
                         .key_begin = "<parameter name=\"",
                         .value_end = "</parameter>",
                         .call_end = "</invoke>"}),
    // DeepSeek V3.2 and V4.
    Dsml("function_calls>", "<｜DSML｜function_calls>", "</｜DSML｜function_calls>"),
    Dsml("tool_calls>", "<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>"),
    // Muse.
    WithAttributes(">", {.in_template = {"<atem:function_calls>"},
                         .open = "<atem:function_calls>",
                         .close = "</atem:function_calls>",
                         .name_begin = "<atem:invoke name=\"",
                         .key_begin = "<atem:parameter name=\"",
                         .value_end = "</atem:parameter>",
                         .call_end = "</atem:invoke>"}),
    // MiniCPM5.
    WithAttributes(">", {.in_template = {"<function name=\"", "<param name=\""},
                         .name_begin = "<function name=\"",
                         .key_begin = "<param name=\"",
                         .value_end = "</param>",
                         .call_end = "</function>",
                         .has_data = true}),
    // Kimi K3.
    WithAttributes("<|sep|>", {.in_template = {"<|open|>", "<|close|>", "<|sep|>"},
                               .open = "<|open|>tools<|sep|>",
                               .close = "<|close|>tools<|sep|>",
                               .name_begin = "<|open|>call tool=\"",
                               .key_begin = "<|open|>argument key=\"",
                               .value_end = "<|close|>argument<|sep|>",
                               .call_end = "<|close|>call<|sep|>"}),

    // Mistral since 2025.
    {.kind = CallKind::kNamed,
     .in_template = {"[TOOL_CALLS]", "[ARGS]"},
     .name_begin = "[TOOL_CALLS]",
     .name_end = "[ARGS]",
     .after_name = "[CALL_ID]"},
    // DeepSeek V3 and R1, and V3.1.
    {.kind = CallKind::kNamed,
     .in_template = {"<｜tool▁call▁begin｜>", "```json"},
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .name_begin = "<｜tool▁call▁begin｜>",
     .name_end = "\n```json\n",
     .call_end = "<｜tool▁call▁end｜>",
     .before_name = "<｜tool▁sep｜>",
     .after_json = "```"},
    {.kind = CallKind::kNamed,
     .in_template = {"<｜tool▁call▁begin｜>"},
     .open = "<｜tool▁calls▁begin｜>",
     .close = "<｜tool▁calls▁end｜>",
     .name_begin = "<｜tool▁call▁begin｜>",
     .name_end = "<｜tool▁sep｜>",
     .call_end = "<｜tool▁call▁end｜>"},
    // Kimi K2.
    {.kind = CallKind::kNamed,
     .in_template = {"<|tool_calls_section_begin|>", "<|tool_call_argument_begin|>"},
     .open = "<|tool_calls_section_begin|>",
     .close = "<|tool_calls_section_end|>",
     .name_begin = "<|tool_call_begin|>",
     .name_end = "<|tool_call_argument_begin|>",
     .call_end = "<|tool_call_end|>"},
    // Solar.
    {.kind = CallKind::kNamed,
     .in_template = {"<|tool_call:begin|>", "<|tool_call:args|>"},
     .open = "<|tool_calls|>",
     .close = "<|calls|>",
     .name_begin = "<|tool_call:begin|>",
     .name_end = "<|tool_call:args|>",
     .call_end = "<|tool_call:end|>",
     .before_name = "<|tool_call:name|>"},
    // GLM-4.
    {.kind = CallKind::kNamed,
     .applies = ReadsCallsAsMessages,
     .name_begin = "<|assistant|>",
     .name_end = "\n",
     .follows_prompt = true},
    // Functionary.
    {.kind = CallKind::kNamed,
     .in_template = {">>>all"},
     .name_begin = ">>>",
     .name_end = "\n",
     .follows_prompt = true},

    // LFM2.
    {.kind = CallKind::kLiteral,
     .applies = IsLfm,
     .open = "<|tool_call_start|>",
     .close = "<|tool_call_end|>",
     .name_end = "(",
     .key_end = "=",
     .call_end = ")"},
    // Gemma 4.
    {.kind = CallKind::kLiteral,
     .in_template = {"<|tool_call>", "<tool_call|>"},
     .open = "<|tool_call>",
     .close = "<tool_call|>",
     .name_begin = "call:",
     .name_end = "{",
     .key_end = ":",
     .call_end = "}"},

    // Llama 3: JSON alone, or the calls of its own tools.
    {.in_template = {"<|start_header_id|>", "{\"name\": ", "\"parameters\": "},
     .is_whole_answer = true},
    {.in_template = {"<|python_tag|>"}, .open = "<|python_tag|>"},
    {.kind = CallKind::kLiteral,
     .in_template = {"<|python_tag|>"},
     .open = "<|python_tag|>",
     .name_end = "(",
     .key_end = "=",
     .call_end = ")",
     .after_name = ".call"},
    // Mistral until 2025.
    {.in_template = {"[TOOL_CALLS]"}, .open = "[TOOL_CALLS]"},
    // Apertus.
    {.in_template = {"<|tools_prefix|>"},
     .open = "<|tools_prefix|>",
     .close = "<|tools_suffix|>",
     .key_is_name = true},
    // Command R7B and later, and Command R.
    {.in_template = {"<|START_ACTION|>"}, .open = "<|START_ACTION|>", .close = "<|END_ACTION|>"},
    {.in_template = {"Action:", "```json", "tool_name"},
     .open = "Action:\n```json",
     .close = "```"},
    // Granite 3, Apriel, Nemotron Nano, GigaChat.
    {.in_template = {"<|tool_call|>"}, .open = "<|tool_call|>"},
    {.in_template = {"<tool_calls>"}, .open = "<tool_calls>", .close = "</tool_calls>"},
    {.in_template = {"<TOOLCALL>"}, .open = "<TOOLCALL>", .close = "</TOOLCALL>"},
    {.in_template = {"<|function_call|>"}, .open = "<|function_call|>"},
    {.in_template = {"function call", "<|role_sep|>"},
     .open = "<|message_sep|>\n\nfunction call<|role_sep|>"},
};

constexpr IdleText kIdle[] = {
    {"<response>", "<response>"},
    {"<response>", "</response>"},
    {"<answer>", "<answer>"},
    {"<answer>", "</answer>"},
    {"<|START_RESPONSE|>", "<|START_RESPONSE|>"},
    {"<|START_RESPONSE|>", "<|END_RESPONSE|>"},
    {"<|START_TEXT|>", "<|START_TEXT|>"},
    {"<|START_TEXT|>", "<|END_TEXT|>"},
    {"[BEGIN FINAL RESPONSE]", "[END FINAL RESPONSE]"},
    {"<|open|>", "<|open|>response<|sep|>"},
    {"<|open|>", "<|close|>response<|sep|>"},
    {"<|open|>", "<|close|>message<|sep|>"},
    {"<|tool_call:begin|>", "<|begin|>assistant"},
    {"<|tool_call:begin|>", "<|content|>"},
    {"<|tool_call:begin|>", "<|end|>"},
    {">>>all", ">>>all\n"},
    // Of an answer without a thought.
    {"<mm:think>", "</mm:think>"},
};

bool HasAll(std::string_view text, const TemplateMarks& parts) {
  return std::ranges::all_of(parts,
                             [&](std::string_view part) { return text.find(part) != text.npos; });
}

}  // namespace

std::shared_ptr<const AnswerForm> FindAnswerForm(std::string_view template_text) {
  AnswerForm form;
  for (const CallForm& call : kCallForms) {
    const bool applies = call.applies == nullptr || call.applies(template_text);
    if (applies && HasAll(template_text, call.in_template)) form.calls.push_back(&call);
  }
  for (const ThoughtForm& thought : kThoughtForms) {
    if (HasAll(template_text, thought.in_template)) form.thoughts.push_back(&thought);
  }
  for (const IdleText& idle : kIdle) {
    if (template_text.find(idle.in_template) != template_text.npos) form.idle.push_back(idle.text);
  }
  form.has_channels = HasAll(template_text, {"<|start|>", ChannelForm::kBody});
  return std::make_shared<const AnswerForm>(std::move(form));
}

bool HasMarks(const AnswerForm& form) {
  return form.has_channels || !form.calls.empty() || !form.thoughts.empty() || !form.idle.empty();
}

bool HasCalls(const AnswerForm& form) { return form.has_channels || !form.calls.empty(); }

bool HasChannels(const AnswerForm& form) { return form.has_channels; }

std::string_view ThoughtEnd(const AnswerForm& form) {
  return form.thoughts.empty() ? std::string_view() : form.thoughts.front()->end;
}

std::shared_ptr<const AnswerForm> WithoutMarks(const AnswerForm& form) {
  AnswerForm plain;
  plain.thoughts = form.thoughts;
  plain.has_marks = false;
  return std::make_shared<const AnswerForm>(std::move(plain));
}

bool EndsInThought(const AnswerForm& form, std::string_view prompt) {
  const std::string_view text = TrimEnd(prompt);
  const bool thinks = std::ranges::any_of(form.thoughts, [&](const ThoughtForm* thought) {
    return text.ends_with(TrimEnd(thought->begin));
  });
  if (thinks || !form.has_channels) return thinks;
  return std::ranges::any_of(ChannelForm::kThoughts, [&](std::string_view thought) {
    return text.ends_with(std::string(thought) + std::string(ChannelForm::kBody));
  });
}

}  // namespace qlora
