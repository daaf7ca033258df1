#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>
#include <string>
#include <vector>

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
            "Reads a line, answers it, and remembers both, in the layout of the data that the "
            "adapter was trained on, or in the chat template of the model. Ctrl+C stops an answer; "
            "/reset forgets the conversation; "
            "/exit or Ctrl+D ends. Sampling follows the model's generation_config.json unless "
            "options say otherwise. A model without a chat template continues plain text, as does "
            "any model with --raw: each line is appended to what was said, followed by a line "
            "break. When a conversation "
            "outgrows the model's context, its oldest turns are left out, and that is said.",
        .examples = {"qlora chat ./my-model --adapter my-adapter",
                     "qlora chat ./my-model --system \"Answer briefly.\" --temperature 0.7",
                     "qlora chat ./my-base --adapter my-adapter --chat_template plain"},
        .positionals = {"model_name_or_path"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    DeclareGenerator(model_, table);
    generate_.Declare(table);
    table.Add("system", &system_, "system message that begins the conversation");
    table.Add("raw", &raw_, "continue plain text, whatever layout or chat template there is");
    options_ = &table;
    table.Section("Run");
    run_.DeclareThreads(table);
  }

  int Run(const Console& console) override {
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    ShowSampling(model, *options_, console);
    plain_ = raw_ || !model.has_turns();
    if (plain_) {
      console.err << (raw_ ? "the model continues plain text\n"
                           : "this model has no chat template: it continues plain text "
                             "(--chat_template plain or chatml names one)\n");
      if (!system_.empty())
        ThrowUsage("system needs a chat template; name one with --chat_template");
    } else {
      SayLayout(model.prompt_layout(), console);
    }
    InterruptGuard guard;
    const bool person = isatty(STDIN_FILENO) != 0;
    for (std::string line;;) {
      if (person) console.err << "> " << std::flush;
      if (!std::getline(std::cin, line) || line == "/exit") break;
      if (line == "/reset") {
        turns_.clear();
        console.err << "the conversation is forgotten\n";
        continue;
      }
      turns_.push_back({line, {}});
      const PromptText prompt = FittingPrompt(model, console);
      if (prompt.text.empty()) continue;
      const GenerateReport report = model.Generate(prompt, generate_, [&](std::string_view piece) {
        console.out << piece << std::flush;
        return console.out.good() && !guard.requested();
      });
      console.out << std::endl;
      turns_.back().answer = report.text;
      if (!console.out) break;
      console.err << CutText(report, model.context_length());
      guard.Rearm();
    }
    return 0;
  }

 private:
  struct Turn {
    std::string question;
    std::string answer;
  };

  // The prompt for the answer to the last turn. Where the conversation leaves no room for an
  // answer, its oldest turns are forgotten; an empty text when the last turn alone is too long,
  // which is forgotten too.
  PromptText FittingPrompt(const Model& model, const Console& console) {
    const std::int64_t context = model.context_length();
    const std::int64_t room = std::clamp<std::int64_t>(generate_.max_new_tokens, 1, context / 4);
    std::int64_t forgotten = 0;
    for (;; ++forgotten) {
      const PromptText prompt = Prompt(model);
      const std::int64_t tokens = model.CountTokens(prompt.text, prompt.add_special_tokens);
      if (tokens + room <= context || (turns_.size() == 1 && tokens < context)) {
        if (forgotten > 0) {
          console.err << fmt::format(
              "the conversation outgrew the context of {} tokens: {} of its oldest turns "
              "{} left out\n",
              context, forgotten, forgotten == 1 ? "is" : "are");
        }
        return prompt;
      }
      if (turns_.size() == 1) {
        turns_.clear();
        console.err << fmt::format(
            "this has {} tokens and the model reads at most {}: say it in fewer words\n", tokens,
            context);
        return {};
      }
      turns_.erase(turns_.begin());
    }
  }

  PromptText Prompt(const Model& model) const {
    if (plain_) {
      std::string said;
      for (const Turn& turn : turns_) {
        said += turn.question + "\n";
        if (&turn != &turns_.back()) said += turn.answer + "\n";
      }
      return {.text = said};
    }
    OrderedJson messages = OrderedJson::array();
    if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
    for (const Turn& turn : turns_) {
      messages.push_back({{"role", "user"}, {"content", turn.question}});
      if (&turn != &turns_.back()) {
        messages.push_back({{"role", "assistant"}, {"content", turn.answer}});
      }
    }
    return model.PromptOfChat(Dump(messages));
  }

  ModelOptions model_;
  GenerateOptions generate_;
  std::string system_;
  bool raw_ = false;
  bool plain_ = false;  // no layout is applied
  OptionTable* options_ = nullptr;
  RunFields run_;
  std::vector<Turn> turns_;
};

}  // namespace

std::unique_ptr<Verb> MakeChatVerb() { return std::make_unique<ChatVerb>(); }

}  // namespace qlora
