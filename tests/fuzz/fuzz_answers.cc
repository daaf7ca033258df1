// Fuzzes what a server reads of its models and of its clients: answers with thoughts and calls, in
// the form of a family, and bodies of requests. The first byte chooses; the second one the form.
#include <fmt/format.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "decision/decision_wire.h"
#include "fuzz_util.h"
#include "io/json.h"
#include "serve/answer_parts.h"
#include "serve/answers/argument_text.h"
#include "serve/api_error.h"
#include "serve/jobs/job.h"
#include "serve/request_fields.h"
#include "serve/requests/chat_request.h"
#include "serve/requests/conversation_request.h"
#include "serve/structured/grammar_reader.h"
#include "test_build.h"
#include "unicode/unicode.h"

namespace qlora {
namespace {

void Require(bool condition) {
  if (!condition) std::abort();
}

// What chat templates of families have in them (answer_forms.cc).
constexpr auto kTemplates = std::to_array<std::string_view>(
    {"", "<tool_call>\n{\"name\": </think>", "<tool_call><function=x><parameter=y></think>",
     "<tool_call><arg_key><arg_value></think>",
     "<|start_header_id|> <|python_tag|> {\"name\": function name, \"parameters\": dictionary}",
     "[TOOL_CALLS]", "[TOOL_CALLS] [ARGS] [CALL_ID] [/THINK]",
     "<|tool_call>call:<tool_call|> <|channel>thought", "<|tool_call_start|> </think>",
     "<|start|>assistant<|channel|>analysis<|message|>",
     "<｜tool▁call▁begin｜>function<｜tool▁sep｜>```json</think>",
     "｜DSML｜ 'function_calls>' </think>", "<minimax:tool_call><invoke name= </think>",
     "<|tool_calls_section_begin|><|tool_call_argument_begin|>", ">>>all",
     "[BEGIN FINAL RESPONSE]<tool_calls>"});

constexpr std::string_view kTools = R"([{"type": "function", "function": {"name": "f", "parameters":
    {"type": "object", "properties": {"text": {"type": "string"}, "number": {"type": "integer"},
    "maybe": {"type": ["string", "null"]}, "list": {"type": "array"}}}}}])";

// What a client makes of the parts: one line for each thought, text and call.
std::string Shown(AnswerParts parts, std::string_view answer, std::size_t piece) {
  using Kind = AnswerPart::Kind;
  std::string shown;
  std::string arguments;
  std::int64_t calls = 0;
  auto last = Kind::kCallEnd;
  bool is_open = false;
  const auto close = [&] {
    // Clients read an object, also where the answer was cut.
    Json object;
    Require(!TryParseJson(WholeArguments(arguments), object) && object.is_object());
    arguments.clear();
    is_open = false;
  };
  const auto take = [&](const std::vector<AnswerPart>& some) {
    for (const AnswerPart& part : some) {
      if (part.kind != last) shown += fmt::format("\n{}:", static_cast<int>(part.kind));
      last = part.kind;
      shown += part.text;
      if (part.kind == Kind::kCallBegin) {
        if (is_open) close();
        Require(part.call == calls++);
        is_open = true;
      } else if (part.kind == Kind::kCallArguments) {
        Require(is_open && part.call == calls - 1);
        arguments += part.text;
      } else if (part.kind == Kind::kCallEnd) {
        Require(is_open);
        close();
      }
    }
  };
  for (std::size_t begin = 0; begin < answer.size(); begin += piece) {
    take(parts.Add(answer.substr(begin, piece)));
  }
  take(parts.Finish());
  if (is_open) close();
  return shown;
}

// However an answer is cut, it has the same parts. Answers are UTF-8, as Tokenizer::StreamDecoder
// gives them. bits: of the prompt, and of the request.
void CheckAnswer(std::string_view bytes, unsigned bits) {
  std::string storage;
  const std::string_view text = ValidUtf8(bytes, &storage);
  const auto form = FindAnswerForm(kTemplates[bits / 4 % kTemplates.size()]);
  const bool thinks = bits % 2 == 1;
  const bool calls = bits % 4 < 2;
  const auto shown = [&](std::size_t piece) {
    return Shown(AnswerParts(form, thinks, calls, std::make_shared<const ArgumentTypes>(kTools)),
                 text, piece);
  };
  Require(shown(text.size() + 1) == shown(1));
}

// The models of a server that is asked for a base alone.
class BaseAlone final : public ServedModels {
 public:
  BaseAlone() {
    const std::filesystem::path folder = SourceDir() / "tests/golden/llama-tiny";
    const std::filesystem::path chat =
        folder_.Put("chat.jinja",
                    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{{ m.tool_calls | "
                    "default([]) | tojson }}"
                    "{% endfor %}<tool_call>\n{\"name\": </think>{{ tools | tojson }}");
    model_.name = "tiny";
    model_.context_length = 4096;
    model_.vocabulary = 288;
    model_.tokenizer = std::make_shared<const Tokenizer>(Tokenizer::Load(folder));
    model_.prompts = std::make_shared<const ServedPrompts>(
        ChatFields{.chat_template = chat.string()}, "", folder, *model_.tokenizer);
    model_.answers = FindAnswerForm(kTemplates[1]);
  }
  ServedModelPtr Find(std::string_view name) const override {
    if (!name.empty() && name != model_.name) throw ApiError(404, "no such model", "model");
    return std::make_shared<const ServedModel>(model_);
  }
  std::vector<ServedModelPtr> All() const override { return {Find("")}; }
  void Load(const std::string&, const std::string&) override {}
  void Unload(const std::string&) override {}

 private:
  FuzzFolder folder_;
  ServedModel model_;
};

// An answer that is held to a form can always go on, or end.
void CheckChat(const ChatRequest& request) {
  constexpr int kMostBytes = 200;
  Require(request.answers.choices >= 1);
  if (request.generation.format.grammar == nullptr) return;
  GrammarReader reader(request.generation.format.grammar);
  GrammarReader::Position at = reader.begin();
  for (int i = 0; i < kMostBytes; ++i) {
    GrammarReader::Position next = GrammarReader::kNowhere;
    // White space comes last: no value begins with it.
    for (int byte = 0x21; byte < 0x121 && next == GrammarReader::kNowhere; ++byte) {
      next = reader.Next(at, static_cast<unsigned char>(byte % 0x100));
    }
    if (next == GrammarReader::kNowhere) return Require(reader.CanEnd(at));
    at = next;
  }
}

// A body is read, or refused with a reason.
void CheckBody(std::string_view text, unsigned kind) {
  static const BaseAlone kModels;
  try {
    const OrderedJson json = ParseBody({.body = std::string(text)});
    const RequestFields body(json);
    switch (kind % 5) {
      case 0:
        CheckChat(ReadChat(body, kModels, {}));
        break;
      case 1:
        PromptOf(*kModels.Find(""), ReadMessageRequest(body, *kModels.Find("")));
        break;
      case 2:
        PromptOf(*kModels.Find(""), ReadResponseRequest(body, *kModels.Find("")));
        break;
      case 3:
        Require(ReadJobRequest(json).n_epochs >= 1);
        break;
      default:
        Require(!ReadDecisionRequest(json).decision.questions.empty());
    }
  } catch (const ApiError& error) {
    Require(error.status == 400 || error.status == 404);
    Require(!error.message.empty());
  }
}

}  // namespace
}  // namespace qlora

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace qlora;
  if (size < 2) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 2, size - 2);
  Attack([&] { data[0] % 2 == 0 ? CheckAnswer(input, data[1]) : CheckBody(input, data[1]); });
  return 0;
}
