// Rows of prompts that a step reads, by what steps took.
#include "serve/engine/prompt_pace.h"

#include <gtest/gtest.h>

namespace qlora {
namespace {

TEST(PromptPace, FitsRowsIntoAStep) {
  PromptPace pace(200);
  EXPECT_EQ(pace.rows(true), 32);
  EXPECT_EQ(pace.rows(false), 4 * 32) << "nobody waits for the next token";
  pace.Add(32, 0.01);
  EXPECT_EQ(pace.rows(true), 64) << "twice at most";
  pace.Add(64, 0.2);
  EXPECT_EQ(pace.rows(true), 64);
  pace.Add(64, 0.25);
  EXPECT_EQ(pace.rows(true), 51);
  pace.Add(51, 10);
  EXPECT_EQ(pace.rows(true), 32) << "which take hardly longer than fewer";
  pace.Add(31, 1e-3);
  EXPECT_EQ(pace.rows(true), 32) << "few rows say nothing of many";
}

}  // namespace
}  // namespace qlora
