// A server without an engine and connections: a test asks a route, and writes the answer itself.
#ifndef QLORA_TESTS_SERVE_ROUTES_ROUTE_TEST_UTIL_H_
#define QLORA_TESTS_SERVE_ROUTES_ROUTE_TEST_UTIL_H_

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/served_prompts.h"
#include "serve/routes/routes.h"
#include "serve/server.h"

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

class StubService : public GenerationService {
 public:
  GenerationId Submit(GenerationRequest request, GenerationListener listener) override {
    if (refusal) throw *refusal;
    requests.push_back(std::move(request));
    listeners_.push_back(std::move(listener));
    return std::ssize(requests);
  }
  std::int64_t most_answers() const override { return 272; }
  void Cancel(GenerationId id) override { cancelled.push_back(id); }
  GenerationId SubmitPasses(PartedPasses) override { throw ApiError(500, "no model"); }
  void CheckRoomForPasses() const override {}
  void RunAlone(const std::function<void()>& work) override { work(); }

  // Answers the last request.
  void Answer(const std::vector<std::string>& pieces, GenerationEnd end = {}) {
    ASSERT_FALSE(listeners_.empty()) << "no request was submitted";
    const GenerationListener listener = std::move(listeners_.back());
    listeners_.clear();
    for (const std::string& piece : pieces) listener.on_piece({.text = piece});
    end.prompt_tokens = std::ssize(requests.back().prompt);
    if (end.new_tokens == 0) end.new_tokens = 20;
    listener.on_end(end);
  }

  std::optional<ApiError> refusal;
  std::vector<GenerationRequest> requests;
  std::vector<GenerationId> cancelled;

 private:
  std::vector<GenerationListener> listeners_;
};

struct StubAnswer {
  HttpResponse head = {.status = 0};
  std::string body;
  bool has_ended = false;
  std::function<void()> gone;

  OrderedJson json() const { return OrderedJson::parse(body, nullptr, false); }
  // Of a stream: {"event": its name, ...} for each.
  std::vector<OrderedJson> Events() const {
    std::vector<OrderedJson> events;
    std::string_view rest = body;
    while (!rest.empty()) {
      const std::size_t end = rest.find("\n\n");
      const std::string_view text = rest.substr(0, end);
      rest.remove_prefix(end == rest.npos ? rest.size() : end + 2);
      const std::size_t data = text.find("\ndata: ");
      if (!text.starts_with("event: ") || data == text.npos) {
        ADD_FAILURE() << "no event: " << text;
        break;
      }
      OrderedJson event = OrderedJson::parse(text.substr(data + 7), nullptr, false);
      event["event"] = std::string(text.substr(7, data - 7));
      events.push_back(std::move(event));
    }
    return events;
  }
};

class StubReply : public HttpReply {
 public:
  explicit StubReply(StubAnswer& answer) : answer_(answer) {}

  void Send(HttpResponse response) override {
    EXPECT_EQ(answer_.head.status, 0) << "answered twice";
    answer_.body = response.body;
    answer_.head = std::move(response);
    answer_.has_ended = true;
  }
  void Begin(HttpResponse head) override {
    EXPECT_EQ(answer_.head.status, 0) << "answered twice";
    answer_.head = std::move(head);
  }
  void Write(std::string piece) override {
    EXPECT_FALSE(answer_.has_ended);
    answer_.body += piece;
  }
  void End() override { answer_.has_ended = true; }
  void OnGone(std::function<void()> gone) override { answer_.gone = std::move(gone); }

 private:
  StubAnswer& answer_;
};

class OneModel : public ServedModels {
 public:
  explicit OneModel(ServedModelPtr model) : model_(std::move(model)) {}
  ServedModelPtr Find(std::string_view name) const override {
    if (name.empty() || name == model_->name) return model_;
    throw ApiError(404, "there is no model '" + std::string(name) + "'", "model",
                   "model_not_found");
  }
  std::vector<ServedModelPtr> All() const override { return {model_}; }
  void Load(const std::string&, const std::string&) override {}
  void Unload(const std::string&) override {}

 private:
  ServedModelPtr model_;
};

class RouteTest : public testing::Test {
 protected:
  explicit RouteTest(std::string chat_template = kTalkingTemplate)
      : models_(MakeModel(std::move(chat_template))) {
    AddResponseRoutes(routes_, server_);
    AddMessageRoutes(routes_, server_);
  }

  static ServedModelPtr MakeModel(std::string chat_template) {
    const TemporaryFolder folder;
    auto model = std::make_shared<ServedModel>();
    model->name = "talker";
    model->context_length = 4096;
    model->tokenizer = std::make_shared<const Tokenizer>(
        MakeTestTokenizer({.bos = false, .chat_template = chat_template}));
    model->answers = FindAnswerForm(chat_template);
    model->prompts =
        std::make_shared<const ServedPrompts>(ChatFields{}, "", folder.path(), *model->tokenizer);
    model->vocabulary = kTestVocab;
    return model;
  }

  // Answers, or hands a request to `service_`.
  void Ask(const std::string& path, const std::string& body) {
    answer_ = {};
    routes_.Handle({.method = "POST",
                    .path = path,
                    .query = {},
                    .headers = {},
                    .body = body,
                    .body_file = {},
                    .id = "id0"},
                   std::make_shared<StubReply>(answer_));
    std::promise<void> done;  // one thread works in the order of calls
    workers_.Run([&done] { done.set_value(); });
    done.get_future().wait();
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

  OneModel models_;
  Metrics metrics_;
  ServeOptions options_;
  Workers workers_{1};
  StubAnswer answer_;
  Server server_{.models = models_,
                 .generation = service_,
                 .metrics = metrics_,
                 .options = options_,
                 .workers = workers_,
                 .log = [](const std::string&) {}};
  RouteTable routes_{server_};
  // Ends first: it holds replies, which count what was answered.
  StubService service_;
};

inline const OrderedJson kWeatherSchema =
    OrderedJson::parse(R"({"type": "object", "properties": {"city": {"type": "string"}}})");
inline constexpr const char* kThought = "<think>\nHm, 漢\n</think>\n\n";
inline constexpr const char* kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"žs\"}}\n</tool_call>";

}  // namespace qlora

#endif  // QLORA_TESTS_SERVE_ROUTES_ROUTE_TEST_UTIL_H_
