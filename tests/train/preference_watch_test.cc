#include "train/preference_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace qlora {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<std::string> WarningsOf(double accuracy, double chosen, std::int64_t steps = 25,
                                    std::int64_t pairs = 16) {
  PreferenceWatch watch;
  for (std::int64_t s = 0; s < steps; ++s) {
    StepResult step;
    step.applied = true;
    step.totals.samples = pairs;
    step.metrics = {{"rewards/accuracies", accuracy}, {"rewards/chosen", chosen}};
    watch.Add(step);
  }
  return watch.Warnings();
}

TEST(PreferenceWatchTest, WarnsOfChanceAndOfFallingAnswers) {
  EXPECT_THAT(WarningsOf(0.8, -1), IsEmpty());
  EXPECT_THAT(WarningsOf(0.5, -1), ElementsAre(HasSubstr("no better than chance")));
  EXPECT_THAT(WarningsOf(1, -12), ElementsAre(HasSubstr("less likely")));
  EXPECT_THAT(WarningsOf(0.5, -1, 19), IsEmpty());
  EXPECT_THAT(WarningsOf(0.57, -1), IsEmpty());  // 320 pairs tell it from chance
  EXPECT_THAT(WarningsOf(0.57, -1, 25, 1), ElementsAre(HasSubstr("chance")));
}

TEST(PreferenceWatchTest, OtherObjectivesSayNothing) {
  PreferenceWatch watch;
  StepResult step;
  step.applied = true;
  for (int s = 0; s < 30; ++s) watch.Add(step);
  EXPECT_THAT(watch.Warnings(), IsEmpty());
}

}  // namespace
}  // namespace qlora
