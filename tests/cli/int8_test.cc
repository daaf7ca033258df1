// `--compute_dtype int8` as a user has it.
#include <gtest/gtest.h>

#include <cmath>

#include "cli/tiny_model.h"

namespace qlora {
namespace {

using Words = std::vector<std::string>;

class Int8CommandTest : public TinyModelTest {
 protected:
  // What a verb writes with these kernels; "": the fastest.
  std::string Written(const std::string& kernels, const std::string& dtype, Words words) const {
    words.insert(words.end(), {"--compute_dtype", dtype, "--threads", "1"});
    words.insert(words.begin(), QloraBinary());
    if (!kernels.empty()) words.insert(words.begin(), "QLORA_TARGET=" + kernels);
    const Outcome outcome = RunProgram("env", scratch_, words);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.out;
  }
  std::string Generated(const std::string& kernels) const {
    return Written(kernels, "int8",
                   {"generate", "model", "Once upon a time", "--max_new_tokens", "24"});
  }
  double Loss(const std::string& kernels, const std::string& dtype) const {
    const std::string json = Written(kernels, dtype, {"eval", "model", "data.jsonl", "--json"});
    return nlohmann::json::parse(json).at("loss").get<double>();
  }
};

TEST_F(Int8CommandTest, AllKernelsGenerateTheSameText) {
  const std::string text = Generated("");
  EXPECT_GT(text.size(), 10u);
  EXPECT_EQ(Generated("scalar"), text);
}

// Products have the same bits everywhere; what is computed between them in floats is near.
TEST_F(Int8CommandTest, AllKernelsFindTheSameLoss) {
  const double loss = Loss("", "int8");
  EXPECT_NEAR(Loss("scalar", "int8"), loss, 2e-4);
  // int8 is bfloat16 with other products of 4-bit weights.
  const double bfloat16 = Loss("", "bfloat16");
  EXPECT_GT(std::abs(bfloat16 - loss), 4e-4);
  EXPECT_NEAR(bfloat16, loss, 0.02);
}

}  // namespace
}  // namespace qlora
