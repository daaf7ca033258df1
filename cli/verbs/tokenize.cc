// `qlora tokenize`: text to ids and back with the tokenizer of a model, for comparisons with other
// programs and for looking at prompts. One of four inputs is given; each is read as a whole, except
// that --jsonl answers line by line.
#include <fmt/format.h>

#include <sstream>

#include "base/check.h"
#include "base/text.h"
#include "command/common.h"
#include "command/tokenize_jsonl.h"
#include "hub/hub_cache.h"
#include "io/json.h"
#include "prompt/chat_template.h"
#include "prompt/chat_template_load.h"
#include "prompt/conversation.h"
#include "prompt/rendered_conversation.h"
#include "verbs/verbs.h"

namespace qlora {
namespace {

std::vector<std::int32_t> ParseIds(const std::vector<std::string>& items) {
  std::vector<std::int32_t> ids;
  for (const std::string& item : items) {
    const auto id = ParseNumber<std::int32_t>(item);
    if (!id || *id < 0) ThrowInvalidInput("ids: expected token ids, found '{}'", item);
    ids.push_back(*id);
  }
  return ids;
}

class TokenizeVerb : public Verb {
 public:
  VerbText text() const override {
    return {
        .name = "tokenize",
        .summary = "text to token ids, and back",
        .explanation =
            "Prints {\"ids\": [...], \"text\": \"...\"} for a text; \"text\" is decoded from "
            "the ids. --jsonl reads one JSON string a line, from a file or - for standard input, "
            "and prints one such line each; --ids decodes; --messages renders a conversation with "
            "the chat template and tokenizes the result. Special tokens that the tokenizer puts "
            "around a text (such as BOS) are omitted with --no-special.",
        .examples = {"qlora tokenize ./my-model \"Hello world\"",
                     "qlora tokenize ./my-model --ids 1,9906,1917",
                     "qlora tokenize ./my-model --jsonl texts.jsonl --no-special",
                     "qlora tokenize ./my-model --messages chat.json --add_generation_prompt"},
        .positionals = {"model_name_or_path", "text"},
        .required = {"model_name_or_path"},
    };
  }

  void Declare(OptionTable& table) override {
    table.Section("Input");
    table.AddPath("model_name_or_path", &model_,
                  "directory with tokenizer.json, GGUF file, or org/name in the local cache",
                  {"base_model", "model"});
    table.Add("text", &text_, "text to turn into ids");
    table.AddPath("jsonl", &jsonl_, "file with one JSON string per line; -: standard input");
    table.Add("ids", &ids_, "token ids to turn into text");
    table.AddPath(
        "messages", &messages_,
        "file with a JSON list of messages, or {\"messages\": [...], \"tools\": [...]}; -: "
        "standard input");
    table.Add("add_generation_prompt", &add_generation_prompt_,
              "end the conversation with the prompt for the assistant's next turn");
    chat_.Declare(table);
    table.Add("special", &special_,
              "add the special tokens that the tokenizer puts around a text (BOS, EOS)");
  }

  int Run(const Console& console) override {
    // Exactly one: of two, an order of precedence would silently ignore the other.
    if (static_cast<int>(!text_.empty()) + static_cast<int>(!jsonl_.empty()) +
            static_cast<int>(!ids_.empty()) + static_cast<int>(!messages_.empty()) !=
        1) {
      ThrowInvalidInput("give one of: a text, --jsonl FILE, --ids 1,2,3, --messages FILE");
    }
    // Before the tokenizer is loaded.
    const std::vector<std::int32_t> ids = ParseIds(ids_);
    const Tokenizer tokenizer = Tokenizer::Load(ResolveTokenizerDir(model_));
    // Decode would skip an unknown id without a word.
    for (const std::int32_t id : ids) {
      if (id < tokenizer.vocab_size()) continue;
      ThrowInvalidInput("ids: {} is not a token id of this model, which has {}", id,
                        tokenizer.vocab_size());
    }
    if (!ids.empty()) {
      console.out << tokenizer.Decode(ids, !special_) << '\n';
    } else if (!messages_.empty()) {
      PrintConversation(tokenizer, console);
    } else if (!text_.empty()) {
      // As one line of --jsonl, so that both print the same form.
      std::istringstream line(Dump(text_));
      TokenizeJsonl(tokenizer, line, "text", special_, console.out);
    } else {
      std::istringstream lines(ReadInput(jsonl_));
      TokenizeJsonl(tokenizer, lines, jsonl_ == "-" ? "standard input" : jsonl_, special_,
                    console.out);
    }
    return 0;
  }

 private:
  void PrintConversation(const Tokenizer& tokenizer, const Console& console) const {
    OrderedJson record = ParseOrderedJson(ReadInput(messages_), messages_);
    // A bare list of messages, as chat programs save it.
    if (record.is_array()) record = {{"messages", std::move(record)}};
    if (!record.is_object()) ThrowInvalidInput("{}: expected JSON, a list of messages", messages_);
    // Today, as in generation: this verb shows prompts, not training data.
    const auto chat = LoadChatTemplate(chat_, tokenizer, ChatClock::kToday);
    if (chat == nullptr) ThrowNoChatTemplate(tokenizer);
    // The same reading of messages as in training: parts of text are joined, arguments parsed.
    const Conversation conversation = ConversationOfMessages(record);
    const std::string text = add_generation_prompt_
                                 ? chat->Prompt(conversation.messages, conversation.tools)
                                 : chat->Render(conversation.messages, conversation.tools).text();
    // The template has written BOS where it belongs; the tokenizer would add a second one.
    PrintJson(console.out,
              {{"ids", tokenizer.Encode(text, /*add_special_tokens=*/false)}, {"text", text}});
  }

  std::string model_;
  std::string text_;
  std::string jsonl_;
  std::vector<std::string> ids_;
  std::string messages_;
  bool add_generation_prompt_ = false;
  ChatFields chat_;
  bool special_ = true;
};

}  // namespace

std::unique_ptr<Verb> MakeTokenizeVerb() { return std::make_unique<TokenizeVerb>(); }

}  // namespace qlora
