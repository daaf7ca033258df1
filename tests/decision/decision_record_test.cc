#include "decision/decision_record.h"

#include <fmt/format.h>

#include <array>

#include "base/random.h"
#include "decision/decision_wire.h"
#include "io/json.h"
#include "io/test_util.h"

namespace qlora {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Targets = std::vector<std::optional<std::vector<double>>>;

OrderedJson Parse(const std::string& text) { return OrderedJson::parse(text); }
DecisionRecord Read(const std::string& text, const DecisionFields& fields = {}) {
  return ReadDecisionRecord(Parse(text), fields);
}

// All that a decision says, for comparison.
std::string Shown(const Decision& decision) {
  OrderedJson questions = OrderedJson::array();
  for (const Question& question : decision.questions) {
    OrderedJson options = OrderedJson::array();
    for (const DecisionOption& option : question.options) {
      options.push_back({option.key, option.description, option.value});
    }
    questions.push_back({question.id, NameOf(question.type), question.instructions, options});
  }
  return FormatJson(OrderedJson{decision.state, questions});
}

// Decisions drawn by a seed, and the records that say them in every form.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : key_(MakeKey(seed, RandomPlace::kTest)) {
    decision_.state = Below(2) ? OrderedJson("A state.")
                               : OrderedJson{{"page", 3}, {"tags", {"a", nullptr, 1.5}}};
    const std::uint64_t count = 1 + Below(3);
    for (std::uint64_t q = 0; q < count; ++q) AddQuestion(q);
  }

  std::uint64_t Below(std::uint64_t n) { return RandomBelow(key_, next_++, n); }
  const Decision& decision() const { return decision_; }
  const Targets& targets() const { return targets_; }

  // {"type", "instructions", "criteria"}, in one of its forms.
  OrderedJson QuestionJson(const Question& question, bool lists) {
    OrderedJson out = {{"type", NameOf(question.type)}, {"instructions", question.instructions}};
    OrderedJson criteria =
        question.type == QuestionType::kScore ? OrderedJson::array() : OrderedJson::object();
    bool is_described = false;
    OrderedJson keys = OrderedJson::array();
    for (const DecisionOption& option : question.options) {
      is_described = is_described || !option.description.is_null();
      keys.push_back(option.key);
      if (question.type == QuestionType::kScore) criteria.push_back(option.description);
      if (question.type == QuestionType::kChoice) criteria[option.key] = option.description;
      const bool is_given = !option.description.is_null();
      if (question.type == QuestionType::kNoul && is_given)
        criteria[option.key] = option.description;
    }
    if (question.type == QuestionType::kChoice && !is_described && lists) criteria = keys;
    if (!criteria.empty()) out["criteria"] = criteria;
    return out;
  }

  OrderedJson OpenAiQuestionJson(const Question& question) {
    OrderedJson out = {{"type", NameOf(question.type)},
                       {"name", question.id},
                       {"instructions", question.instructions}};
    if (question.type == QuestionType::kNoul) out["type"] = "predicate";
    for (const DecisionOption& option : question.options) {
      OrderedJson item = {{"value", option.key}};
      if (!option.description.is_null()) item["description"] = option.description;
      if (question.type == QuestionType::kChoice) out["choices"].push_back(item);
      if (question.type == QuestionType::kScore) out["levels"].push_back({{"label", option.value}});
    }
    return out;
  }

  // One of the ways to say a target.
  OrderedJson AnswerJson(const Question& question, const std::vector<double>& target) {
    const std::int64_t right = FirstLargest(target);
    const DecisionOption& option = question.options[right];
    std::vector<OrderedJson> ways;
    OrderedJson shares = OrderedJson::object();
    for (std::size_t k = 0; k < target.size(); ++k) {
      if (target[k] > 0 || Below(2)) shares[question.options[k].key] = target[k] * 3;  // normalized
    }
    ways = {shares,
            target,
            {{"probabilities", shares}, {"label", option.key}},
            FormatJson(shares),
            FormatJson(OrderedJson(target))};
    if (target[right] == 1) {
      ways.insert(ways.end(), {option.key, {{"label", option.key}}});
      if (question.type == QuestionType::kNoul) ways.insert(ways.end(), {right == 1, right});
      if (question.type == QuestionType::kScore) {
        ways.insert(ways.end(), {right, static_cast<double>(right), option.value});
      }
      if (question.type == QuestionType::kChoice) ways.push_back({{"choice", option.key}});
    }
    if (question.type == QuestionType::kNoul) {
      ways.insert(ways.end(), {target[1], {{"noul", target[1]}}});
    }
    return ways[Below(ways.size())];
  }

 private:
  void AddQuestion(std::uint64_t q) {
    Question question;
    question.id = "q" + std::to_string(q);
    question.type = kQuestionTypes[Below(3)];
    question.instructions =
        Below(4) ? OrderedJson("Which is it?") : OrderedJson{{"ask", "which"}, {"of", 2}};
    const std::uint64_t n = question.type == QuestionType::kNoul ? 2 : 2 + Below(4);
    const bool is_described = Below(2);
    for (std::uint64_t k = 0; k < n; ++k) {
      const std::string text = fmt::format("text {}", k);
      DecisionOption option = {fmt::format("key {}", k), nullptr, ""};
      option.value = option.key;
      if (is_described && Below(2)) option.description = text;
      if (question.type == QuestionType::kNoul) option = {k ? "true" : "false", nullptr, k == 1};
      if (question.type == QuestionType::kScore) option = {std::to_string(k), text, text};
      question.options.push_back(option);
    }
    // Sixteenths, so that all sums are exact.
    std::vector<double> target(n);
    for (int part = 0; part < 16; ++part) target[Below(n)] += 1.0 / 16;
    if (Below(2)) target = HardTarget(target);
    decision_.questions.push_back(question);
    targets_.push_back(Below(5) ? std::optional(target) : std::nullopt);
  }

  RandomKey key_;
  std::uint64_t next_ = 0;
  Decision decision_;
  Targets targets_;
};

