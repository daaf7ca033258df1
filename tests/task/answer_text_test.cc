#include "task/answer_text.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

FilterStep Regex(std::string pattern, std::int64_t select = 0) {
  FilterStep step;
  step.kind = FilterStep::kRegex;
  step.pattern = std::move(pattern);
  step.group_select = select;
  return step;
}

TEST(AnswerTextTest, CutsAtEachStopInTurn) {
  EXPECT_EQ(CutAtStops("a. b\nc", {".", "\n"}), "a");
  EXPECT_EQ(CutAtStops("a\nb. c", {".", "\n"}), "a");
  EXPECT_EQ(CutAtStops("abc", {"."}), "abc");
  EXPECT_EQ(CutAtStops("abc", {""}), "abc");
}

TEST(AnswerTextTest, FindsTheMatchThatCounts) {
  const std::string numbers = "(-?[$0-9.,]{2,})|(-?[0-9]+)";
  EXPECT_EQ(Filtered("7 and 12, or 3", {"", {Regex(numbers, -1)}}, "f"), "3");
  EXPECT_EQ(Filtered("7 and 12", {"", {Regex(numbers)}}, "f"), "7");
  EXPECT_EQ(Filtered("none", {"", {Regex(numbers)}}, "f"), "[invalid]");
  EXPECT_EQ(Filtered("one", {"", {Regex("[0-9]", 4)}}, "f"), "[invalid]");
  EXPECT_EQ(Filtered("answer:  x ", {"", {Regex("answer:(.*)")}}, "f"), "x");
}

TEST(AnswerTextTest, ComparesWithoutWhatTheMetricIgnores) {
  TaskMetric metric;
  EXPECT_TRUE(ExactMatch("a", "a", metric, "m"));
  EXPECT_FALSE(ExactMatch("A.", "a", metric, "m"));
  metric.ignore_case = metric.ignore_punctuation = true;
  EXPECT_TRUE(ExactMatch("A.", "a", metric, "m"));
  metric.regexes_to_ignore = {",", "\\$", "(?s).*#### ", "\\.$"};
  EXPECT_TRUE(ExactMatch("$1,000.", "first\nthen #### 1000", metric, "m"));
}

TEST(AnswerTextTest, CountsWordsForF1) {
  EXPECT_DOUBLE_EQ(WordF1("The cat sat", "a cat"), 2.0 / 3.0);
  EXPECT_DOUBLE_EQ(WordF1("", "the"), 1.0);
  EXPECT_DOUBLE_EQ(WordF1("dog", "cat"), 0.0);
}

}  // namespace
}  // namespace qlora
