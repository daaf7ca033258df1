// Records of decisions that are refused, each with the field that is wrong.
#include <fmt/format.h>

#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "decision/decision_record.h"
#include "io/json.h"
#include "io/test_util.h"

namespace qlora {
namespace {

void Read(const std::string& text, const DecisionFields& fields = {}) {
  ReadDecisionRecord(OrderedJson::parse(text), fields);
}

struct BadRecord {
  const char* text;
  const char* part;  // of the message
};

constexpr BadRecord kBadRecords[] = {
    // An answer that is not among the options.
    {R"({"state": "s", "questions": {"who": {"type": "choice", "instructions": "?",
           "criteria": {"cat": null, "dog": null}}}, "answers": {"who": "cow"}})",
     "answers.who: \"cow\" is not among the options of 'who': cat, dog"},
    {R"({"state": "s", "questions": {"who": {"type": "choice", "instructions": "?",
           "criteria": ["cat", "dog"]}}, "gold": {"who": {"cat": 0.5, "cow": 0.5}}})",
     "gold.who: \"cow\" is not among the options"},
    {R"({"state": "s", "type": "score", "instructions": "?", "criteria": ["a", "b"], "answer": 2})",
     "answer: 2 is not among the options of 'question': 0 = \"a\", 1 = \"b\""},
    {R"({"state": "s", "type": "score", "instructions": "?", "criteria": ["a", "b"], "answer": 0.5})",
     "answer: 0.5 is not among"},
    {R"({"state": "s", "type": "score", "instructions": "?", "criteria": ["a", "a"], "answer": "a"})",
     "answer: \"a\" is not among"},
    {R"({"state": "s", "type": "noul", "instructions": "?", "answer": "maybe"})",
     "answer: expected true, false, or the probability of true"},
    {R"({"state": "s", "type": "noul", "instructions": "?", "answer": 1.5})", "from 0 to 1"},
    // Probabilities.
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "b"],
           "answer": {"a": -0.1, "b": 1.1}})",
     "answer: expected a probability, which is a number from 0 on, found -0.1"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "b"],
           "answer": {"a": 0, "b": 0}})",
     "answer: expected probabilities that are not all 0"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "b"],
           "answer": {"a": "nan", "b": 1}})",
     "answer: expected a probability"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "b"],
           "answer": {"a": "inf"}})",
     "answer: expected a probability"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "b"],
           "answer": [1, 0, 0]})",
     "answer: expected 2 probabilities, one for each option"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "b"],
           "answer": {"probabilities": {}}})",
     "not all 0"},
    {R"({"state": "s", "type": "noul", "instructions": "", "answer": true})",
     "question.instructions: missing"},
    // Options and levels.
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a"], "answer": "a"})",
     "question.criteria: expected at least 2 options, found 1"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": ["a", "a"]})",
     "question.criteria: option 'a' appears twice"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": [["a"], "b"]})",
     "question.criteria: expected the key of an option, found [\"a\"]"},
    {R"({"state": "s", "type": "choice", "instructions": "?", "criteria": "a, b"})",
     "question.criteria: expected an object of options"},
    {R"({"state": "s", "type": "choice", "instructions": "?"})", "found nothing"},
    {R"({"state": "s", "type": "score", "instructions": "?", "criteria": ["a"]})",
     "question.criteria: expected a list of 2 to 10 levels, found 1 of them"},
    {R"({"state": "s", "type": "score", "instructions": "?",
           "criteria": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]})",
     "found 11 of them"},
    {R"({"state": "s", "type": "score", "instructions": "?", "criteria": {"a": 1}})",
     "expected a list of 2 to 10 levels, found {\"a\":1}"},
    {R"({"state": "s", "type": "noul", "instructions": "?", "criteria": {"maybe": "x"}})",
     "question.criteria: a noul has the sides 'true' and 'false', found 'maybe'"},
    // Questions.
    {R"({"state": "s", "questions": {"who": {"type": "choice", "criteria": ["a", "b"]}}})",
     "questions.who.instructions: missing"},
    {R"({"state": "s", "questions": {"who": {"type": "guess", "instructions": "?"}}})",
     "questions.who.type: expected noul (OpenAI: predicate), choice or score, found \"guess\""},
    {R"({"state": "s", "questions": {"who": 5}})", "questions.who: expected an object"},
    {R"({"state": "s", "questions": {}})",
     "questions: expected an object of questions, {\"id\": {\"type\", \"instructions\", "
     "\"criteria\"}}, at least one, found {}"},
    {R"({"questions": {"who": {"type": "noul", "instructions": "?"}}})", "state: missing"},
    {R"({"state": "s", "questions": [{"type": "noul", "instructions": "?", "name": "a"},
                                       {"type": "noul", "instructions": "?", "name": "a"}]})",
     "questions: 'a' appears twice"},
    {R"({"state": "s", "questions": {"a": {"type": "noul", "instructions": "?"}},
           "answers": {"b": true}})",
     "answers: 'b' is not among the questions"},
    {R"({"state": "s", "questions": [{"type": "noul", "instructions": "?"}], "answers": [1, 0]})",
     "answers: expected 1 answers, one for each question, found 2"},
    {R"({"state": "s", "questions": {"a": {"type": "noul", "instructions": "?"}}, "answers": 1})",
     "answers: expected an object with an answer for each question"},
    {R"({"input": "s", "questions": [{"type": "choice", "instructions": "?",
           "choices": [{"value": "a"}, {"value": "a"}]}]})",
     "questions.0.choices: choice \"a\" appears twice"},
    {R"({"input": "s", "questions": [{"type": "score", "instructions": "?",
           "levels": ["a", "b"]}]})",
     "questions.0.levels[0]: expected an object whose 'label' is text"},
    // JSON text.
    {R"({"state": "s", "questions": "{\"a\": ", "answers": "{}"})",
     "questions: not valid JSON at line 1"},
    {R"({"state": "s", "questions": {"a": {"type": "noul", "instructions": "?"}},
           "gold": "{\"a\": true"})",
     "gold: not valid JSON"},
    {R"({"state": "s", "questions": "{\"a\": {\"type\": \"choice\", \"instructions\": \"?\", \"criteria\": {\"x\": null, \"x\": null}}}"})",
     "questions: key 'x' appears twice"},
    {R"({"prompt": "a", "completion": "b"})",
     "this is no decision: expected the fields state and questions"},
};

