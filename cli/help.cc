#include "help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <string_view>

namespace qlora {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kHelpColumn = 36;  // the longest "--key VALUE" and a gap

// Breaks `text` at spaces into lines that end before kColumns; the first line starts at column
// `first`, the others at `indent`.
std::string Wrap(std::string_view text, std::size_t indent, std::size_t first) {
  std::string out;
  std::size_t column = first;
  while (!text.empty()) {
    const std::size_t space = std::min(text.find(' '), text.size());
    if (column + space > kColumns && column > indent) {
      if (!out.empty() && out.back() == ' ') out.pop_back();
      out += "\n" + std::string(indent, ' ');
      column = indent;
    }
    out += text.substr(0, std::min(space + 1, text.size()));
    column += space + 1;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return out;
}

std::string OptionHelp(const Option& option, bool required) {
  std::string line = fmt::format("  --{}{}", option.name, Placeholder(option));
  line.resize(std::max(line.size() + 2, kHelpColumn), ' ');
  return line + Wrap(OptionMeaning(option, required), kHelpColumn, line.size()) + "\n";
}

std::string Upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

std::string Usage(const VerbText& text) {
  std::string usage = fmt::format("qlora {}", text.name);
  for (const std::string& key : text.positionals) {
    usage += IsRequired(text, key) ? " " + Upper(key) : fmt::format(" [{}]", Upper(key));
  }
  const std::string rest = "[--config run.yaml] [--key value | --key=value | key=value]...";
  const bool fits = std::string("Usage: ").size() + usage.size() + 1 + rest.size() <= 100;
  return usage + (fits ? " " : "\n       ") + rest;
}

}  // namespace

std::string_view Placeholder(const Option& option) {
  struct Namer {
    std::string_view operator()(const bool*) const { return ""; }
    std::string_view operator()(const std::int64_t*) const { return " N"; }
    std::string_view operator()(const double*) const { return " X"; }
    std::string_view operator()(const std::string*) const { return " TEXT"; }
    std::string_view operator()(const std::vector<std::string>*) const { return " A,B"; }
  };
  return std::visit(Namer{}, option.value);
}

std::string OptionMeaning(const Option& option, bool required) {
  std::string text = option.help;
  if (!option.choices.empty()) text += fmt::format("; one of {}", fmt::join(option.choices, ", "));
  if (const std::string value = option.ToString(); !value.empty()) {
    text += fmt::format(" [{}]", value);
  } else if (required) {
    text += " [required]";
  }
  if (!option.aliases.empty()) text += fmt::format(" (also {})", fmt::join(option.aliases, ", "));
  return text;
}

bool IsRequired(const VerbText& text, const std::string& key) {
  return std::find(text.required.begin(), text.required.end(), key) != text.required.end();
}

std::string ProgramHelp(const std::vector<std::unique_ptr<Verb>>& verbs) {
  std::string out =
      "qlora - fine-tune language models with QLoRA on one machine\n\n"
      "A Hugging Face model is held in 4 bits (NF4) while a small adapter (LoRA) is trained on "
      "your\n"
      "data. The adapter works with PEFT, and the result exports to GGUF for llama.cpp. Nothing "
      "is\n"
      "downloaded and nothing leaves this machine.\n\n"
      "Usage: qlora VERB [--config run.yaml] [--key value | --key=value | key=value]...\n\n"
      "Verbs:\n";
  for (const std::unique_ptr<Verb>& verb : verbs) {
    out += fmt::format("  {:<13} {}\n", verb->text().name, verb->text().summary);
  }
  out += fmt::format("  {:<13} {}\n  {:<13} {}\n", "help", "explain a verb: qlora help train",
                     "version", "print the version");
  out +=
      "\nFirst steps:\n"
      "  qlora train --model ./my-model --dataset train.jsonl --output_dir my-adapter\n"
      "  qlora generate ./my-model \"Once upon a time\" --adapter my-adapter\n"
      "  qlora export ./my-model my-model.gguf --adapter my-adapter\n"
      "\nExit codes: 0 done; 1 failed while running; 2 the command, configuration or data is "
      "wrong;\n3 it does not fit in memory; 130 interrupted.\n";
  return out;
}

std::string VerbHelp(const VerbText& text, const OptionTable& table) {
  std::string out = fmt::format("qlora {} - {}\n\n{}\n\nUsage: {}\n\nExamples:\n", text.name,
                                text.summary, Wrap(text.explanation, 0, 0), Usage(text));
  for (const std::string& example : text.examples) out += fmt::format("  {}\n", example);
  std::size_t section = 0;
  for (std::size_t i = 0; i < table.options().size(); ++i) {
    for (; section < table.sections().size() && table.sections()[section].second == i; ++section) {
      out += fmt::format("\n{}:\n", table.sections()[section].first);
    }
    const Option& option = table.options()[i];
    out += OptionHelp(option, IsRequired(text, option.name));
  }
  out +=
      "\nDefaults stand in [brackets]. Dashes and underscores in keys are the same. A flag needs "
      "no\n"
      "value; --no-flag switches it off. --config reads the same keys from a YAML file; the "
      "command\n"
      "line wins. Names that other programs give an option (TRL, PEFT, Axolotl, LLaMA-Factory, "
      "mlx-lm,\n"
      "llama.cpp) work as well, or are answered with what to write instead.\n";
  return out;
}

}  // namespace qlora
