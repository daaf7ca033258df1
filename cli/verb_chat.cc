#include <unistd.h>

#include <iostream>

#include "common.h"
#include "interrupt.h"
#include "model_loading.h"
#include "qlora/model.h"
#include "verbs.h"

namespace qlora {
namespace {

class ChatVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "chat",
        .summary = "talk with a model (+ adapter) in the terminal",
        .explanation =
            "Reads a line, answers it, and remembers both. Ctrl+C stops an answer; /reset forgets "
            "the conversation; /exit or Ctrl+D ends. The model continues the conversation as plain "
            "text: each line is appended to what was said, followed by a line break.",
        .examples = {"qlora chat ./my-model --adapter my-adapter",
                     "qlora chat ./my-model --do_sample --temperature 0.7 --max_new_tokens 512"},
        .positionals = {"model_name_or_path"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    model_.Declare(table);
    generate_.Declare(table);
    table.Section("Run");
    run_.DeclareThreads(table);
  }

  int Run(const Console& console) override {
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    InterruptGuard guard;
    const bool person = isatty(STDIN_FILENO) != 0;
    std::string conversation;
    for (std::string line;;) {
      if (person) console.err << "> " << std::flush;
      if (!std::getline(std::cin, line) || line == "/exit") break;
      if (line == "/reset") {
        conversation.clear();
        console.err << "the conversation is forgotten\n";
        continue;
      }
      conversation += line + "\n";
      const GenerateReport report =
          model.Generate(conversation, generate_, [&](std::string_view piece) {
            console.out << piece << std::flush;
            return console.out.good() && !guard.requested();
          });
      console.out << std::endl;
      conversation += report.text + "\n";
      if (!console.out) break;
      guard.Rearm();
    }
    return 0;
  }

 private:
  ModelOptions model_;
  GenerateOptions generate_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeChatVerb() { return std::make_unique<ChatVerb>(); }

}  // namespace qlora
