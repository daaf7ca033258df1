#include "prompt/turn_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"

namespace qlora {
namespace {

using Kind = PromptLayout::Kind;

struct BuiltInPieces {
  std::string_view name;
  TurnPieces pieces;
};

// Returns ChatML with another system text where the conversation has none.
TurnPieces ChatMlPieces(std::string default_system) {
  return {.default_system = std::move(default_system),
          .system = "<|im_start|>system\n{content}<|im_end|>\n",
          .user = "<|im_start|>user\n{content}<|im_end|>\n",
          .answer_prompt = "<|im_start|>assistant\n",
          .answer = "{content}<|im_end|>\n"};
}

// Returns the layout of Llama 3 and later, whose roles stand between `begin` and `end`.
TurnPieces LlamaPieces(const std::string& begin, const std::string& end,
                       const std::string& end_of_turn, bool trims = false) {
  const auto head = [&](const char* role) { return begin + role + end + "\n\n"; };
  return {.prefix = "{bos}",
          .system = head("system") + "{content}" + end_of_turn,
          .user = head("user") + "{content}" + end_of_turn,
          .answer_prompt = head("assistant"),
          .answer = "{content}" + end_of_turn,
          .trims = trims};
}

// Returns the layout of Phi 3 and Zephyr: roles in lines of their own.
TurnPieces RoleLinePieces(const std::string& end_of_turn, std::string default_system = "") {
  return {.default_system = std::move(default_system),
          .system = "<|system|>\n{content}" + end_of_turn,
          .user = "<|user|>\n{content}" + end_of_turn,
          .answer_prompt = "<|assistant|>\n",
          .answer = "{content}" + end_of_turn};
}

// The layouts that other trainers give by name; `qlora migrate` carries their names over to these.
const std::vector<BuiltInPieces>& BuiltIns() {
  static const std::vector<BuiltInPieces> kBuiltIns = {
      {"alpaca",
       {.default_system = "Below is an instruction that describes a task. Write a response that "
                          "appropriately completes the request.\n\n",
        .system = "{content}",
        .user = "### Instruction:\n{content}\n\n",
        .answer_prompt = "### Response:\n",
        .answer = "{content}{eos}\n\n"}},
      {"deepseek3",
       {.prefix = "{bos}",
        .system = "{content}",
        .user = "<｜User｜>{content}",
        .answer_prompt = "<｜Assistant｜>",
        .answer = "{content}{eos}"}},
      {"gemma",
       {.prefix = "{bos}",
        .user = "<start_of_turn>user\n{content}<end_of_turn>\n",
        .first_user = "<start_of_turn>user\n{system}\n\n{content}<end_of_turn>\n",
        .answer_prompt = "<start_of_turn>model\n",
        .answer = "{content}<end_of_turn>\n"}},
      {"granite3",
       {.system = "<|start_of_role|>system<|end_of_role|>{content}<|end_of_text|>\n",
        .user = "<|start_of_role|>user<|end_of_role|>{content}<|end_of_text|>\n",
        .answer_prompt = "<|start_of_role|>assistant<|end_of_role|>",
        .answer = "{content}<|end_of_text|>\n"}},
      {"human",
       {.system = "System: {content}{eos}\n",
        .user = "Human: {content}{eos}\n",
        .answer_prompt = "Assistant:",
        .answer = "{content}{eos}\n"}},
      {"llama2",
       {.user = "{bos}[INST] {content} [/INST]",
        .first_user = "{bos}[INST] <<SYS>>\n{system}\n<</SYS>>\n\n{content} [/INST]",
        .answer = "{content}{eos}"}},
      {"llama3",
       LlamaPieces("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", /*trims=*/true)},
      {"llama3_untrimmed", LlamaPieces("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")},
      {"llama4", LlamaPieces("<|header_start|>", "<|header_end|>", "<|eot|>")},
      {"ministral",
       {.prefix = "{bos}",
        .user = "[INST]{content}[/INST]",
        .first_user = "[INST]{system}\n\n{content}[/INST]",
        .answer = "{content}{eos}"}},
      {"mistral",
       {.prefix = "{bos}",
        .user = "[INST] {content}[/INST]",
        .first_user = "[INST] {system}\n\n{content}[/INST]",
        .answer = " {content}{eos}"}},
      {"mistral_small",
       {.prefix = "{bos}",
        .system = "[SYSTEM_PROMPT]{content}[/SYSTEM_PROMPT]",
        .user = "[INST]{content}[/INST]",
        .answer = "{content}{eos}"}},
      {"phi", RoleLinePieces("<|end|>\n")},
      {"phi4",
       {.system = "<|im_start|>system<|im_sep|>{content}<|im_end|>",
        .user = "<|im_start|>user<|im_sep|>{content}<|im_end|>",
        .answer_prompt = "<|im_start|>assistant<|im_sep|>",
        .answer = "{content}<|im_end|>"}},
      {"qwen",
       ChatMlPieces("You are Qwen, created by Alibaba Cloud. You are a helpful assistant.")},
      {"vicuna",
       {.default_system =
            "A chat between a curious user and an artificial intelligence assistant. The assistant "
            "gives helpful, detailed, and polite answers to the user's questions.",
        .system = "{content}",
        .user = "USER: {content} ",
        .answer_prompt = "ASSISTANT:",
        .answer = "{content}{eos}"}},
      {"zephyr", RoleLinePieces("{eos}", "You are Zephyr, a helpful assistant.")},
  };
  return kBuiltIns;
}

// Returns `text` as a string literal of Jinja.
std::string Literal(std::string_view text) {
  std::string literal = "'";
  for (const char c : text) {
    if (c == '\n') {
      literal += "\\n";
    } else {
      // An unescaped quote would end the literal, an unescaped backslash would escape the next
      // character.
      if (c == '\'' || c == '\\') literal += '\\';
      literal += c;
    }
  }
  return literal + "'";
}

// Returns "<user>{content}</user>" as the expression '<user>' + content + '</user>'.
std::string Expression(std::string_view piece, std::string_view content) {
  const std::pair<std::string_view, std::string_view> marks[] = {{"{content}", content},
                                                                 {"{system}", "system"},
                                                                 {"{bos}", "bos_token"},
                                                                 {"{eos}", "eos_token"}};
  std::string expression;
  const auto add = [&expression](std::string_view term) {
    expression += (expression.empty() ? "" : " + ");
    expression += term;
  };
  while (!piece.empty()) {
    std::size_t begin = piece.size();
    std::size_t length = 0;
    std::string_view name;
    for (const auto& [mark, variable] : marks) {
      const std::size_t at = piece.find(mark);
      // Takes the first mark; find gives npos, larger than any place, for absent marks.
      if (at >= begin) continue;
      begin = at;
      length = mark.size();
      name = variable;
    }
    if (begin > 0) add(Literal(piece.substr(0, begin)));
    if (length > 0) add(name);
    piece.remove_prefix(begin + length);
  }
  return expression;
}

// Returns {{- expression -}}, or nothing for an empty piece.
std::string Output(std::string_view piece, std::string_view content) {
  const std::string expression = Expression(piece, content);
  return expression.empty() ? "" : "{{- " + expression + " -}}";
}

// Text that no record holds, in the place of its fields.
constexpr std::string_view kMarkedContent = "\x01";
constexpr std::string_view kMarkedSystem = "\x02";

void Replace(std::string& text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
}

// Returns a text made of marked fields, as a piece. Nothing when the text around the fields looks
// like a mark of pieces.
std::optional<std::string> PieceOf(std::string text) {
  for (const char* mark : {"{content}", "{system}", "{bos}", "{eos}"}) {
    // A template of records that holds "{eos}" as text cannot be told from a mark.
    if (text.find(mark) != std::string::npos) return std::nullopt;
  }
  Replace(text, kMarkedContent, "{content}");
  Replace(text, kMarkedSystem, "{system}");
  return text;
}

// Returns the pieces of a layout of fields.
std::optional<TurnPieces> PiecesOfFields(const RecordLayout& layout) {
  // A message has one content; prompts of several fields have no place for the others.
  if (!layout.main_fields_suffice()) return std::nullopt;
  OrderedJson record = {{layout.main_field(), kMarkedContent}};
  const OrderedJson answer_record = {{layout.answer_field(), kMarkedContent}};
  const auto user = PieceOf(layout.Prompt(record));
  const auto answer = PieceOf(layout.Completion(answer_record));
  record["system"] = kMarkedSystem;
  const auto first_user = PieceOf(layout.reads_system() ? layout.Prompt(record) : "");
  if (!user || !answer || !first_user) return std::nullopt;
  return TurnPieces{.user = *user, .first_user = *first_user, .answer = *answer};
}

}  // namespace

std::string ComposeTurnTemplate(const TurnPieces& pieces) {
  const std::string trim = pieces.trims ? " | trim" : "";
  const bool has_system = !pieces.system.empty() || !pieces.first_user.empty();
  std::string out;
  if (!pieces.prefix.empty()) out += Output(pieces.prefix, "") + "\n";
  if (has_system) {
    out += "{%- if messages[0]['role'] == 'system' -%}\n{%- set system = messages[0]['content']" +
           trim + " -%}\n{%- else -%}\n{%- set system = " + Literal(pieces.default_system) +
           " -%}\n{%- endif -%}\n";
  }
  if (!pieces.system.empty()) {
    out += "{%- if system -%}" + Output(pieces.system, "system") + "{%- endif -%}\n";
  }
  // A first system message passes the loop without output: it was shown before, or belongs to the
  // first user's message.
  out += "{%- for message in messages -%}\n{%- set content = message['content']" + trim +
         " -%}\n{%- if message['role'] == 'user' -%}\n";
  if (!pieces.first_user.empty()) {
    out +=
        "{%- if system and (loop.first or (loop.index0 == 1 and messages[0]['role'] == "
        "'system')) -%}\n" +
        Output(pieces.first_user, "content") + "\n{%- else -%}\n";
  }
  out += Output(pieces.user, "content") + "\n";
  if (!pieces.first_user.empty()) out += "{%- endif -%}\n";
  out += "{%- elif message['role'] == 'assistant' -%}\n" +
         Output(pieces.answer_prompt + pieces.answer, "content") + "\n{%- elif " +
         (has_system ? "not loop.first or " : "") + "message['role'] != 'system' -%}\n" +
         fmt::format("{{{{- raise_exception('only {} have a place in this layout') -}}}}\n",
                     has_system ? "system (first), user and assistant messages"
                                : "user and assistant messages") +
         "{%- endif -%}\n{%- endfor -%}";
  // A prompt ends as the text before every answer does in training.
  if (!pieces.answer_prompt.empty()) {
    out +=
        "\n{%- if add_generation_prompt -%}" + Output(pieces.answer_prompt, "") + "{%- endif -%}";
  }
  return out;
}

std::optional<TurnPieces> FindTurnPieces(std::string_view name) {
  for (const BuiltInPieces& known : BuiltIns()) {
    if (known.name == name) return known.pieces;
  }
  return std::nullopt;
}

std::vector<std::string_view> TurnPieceNames() {
  std::vector<std::string_view> names;
  for (const BuiltInPieces& known : BuiltIns()) names.push_back(known.name);
  return names;
}

std::optional<TurnPieces> PiecesOfLayout(const RecordLayout& layout, bool bos, bool eos) {
  std::optional<TurnPieces> pieces;
  const Kind kind = layout.layout().kind;
  if (kind == Kind::kText) pieces = PiecesOfFields(layout);
  if (kind == Kind::kWhole) pieces = TurnPieces{.user = "{content}", .answer = "{content}"};
  if (!pieces) return std::nullopt;
  if (bos) pieces->prefix = "{bos}";
  if (eos) pieces->answer += "{eos}";
  return pieces;
}

}  // namespace qlora