TEST(DecisionRefusalsTest, RefusesBadRecordsAndNamesTheField) {
  for (const BadRecord& bad : kBadRecords) {
    SCOPED_TRACE(bad.text);
    ExpectRefused([&] { Read(bad.text); }, bad.part);
  }
}

TEST(DecisionRefusalsTest, RefusesLabelsWithoutNames) {
  const std::string row = R"({"text": "t", "label": 2})";
  const auto refuse = [&](const DecisionFields& fields, const std::string& part) {
    ExpectRefused([&] { Read(row, fields); }, part);
  };
  refuse({.label_names = {"a", "b", "c"}}, "instructions: missing");
  refuse({.instructions = "?"}, "label_names: missing");
  refuse(
      {.label_names = {"a", "b"}, .instructions = "?"},
      "label: label 2 is not among the 2 names: a, b; numbers count from 0: if these count from 1");
  refuse({.label_names = {"a", "b", "a"}, .instructions = "?"}, "option 'a' appears twice");
}

// A table holds 1 as "1".
TEST(DecisionRefusalsTest, RefusesTextThatNamesTwoOptions) {
  const auto target = [](const std::string& text, const DecisionFields& fields = {}) {
    return ReadDecisionRecord(OrderedJson::parse(text), fields).targets.front();
  };
  const auto label = [&](const std::string& answer) {
    return target(R"({"text": "t", "label": )" + answer + "}",
                  {.label_names = {"1", "2", "3"}, .instructions = "?"});
  };
  ExpectRefused(
      [&] { label(R"("1")"); },
      R"(label: "1" names one option by its text and another by its number, which counts )"
      "from 0: 1, 2, 3.");
  ExpectRefused([&] { label("1e300"); }, "label: 1e+300 is not among the options");
  EXPECT_EQ(label("1"), label(R"("[0, 1, 0]")"));
  EXPECT_EQ(label(R"("3")"), label("2"));
  // As tables write numbers that may be missing.
  EXPECT_EQ(label(R"("3.0")"), label("2"));
  ExpectRefused([&] { label(R"("1.0")"); }, R"(label: "1.0" names one option by its text)");
  const auto choice = [&](const std::string& answer) {
    return target(R"({"question": "q", "choices": ["4", "3", "2", "1"], "answer": )" + answer +
                  "}");
  };
  ExpectRefused([&] { choice(R"("1")"); }, R"(answer: "1" names one option by its text)");
  EXPECT_EQ(choice("1"), choice(R"("B")"));
  EXPECT_EQ(choice(R"("4")"), choice("0"));
  EXPECT_EQ(choice(R"(" 0.0 ")"), choice("0"));
  ExpectRefused([&] { target(R"({"question": "q", "choices": [4, 3, 2, 1], "answer": 1})"); },
                "answer: 1 names one option by its text and another by its number");
  ExpectRefused([&] { target(R"({"question": "q", "choices": [4, "none", 1], "answer": 1})"); },
                "answer: 1 names one option by its text and another by its number");
  ExpectRefused([&] { target(R"({"question": "q", "choices": [4, 3, 2, 1], "answer": 3.0})"); },
                "answer: 3.0 names one option by its text and another by its number");
  const std::string labels =
      R"({"question": "q", "choices": {"text": ["a", "b", "c"], "label": [1, 2, 3]}, "answer": )";
  EXPECT_EQ(target(labels + "3.0}"), target(labels + "3}"));
  // One double for both; and two spellings of one number, of which each is a label.
  const std::string alike = R"({"question": "q", "choices": {"text": ["a", "b"], "label":)";
  const auto second = target(alike + R"(["x", "y"]}, "answer": "y"})");
  EXPECT_EQ(target(alike + R"([9007199254740992, 9007199254740993]}, "answer": 9007199254740993})"),
            second);
  EXPECT_EQ(target(alike + R"(["1", "1.0"]}, "answer": "1.0"})"), second);
  ExpectRefused([&] { target(R"({"question": "q", "choices": ["B", "A"], "answer": "A"})"); },
                R"(answer: "A" names one choice by its text and another by its letter: B, A.)");
}

