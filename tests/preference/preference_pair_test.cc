#include "preference/preference_pair.h"

#include <gtest/gtest.h>

#include <limits>

#include "io/test_util.h"
#include "preference/reference_table.h"

namespace qlora {
namespace {

using Ids = std::vector<std::int32_t>;
constexpr std::int32_t kNo = kIgnoreLabel;

Sample Answer(Ids prompt, const Ids& answer) {
  Sample sample{prompt, Ids(prompt.size(), kNo)};
  sample.ids.insert(sample.ids.end(), answer.begin(), answer.end());
  sample.labels.insert(sample.labels.end(), answer.begin(), answer.end());
  return sample;
}

TEST(PreferencePairTest, SharesThePromptButItsLastToken) {
  const Sample pair = JoinPair(Answer({1, 2, 3}, {4, 5}), Answer({1, 2, 3}, {6}), {});
  EXPECT_EQ(pair.ids, (Ids{1, 2, 3, 4, 5, 3, 6}));
  EXPECT_EQ(pair.labels, (Ids{kNo, kNo, kNo, 4, 5, kNo, 6}));
  EXPECT_EQ(pair.branches, (std::vector<std::int64_t>{2, 5}));
  EXPECT_EQ(CountSupervised(pair), 3);
  EXPECT_EQ(CountOfFirst(pair), 2);
  EXPECT_EQ(LongestSequence(pair), 5);
  const Sample whole =
      JoinPair(Answer({1, 2, 3}, {4, 5}), Answer({1, 2, 3}, {6}), {.share_prefix = false});
  EXPECT_EQ(whole.ids, (Ids{1, 2, 3, 4, 5, 1, 2, 3, 6}));
  EXPECT_EQ(whole.branches, (std::vector<std::int64_t>{0, 5}));
}

// Answers that begin alike are trained from their first token on.
TEST(PreferencePairTest, SharesNothingOfTheAnswers) {
  const Sample pair = JoinPair(Answer({1, 2}, {4, 5}), Answer({1, 2}, {4, 6}), {});
  EXPECT_EQ(pair.labels, (Ids{kNo, kNo, 4, 5, kNo, 4, 6}));
  const Sample short_prompt = JoinPair(Answer({1}, {4, 5}), Answer({1}, {6}), {});
  EXPECT_EQ(short_prompt.branches, (std::vector<std::int64_t>{0, 3}));
}

TEST(PreferencePairTest, TrainsTheTextOfTheChosenAnswer) {
  const Sample pair = JoinPair(Answer({1, 2}, {4, 5}), Answer({1, 2}, {6}), {.trains_text = true});
  EXPECT_EQ(pair.labels, (Ids{1, 2, 4, 5, kNo, kNo, 6}));
  EXPECT_EQ(CountOfFirst(pair), 3);  // nothing predicts the first token
}

// A turn of the user amid an answer is no part of its text.
TEST(PreferencePairTest, TrainsNothingBetweenTheTurnsOfAnAnswer) {
  Sample chosen = Answer({1, 2}, {4, 5, 6});
  chosen.labels[3] = kNo;
  const Sample pair = JoinPair(chosen, Answer({1, 2}, {7}), {.trains_text = true});
  EXPECT_EQ(pair.labels, (Ids{1, 2, 4, kNo, 6, kNo, kNo, 7}));
  EXPECT_EQ(pair.text_targets, 1);
}

TEST(PreferencePairTest, AnAnswerThatNothingPredictsIsNone) {
  EXPECT_TRUE(JoinPair(Answer({}, {4}), Answer({1}, {6}), {}).ids.empty());
}

TEST(PreferencePairTest, FindsAnImplicitPrompt) {
  const Sample pair = JoinPair(Answer({}, {1, 2, 3, 4}), Answer({}, {1, 2, 5}), {.implicit = true});
  EXPECT_EQ(pair.ids, (Ids{1, 2, 3, 4, 2, 5}));
  EXPECT_EQ(pair.labels, (Ids{kNo, kNo, 3, 4, kNo, 5}));
  const auto join = [](const Ids& chosen, const Ids& rejected) {
    JoinPair(Answer({}, chosen), Answer({}, rejected), {.implicit = true});
  };
  ExpectRefused([&] { join({1, 2}, {3, 2}); }, "begin with different tokens");
  ExpectRefused([&] { join({1, 2}, {1, 2, 3}); }, "beginning of the other");
}

TEST(PreferencePairTest, CutsTheEndsOfAnswersAlone) {
  Sample chosen = Answer({1, 2}, {4, 5, 6});
  Sample rejected = Answer({1, 2}, {7});
  EXPECT_EQ(CutPair(chosen, rejected, 3), PairCut::kDifferent);
  EXPECT_EQ(chosen.ids, (Ids{1, 2, 4}));
  EXPECT_EQ(rejected.ids, (Ids{1, 2, 7}));
  EXPECT_EQ(CutPair(chosen, rejected, 2), PairCut::kEmpty);
  // They differ in what is cut.
  Sample longer = Answer({1, 2}, {4, 5, 7});
  Sample shorter = Answer({1, 2}, {4, 5});
  EXPECT_EQ(CutPair(longer, shorter, 4), PairCut::kEqual);
}

TEST(PreferencePairTest, MismatchesPromptAndAnswer) {
  const Sample row = Answer({1, 2}, {4, 5});
  const Sample other = Answer({3}, {6, 7, 8});
  const Sample mismatched = Mismatched(row, other);
  EXPECT_EQ(mismatched.ids, (Ids{1, 2, 6, 7, 8}));
  EXPECT_EQ(mismatched.labels, (Ids{kNo, kNo, 6, 7, 8}));
}

TEST(ReferenceTableTest, KeepsEveryBit) {
  ReferenceTable table;
  table.Add(0, {-1.0 / 3, -0.0});
  table.Add(~std::uint64_t{0}, {-1e-300, -123456.789012345678});
  const Json model = {{"kernels", "avx2"}};
  const std::string text = table.ToText(model);
  const auto [read, of] = ReferenceTable::FromText(text, "file");
  EXPECT_EQ(of, model);
  EXPECT_EQ(read.size(), 2);
  for (const std::uint64_t key : {std::uint64_t{0}, ~std::uint64_t{0}}) {
    EXPECT_EQ(read.Of(key).chosen, table.Of(key).chosen);
    EXPECT_EQ(read.Of(key).rejected, table.Of(key).rejected);
  }
  EXPECT_EQ(read.ToText(model), text);
  for (std::size_t cut = 0; cut + 1 < text.size(); ++cut) {
    EXPECT_ANY_THROW(ReferenceTable::FromText(text.substr(0, cut), "file")) << cut;
  }
}

TEST(ReferenceTableTest, HasAsManySamplesAsThereAre) {
  ReferenceTable table;
  for (std::uint64_t key = 0; key < 10'001; ++key) table.Add(key, {-1, -2});
  EXPECT_EQ(ReferenceTable::FromText(table.ToText(Json::object()), "file").first.size(),
            table.size());
}

}  // namespace
}  // namespace qlora
