#include "serve/engine/logit_edits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace qlora {
namespace {

using testing::ElementsAre;

constexpr float kNever = -std::numeric_limits<float>::infinity();

std::vector<float> Edited(GenerationRequest request, const std::vector<std::int32_t>& answer,
                          std::vector<float> logits) {
  const LogitEdit edit = TakeLogitEdits(request, {0});
  if (edit) edit(answer, logits);
  return logits;
}

TEST(LogitEdits, NothingIsAskedFor) {
  GenerationRequest request;
  EXPECT_EQ(TakeLogitEdits(request, {0}), nullptr);
  request.options.repetition_penalty = 2;
  EXPECT_EQ(TakeLogitEdits(request, {0}), nullptr) << "the sampler has it";
  EXPECT_EQ(request.options.repetition_penalty, 2);
}

TEST(LogitEdits, BiasesAreAddedAndForbid) {
  EXPECT_THAT(Edited({.logit_bias = {{1, 2.5F}, {2, kNever}}}, {}, {1, 1, 1}),
              ElementsAre(1, 3.5F, kNever));
}

TEST(LogitEdits, PenaltiesCountTheAnswerAlone) {
  EXPECT_THAT(Edited({.prompt = std::vector<std::int32_t>{0, 1}, .presence_penalty = 1.5},
                     {2, 2, 1}, {5, 5, 5}),
              ElementsAre(5, 3.5F, 3.5F));
  EXPECT_THAT(Edited({.prompt = std::vector<std::int32_t>{0, 1}, .frequency_penalty = 1.5},
                     {2, 2, 1}, {5, 5, 5}),
              ElementsAre(5, 3.5F, 2));
}

TEST(LogitEdits, RepetitionComesBeforePresence) {
  GenerationRequest request{.prompt = std::vector<std::int32_t>{0}, .presence_penalty = 1};
  request.options.repetition_penalty = 2;
  const LogitEdit edit = TakeLogitEdits(request, {0});
  EXPECT_EQ(request.options.repetition_penalty, 1) << "not a second time";
  std::vector<float> logits = {4, 4, -4};
  edit(std::vector<std::int32_t>{2}, logits);
  EXPECT_THAT(logits, ElementsAre(2, 4, -9));
}

TEST(LogitEdits, EndsAreHeldBack) {
  EXPECT_THAT(Edited({.min_tokens = 2}, {1}, {9, 1}), ElementsAre(kNever, 1));
  EXPECT_THAT(Edited({.min_tokens = 2}, {1, 1}, {9, 1}), ElementsAre(9, 1));
  EXPECT_THAT(Edited({.ignore_eos = true}, {1, 1}, {9, 1}), ElementsAre(kNever, 1));
}

}  // namespace
}  // namespace qlora
