#include "command/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "terminal/text_wrap.h"

namespace qlora {
namespace {

// Returns the column of the meanings of options. At 100 columns and more it fits the longest "--key
// VALUE" and a gap.
std::int64_t MeaningColumn(std::int64_t columns) {
  return std::clamp<std::int64_t>(36 * columns / 100, 24, 36);
}

// A key that leaves no gap has a line for itself.
std::string OptionHelp(const Option& option, bool required, std::int64_t columns) {
  const std::int64_t indent = MeaningColumn(columns);
  std::string key = fmt::format("  --{}{}", option.name, Placeholder(option));
  // Two spaces at least between key and meaning.
  if (std::ssize(key) + 2 > indent) key += '\n' + std::string(indent, ' ');
  return fmt::format("{:<{}}{}\n", key, indent,
                     Wrap(OptionMeaning(option, required), columns, indent, indent));
}

std::string Usage(const VerbText& text, std::int64_t columns) {
  constexpr std::string_view kUsage = "Usage: ";
  std::string usage = fmt::format("{}{}", kUsage, text.command());
  for (const std::string& key : text.positionals) {
    usage += IsRequired(text, key) ? " " + UpperCase(key) : fmt::format(" [{}]", UpperCase(key));
  }
  usage += " [--config run.yaml] [--key value | --key=value | key=value]...";
  return Wrap(usage, columns, std::ssize(kUsage));
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
  // The kind of value, as a reader needs it: N is a whole number, X any number.
  return std::visit(Namer{}, option.value);
}

std::string OptionMeaning(const Option& option, bool required) {
  // help, choices, [default], aliases: one order for terminal, manual and completion.
  std::string text = option.help;
  if (!option.choices.empty()) text += fmt::format("; one of {}", fmt::join(option.choices, ", "));
  // The value before the command line is read is the default.
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

std::string ProgramHelp(const std::vector<std::unique_ptr<Verb>>& verbs, std::int64_t columns) {
  const auto paragraph = [columns](std::string_view text) { return Wrap(text, columns) + "\n"; };
  const auto verb_line = [columns](std::string_view name, std::string_view summary) {
    constexpr std::int64_t kSummary = 16;
    return fmt::format("  {:<13} {}\n", name, Wrap(summary, columns, kSummary, kSummary));
  };
  std::string out = "qlora - fine-tune language models with QLoRA\n\n";
  out += paragraph(
      "A Hugging Face model is held in 4 bits (NF4) while a small adapter (LoRA) is trained on "
      "your data. The adapter works with PEFT, and the result exports to GGUF for llama.cpp. "
      "Only `qlora pull`, `qlora serve` and ranks on several machines use the network.");
  out += "\n" + paragraph(
                    "Usage: qlora VERB [--config run.yaml] [--key value | --key=value | "
                    "key=value]...");
  out += "\nVerbs:\n";
  for (const std::unique_ptr<Verb>& verb : verbs) {
    out += verb_line(verb->text().name, verb->text().summary);
  }
  out += verb_line("help", "explain a verb: qlora help train");
  out += verb_line("version", "print the version");
  out += "\nFirst steps:\n";
  // Three commands that a new user can copy: train, try, export.
  for (const char* command :
       {"qlora train --model ./my-model --dataset train.jsonl --output_dir my-adapter",
        "qlora generate ./my-model \"Once upon a time\" --adapter my-adapter",
        "qlora export ./my-model my-model.gguf --adapter my-adapter"}) {
    out += WrapCommand(command, columns, 2) + "\n";
  }
  out += "\n" +
         paragraph(
             "Exit codes: 0 done; 1 failed while running; 2 the command, configuration or "
             "data is wrong; 3 it does not fit in memory; 4 the adapter lost more than the gate "
             "allows; 130 interrupted; 141 the reader of the output is gone.");
  return out;
}

std::string VerbHelp(const VerbText& text, const OptionTable& table, std::int64_t columns) {
  std::string out = fmt::format("{}\n\n{}\n\n{}\n\nExamples:\n",
                                Wrap(fmt::format("{} - {}", text.command(), text.summary), columns),
                                Wrap(text.explanation, columns), Usage(text, columns));
  for (const std::string& example : text.examples) out += WrapCommand(example, columns, 2) + "\n";
  std::size_t section = 0;
  for (std::size_t i = 0; i < table.options().size(); ++i) {
    // Sections begin at the number of their first option; several may begin at one.
    for (; section < table.sections().size() && table.sections()[section].second == i; ++section) {
      out += fmt::format("\n{}:\n", table.sections()[section].first);
    }
    const Option& option = table.options()[i];
    out += OptionHelp(option, IsRequired(text, option.name), columns);
  }
  out +=
      "\n" +
      Wrap(
          "Defaults are in [brackets]. Dashes and underscores in keys are interchangeable. A "
          "flag needs no value; --no-flag switches it off. Items of a list (A,B) that have "
          "commas are written as JSON: '[\"a, b\", \"c\"]'. --config reads the same keys from "
          "a YAML file; the command line wins. An option is given once: two values are an "
          "error, not the last one. Names that other programs give an option (TRL, PEFT, "
          "Axolotl, LLaMA-Factory, mlx-lm, llama.cpp) work as well, or are answered with what to "
          "write instead.",
          columns) +
      "\n";
  return out;
}

}  // namespace qlora
