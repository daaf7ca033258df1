// `qlora completion`: scripts made of the tables of options, so that no list of options is kept by
// hand.
#include "command/completion.h"

#include "command/common.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class CompletionVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "completion",
        .summary = "completion of commands for bash, zsh or fish",
        .explanation =
            "Prints a script with which the shell completes verbs, options and their values. "
            "`cmake --install` installs it where the shells look for it; without an installation, "
            "save it there yourself.",
        .examples = {"qlora completion bash > ~/.local/share/bash-completion/completions/qlora",
                     "qlora completion fish | source"},
        .positionals = {"shell"},
        .required = {"shell"},
    };
  }

  void Declare(OptionTable& table) override {
    table.Choice("shell", &shell_, {"bash", "zsh", "fish"}, "shell to print the script for");
  }

  // The tables point into `verbs`.
  int Run(const Console& console) override {
    const std::vector<std::unique_ptr<Verb>> verbs = AllVerbs();
    std::vector<DeclaredVerb> declared;
    for (const std::unique_ptr<Verb>& verb : verbs) {
      // Declared in place, since options point to members of their verb, not into the table.
      declared.push_back({verb->text(), {}});
      verb->Declare(declared.back().table);
    }
    if (shell_ == "bash") console.out << BashCompletion(declared);
    if (shell_ == "zsh") console.out << ZshCompletion(declared);
    if (shell_ == "fish") console.out << FishCompletion(declared);
    return 0;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Verb> MakeCompletionVerb() { return std::make_unique<CompletionVerb>(); }

}  // namespace qlora
