#include "decision/decision_wire.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "io/json.h"

namespace qlora {
namespace {

void CheckOptions(const Question& question, const std::string& where) {
  if (std::ssize(question.options) <= kMaxOptions) return;
  ThrowInvalidInput("{}: expected at most {} options, which letters label, found {}", where,
                    kMaxOptions, question.options.size());
}

// Refuses what would say more of a question than its form reads. own: what says it there.
void CheckFields(const OrderedJson& question, std::string_view own, const std::string& where) {
  for (const char* name : {"criteria", "choices", "levels"}) {
    const OrderedJson* value = own == name ? nullptr : FindField(question, name);
    if (value == nullptr || value->empty()) continue;
    ThrowInvalidInput("{}.{}: is not read of such a question; {}", where, name,
                      own.empty() ? "leave it out" : fmt::format("it has {}", own));
  }
}

std::string ModelOf(const OrderedJson& body) {
  const OrderedJson* model = FindField(body, "model");
  if (model == nullptr) return "";
  if (!model->is_string()) ThrowInvalidInput("model: expected text, found {}", ShortJson(*model));
  return model->get<std::string>();
}

DecisionRequest ReadSystemOne(const OrderedJson& body, const OrderedJson& questions) {
  DecisionRequest request;
  request.model = ModelOf(body);
  const OrderedJson* state = FindField(body, "state");
  if (state == nullptr) {
    ThrowInvalidInput("state: missing; it is the text, object or list that is decided about");
  }
  if (!state->is_string() && !state->is_structured()) {
    ThrowInvalidInput("state: expected text, an object or a list, found {}", ShortJson(*state));
  }
  request.decision.state = *state;
  for (const auto& [id, question] : questions.items()) {
    const std::string where = "questions." + id;
    request.decision.questions.push_back(
        ReadQuestion(question, id, where, {.all_forms = false, .min_options = 1}));
    CheckFields(question, "criteria", where);
    CheckOptions(request.decision.questions.back(), where + ".criteria");
  }
  return request;
}

// The text or data that the parts of a message are; several become a list, in their order.
OrderedJson StateOfParts(const OrderedJson& content, const std::string& where) {
  if (content.is_string()) return content;
  OrderedJson values = OrderedJson::array();
  for (const OrderedJson& part : content.is_array() ? content : OrderedJson::array()) {
    const std::string type = part.is_object() ? part.value("type", OrderedJson("")).dump() : "";
    const char* field = type == "\"input_text\"" ? "text" : type == "\"input_json\"" ? "data" : "";
    const OrderedJson* value = *field == '\0' ? nullptr : FindField(part, field);
    if (value == nullptr) {
      ThrowInvalidInput("{}: expected input_text with 'text' or input_json with 'data', found {}",
                        where, ShortJson(part));
    }
    values.push_back(*value);
  }
  if (values.empty()) {
    ThrowInvalidInput("{}: expected text, or a list of parts, found {}", where, ShortJson(content));
  }
  return values.size() == 1 ? values[0] : values;
}

// One message is its text; several are the list of messages as it was sent.
OrderedJson StateOfInput(const OrderedJson& input) {
  if (input.is_string()) return input;
  if (!input.is_array() || input.empty()) {
    ThrowInvalidInput("input: expected text, or a list of messages, found {}", ShortJson(input));
  }
  OrderedJson messages = OrderedJson::array();
  for (std::size_t i = 0; i < input.size(); ++i) {
    const std::string where = fmt::format("input[{}]", i);
    if (!input[i].is_object()) {
      ThrowInvalidInput("{}: expected a message, found {}", where, ShortJson(input[i]));
    }
    const OrderedJson* content = FindField(input[i], "content");
    OrderedJson message = input[i];
    if (content != nullptr) message["content"] = StateOfParts(*content, where + ".content");
    if (content == nullptr && !FindField(input[i], "role")) {
      message = {{"content", StateOfParts(OrderedJson::array({input[i]}), where)}};
    }
    messages.push_back(std::move(message));
  }
  const bool is_one = messages.size() == 1 && messages[0].contains("content");
  return is_one ? messages[0]["content"] : messages;
}

DecisionRequest ReadOpenAi(const OrderedJson& body, const OrderedJson& questions) {
  DecisionRequest request;
  request.model = ModelOf(body);
  request.is_openai = true;
  const OrderedJson* input = FindField(body, "input");
  if (input == nullptr) ThrowInvalidInput("input: missing; it is what is decided about");
  request.decision.state = StateOfInput(*input);
  if (std::ssize(questions) > kMostQuestions) {
    ThrowInvalidInput("questions: expected at most {}, found {}", kMostQuestions, questions.size());
  }
  for (std::size_t i = 0; i < questions.size(); ++i) {
    const std::string where = fmt::format("questions[{}]", i);
    const OrderedJson& asked = questions[i];
    const OrderedJson* name = asked.is_object() ? FindField(asked, "name") : nullptr;
    if (name != nullptr && !name->is_string()) {
      ThrowInvalidInput("{}.name: expected text, found {}", where, ShortJson(*name));
    }
    std::optional<std::string> id;
    if (name != nullptr) id = name->get<std::string>();
    if (id && std::ranges::find(request.names, id) != request.names.end()) {
      ThrowInvalidInput("{}.name: {} is the name of an earlier question", where, ShortJson(*name));
    }
    request.names.push_back(std::move(id));
    if (asked.is_object() && asked.value("type", OrderedJson("predicate")) == "noul") {
      ThrowInvalidInput("{}.type: expected predicate, choice or score, found noul", where);
    }
    Question question =
        ReadOpenAiQuestion(asked, request.names.back().value_or(std::to_string(i)), where);
    const bool is_choice = question.type == QuestionType::kChoice;
    const bool is_score = question.type == QuestionType::kScore;
    CheckFields(asked, is_choice ? "choices" : is_score ? "levels" : "", where);
    CheckOptions(question, where + ".choices");
    if (question.instructions.is_array()) {
      question.instructions = StateOfParts(question.instructions, where + ".instructions");
    }
    request.decision.questions.push_back(std::move(question));
  }
  return request;
}

OrderedJson SystemOneAnswer(const Question& question, const std::vector<double>& p) {
  if (question.type == QuestionType::kNoul) return {{"type", "noul"}, {"noul", p[1]}};
  OrderedJson probabilities = OrderedJson::object();
  OrderedJson legend = OrderedJson::object();
  for (std::size_t k = 0; k < p.size(); ++k) {
    probabilities[question.options[k].key] = p[k];
    legend[question.options[k].key] = question.options[k].description;
  }
  if (question.type == QuestionType::kChoice) {
    return {{"type", "choice"},
            {"choice", question.options[FirstLargest(p)].key},
            {"probabilities", probabilities},
            {"confidence", ChoiceConfidence(p)}};
  }
  return {{"type", "score"},
          {"score", MeanLevel(p)},
          {"legend", legend},
          {"probabilities", probabilities},
          {"confidence", ScoreConfidence(p)}};
}

OrderedJson OpenAiAnswer(const Question& question, const std::optional<std::string>& asked,
                         const std::vector<double>& p) {
  const OrderedJson name = asked ? OrderedJson(*asked) : OrderedJson(nullptr);
  if (question.type == QuestionType::kNoul) {
    return {{"type", "predicate"}, {"name", name}, {"probability", p[1]}};
  }
  const bool is_score = question.type == QuestionType::kScore;
  OrderedJson probabilities = OrderedJson::array();
  for (std::size_t k = 0; k < p.size(); ++k) {
    const OrderedJson& value = question.options[k].value;
    probabilities.push_back(is_score
                                ? OrderedJson{{"value", k}, {"label", value}, {"probability", p[k]}}
                                : OrderedJson{{"value", value}, {"probability", p[k]}});
  }
  OrderedJson answer = {{"type", NameOf(question.type)}, {"name", name}};
  answer[is_score ? "score" : "choice"] =
      is_score ? OrderedJson(MeanLevel(p)) : question.options[FirstLargest(p)].value;
  answer["confidence"] = is_score ? ScoreConfidence(p) : ChoiceConfidence(p);
  answer["probabilities"] = std::move(probabilities);
  return answer;
}

}  // namespace

DecisionRequest ReadDecisionRequest(const OrderedJson& body) {
  if (!body.is_object()) {
    ThrowInvalidInput("expected an object with state and questions, found {}", ShortJson(body));
  }
  const OrderedJson* questions = FindField(body, "questions");
  if (questions == nullptr || !questions->is_structured() || questions->empty()) {
    ThrowInvalidInput("questions: expected an object of questions (of OpenAI: a list), found {}",
                      questions == nullptr ? "nothing" : ShortJson(*questions));
  }
  const OrderedJson* stream = FindField(body, "stream");
  if (stream != nullptr && *stream != false) {
    ThrowInvalidInput("stream: decisions are not streamed; leave it out");
  }
  return questions->is_array() ? ReadOpenAi(body, *questions) : ReadSystemOne(body, *questions);
}

DecisionRequest ParseDecisionRequest(std::string_view text, std::string_view where) {
  return ReadDecisionRequest(ParseOrderedJson(text, where, DuplicateKeys::kRefuse));
}

OrderedJson DecisionAnswer(const DecisionRequest& request,
                           std::span<const std::vector<double>> probabilities,
                           std::string_view model, std::int64_t input_tokens) {
  OrderedJson answers = request.is_openai ? OrderedJson::array() : OrderedJson::object();
  for (std::size_t q = 0; q < probabilities.size(); ++q) {
    const Question& question = request.decision.questions[q];
    if (request.is_openai) {
      answers.push_back(OpenAiAnswer(question, request.names[q], probabilities[q]));
    } else {
      answers[question.id] = SystemOneAnswer(question, probabilities[q]);
    }
  }
  OrderedJson usage = {{"input_tokens", input_tokens}, {"output_tokens", 0}};
  if (request.is_openai) {
    usage = {{"input_tokens", input_tokens},
             {"input_tokens_details", {{"cached_tokens", 0}, {"cache_write_tokens", 0}}},
             {"output_tokens", 0},
             {"output_tokens_details", {{"reasoning_tokens", 0}}},
             {"total_tokens", input_tokens}};
  }
  return {{"model", model}, {"answers", answers}, {"usage", usage}};
}

double ChoiceConfidence(const std::vector<double>& p) {
  const auto n = static_cast<double>(p.size());
  return p.size() == 1 ? 1 : (n * p[FirstLargest(p)] - 1) / (n - 1);
}

double ScoreConfidence(const std::vector<double>& p) {
  if (p.size() == 1) return 1;
  const auto likely = static_cast<double>(FirstLargest(p));
  double distance = 0;
  double flat = 0;
  for (std::size_t k = 0; k < p.size(); ++k) {
    const auto level = static_cast<double>(k);
    distance += p[k] * std::abs(level - likely);
    flat += std::abs(level - static_cast<double>(p.size() - 1) / 2);
  }
  return std::max(0.0, 1 - distance / (flat / static_cast<double>(p.size())));
}

}  // namespace qlora
