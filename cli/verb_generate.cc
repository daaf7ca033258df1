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
            "Continues the prompt and prints the new text as it is made. By default every token is "
            "the most likely one; --do_sample draws instead, as temperature, top_k and top_p say. "
            "The same seed gives the same text.",
        .examples = {"qlora generate ./my-model \"Once upon a time\" --adapter my-adapter",
                     "qlora generate ./my-model - --do_sample --temperature 0.8 < prompt.txt"},
        .positionals = {"model_name_or_path", "prompt"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    model_.Declare(table);
    generate_.Declare(table);
    table.Add("prompt", &prompt_, "text to continue; - reads standard input");
    table.Add("prompt_file", &prompt_file_, "file with the text to continue");
    table.Section("Run");
    run_.DeclareThreads(table);
    run_.DeclareJson(table);
  }

  int Run(const Console& console) override {
    const std::string prompt = Prompt();
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    const auto print = [&](std::string_view piece) {
      console.out << piece << std::flush;
      return console.out.good();
    };
    const GenerateReport report =
        run_.json ? model.Generate(prompt, generate_) : model.Generate(prompt, generate_, print);
    if (run_.json) {
      PrintJson(console.out, {{"prompt", prompt},
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

  ModelOptions model_;
  GenerateOptions generate_;
  std::string prompt_;
  std::string prompt_file_;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeGenerateVerb() { return std::make_unique<GenerateVerb>(); }

}  // namespace qlora
