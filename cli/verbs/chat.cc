// `qlora chat`: a conversation in the terminal, or with a program at the other end of a pipe. This
// verb chooses between turns (a layout with places for user and assistant) and plain text;
// ChatSession holds the conversation.
#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/check.h"
#include "chat/chat_session.h"
#include "command/common.h"
#include "command/model_loading.h"
#include "hub/hub_adapter.h"
#include "io/peft/adapter_source.h"
#include "qlora/model.h"
#include "tokenizer/chat_template_files.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

class ChatVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "chat",
        .summary = "talk with a model (+ adapter) in the terminal",
        .explanation =
            "Reads a message, answers it, and remembers both, in the layout of the data that the "
            "adapter was trained on, or in the chat template of the model. A person edits lines "
            "and has their history; a line that ends with a backslash continues on the next, and "
            "\"\"\" begins and ends several lines. Ctrl+C stops an answer. /help lists commands: "
            "/reset forgets the conversation, /save FILE writes it as a record for training, "
            "/system TEXT changes the system message, and /exit or Ctrl+D ends. From a pipe, each "
            "line is a message. Sampling follows the model's generation_config.json unless "
            "options say otherwise. A model without a chat template continues plain text, as does "
            "any model with --raw: each message is appended to the conversation so far, followed "
            "by a line break. When a conversation outgrows the model's context, its oldest turns "
            "are left out, with a notice.",
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
    table.Add("raw", &raw_, "continue plain text, without the prompt layout and the chat template");
    options_ = &table;
    table.Section("Run");
    run_.DeclareThreads(table);
  }

  int Run(const Console& console) override {
    Context context(run_.ThreadCount());
    Model model = LoadModel(context, model_, console);
    ShowSampling(model, *options_, console);
    // Turns need a layout that defines the beginning and the end of an answer.
    const bool plain = raw_ || !model.has_turns();
    if (plain) {
      if (!raw_) SayLayout(model, console);
      // A model with a chat template and an adapter of plain texts: the adapter decides.
      Say(console, raw_ || model.has_chat_template()
                       ? "the model continues plain text"
                       : "this model has no chat template; name one with --chat_template (plain "
                         "goes with every tokenizer); until then it continues plain text");
      // Plain text has no system message; to prepend it silently would be another prompt.
      if (!system_.empty()) {
        ThrowInvalidInput("system needs a chat template; name one with --chat_template");
      }
    } else {
      SayLayout(model, console);
    }
    ChatSession(model, generate_, plain, system_, plain ? "" : TemplateOfAdapter(), console).Run();
    return 0;
  }

 private:
  // Returns the file that the adapter has where its conversations are not in the template of the
  // model.
  std::string TemplateOfAdapter() const {
    // A template that the user names wins over the first adapter's.
    if (model_.adapter.empty() || !model_.chat.chat_template.empty()) return "";
    const AdapterSource adapter = ParseAdapterSource(model_.adapter.front());
    const auto file = std::filesystem::path(ResolveAdapterDir(adapter.path)) / kChatTemplateFile;
    std::error_code ignored;
    return std::filesystem::exists(file, ignored) ? file.string() : "";
  }

  ModelOptions model_;
  GenerateOptions generate_;
  std::string system_;
  bool raw_ = false;
  OptionTable* options_ = nullptr;
  RunFields run_;
};

}  // namespace

std::unique_ptr<Verb> MakeChatVerb() { return std::make_unique<ChatVerb>(); }

}  // namespace qlora