// Whichever of the two is text.
TEST(DecisionRefusalsTest, LabelsOfChoicesDecideWhatAnAnswerNames) {
  const auto target = [](const std::string& labels, const std::string& answer) {
    const std::string choices = R"({"text": ["a", "b", "c"], "label": )" + labels + "}";
    return ReadDecisionRecord(OrderedJson::parse(R"({"question": "q", "choices": )" + choices +
                                                 R"(, "answerKey": )" + answer + "}"),
                              {})
        .targets.front();
  };
  for (const char* labels : {"[1, 2, 3]", R"(["1", "2", "3"])"}) {
    EXPECT_EQ(target(labels, "3"), target(R"(["A", "B", "C"])", R"("C")")) << labels;
    EXPECT_EQ(target(labels, R"("3")"), target(labels, "3")) << labels;
    ExpectRefused([&] { target(labels, "0"); }, "answerKey: 0 is not among the labels");
    for (const char* unknown : {"-1", "-1.0", R"("-1")", R"("-1.0")", R"(" -1 ")"}) {
      EXPECT_FALSE(target(labels, unknown)) << unknown;
    }
    ExpectRefused([&] { target(labels, R"("B")"); }, "answerKey: \"B\" is not among the labels");
  }
}

// In any spelling, of any form of record; where an option is called so, the option.
TEST(DecisionRefusalsTest, MinusOneIsUnknown) {
  const auto target = [](const std::string& criteria, const std::string& answer) {
    return ReadDecisionRecord(
               OrderedJson::parse(
                   R"({"state": "s", "type": "choice", "instructions": "?", "criteria": )" +
                   criteria + R"(, "answer": )" + answer + "}"),
               {})
        .targets.front();
  };
  for (const char* unknown : {"-1", "-1.0", R"("-1")", R"("-1.0")", R"(" -1 ")"}) {
    EXPECT_FALSE(target(R"(["a", "b"])", unknown)) << unknown;
  }
  for (const std::string name : {R"("-1")", R"("-1.0")"}) {
    EXPECT_TRUE(target(R"(["a", )" + name + "]", name)) << name;
  }
}

