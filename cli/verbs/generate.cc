// `qlora generate`: one prompt, one answer. The text goes to standard output as it is made; the
// layout of the prompt, the sampling options that were taken from the model and the speed go to
// standard error.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/check.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "qlora/model.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class GenerateVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "generate",
        .summary = "continue a text with a model (+ adapter)",
        .explanation =
            "Answers the prompt and prints the new text as it is made. The prompt gets the layout "
            "of the data that the adapter was trained on, or one that `qlora export` merged into "
            "the model; without either it is put into the model's chat template, or continued "
            "verbatim where the model has none. --raw uses it verbatim in any case. Sampling "
            "follows the model's generation_config.json unless "
            "options say otherwise; without either, every token is the most likely one, and "
            "--do_sample draws instead. The same seed gives the same text.",
        .examples = {"qlora generate ./my-model \"Once upon a time\" --adapter my-adapter",
                     "qlora generate ./my-model - --do_sample --temperature 0.8 < prompt.txt",
                     "qlora generate ./my-model --adapter my-adapter --record "
                     "'{\"instruction\":\"Add.\",\"input\":\"12\"}'"},
        .positionals = {"model_name_or_path", "prompt"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    DeclareGenerator(model_, table);
    generate_.Declare(table);
    table.Add(
        "prompt", &prompt_,
        "text to continue; - reads standard input, without the line end behind it unless --raw");
    table.AddPath("prompt_file", &prompt_file_,
                  "file with the text to continue, without the line end behind it unless --raw");
    table.Add("record", &record_,
              "prompt as a record of the data: a JSON object of its fields, or of messages");
    table.Add("raw", &raw_, "use the prompt verbatim, without the prompt layout");
    table.Choice("chat", &chat_, {"auto", "true", "false"},
                 "put the prompt into the chat template; auto: as the adapter was trained, or when "
                 "the model has one; false: as --raw");
    table.Add("system", &system_, "system message before the prompt");
    // The table tells later which options the user has set: generation_config.json fills the
    // others.
    options_ = &table;
    run_.Declare(table);
  }

  int Run(const Console& console) override {
    // Read before the model is loaded: a prompt that is missing is noticed at once.
    const std::string typed = Typed();
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    ShowSampling(model, *options_, console);
    const PromptText prompt = LaidOut(model, typed, console);
    const auto print = [&](std::string_view piece) {
      // Each piece at once, because a person is reading along.
      console.out << Shown(console, piece) << std::flush;
      // False stops the generation: the reader of the pipe has gone.
      return console.out.good();
    };
    // Pieces of text would break the one JSON object.
    const GenerateReport report =
        run_.json ? model.Generate(prompt, generate_) : model.Generate(prompt, generate_, print);
    if (run_.json) {
      PrintJson(console.out, {{"prompt", prompt.text},
                              {"text", report.text},
                              {"prompt_tokens", report.prompt_tokens},
                              {"new_tokens", report.new_tokens},
                              {"stopped_at_eos", report.stopped_at_eos},
                              {"stop_reason", StopReasonName(report.stop_reason)},
                              {"prefill_seconds", report.prefill_seconds},
                              {"decode_seconds", report.decode_seconds}});
    } else {
      console.out << '\n';
      if (report.text.empty()) Say(console, "the model ended at once: the answer is empty");
    }
    SayWhereCut(report, model.context_length(), console);
    Say(console, FormatSpeed(report));
    return 0;
  }

 private:
  // Returns the text that the user gives; "" for a record.
  std::string Typed() const {
    const auto given = {!prompt_.empty(), !prompt_file_.empty(), !record_.empty()};
    const auto count = std::count(given.begin(), given.end(), true);
    if (count == 0) {
      ThrowInvalidInput(
          "a prompt is missing: give it as text, as - for standard input, with --prompt_file, or "
          "as --record");
    }
    if (count > 1)
      ThrowInvalidInput("prompt, prompt_file and record: more than one is given; keep one");
    // A record is laid out as a whole by the rule of the data; nothing can be added to it.
    if (!record_.empty() && (!system_.empty() || raw())) {
      ThrowInvalidInput("record: the layout of the data is applied to it; leave out {}",
                        raw() ? "raw" : "system, which is a field of the record");
    }
    if (!record_.empty()) return {};
    const std::string& source = prompt_file_.empty() ? prompt_ : prompt_file_;
    if (prompt_file_.empty() && prompt_ != "-") return prompt_;
    std::string text = ReadInput(source);
    // `echo` and editors end a text with a line end, which is not meant as a part of the prompt.
    if (!raw() && text.ends_with('\n')) {
      text.pop_back();
      if (text.ends_with('\r')) text.pop_back();
    }
    if (text.empty()) {
      ThrowInvalidInput("the prompt is empty: {} holds no text",
                        source == "-" ? "standard input" : source);
    }
    return text;
  }

  // --chat is the older option, --raw the newer name of its value false.
  bool raw() const { return raw_ || chat_ == "false"; }

  // Returns the prompt in the layout that is applied, which console.err names.
  PromptText LaidOut(const Model& model, const std::string& typed, const Console& console) const {
    if (raw()) {
      // An error, because a system message that is silently left out changes the answer.
      if (!system_.empty())
        ThrowInvalidInput("system is not supported by a raw prompt; leave one of the two out");
      return {.text = typed};
    }
    if (chat_ == "true") {
      if (!record_.empty())
        ThrowInvalidInput(
            "record cannot be combined with chat: a record has a layout; leave out chat");
      SayLayout(model, "the chat template", console);
      // The template writes BOS itself.
      return {.text = model.ChatPrompt(Dump(Messages(typed))), .add_special_tokens = false};
    }
    SayLayout(model, console);
    return record_.empty() ? model.Prompt(typed, system_) : model.PromptOfRecord(record_);
  }

  OrderedJson Messages(const std::string& typed) const {
    OrderedJson messages = OrderedJson::array();
    if (!system_.empty()) messages.push_back({{"role", "system"}, {"content", system_}});
    messages.push_back({{"role", "user"}, {"content", typed}});
    return messages;
  }

  ModelOptions model_;
  GenerateOptions generate_;
  std::string prompt_;
  std::string prompt_file_;
  std::string record_;
  bool raw_ = false;
  std::string chat_ = "auto";
  std::string system_;
  OptionTable* options_ = nullptr;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeGenerateVerb() { return std::make_unique<GenerateVerb>(); }

}  // namespace qlora