class DecisionFormsTest : public testing::Test {
 protected:
  static void Expect(const DecisionRecord& read, const Generator& drawn,
                     const OrderedJson& record) {
    SCOPED_TRACE(FormatJson(record));
    EXPECT_EQ(Shown(read.decision), Shown(drawn.decision()));
    EXPECT_EQ(read.targets, drawn.targets());
  }
};

TEST_F(DecisionFormsTest, AllFormsOfADecisionAreTheSame) {
  constexpr std::array kAnswers = {"answers", "gold", "expected", "labels"};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Generator drawn(seed);
    const Decision& decision = drawn.decision();
    OrderedJson questions = OrderedJson::object();
    OrderedJson strict = OrderedJson::object();
    OrderedJson listed = OrderedJson::array();
    OrderedJson answers = OrderedJson::object();
    OrderedJson in_order = OrderedJson::array();
    for (std::size_t q = 0; q < decision.questions.size(); ++q) {
      const Question& question = decision.questions[q];
      questions[question.id] = drawn.QuestionJson(question, /*lists=*/true);
      strict[question.id] = drawn.QuestionJson(question, /*lists=*/false);
      listed.push_back(drawn.OpenAiQuestionJson(question));
      const auto& target = drawn.targets()[q];
      const OrderedJson answer = target ? drawn.AnswerJson(question, *target)
                                        : OrderedJson(drawn.Below(2) ? OrderedJson(-1) : nullptr);
      answers[question.id] = answer;
      in_order.push_back(answer);
      // One question a row.
      OrderedJson row = {{"state", decision.state}, {"name", question.id}, {"answer", answer}};
      row.update(questions[question.id]);
      EXPECT_TRUE(LooksLikeDecision(row));
      const DecisionRecord one = ReadDecisionRecord(row, {});
      EXPECT_EQ(Shown(one.decision), Shown({decision.state, {question}})) << FormatJson(row);
      EXPECT_EQ(one.targets, Targets({target})) << FormatJson(row);
    }
    const char* name = kAnswers[drawn.Below(kAnswers.size())];
    const OrderedJson plain = {
        {"state", decision.state}, {"questions", questions}, {name, answers}};
    EXPECT_TRUE(LooksLikeDecision(plain));
    Expect(ReadDecisionRecord(plain, {}), drawn, plain);
    const OrderedJson columns = {
        {"state",
         decision.state.is_string() ? decision.state : OrderedJson(FormatJson(decision.state))},
        {"questions", FormatJson(questions)},
        {name, FormatJson(answers)}};
    EXPECT_TRUE(LooksLikeDecision(columns));
    Expect(ReadDecisionRecord(columns, {}), drawn, columns);
    // A predicate has no criteria, so that the noul questions must have none.
    bool has_sides = false;
    for (const auto& [id, question] : questions.items()) {
      has_sides = has_sides || (question["type"] == "noul" && question.contains("criteria"));
    }
    if (!has_sides) {
      for (const OrderedJson& given : {answers, in_order}) {
        const OrderedJson openai = {
            {"input", decision.state}, {"questions", listed}, {name, given}};
        EXPECT_TRUE(LooksLikeDecision(openai));
        Expect(ReadDecisionRecord(openai, {}), drawn, openai);
      }
    }
    const OrderedJson request = {{"state", decision.state}, {"questions", strict}};
    EXPECT_EQ(Shown(ReadDecisionRequest(request).decision), Shown(decision));
  }
}

