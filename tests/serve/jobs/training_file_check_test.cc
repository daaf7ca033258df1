#include "serve/jobs/training_file_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/file.h"
#include "qlora/error.h"
#include "temporary_folder.h"

namespace qlora {
namespace {

using testing::HasSubstr;

const std::string kGood =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})";
const std::string kPair =
    R"({"input": {"messages": [{"role": "user", "content": "q"}], "tools": [], )"
    R"("parallel_tool_calls": true}, "preferred_output": [{"role": "assistant", "content": "a"}], )"
    R"("non_preferred_output": [{"role": "assistant", "content": "b"}]})";
const std::string kCall =
    R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "tool_calls": )"
    R"([{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}, )"
    R"({"role": "tool", "tool_call_id": "c", "content": "r"}], "tools": []})";
const std::string kParts =
    R"({"messages": [{"role": "developer", "content": "s"}, {"role": "user", "content": )"
    R"([{"type": "text", "text": "q"}]}, {"role": "assistant", "content": "a", "weight": 0}]})";

class TrainingFileCheckTest : public testing::Test {
 protected:
  // Returns the error, or "".
  std::string Check(const std::string& text,
                    TrainingMethod method = TrainingMethod::kSupervised) const {
    const auto path = folder_.path() / "data";
    WriteTextFile(path, text);
    try {
      CheckTrainingFile(path, "train.jsonl", method);
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

  TemporaryFolder folder_;
};

TEST_F(TrainingFileCheckTest, TakesWhatOpenAiTakes) {
  EXPECT_EQ(Check(kGood + "\n" + kCall + "\r\n\n" + kParts), "");
  EXPECT_EQ(Check(kPair + "\n" + kPair + "\n", TrainingMethod::kDpo), "");
}

TEST_F(TrainingFileCheckTest, LeavesOtherFormatsToTheTraining) {
  EXPECT_EQ(Check(R"({"prompt": "q", "completion": "a"})"), "");
}

TEST_F(TrainingFileCheckTest, NamesTheBadLine) {
  const std::vector<std::string> bad = {
      R"({"messages": [{"role": "user", )",
      R"({"prompt": "x"})",
      R"({"messages": []})",
      R"({"messages": [{"role": "king", "content": "x"}, {"role": "assistant", "content": "y"}]})",
      R"({"messages": [{"role": "user", "content": "x"}]})",
      R"({"messages": [{"role": "user", "content": 5}, {"role": "assistant", "content": "y"}]})",
      R"({"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": ""}]})",
      R"({"messages": [{"content": "x"}, {"role": "assistant", "content": "y"}]})",
      R"({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})",
      R"({"messages": ["x"]})",
      "[1, 2]",
      "{\"messages\": \"\xFF\"}",
      "text",
      kPair};
  for (const std::string& line : bad) {
    EXPECT_THAT(Check(kGood + "\n" + kGood + "\n" + line + "\n" + kGood + "\n"),
                HasSubstr("train.jsonl: line 3: "))
        << line;
  }
  EXPECT_THAT(Check(kPair + "\n" + kGood, TrainingMethod::kDpo), HasSubstr("line 2: "));
}

TEST_F(TrainingFileCheckTest, AnEmptyFileHasNoExamples) {
  EXPECT_THAT(Check(""), HasSubstr("the file is empty"));
  EXPECT_THAT(Check("\n \n"), HasSubstr("the file is empty"));
}

TEST_F(TrainingFileCheckTest, ALineIsBounded) {
  EXPECT_THAT(Check(kGood + "\n" + std::string(std::size_t{9} << 20, ' ') + kGood),
              HasSubstr("line 2: expected at most"));
  std::string values = R"({"messages": [0)";
  for (int i = 0; i < 200'000; ++i) values += ",0";
  EXPECT_THAT(Check(values + "]}"), HasSubstr("line 1: "));
}

}  // namespace
}  // namespace qlora
