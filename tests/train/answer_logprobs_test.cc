#include "objective/answer_logprobs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "preference/preference_pair.h"

namespace qlora {
namespace {

Sample Answer(std::vector<std::int32_t> ids, std::int64_t prompt) {
  Sample sample{ids, ids};
  std::fill_n(sample.labels.begin(), prompt, kIgnoreLabel);
  return sample;
}

// The log-probability of each target is -1, -10, -100 ...
std::vector<double> LogprobsOf(const Batch& batch) {
  std::vector<double> logprobs = {-1};
  for (std::int64_t i = 1; i < batch.supervised(); ++i) logprobs.push_back(10 * logprobs.back());
  return logprobs;
}

// Templates may show a mark before one of the answers, which is not trained: the answers begin at
// different tokens, and all of each counts.
TEST(AnswerLogprobsTest, AnswersBeginWhereTheyAreTrained) {
  for (const bool share : {true, false}) {
    for (const bool longer_chosen : {true, false}) {
      const Sample mark = Answer({1, 2, 9, 9, 5, 6}, 4);
      const Sample plain = Answer({1, 2, 3, 4}, 2);
      const Sample pair = JoinPair(longer_chosen ? mark : plain, longer_chosen ? plain : mark,
                                   {.share_prefix = share});
      const Batch batch = MakeBatch({&pair, 1});
      const std::vector<double> logps = AnswerLogprobs(batch, LogprobsOf(batch), 1);
      ASSERT_GE(logps.size(), 2);
      EXPECT_EQ(logps[logps.size() - 2], -11);
      EXPECT_EQ(logps.back(), -1100);
    }
  }
}

// The text of a chosen answer is trained beside it, and is no part of it.
TEST(AnswerLogprobsTest, TheTextOfAnAnswerIsNotTheAnswer) {
  const Sample pair =
      JoinPair(Answer({1, 2, 3, 4}, 2), Answer({1, 2, 9, 9, 5}, 4), {.trains_text = true});
  const Batch batch = MakeBatch({&pair, 1});
  const std::vector<AnswerTokens> answers = AnswersOf(batch, TargetsBefore(batch), 0);
  ASSERT_EQ(answers.size(), 2);
  EXPECT_EQ(answers[0].text, 0);
  EXPECT_EQ(answers[0].begin, 1);
  EXPECT_EQ(answers[0].tokens(), 2);
  EXPECT_EQ(answers[1].tokens(), 1);
  EXPECT_EQ(AnswerLogprobs(batch, LogprobsOf(batch), 1), (std::vector<double>{-110, -1000}));
}

}  // namespace
}  // namespace qlora