TEST(DecisionRecordTest, TextsWithLabels) {
  const DecisionFields fields = {.label_names = {"World", "sci_tech/news"},
                                 .instructions = "What is it about?"};
  for (const char* label : {"1", "\"1\"", "1.0", "\"sci_tech/news\""}) {
    const DecisionRecord read =
        Read(fmt::format(R"({{"text": "A rocket.", "label": {}}})", label), fields);
    EXPECT_EQ(Shown(read.decision),
              R"(["A rocket.",[["label","choice","What is it about?",[["World",null,"World"],)"
              R"(["sci_tech/news","sci tech news","sci_tech/news"]]]]])");
    EXPECT_EQ(read.targets, Targets({std::vector<double>{0, 1}})) << label;
  }
  for (const char* label : {"-1", "\"-1\"", "null"}) {
    const DecisionRecord read =
        Read(fmt::format(R"({{"text": "A rocket.", "label": {}}})", label), fields);
    EXPECT_EQ(read.targets, Targets({std::nullopt})) << label;
  }
  EXPECT_FALSE(LooksLikeDecision(Parse(R"({"text": "A rocket.", "label": 1})")));
  EXPECT_TRUE(
      LooksLikeDecision(Parse(R"({"question": "2+2?", "choices": ["3", "4"], "answer": 1})")));
  EXPECT_TRUE(LooksLikeDecision(Parse(
      R"({"question": "2+2?", "choices": {"text": ["4"], "label": ["A"]}, "answerKey": "A"})")));
  EXPECT_FALSE(LooksLikeDecision(Parse(R"({"question": "2+2?", "answer": "4"})")));
}

TEST(DecisionRecordTest, QuestionsWithChoices) {
  const auto target = [](const std::string& choices, const std::string& answer) {
    return Read(fmt::format(R"({{"question": "2 + 2?", "choices": {}, {}}})", choices, answer))
        .targets;
  };
  const Targets second = {std::vector<double>{0, 1, 0}};
  EXPECT_EQ(target(R"(["3", "4", "5"])", R"("answer": "4")"), second);
  EXPECT_EQ(target(R"(["three", "four", "five"])", R"("answer": 1)"), second);
  EXPECT_EQ(target(R"(["three", "four", "five"])", R"("answer": "B")"), second);
  EXPECT_EQ(target(R"({"text": ["3", "4", "5"], "label": ["A", "B", "C"]})", R"("answerKey": "B")"),
            second);
  EXPECT_EQ(target(R"({"text": ["3", "4", "5"], "label": ["1", "2", "3"]})", R"("answerKey": "2")"),
            second);
  const DecisionRecord read =
      Read(R"({"question": "2 + 2?", "choices": ["3", "4"], "answer": 1, "subject": "x"})");
  EXPECT_EQ(Shown(read.decision), R"(["2 + 2?",[["answer","choice","Which answer is right?",)"
                                  R"([["3",null,"3"],["4",null,"4"]]]]])");
}