// Not the place of one: those have labels.
TEST(DecisionRefusalsTest, TakesTheTextOfAChoiceThatHasAnotherLabel) {
  const auto target = [](const std::string& answer) {
    const std::string record =
        R"({"question": "q", "choices": {"text": ["4", "none", "1"], "label": ["A", "B", "C"]}, )"
        R"("answer": )" +
        answer + "}";
    return ReadDecisionRecord(OrderedJson::parse(record), {}).targets.front();
  };
  EXPECT_EQ(target("1"), target(R"("C")"));
  EXPECT_EQ(target(R"("1.0")"), target(R"("C")"));
}

// Rows of JSON Lines, of CSV, and of a table that was written with missing numbers: an answer is
// refused, or is the same option. Beside labels nothing is 1.0: 1 and 1.0 are two of them.
TEST(DecisionRefusalsTest, ReadsAnAnswerAlikeHoweverATableWritesIt) {
  constexpr const char* kTexts[] = {"0",        "1",       "2",       "3",       "2.5",    R"("0")",
                                    R"("1")",   R"("2")",  R"("3")",  R"("A")",  R"("B")", R"("C")",
                                    R"("yes")", R"("-1")", R"("no")", R"("1.0")"};
  const RandomKey key = MakeKey(1, RandomPlace::kTest);
  std::uint64_t next = 0;
  const auto list = [&](std::uint64_t count, std::uint64_t of) {
    std::string out;
    for (std::uint64_t i = 0; i < count; ++i) {
      out += (i > 0 ? ", " : "") + std::string(kTexts[RandomBelow(key, next++, of)]);
    }
    return "[" + out + "]";
  };
  int read = 0;
  for (int i = 0; i < 4000; ++i) {
    const std::uint64_t count = 2 + RandomBelow(key, next++, 3);
    const bool has_labels = RandomBelow(key, next++, 2) == 1;
    const auto drawn = [&] { return list(count, std::size(kTexts) - (has_labels ? 1 : 0)); };
    const std::string texts = drawn();
    const std::string choices =
        has_labels ? fmt::format(R"({{"text": {}, "label": {}}})", texts, drawn()) : texts;
    const auto number = static_cast<int>(RandomBelow(key, next++, 6)) - 1;
    std::string first;
    std::optional<std::vector<double>> expected;
    for (const char* form : {"{}", "{}.0", R"("{}")", R"("{}.0")", R"(" {} ")"}) {
      const std::string record = fmt::format(R"({{"question": "q", "choices": {}, "answer": {}}})",
                                             choices, fmt::format(fmt::runtime(form), number));
      std::optional<std::vector<double>> target;
      try {
        target = ReadDecisionRecord(OrderedJson::parse(record), {}).targets.front();
      } catch (const Error&) {
        continue;
      }
      ++read;
      if (first.empty()) std::tie(first, expected) = std::pair(record, target);
      EXPECT_EQ(target, expected) << record << "\n" << first;
    }
  }
  EXPECT_GT(read, 4000);
}

}  // namespace
}  // namespace qlora
