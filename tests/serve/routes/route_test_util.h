// A model that thinks and calls tools: a test asks a route, and writes the answer itself.
#ifndef QLORA_TESTS_SERVE_ROUTES_ROUTE_TEST_UTIL_H_
#define QLORA_TESTS_SERVE_ROUTES_ROUTE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "serve/routes/serve_fixture.h"

// Its constants have names of enumerators above.
#include "data/data_test_util.h"

namespace qlora {

// Thinks and calls tools as Qwen3 does.
inline constexpr const char* kTalkingTemplate = R"(
{%- if tools %}{{ '<|im_start|>tools\n' ~ tools | tojson ~ '<|im_end|>\n' }}{% endif %}
{%- for m in messages %}{{ '<|im_start|>' ~ m.role ~ '\n' }}
{%- if m.reasoning_content %}{{ '<think>\n' ~ m.reasoning_content ~ '\n</think>\n\n' }}{% endif %}
{{- m.content or '' }}
{%- for call in m.tool_calls or [] %}
{{- '<tool_call>\n{"name": "' ~ call.function.name ~ '", "arguments": ' ~ call.function.arguments | tojson ~ '}\n</tool_call>' }}
{%- endfor %}{{ '<|im_end|>\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{% endif %})";

// Over a model "talker"; one request after the other.
class TalkerTest : public ServeTest<TestModels> {
 protected:
  explicit TalkerTest(const std::string& chat_template = kTalkingTemplate)
      : ServeTest(MakeModel(chat_template)) {}

  // Answers, or hands a request to `service_`.
  void Ask(const std::string& path, const std::string& body) {
    answer_ = {};
    Begin({.method = "POST", .path = path, .body = body}, {std::shared_ptr<void>(), &answer_});
  }
  void Ask(const std::string& path, const OrderedJson& body) { Ask(path, body.dump()); }

  // What the model was given to read.
  std::string Prompt() const {
    if (service_.requests.empty()) return answer_.body;
    return models_.Find("")->tokenizer->Decode(service_.requests.back().prompt, false);
  }

  // Adds fields; null takes one away.
  static OrderedJson With(OrderedJson body, const OrderedJson& fields) {
    for (const auto& [name, value] : fields.items()) {
      if (value.is_null()) {
        body.erase(name);
      } else {
        body[name] = value;
      }
    }
    return body;
  }

  FakeReply answer_;

 private:
  static ServedModel MakeModel(const std::string& chat_template) {
    const TemporaryFolder folder;
    ServedModel model{.name = "talker", .context_length = 4096};
    model.tokenizer = std::make_shared<const Tokenizer>(
        MakeTestTokenizer({.bos = false, .chat_template = chat_template}));
    model.answers = FindAnswerForm(chat_template);
    model.prompts =
        std::make_shared<const ServedPrompts>(ChatFields{}, "", folder.path(), *model.tokenizer);
    model.vocabulary = kTestVocab;
    return model;
  }
};

inline const OrderedJson kWeatherSchema =
    OrderedJson::parse(R"({"type": "object", "properties": {"city": {"type": "string"}}})");
inline constexpr const char* kThought = "<think>\nHm, 漢\n</think>\n\n";
inline constexpr const char* kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"žs\"}}\n</tool_call>";

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_ROUTES_ROUTE_TEST_UTIL_H_
