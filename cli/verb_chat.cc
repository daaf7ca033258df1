#include <unistd.h>

#include <iostream>

#include "common.h"
#include "errors.h"
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
            "Reads a line, answers it, and remembers both, in the chat template of the model (or "
            "of the adapter's data). Ctrl+C stops an answer; /reset forgets the conversation; "
            "/exit or Ctrl+D ends. Sampling follows the model's generation_config.json unless "
            "options say otherwise. A model without a chat template continues plain text: each "
            "line is appended to what was said, followed by a line break.",
        .examples = {"qlora chat ./my-model --adapter my-adapter",
                     "qlora chat ./my-model --system \"Answer briefly.\" --temperature 0.7",
                     "qlora chat ./my-base --adapter my-adapter --chat_template chatml"},
        .positionals = {"model_name_or_path"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    model_.Declare(table);
    generate_.Declare(table);
    table.Add("system", &system_, "system message that begins the conversation");
    options_ = &table;
    table.Section("Run");
    run_.DeclareThreads(table);
  }

  int Run(const Console& console) override {
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    ShowSampling(model, *options_, console);
    const bool templated = model.has_chat_template();
    if (!templated) {
      console.err << "this model has no chat template: it continues plain text (--chat_template "
                     "chatml names one)\n";
      if (!system_.empty())
        ThrowUsage("system needs a chat template; name one with --chat_template");
    }
    InterruptGuard guard;
    const bool person = isatty(STDIN_FILENO) != 0;
    Reset();
    for (std::string line;;) {
      if (person) console.err << "> " << std::flush;
      if (!std::getline(std::cin, line) || line == "/exit") break;
      if (line == "/reset") {
        Reset();
        console.err << "the conversation is forgotten\n";
        continue;
      }
      messages_.push_back({{"role", "user"}, {"content", line}});
      said_ += line + "\n";
      const std::string prompt = templated ? model.ChatPrompt(Dump(messages_)) : said_;
      const GenerateReport report = model.Generate(
          prompt, generate_,
          [&](std::string_view piece) {
            console.out << piece << std::flush;
            return console.out.good() && !guard.requested();
          },
          /*add_special_tokens=*/!templated);
      console.out << std::endl;
      messages_.push_back({{"role", "assistant"}, {"content", report.text}});
      said_ += report.text + "\n";
      if (!console.out) break;
      guard.Rearm();
    }
    return 0;
  }

 private:
  void Reset() {
    said_.clear();
    messages_ = Json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  ModelOptions model_;
  GenerateOptions generate_;
  std::string system_;
  OptionTable* options_ = nullptr;
  RunFields run_;
  Json messages_;     // for a chat template
  std::string said_;  // without one
};

}  // namespace

std::unique_ptr<Verb> MakeChatVerb() { return std::make_unique<ChatVerb>(); }

}  // namespace qlora
