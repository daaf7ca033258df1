// The program `qlora`: picks a verb, runs it, and turns what happens into an exit code.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <iostream>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "base/version.h"
#include "command_line.h"
#include "errors.h"
#include "help.h"
#include "interrupt.h"
#include "verb.h"

namespace qlora {
namespace {

using Verbs = std::vector<std::unique_ptr<Verb>>;

Verb& FindVerb(const Verbs& verbs, const std::string& name) {
  OptionTable names;  // knows how to find the nearest
  std::string unused;
  for (const std::unique_ptr<Verb>& verb : verbs) {
    if (verb->text().name == name) return *verb;
    names.Add(verb->text().name, &unused, "");
  }
  const std::string nearest = names.Nearest(name);
  ThrowUsage("unknown verb '{}'{}", name,
             nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

void CheckRequired(const VerbText& text, OptionTable& table) {
  for (const std::string& key : text.required) {
    const Option* option = table.Find(key);
    if (!option->set || option->ToString().empty()) {
      ThrowUsage("{} is missing ({})", option->name, option->help);
    }
  }
}

int RunVerb(Verb& verb, const std::vector<std::string>& arguments, const Console& console) {
  OptionTable table;
  verb.Declare(table);
  const VerbText text = verb.text();
  if (ParseCommandLine(arguments, text.positionals, table)) {
    console.out << VerbHelp(text, table);
    return 0;
  }
  CheckRequired(text, table);
  verb.Complete(table);
  return verb.Run(console);
}

int Dispatch(const std::vector<std::string>& arguments, const Console& console) {
  const Verbs verbs = AllVerbs();
  if (arguments.empty()) {
    console.err << ProgramHelp(verbs);
    return static_cast<int>(ErrorCode::kInvalidInput);
  }
  const std::string& first = arguments[0];
  if (first == "version" || first == "--version") {
    const std::string commit = Commit();
    console.out << "qlora " << Version() << (commit.empty() ? "" : " (" + commit + ")") << '\n';
    return 0;
  }
  const std::string& of = arguments.size() > 1 ? arguments[1] : first;
  if (first == "help" && of != "help" && of != "version" && of != "--help") {
    return RunVerb(FindVerb(verbs, arguments[1]), {"--help"}, console);
  }
  if (first == "help" || first == "--help" || first == "-h") {
    console.out << ProgramHelp(verbs);
    return 0;
  }
  return RunVerb(FindVerb(verbs, first), {arguments.begin() + 1, arguments.end()}, console);
}

// The last line on standard error says what to do.
void PrintError(const Console& console, const std::string& message, const std::string& advice) {
  console.err << Colored(console.style, "1;31", "error:") << ' ' << message << '\n';
  if (!advice.empty()) console.err << advice << '\n';
}

std::string HelpCommand(const std::vector<std::string>& arguments) {
  for (const std::unique_ptr<Verb>& verb : AllVerbs()) {
    if (!arguments.empty() && arguments[0] == verb->text().name) {
      return fmt::format("qlora help {}", arguments[0]);
    }
  }
  return "qlora help";
}

int RunProgram(const std::vector<std::string>& arguments, const Console& console) {
  try {
    const int code = Dispatch(arguments, console);
    console.out.flush();
    if (!console.out) throw Error(ErrorCode::kRuntime, "standard output cannot be written");
    return code;
  } catch (const Error& error) {
    const std::string advice =
        error.code() == ErrorCode::kInvalidInput
            ? fmt::format(
                  "nothing was changed; correct this and run it again ({} explains the "
                  "options)",
                  HelpCommand(arguments))
            : "";
    PrintError(console, error.what(), advice);
    return static_cast<int>(error.code());
  } catch (const Interrupted&) {
    PrintError(console, "interrupted", "nothing was saved; run the same command to start again");
    return kInterruptedExit;
  } catch (const std::bad_alloc&) {
    PrintError(console, "memory ran out",
               "free some, or ask for less: a smaller max_length, batch size or model");
    return static_cast<int>(ErrorCode::kOutOfMemory);
  } catch (const std::exception& error) {
    PrintError(console, fmt::format("unexpected: {}", error.what()),
               "this is a defect of qlora; please report it with the output of `qlora doctor`");
    return static_cast<int>(ErrorCode::kRuntime);
  }
}

}  // namespace
}  // namespace qlora

int main(int argc, char** argv) {
  // A reader that goes away must not end a training run; writes fail instead and are checked.
  std::signal(SIGPIPE, SIG_IGN);
  std::ios::sync_with_stdio(false);
  std::cin.tie(nullptr);
  const qlora::Console console{std::cout, std::cerr, qlora::StyleOf(STDERR_FILENO)};
  return qlora::RunProgram({argv + 1, argv + argc}, console);
}
