#include <fmt/format.h>

#include "common.h"
#include "errors.h"
#include "model_loading.h"
#include "qlora/model.h"
#include "verbs.h"

namespace qlora {
namespace {

class GenerateVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "generate",
        .summary = "continue a text with a model (+ adapter)",
        .explanation =
            "Answers the prompt, as a question in the model's chat template, or continues it where "
            "the model has none (--chat false: in any case), and prints the new text as it is "
            "made. Sampling follows the model's generation_config.json unless options say "
            "otherwise; without either, every token is the most likely one, and --do_sample draws "
            "instead. The same seed gives the same text.",
        .examples = {"qlora generate ./my-model \"Once upon a time\" --adapter my-adapter",
                     "qlora generate ./my-model - --do_sample --temperature 0.8 < prompt.txt"},
        .positionals = {"model_name_or_path", "prompt"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    DeclareGenerator(model_, table);
    generate_.Declare(table);
    table.Add("prompt", &prompt_, "text to continue; - reads standard input");
    table.AddPath("prompt_file", &prompt_file_, "file with the text to continue");
    table.Choice("chat", &chat_, {"auto", "true", "false"},
                 "put the prompt into the chat template; auto: when the model has one");
    table.Add("system", &system_, "system message before the prompt");
    options_ = &table;
    table.Section("Run");
    run_.DeclareThreads(table);
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    const std::string prompt = Prompt();
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    ShowSampling(model, *options_, console);
    const bool chat = UsesChat(model);
    const std::string text = chat ? ChatPrompt(model, prompt) : prompt;
    if (chat) console.err << "the prompt is put into the chat template (--chat false: not)\n";
    const auto print = [&](std::string_view piece) {
      console.out << piece << std::flush;
      return console.out.good();
    };
    const GenerateReport report = run_.json ? model.Generate(text, generate_, {}, !chat)
                                            : model.Generate(text, generate_, print, !chat);
    if (run_.json) {
      PrintJson(console.out, {{"prompt", text},
                              {"text", report.text},
                              {"prompt_tokens", report.prompt_tokens},
                              {"new_tokens", report.new_tokens},
                              {"stopped_at_eos", report.stopped_at_eos},
                              {"prefill_seconds", report.prefill_seconds},
                              {"decode_seconds", report.decode_seconds}});
    } else {
      console.out << '\n';
    }
    console.err << FormatSpeed(report) << '\n';
    return 0;
  }

 private:
  std::string Prompt() const {
    if (prompt_.empty() && prompt_file_.empty()) {
      ThrowUsage(
          "a prompt is missing: give it as text, as - for standard input, or with "
          "--prompt_file");
    }
    if (!prompt_.empty() && !prompt_file_.empty()) {
      ThrowUsage("prompt and prompt_file are both given; keep one");
    }
    if (!prompt_file_.empty()) return ReadInput(prompt_file_);
    return prompt_ == "-" ? ReadInput("-") : prompt_;
  }

  bool UsesChat(const Model& model) const {
    if (!system_.empty() && (chat_ == "false" || !model.has_chat_template())) {
      ThrowUsage("system needs a chat template; name one with --chat_template");
    }
    return chat_ == "true" || (chat_ == "auto" && model.has_chat_template());
  }

  std::string ChatPrompt(const Model& model, const std::string& prompt) const {
    OrderedJson messages = OrderedJson::array();
    if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
    messages.push_back({{"role", "user"}, {"content", prompt}});
    return model.ChatPrompt(Dump(messages));
  }

  ModelOptions model_;
  GenerateOptions generate_;
  std::string prompt_;
  std::string prompt_file_;
  std::string chat_ = "auto";
  std::string system_;
  OptionTable* options_ = nullptr;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeGenerateVerb() { return std::make_unique<GenerateVerb>(); }

}  // namespace qlora
