#include "command/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "base/text.h"
#include "base/version.h"
#include "command/help.h"

namespace qlora {
namespace {

// Escapes text for roff: a backslash and a hyphen of the keyboard are spelled out, and a line that
// begins with a dot or an apostrophe is not a request.
std::string Roff(std::string_view text) {
  std::string out;
  bool line_begins = true;
  for (const char c : text) {
    // \& is an empty character: the dot or apostrophe no longer begins the line.
    if (line_begins && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      // A plain hyphen would become a typographic one, and options could not be copied from the
      // page.
      out += "\\-";
    } else {
      out += c;
    }
    line_begins = c == '\n';
  }
  return out;
}

std::string ManHeader(std::string_view name, std::string_view summary) {
  // There is no date, so that pages of one version are equal, whenever they are built. whatis and
  // apropos read "name \- summary" in one line.
  return fmt::format(".TH {} 1 \"\" \"qlora {}\" \"User Commands\"\n.SH NAME\n{} \\- {}\n",
                     Roff(UpperCase(name)), Version(), Roff(name), Roff(summary));
}

// Commands, one a line, as they are typed.
std::string ManExamples(const std::vector<std::string>& commands) {
  std::string out = ".SH EXAMPLES\n.nf\n";
  for (const std::string& command : commands) out += Roff(command) + "\n";
  return out + ".fi\n";
}

constexpr const char* kExitStatus =
    ".SH EXIT STATUS\n"
    "0: done; 1: failed while running; 2: the command, configuration or data is wrong; 3: it does "
    "not fit in memory; 4: trained, but the gate is lost; 130: interrupted; 141: the reader of the "
    "output is gone, as in\n"
    ".BR \"qlora ... | head\" .\n";

std::string ManOptions(const VerbText& text, const OptionTable& table) {
  if (table.options().empty()) return "";
  std::string out = ".SH OPTIONS\n";
  std::size_t section = 0;
  for (std::size_t i = 0; i < table.options().size(); ++i) {
    // A loop: a section without options has the same index as the next one.
    for (; section < table.sections().size() && table.sections()[section].second == i; ++section) {
      out += fmt::format(".SS {}\n", Roff(table.sections()[section].first));
    }
    const Option& option = table.options()[i];
    out += fmt::format(".TP\n.BI \\-\\-{} \"{}\"\n{}\n", Roff(option.name), Placeholder(option),
                       Roff(OptionMeaning(option, IsRequired(text, option.name))));
  }
  return out;
}

}  // namespace

std::string ProgramPage(const std::vector<std::unique_ptr<Verb>>& verbs) {
  std::string out = ManHeader("qlora", "fine-tune language models with QLoRA");
  out += ".SH SYNOPSIS\n.B qlora\n.I VERB\n[\\-\\-config run.yaml] [\\-\\-key value]...\n";
  out += ".SH DESCRIPTION\n" +
         Roff(
             "A Hugging Face model is held in 4 bits (NF4) while a small adapter (LoRA) is "
             "trained on your data. The adapter works with PEFT, and the result exports to GGUF "
             "for llama.cpp. Every verb has a separate page, such as ") +
         "\n.BR qlora\\-train (1).\n.SH VERBS\n";
  for (const std::unique_ptr<Verb>& verb : verbs) {
    const VerbText text = verb->text();
    out += fmt::format(".TP\n.B {}\n{}\n", Roff(text.name), Roff(text.summary));
  }
  return out + kExitStatus;
}

bool IsManPage(std::string_view text) { return text.starts_with(".TH QLORA"); }

std::string VerbPage(const VerbText& text, const OptionTable& table) {
  std::string out = ManHeader("qlora-" + text.name, text.summary);
  out += fmt::format(".SH SYNOPSIS\n.B qlora {}\n", Roff(text.name));
  for (const std::string& key : text.positionals) {
    out += IsRequired(text, key) ? fmt::format(".I {}\n", Roff(key))
                                 : fmt::format("[\\fI{}\\fR]\n", Roff(key));
  }
  out += "[\\-\\-config run.yaml] [\\-\\-key value]...\n";
  out += ".SH DESCRIPTION\n" + Roff(text.explanation) + "\n";
  if (!table.options().empty()) {
    out += ".PP\n" +
           Roff(
               "Defaults are in [brackets]. Dashes and underscores in keys are the "
               "same. A flag needs no value, and --no-flag switches it off. Items of a "
               "list (A,B) that have commas are written as JSON: '[\"a, b\", \"c\"]'. --config "
               "reads the same keys from a YAML file; the command line wins.\n");
  }
  out += ManOptions(text, table) + ManExamples(text.examples) + kExitStatus;
  return out + ".SH SEE ALSO\n.BR qlora (1)\n";
}

}  // namespace qlora