TEST(DecisionRecordTest, OtherRecordsAskNothing) {
  EXPECT_EQ(DetectDecisionForm(Parse(R"({"messages": []})"), {}), std::nullopt);
  EXPECT_FALSE(LooksLikeDecision(Parse(R"({"questions": ["Who?"], "answers": ["I"]})")));
  EXPECT_FALSE(LooksLikeDecision(Parse(R"({"state": "NY", "questions": ["Who?"]})")));
  EXPECT_FALSE(LooksLikeDecision(Parse(R"({"messages": [], "state": "x", "type": "y"})")));
  EXPECT_FALSE(LooksLikeDecision(Parse(R"({"input": "NY", "questions": []})")));
  // So that the reader says what is missing.
  EXPECT_TRUE(LooksLikeDecision(Parse(R"({"state": "NY", "questions": {}})")));
}

TEST(DecisionRecordTest, NoticesWhatAuthorsMayNotKnow) {
  EXPECT_THAT(Read(R"({"state": "{\"a\": 1}", "type": "noul", "instructions": "?",
                       "answer": "Yes"})")
                  .notices,
              ElementsAre(kNoticeStateText, kNoticeYesNo));
  EXPECT_THAT(Read(R"({"state": "{not json", "type": "noul", "instructions": "?",
                       "answer": 0.5})")
                  .notices,
              ElementsAre(kNoticeUniform));
  EXPECT_THAT(Read(R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "b"],
                       "answer": {"a": 0.7}})")
                  .notices,
              ElementsAre(kNoticeSum));
  EXPECT_THAT(Read(R"({"state": "s", "type": "choice", "instructions": "?",
                       "criteria": ["Été", "été ", "b"], "answer": "b"})")
                  .notices,
              ElementsAre(kNoticeTwins));
  EXPECT_THAT(Read(R"({"state": "s", "type": "score", "instructions": "?",
                       "criteria": ["bad", "Bad", "good"], "answer": 2})")
                  .notices,
              ElementsAre(kNoticeTwins));
}

// "2" and 2.0 are what 2 is. Levels that are numbers may be named by place or by text, if both mean
// the same.
TEST(DecisionRecordTest, LevelsThatAreNumbers) {
  const auto read = [](const std::string& levels, const std::string& answer) {
    return Read(R"({"state": "s", "type": "score", "instructions": "?", "criteria": )" + levels +
                R"(, "answer": )" + answer + "}")
        .targets.front();
  };
  const auto level = [](std::size_t i) {
    std::vector<double> target(3);
    target[i] = 1;
    return std::optional(target);
  };
  for (const char* answer : {"2", "2.0", "\"2\"", "\"c\"", "{\"2\": 1}", "{\"label\": 2}"}) {
    EXPECT_EQ(read(R"(["a", "b", "c"])", answer), level(2)) << answer;
    EXPECT_EQ(read("[0, 1, 2]", answer == std::string("\"c\"") ? "2" : answer), level(2));
  }
  for (const char* levels : {"[1, 2, 3]", R"(["1", "2", "3"])", "[1.0, 2.0, 3.0]"}) {
    // Only one reading is there.
    for (const char* answer : {"3", "\"3\"", "3.0", "{\"3\": 1}", "[0, 0, 1]"}) {
      EXPECT_EQ(read(levels, answer), level(2)) << levels << answer;
    }
    EXPECT_EQ(read(levels, "0"), level(0)) << levels;
    EXPECT_EQ(read(levels, R"({"0": 0, "2": 1})"), level(2)) << levels;
    EXPECT_EQ(read(levels, R"({"1": 0, "2": 1, "3": 0})"), level(1)) << levels;
    // The second level, or the third?
    for (const char* answer : {"2", "\"2\"", "2.0", "{\"2\": 1}", "{\"1\": 0.5, \"2\": 0.5}"}) {
      try {
        read(levels, answer);
        FAIL() << levels << answer;
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), HasSubstr("by its number, which counts from 0, and another"));
      }
    }
  }
  EXPECT_EQ(read("[-1, 5, 7]", "-1"), level(0)) << "a level, not a question without answer";
  EXPECT_EQ(read("[4, 5, 7]", "-1"), std::nullopt);
}

}  // namespace
}  // namespace qlora
