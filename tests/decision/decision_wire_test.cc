// Requests and answers: the form of llama.cpp's recorded answers, and OpenAI's.
#include "decision/decision_wire.h"

#include <fmt/format.h>

#include <cmath>
#include <fstream>

#include "io/json.h"
#include "io/test_util.h"

namespace qlora {
namespace {

OrderedJson Parse(const std::string& text) { return OrderedJson::parse(text); }

// The probabilities that an answer states, by the options of its question.
std::vector<double> ProbabilitiesOf(const OrderedJson& answer) {
  if (answer["type"] == "noul") {
    return {1 - answer["noul"].get<double>(), answer["noul"].get<double>()};
  }
  std::vector<double> p;
  for (const OrderedJson& value : answer["probabilities"]) p.push_back(value.get<double>());
  return p;
}

// Compares values in order: texts are equal, numbers but for the rounding of a sum of ten.
void ExpectSame(const OrderedJson& actual, const OrderedJson& expected) {
  if (expected.is_number()) {
    EXPECT_NEAR(actual.get<double>(), expected.get<double>(), 1e-14);
    return;
  }
  if (!expected.is_structured()) {
    EXPECT_EQ(actual, expected);
    return;
  }
  ASSERT_EQ(actual.size(), expected.size());
  auto item = actual.items().begin();
  for (const auto& [key, value] : expected.items()) {
    EXPECT_EQ(item.key(), key);
    ExpectSame(item.value(), value);
    ++item;
  }
}

TEST(DecisionWireTest, AnswersAsLlamaCpp) {
  std::ifstream file(SourceDir() / "tests/golden/decision/answers.jsonl");
  int count = 0;
  for (std::string line; std::getline(file, line); ++count) {
    const OrderedJson golden = Parse(line);
    const OrderedJson& expected = golden["answer"];
    const DecisionRequest request = ReadDecisionRequest(golden["request"]);
    std::vector<std::vector<double>> probabilities;
    for (const OrderedJson& answer : expected["answers"]) {
      probabilities.push_back(ProbabilitiesOf(answer));
    }
    const OrderedJson answer =
        DecisionAnswer(request, probabilities, request.model,
                       expected["usage"]["input_tokens"].get<std::int64_t>());
    ExpectSame(answer, expected);
  }
  EXPECT_EQ(count, 3);
}

TEST(DecisionWireTest, Confidence) {
  EXPECT_EQ(ChoiceConfidence({1}), 1);
  EXPECT_EQ(ChoiceConfidence({0.5, 0.5}), 0);
  EXPECT_EQ(ChoiceConfidence({0, 1, 0}), 1);
  EXPECT_EQ(ScoreConfidence({0.5, 0, 0.5}), 0);  // below 0 by the formula
  EXPECT_NEAR(ScoreConfidence({0.8, 0.2}), 0.6, 1e-15);
}

TEST(DecisionWireTest, OpenAiAsksAndIsAnswered) {
  const DecisionRequest request = ReadDecisionRequest(Parse(R"({
      "model": "m", "input": [{"role": "user", "content": [{"type": "input_text", "text": "S"}]}],
      "questions": [
        {"type": "predicate", "name": "glad", "instructions": "Is it?"},
        {"type": "choice", "instructions": [{"type": "input_text", "text": "Who?"}],
         "choices": [{"value": true, "description": "it is"}, {"value": "true"}]},
        {"type": "score", "name": "hats", "instructions": "How many?",
         "levels": [{"label": "none"}, {"label": "one", "description": "a single hat"}]}]})"));
  EXPECT_TRUE(request.is_openai);
  EXPECT_EQ(request.decision.state, "S");
  EXPECT_EQ(request.decision.questions[1].instructions, "Who?");
  EXPECT_EQ(request.decision.questions[2].options[0].description, "none");
  EXPECT_EQ(request.decision.questions[2].options[1].description, "a single hat");
  const std::vector<std::vector<double>> p = {{0.25, 0.75}, {0.5, 0.5}, {0.25, 0.75}};
  EXPECT_EQ(FormatJson(DecisionAnswer(request, p, "m", 12)), FormatJson(Parse(R"({
      "model": "m", "answers": [
        {"type": "predicate", "name": "glad", "probability": 0.75},
        {"type": "choice", "name": null, "choice": true, "confidence": 0.0, "probabilities": [
           {"value": true, "probability": 0.5}, {"value": "true", "probability": 0.5}]},
        {"type": "score", "name": "hats", "score": 0.75, "confidence": 0.5, "probabilities": [
           {"value": 0, "label": "none", "probability": 0.25},
           {"value": 1, "label": "one", "probability": 0.75}]}],
      "usage": {"input_tokens": 12, "input_tokens_details": {"cached_tokens": 0,
        "cache_write_tokens": 0}, "output_tokens": 0, "output_tokens_details":
        {"reasoning_tokens": 0}, "total_tokens": 12}})")));
}

TEST(DecisionWireTest, InputsOfOpenAi) {
  const auto state = [](const std::string& input) {
    return FormatJson(
        ReadDecisionRequest(
            Parse(fmt::format(
                R"({{"input": {}, "questions": [{{"type": "predicate", "instructions": "?"}}]}})",
                input)))
            .decision.state);
  };
  EXPECT_EQ(state("\"text\""), "\"text\"");
  EXPECT_EQ(state("\"\""), "\"\"");
  EXPECT_EQ(state(R"([{"role": "user", "content": "text"}])"), "\"text\"");
  EXPECT_EQ(state(R"([{"type": "input_json", "data": {"a": 1}}])"), R"({"a":1})");
  EXPECT_EQ(state(R"([{"role": "user", "content": [{"type": "input_json", "data": {"a": 1}}]}])"),
            R"({"a":1})");
  EXPECT_EQ(state(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"),
            R"([{"role":"user","content":"a"},{"role":"assistant","content":"b"}])");
}

TEST(DecisionWireTest, OneOptionIsEnoughForARequest) {
  const DecisionRequest request = ReadDecisionRequest(
      Parse(R"({"state": "", "questions": {"a": {"type": "choice", "instructions": "?",
                "criteria": {"x": null}}}})"));
  const std::vector<std::vector<double>> p = {{1}};
  EXPECT_EQ(DecisionAnswer(request, p, "", 1)["answers"]["a"]["confidence"], 1);
}

struct BadRequest {
  std::string text;
  std::string part;
};

TEST(DecisionWireTest, RefusesBadRequestsAndNamesTheField) {
  const auto odd = [](const std::string& question) {
    return fmt::format(
        R"({{"state": "s", "questions": {{"ok": {{"type": "noul", "instructions": "?"}}, "odd": {}}}}})",
        question);
  };
  const auto openai = [](const std::string& question, const std::string& more = "") {
    return fmt::format(R"({{"input": "s", "questions": [{}]{}}})", question, more);
  };
  std::string keys;
  for (int i = 0; i < 27; ++i) keys += fmt::format("{}\"k{}\": null", i ? ", " : "", i);
  const std::string ok = R"({"type": "predicate", "instructions": "?"})";
  const std::vector<BadRequest> cases = {
      {"[]", "expected an object with state and questions"},
      {"{", "request: not valid JSON"},
      {R"({"questions": {"a": {"type": "noul", "instructions": "?"}}})", "state: missing"},
      {R"({"state": null, "questions": {"a": {"type": "noul", "instructions": "?"}}})",
       "state: missing"},
      {R"({"state": 5, "questions": {"a": {"type": "noul", "instructions": "?"}}})",
       "state: expected text, an object or a list, found 5"},
      {R"({"state": "s"})", "questions: expected an object of questions"},
      {R"({"state": "s", "questions": {}})", "questions: expected an object of questions"},
      {R"({"state": "s", "questions": []})", "questions: expected an object of questions"},
      {R"({"state": "s", "questions": "a"})", "questions: expected an object of questions"},
      {R"({"state": "s", "model": 5, "questions": {"a": {"type": "noul", "instructions": "?"}}})",
       "model: expected text"},
      {R"({"state": "s", "state": "t", "questions": {}})", "key 'state' appears twice"},
      {odd("5"), "questions.odd: expected an object"},
      {odd(R"({"type": "noul"})"), "questions.odd.instructions: missing"},
      {odd(R"({"type": "guess", "instructions": "?"})"), "questions.odd.type: expected"},
      {odd(R"({"type": "choice", "instructions": "?"})"), "questions.odd.criteria: expected"},
      {odd(R"({"type": "choice", "instructions": "?", "criteria": {}})"),
       "questions.odd.criteria: expected at least 1 options, found 0"},
      {odd(R"({"type": "choice", "instructions": "?", "criteria": ["a", "b"]})"),
       "questions.odd.criteria: expected an object of options"},
      {odd(R"({"type": "choice", "instructions": "?", "criteria": "ab"})"),
       "questions.odd.criteria: expected an object of options"},
      {odd(R"({"type": "score", "instructions": "?", "criteria": {"a": null}})"),
       "questions.odd.criteria: expected a list of 2 to 10 levels"},
      {odd(R"({"type": "score", "instructions": "?", "criteria": ["x"]})"),
       "questions.odd.criteria: expected a list of 2 to 10 levels"},
      {odd(R"({"type": "noul", "instructions": "?", "criteria": {"maybe": "x"}})"),
       "questions.odd.criteria: a noul has the sides"},
      {odd(R"({"type": "choice", "instructions": "?", "criteria": {)" + keys + "}}"),
       "questions.odd.criteria: expected at most 26 options, which letters label, found 27"},
      {R"({"questions": [{"type": "predicate", "instructions": "?"}]})", "input: missing"},
      {openai(ok, R"(, "stream": true)"), "stream: decisions are not streamed"},
      {openai(R"({"type": "noul", "instructions": "?"})"), "questions[0].type: expected predicate"},
      {openai(R"({"type": "predicate"})"), "questions[0].instructions: missing"},
      {openai("5"), "questions[0]: expected an object"},
      {openai(R"({"type": "predicate", "instructions": "?", "name": 5})"), "questions[0].name"},
      {openai(R"({"type": "predicate", "instructions": "?", "name": "w"},
                 {"type": "predicate", "instructions": "!", "name": "w"})"),
       "questions[1].name: \"w\" is the name of an earlier question"},
      {openai(R"({"type": "choice", "instructions": "?", "choices": [{"value": "a"}]})"),
       "questions[0].choices: expected at least 2 options"},
      {openai(R"({"type": "choice", "instructions": "?",
                  "choices": [{"value": "a"}, {"value": "a"}]})"),
       "questions[0].choices: choice \"a\" appears twice"},
      {openai(
           R"({"type": "choice", "instructions": "?", "choices": [{"value": 1}, {"value": 2}]})"),
       "questions[0].choices[0]: expected an object whose 'value' is text, true or false"},
      {openai(R"({"type": "choice", "instructions": "?", "choices": ["a", "b"]})"),
       "questions[0].choices[0]: expected an object"},
      {openai(R"({"type": "score", "instructions": "?"})"), "questions[0].levels: expected a list"},
      {openai(R"({"type": "score", "instructions": "?", "levels": [{"label": "a"}]})"),
       "questions[0].levels: expected a list of 2 to 10"},
      {openai(R"({"type": "predicate", "instructions": "?", "criteria": {"true": "x"}})"),
       "questions[0].criteria: is not read of such a question; leave it out"},
      {openai(R"({"type": "score", "instructions": "?", "choices": [{"value": "a"}],
                  "levels": [{"label": "a"}, {"label": "b"}]})"),
       "questions[0].choices: is not read of such a question; it has levels"},
      {odd(R"({"type": "noul", "instructions": "?", "choices": [{"value": "a"}]})"),
       "questions.odd.choices: is not read of such a question; it has criteria"},
      {R"({"input": [], "questions": [{"type": "predicate", "instructions": "?"}]})",
       "input: expected text, or a list of messages"},
      {R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}],
           "questions": [{"type": "predicate", "instructions": "?"}]})",
       "input[0].content: expected input_text with 'text' or input_json with 'data'"},
  };
  for (const BadRequest& bad : cases) {
    SCOPED_TRACE(bad.text);
    ExpectRefused([&] { ParseDecisionRequest(bad.text, "request"); }, bad.part);
  }
}

}  // namespace
}  // namespace qlora
