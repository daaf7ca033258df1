#include "foreign/axolotl_layout.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "foreign/rules.h"

namespace qlora {
namespace {

struct NamedLayout {
  std::string_view type;
  std::string_view prompt;
  std::string_view completion;
};

constexpr std::string_view kSystemChat =
    "[[SYSTEM: {system}\n]]USER: {instruction}\n[[{input}\n]]ASSISTANT:";

// From Axolotl's prompters.py and prompt_strategies/.
constexpr auto kNamedLayouts = std::to_array<NamedLayout>({
    {"alpaca_chat.load",
     "SYSTEM: Below is an instruction that describes a task[[{?input}, paired with an input that "
     "provides further context]]. Write a response that appropriately completes the request.\n"
     "USER: {instruction}\n[[{input}\n]]ASSISTANT:",
     "{output}"},
    {"alpaca_chat.load_qa",
     "SYSTEM: Below is an instruction that describes a task. Write a response that appropriately "
     "completes the request.\nUSER: {question}\nASSISTANT:",
     "{answer}"},
    {"alpaca_w_system.load", kSystemChat, "{output}"},
    {"alpaca_w_system.load_chat", kSystemChat, "{output}"},
    {"alpaca_w_system.load_instruct",
     "[[{system}\n\n]]### Instruction:\n{instruction}\n\n[[### Input:\n{input}\n\n]]### "
     "Response:\n",
     "{output}"},
    {"alpaca_w_system.load_open_orca",
     "[[### System:\n{system_prompt}\n]]### Human:\n{question}\n### Assistant:\n", "{response}"},
    {"alpaca_w_system.load_open_orca_chatml",
     "[[<|im_start|>system\n{system_prompt}<|im_end|>\n]]<|im_start|>user\n{question}<|im_end|>\n"
     "<|im_start|>assistant\n",
     "{response}"},
});

// A name in the braces of Axolotl's formats, and its counterpart in ours.
using Names = std::vector<std::pair<std::string_view, std::string>>;

// Characters of UTF-8, "{{", "}}" and whole fields, so that a format is never cut within one.
using Pieces = std::vector<std::string>;

std::string Join(Pieces::const_iterator begin, Pieces::const_iterator end) {
  std::string text;
  for (auto piece = begin; piece != end; ++piece) text += *piece;
  return text;
}

// True for the second and later bytes of a character in UTF-8.
bool IsContinuation(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

// Nothing for names that Axolotl would not fill in, and for double brackets, which are marks here.
std::optional<Pieces> PiecesOf(std::string_view format, const Names& names) {
  Pieces pieces;
  if (format.find("[[") != format.npos || format.find("]]") != format.npos) return std::nullopt;
  while (!format.empty()) {
    std::size_t length = 1;
    if (format.starts_with("{{") || format.starts_with("}}")) {
      length = 2;
      pieces.emplace_back(format.substr(0, length));
    } else if (format[0] == '{') {
      length = std::min(format.find('}'), format.size() - 1) + 1;
      const std::string_view field = format.substr(1, length - 2);
      const auto known = std::find_if(names.begin(), names.end(),
                                      [&](const auto& name) { return name.first == field; });
      if (known == names.end()) return std::nullopt;
      pieces.push_back(known->second);
    } else if (format[0] == '}') {
      return std::nullopt;
    } else {
      while (length < format.size() && IsContinuation(format[length])) ++length;
      pieces.emplace_back(format.substr(0, length));
    }
    format.remove_prefix(length);
  }
  return pieces;
}

// A part of a template that is left out where the field is absent. Otherwise a bracket at its end
// would be taken for the bracket of the part.
std::string OptionalPart(const std::string& text, const std::string& field) {
  const bool asks = text.find("{" + field + "}") == text.npos || text.ends_with(']');
  return "[[" + text + (asks ? "{?" + field + "}" : "") + "]]";
}

std::string Escaped(std::string_view text) {
  std::string out;
  for (const char c : text) out.append(c == '{' || c == '}' ? 2 : 1, c);
  return out;
}

// format for records with an input, no_input_format for the others: the text that both share is
// written once. Nothing where the instruction is not part of it, because an optional part also goes
// when the instruction is empty.
std::optional<std::string> MergeFormats(const Pieces& with, const Pieces& without,
                                        const std::string& instruction, const std::string& input) {
  const auto [with_begin, without_begin] =
      std::mismatch(with.begin(), with.end(), without.begin(), without.end());
  auto with_end = with.end();
  auto without_end = without.end();
  while (with_end != with_begin && without_end != without_begin &&
         *(with_end - 1) == *(without_end - 1)) {
    --with_end;
    --without_end;
  }
  const std::string prefix = Join(with.begin(), with_begin);
  const std::string some = Join(with_begin, with_end);
  const std::string none = Join(without_begin, without_end);
  const std::string suffix = Join(with_end, with.end());
  const std::string field = "{" + instruction + "}";
  if ((some + none).find(field) != std::string::npos) return std::nullopt;
  if (some.empty() && none.empty()) return prefix + suffix;
  if (prefix.ends_with('[')) return std::nullopt;  // would join the brackets of the part
  std::string text = prefix;
  if (!some.empty()) text += OptionalPart(some, input);
  if (!none.empty()) text += "[[" + none + "{!" + input + "}]]";
  return text + suffix;
}

}  // namespace

std::optional<FieldTemplates> AxolotlLayout(std::string_view type) {
  for (const NamedLayout& known : kNamedLayouts) {
    if (known.type == type) {
      return FieldTemplates{std::string(known.prompt), std::string(known.completion)};
    }
  }
  return std::nullopt;
}

std::optional<FieldTemplates> AxolotlLayout(const YAML::Node& map) {
  const auto text = [&](const char* key) {
    const YAML::Node value = map[key];
    return value && value.IsScalar() ? value.Scalar() : "";
  };
  const std::string instruction = text("field_instruction");
  const std::string input = text("field_input");
  const std::string output = text("field_output");
  const std::string field_system = text("field_system");
  const std::string format = text("format");
  // Axolotl fails without these.
  if (instruction.empty() || output.empty() || format.empty()) return std::nullopt;

  const std::string no_input = map["no_input_format"] ? text("no_input_format") : format;
  const Names alone = {{"instruction", "{" + instruction + "}"}};
  Names both = alone;
  if (!input.empty()) both.emplace_back("input", "{" + input + "}");
  const auto without = PiecesOf(no_input, alone);
  // Without field_input no record has an input.
  const auto with = input.empty() ? without : PiecesOf(format, both);
  if (!with || !without) return std::nullopt;
  const auto turn = MergeFormats(*with, *without, instruction, input);
  if (!turn) return std::nullopt;

  std::string prompt;
  const std::string constant = text("system_prompt");
  if (!text("system_format").empty() && !(field_system.empty() && constant.empty())) {
    const std::string system = field_system.empty() ? Escaped(constant) : "{" + field_system + "}";
    const auto pieces = PiecesOf(text("system_format"), {{"system", system}});
    if (!pieces) return std::nullopt;
    prompt = Join(pieces->begin(), pieces->end());
    // The constant may hold marks, or make one with the text around.
    if (prompt.find("[[") != prompt.npos || prompt.find("]]") != prompt.npos) return std::nullopt;
    if (!field_system.empty()) prompt = OptionalPart(prompt, field_system);
    if (prompt.ends_with('[') && turn->starts_with('[')) return std::nullopt;
  }
  return FieldTemplates{prompt + *turn, "{" + output + "}"};
}

}  // namespace qlora
