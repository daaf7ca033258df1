// `--compute_dtype int8` as a user has it.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cli/tiny_model.h"
#include "machine/simd_target.h"

namespace qlora {
namespace {

using Words = std::vector<std::string>;

class Int8CommandTest : public TinyModelTest {
 protected:
  // What a verb writes with the kernels of this target, and with these for products in 8 bits; "":
  // its fastest.
  std::string Written(const std::string& kernels, const std::string& dtype, Words words) const {
    words.insert(words.end(), {"--compute_dtype", dtype, "--threads", "1"});
    words.insert(words.begin(), QloraBinary());
    words.insert(words.begin(),
                 fmt::format("QLORA_TARGET={}{}", NameOf(ActiveSimdTarget()), kernels));
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

TEST_F(Int8CommandTest, DoctorSaysThatKernelsAreForced) {
  const std::string best = NameOf(Int8DotsOf(BestSimdTarget()).back());
  const Words words = {"QLORA_TARGET=+float", QloraBinary(), "doctor"};
  const std::string found = RunProgram("env", scratch_, words).out;
  const std::string line = best == "float" ? "float: " : "float (forced; the best here is " + best;
  EXPECT_NE(found.find("int8          " + line), found.npos) << found;
}

TEST_F(Int8CommandTest, AllKernelsGenerateTheSameText) {
  const std::string text = Generated("");
  EXPECT_GT(text.size(), 10u);
  EXPECT_EQ(Generated("+float"), text);
}

TEST_F(Int8CommandTest, AllKernelsFindTheSameLoss) {
  const double loss = Loss("", "int8");
  EXPECT_EQ(Loss("+float", "int8"), loss);
  // int8 is bfloat16 with other products of 4-bit weights.
  EXPECT_NE(Loss("", "bfloat16"), loss);
}

}  // namespace
}  // namespace qlora
