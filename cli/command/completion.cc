#include "command/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string_view>

#include "command/common.h"
#include "command/help.h"

namespace qlora {
namespace {

// Returns `text` with a backslash before each of `special`.
std::string Escape(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

std::string VerbNames(const std::vector<DeclaredVerb>& verbs) {
  std::string names;
  for (const DeclaredVerb& verb : verbs) names += verb.text.name + " ";
  return names + "help version";
}

// True for the verbs that take the name of a verb.
bool TakesVerb(const std::string& name) { return name == "help" || name == "man"; }

// Returns '--key[meaning]' or '--key=[meaning]:key:action', an argument of zsh's _arguments.
std::string ZshArgument(const Option& option) {
  // Brackets and colons separate the parts of an argument of _arguments.
  const std::string meaning = Escape(OptionMeaning(option, false), "[]:\\");
  if (Placeholder(option).empty()) {
    return SingleQuoted(fmt::format("--{}[{}]", option.name, meaning));
  }
  // Most values without choices are paths.
  const std::string action =
      option.choices.empty() ? "_files" : fmt::format("({})", fmt::join(option.choices, " "));
  return SingleQuoted(fmt::format("--{0}=[{1}]:{0}:{2}", option.name, meaning, action));
}

// Returns the action of zsh's _arguments for the bare arguments of a verb.
std::string ZshWords(const DeclaredVerb& verb, const std::string& verbs) {
  if (TakesVerb(verb.text.name)) return "verb:(" + verbs + ")";
  if (verb.text.takes_folders) return "folder:_files -/";
  return verb.text.offered.empty() ? "file:_files" : "name:_qlora_" + verb.text.name;
}

// Returns a function that offers the names of a verb, and files.
std::string ZshOffer(const DeclaredVerb& verb) {
  if (verb.text.offered.empty()) return "";
  return fmt::format("_qlora_{}() {{\n  compadd -- {}\n  _files\n}}\n", verb.text.name,
                     fmt::join(verb.text.offered, " "));
}

// Returns the case of a verb whose bare arguments are not just files.
std::string BashWords(const VerbText& text) {
  if (text.takes_folders) return fmt::format("    {}) folders=1 ;;\n", text.name);
  if (text.offered.empty()) return "";
  return fmt::format("    {}) words=\"{}\" ;;\n", text.name, fmt::join(text.offered, " "));
}

// Returns the line of a verb whose bare arguments are not just files.
std::string FishWords(const VerbText& text) {
  const std::string of_verb = fmt::format("-n '__fish_seen_subcommand_from {}' -a ", text.name);
  if (text.takes_folders) {
    return "complete -c qlora -f " + of_verb + "'(__fish_complete_directories)'\n";
  }
  if (text.offered.empty()) return "";
  return fmt::format("complete -c qlora {}'{}'\n", of_verb, fmt::join(text.offered, " "));
}

}  // namespace

// Keys may be typed with dashes for underscores, so both sides are compared with underscores.
std::string BashCompletion(const std::vector<DeclaredVerb>& verbs) {
  std::string options;
  std::string choices;
  std::string bare;
  for (const DeclaredVerb& verb : verbs) {
    std::string keys = "--config --help";
    // Only names, not aliases: completion should teach one name for each thing.
    for (const Option& option : verb.table.options()) {
      keys += " --" + option.name;
      if (option.choices.empty()) continue;
      choices += fmt::format("    {}--{}) words=\"{}\" ;;\n", verb.text.name, option.name,
                             fmt::join(option.choices, " "));
    }
    bare += BashWords(verb.text);
    options += fmt::format("    {}) words=\"{}\" ;;\n", verb.text.name, keys);
  }
  return fmt::format(R"(# bash completion for qlora; printed by `qlora completion bash`
_qlora() {{
  local verb=${{COMP_WORDS[1]}} word=${{COMP_WORDS[COMP_CWORD]}}
  local before=${{COMP_WORDS[COMP_CWORD-1]}} verbs="{}" words= folders=
  [[ $before == --* ]] && before=${{before#--}} && before=--${{before//-/_}}
  case $verb$before in
{}  esac
  if [ "$COMP_CWORD" -eq 1 ] || [[ $verb == @(help|man) && $word != -* ]]; then
    words=$verbs
  elif [[ $word == --* ]]; then
    word=${{word#--}} word=--${{word//-/_}}
    case $verb in
{}    esac
  elif [[ $before != --* ]]; then
    case $verb in
{}    esac
  fi
  if [[ $folders ]]; then
    compopt +o default -o filenames
    mapfile -t COMPREPLY < <(compgen -d -- "$word")
  else
    COMPREPLY=($(compgen -W "$words" -- "$word"))
  fi
}}
complete -o default -F _qlora qlora
)",
                     VerbNames(verbs), choices, options, bare);
}

std::string ZshCompletion(const std::vector<DeclaredVerb>& verbs) {
  std::string names;
  std::string cases;
  std::string functions;
  for (const DeclaredVerb& verb : verbs) {
    const std::string entry = verb.text.name + ":" + Escape(verb.text.summary, ":\\");
    names += fmt::format("    {}\n", SingleQuoted(entry));
    cases +=
        fmt::format("    {})\n      _arguments '--help[explain the options]' \\\n", verb.text.name);
    for (const Option& option : verb.table.options()) {
      cases += fmt::format("        {} \\\n", ZshArgument(option));
    }
    cases += fmt::format("        '--config=[YAML file]:config:_files' '*:{}' ;;\n",
                         ZshWords(verb, VerbNames(verbs)));
    functions += ZshOffer(verb);
  }
  return fmt::format(R"(#compdef qlora
# zsh completion for qlora; printed by `qlora completion zsh`
{}_qlora() {{
  local -a verbs=(
{}    'help:explain a verb' 'version:print the version'
  )
  if (( CURRENT == 2 )); then
    _describe verb verbs
    return
  fi
  shift words
  (( CURRENT-- ))
  case $words[1] in
    help) _describe verb verbs ;;
{}  esac
}}
_qlora "$@"
)",
                     functions, names, cases);
}

std::string FishCompletion(const std::vector<DeclaredVerb>& verbs) {
  const auto quoted = [](std::string_view text) { return "'" + Escape(text, "'\\") + "'"; };
  std::string out = "# fish completion for qlora; printed by `qlora completion fish`\n";
  // -f: no files where a verb is expected.
  const std::string no_verb = "complete -c qlora -f -n __fish_use_subcommand";
  out += no_verb + " -a help -d 'explain a verb'\n";
  out += no_verb + " -a version -d 'print the version'\n";
  out += fmt::format("complete -c qlora -f -n '__fish_seen_subcommand_from help man' -a '{}'\n",
                     VerbNames(verbs));
  for (const DeclaredVerb& verb : verbs) {
    out += fmt::format("{} -a {} -d {}\n", no_verb, verb.text.name, quoted(verb.text.summary));
    out += FishWords(verb.text);
    for (const Option& option : verb.table.options()) {
      out += fmt::format("complete -c qlora -n '__fish_seen_subcommand_from {}' -l {} -d {}",
                         verb.text.name, option.name, quoted(OptionMeaning(option, false)));
      if (!option.choices.empty()) {
        out += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
        // -r: a value follows, so that the next word is not completed as an option.
      } else if (!Placeholder(option).empty()) {
        out += " -r";
      }
      out += "\n";
    }
  }
  return out;
}

}  // namespace qlora
